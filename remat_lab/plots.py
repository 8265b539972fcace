"""The picture of a comparison, drawn from its JSON alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remat_lab.errors import InvalidArgument
from remat_lab.labels import label_points
from remat_lab.units import MEGABYTE, duration, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

Json = Mapping[str, Any]
FORMATS = (".png", ".svg", ".pdf")


class Style(NamedTuple):
    """How the rows of a family look: shape tells them apart in print, colour on the screen."""

    label: str
    marker: str
    face: str
    edge: str


STYLES = {
    "plain": Style("plain JAX", "*", "#000000", "#000000"),
    "policy": Style("jax.checkpoint per block", "s", "#ffffff", "#a8500c"),
    "heuristic": Style("planned, heuristic", "^", "#9ecae1", "#1f5f8b"),
    "optimal": Style("planned, optimal under a budget", "o", "#0b3c5d", "#0b3c5d"),
}
_MUTED = "#666666"


def picture(data: Json, path: str | Path) -> None:
    """Draws compiled temp against step time for every row, and the live bytes of each plan over its steps.

    Args:
        data: what `Comparison.to_json` makes.
        path: where to write; the suffix chooses the format.

    Raises:
        InvalidArgument: if the suffix is none of `FORMATS`.
        OSError: if the file cannot be written.
    """
    check_format(Path(path))
    save_figure(draw(data), path)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure; the same figure gives the same file."""
    from matplotlib import rc_context

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if target.suffix.lower() == ".svg" else None
    with rc_context({"svg.hashsalt": "remat-lab"}):
        figure.savefig(target, dpi=160, metadata=metadata)


def check_format(path: Path) -> None:
    """Whether a picture can be written under this name.

    Raises:
        InvalidArgument: if the suffix is none of `FORMATS`.
    """
    if path.suffix.lower() not in FORMATS:
        raise InvalidArgument(f"cannot write a picture named {path.name!r}: its suffix must be one of {', '.join(FORMATS)}")


def draw(data: Json) -> Figure:
    """The picture as a matplotlib figure that belongs to no window and no global state."""
    from matplotlib.figure import Figure

    plans = [row for row in data["rows"] if row.get("timeline")]
    columns = 2 if len(plans) > 3 else 1
    lines = max(1, -(-len(plans) // columns))
    panels = (0.0, 4.2, 6.6)[columns if plans else 0]  # inches
    figure = Figure(figsize=(7.2 + panels, 6.6), layout="constrained")
    left: FigureBase = figure
    right: FigureBase | None = None
    if plans:
        left, right = figure.subfigures(1, 2, width_ratios=[7.2, panels], wspace=0.02, squeeze=False)[0]
    ax = left.subplots()
    left.suptitle(data["title"], fontsize=10)
    _draw_rows(data["rows"], ax)
    if right is not None:
        grid = right.subplots(lines, columns, squeeze=False, sharey=True)
        _draw_timelines(plans, [ax for row in grid for ax in row], columns)
        right.supxlabel("step", fontsize=9)
        separator = "\n" if columns == 1 else " "
        right.suptitle(f"Live bytes of each plan{separator}(dashed: budget, dotted: backward pass begins)", fontsize=10)
    figure.draw_without_rendering()  # settles the layout, which the labels depend on
    _label_rows(data["rows"], ax)
    return figure


def _measured(rows: Sequence[Json]) -> list[Json]:
    return [row for row in rows if row.get("compiled_temp_bytes") is not None]


def _height(row: Json) -> float:
    """Step time in percent of plain JAX; without timings, FLOPs in percent of plain JAX."""
    ratio = row.get("step_time_ratio")
    return 100 * (ratio if ratio is not None else 1 + (row.get("compiled_extra_flops_ratio") or 0.0))


def _draw_rows(rows: Sequence[Json], ax: Axes) -> None:
    shown = _measured(rows)
    timed = any(row.get("step_time_ratio") is not None for row in shown)
    for family, style in STYLES.items():
        mine = [row for row in shown if row["family"] == family]
        if not mine:
            continue
        ax.plot(
            [row["compiled_temp_bytes"] / MEGABYTE for row in mine],
            [_height(row) for row in mine],
            style.marker,
            color=style.face,
            markeredgecolor=style.edge,
            markersize=13 if style.marker == "*" else 8,
            label=style.label,
            zorder=3,
        )
    base = next((row.get("step_seconds") for row in shown if row["family"] == "plain"), None)
    of_plain = f"% of plain JAX's {duration(base)}" if base else "% of plain JAX"
    ax.set_xlabel("compiled temp (MB), under each row's own compiler options")
    ax.set_ylabel(f"step time ({of_plain})" if timed else f"FLOPs ({of_plain}): not timed")
    ax.set_xlim(left=0)
    ax.margins(x=0.12, y=0.12)
    ax.axhline(100, color=_MUTED, linewidth=0.8, linestyle=":", zorder=1)
    ax.grid(color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=9)


def _label_rows(rows: Sequence[Json], ax: Axes) -> None:
    """Writes each row's name beside its marker."""
    shown = _measured(rows)
    points = [(row["compiled_temp_bytes"] / MEGABYTE, _height(row)) for row in shown]
    label_points(ax, points, [row["strategy"] for row in shown])


def _draw_timelines(plans: Sequence[Json], axes: Sequence[Axes], columns: int) -> None:
    top = max(max(row["timeline"]["live_bytes"], default=0) for row in plans) / MEGABYTE
    steps = max(len(row["timeline"]["live_bytes"]) for row in plans)
    for position, (row, ax) in enumerate(zip(plans, axes, strict=False)):
        _draw_timeline(row, ax)
        ax.set_xlim(0, max(1, steps - 1))
        ax.set_ylim(0, 1.18 * top or 1)
        if position % columns == 0:
            ax.set_ylabel("live (MB)", fontsize=8)
    for ax in axes[len(plans) :]:
        ax.set_axis_off()


def _draw_timeline(row: Json, ax: Axes) -> None:
    timeline, style = row["timeline"], STYLES[row["family"]]
    live = [value / MEGABYTE for value in timeline["live_bytes"]]
    steps = range(len(live))
    ax.fill_between(steps, live, step="mid", color=style.edge, alpha=0.25, linewidth=0)
    ax.plot(steps, live, color=style.edge, linewidth=0.9, drawstyle="steps-mid")
    ax.axvline(timeline["starts_backward"], color="black", linewidth=0.9, linestyle=":")
    if timeline.get("budget_bytes") is not None:
        ax.axhline(timeline["budget_bytes"] / MEGABYTE, color="black", linewidth=0.8, linestyle="--")
    peak = max(live, default=0.0)
    extra = percent(row.get("planned_extra_flops_ratio"))
    ax.set_title(f"{row['strategy']}: peak {peak:.1f} MB, FLOPs {extra}", fontsize=8.5, loc="left", pad=3)
    ax.tick_params(labelsize=7.5)
    ax.spines[["top", "right"]].set_visible(False)
