"""The picture of a frontier, drawn from its JSON alone: compiled memory against work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from remat_lab.labels import label_points
from remat_lab.plots import STYLES, check_format, save_figure
from remat_lab.units import MEGABYTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]
_STEEP = 100  # percent: where the smallest plans cost more, the others would lie on a line
_NAMES = {"dots_saveable": "dots", "dots_with_no_batch_dims_saveable": "dots, no batch dims", "nn_remat": "nn.remat"}


class Panel(NamedTuple):
    """One vertical axis: its title and how a row fills it, in percent."""

    title: str
    value: Callable[[Json], float | None]


def picture(data: Json, path: str | Path) -> None:
    """Draws what `Frontier.to_json` made.

    Raises:
        InvalidArgument: if the suffix is no format of pictures.
        OSError: if the file cannot be written.
    """
    check_format(Path(path))
    save_figure(draw(data), path)


def draw(data: Json) -> Figure:
    """The picture as a matplotlib figure that belongs to no window and no global state."""
    from matplotlib.figure import Figure

    panels = [panel for panel in _PANELS if any(panel.value(row) is not None for row in _measured(data["rows"]))]
    figure = Figure(figsize=(1.2 + 5.6 * len(panels), 5.0), layout="constrained")
    figure.suptitle(data["title"], fontsize=10)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for panel, ax in zip(panels, axes, strict=True):
        _draw(data["rows"], panel, ax)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    figure.draw_without_rendering()  # settles the layout, which the labels depend on
    for panel, ax in zip(panels, axes, strict=True):
        points = [point for row in _baselines(data["rows"]) for point in _points(row, panel)]
        line = _along(_least(_plans(data["rows"], panel)))
        label_points(ax, [(x, y) for x, y, _ in points], [text for _, _, text in points], clear=line)
    return figure


def _ratio(key: str) -> Callable[[Json], float | None]:
    return lambda row: None if row.get(key) is None else 100 * row[key]


def _time(row: Json) -> float | None:
    ratio = row.get("step_time_ratio")
    return None if ratio is None else 100 * (ratio - 1)


def _cost(row: Json) -> float | None:
    return 0.0 if row["family"] == "plain" else _ratio("planned_extra_cost_ratio")(row)


_PANELS = (
    Panel("extra cost by the planner's model (%)", _cost),
    Panel("extra FLOPs as compiled, over plain JAX (%)", _ratio("compiled_extra_flops_ratio")),
    Panel("extra step time over plain JAX (%)", _time),
)


def _measured(rows: Sequence[Json]) -> list[Json]:
    return [row for row in rows if row.get("compiled_temp_bytes") is not None]


def _baselines(rows: Sequence[Json]) -> list[Json]:
    return [row for row in _measured(rows) if row["family"] in ("plain", "policy")]


def _points(row: Json, panel: Panel) -> list[tuple[float, float, str]]:
    """A baseline under each scheduler: megabytes, percent, and its name."""
    y = panel.value(row)
    if y is None:
        return []
    temps = {name: temp for name, temp in row["compiled_temp_by_scheduler"].items() if temp is not None}
    name = _NAMES.get(row["strategy"], row["strategy"])
    single = len(set(temps.values())) < 2
    points = {temp: f"{name}" if single else f"{name}, {scheduler}" for scheduler, temp in temps.items()}
    return [(temp / MEGABYTE, y, text) for temp, text in points.items()]


def _plans(rows: Sequence[Json], panel: Panel) -> list[tuple[float, float]]:
    """Megabytes and percent of every plan, by memory."""
    plans = [row for row in _measured(rows) if row["family"] == "optimal" and panel.value(row) is not None]
    return sorted((row["compiled_temp_bytes"] / MEGABYTE, panel.value(row) or 0.0) for row in plans)


def _least(known: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other is at least as good as in the same memory."""
    return [point for i, point in enumerate(known) if all(point[1] < other[1] for other in known[:i])]


def _along(line: Sequence[tuple[float, float]], pieces: int = 24) -> list[tuple[float, float]]:
    """Points on a line through points."""
    ends = list(pairwise(line)) or [(point, point) for point in line]
    parts = [k / pieces for k in range(pieces + 1)]
    return [(a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])) for a, b in ends for t in parts]


def _draw(rows: Sequence[Json], panel: Panel, ax: Axes) -> None:
    style = STYLES["optimal"]
    known = _plans(rows, panel)
    least = _least(known)
    ax.plot([p[0] for p in known], [p[1] for p in known], "o", color=style.edge, markersize=4, alpha=0.4, zorder=2)
    x, y = [p[0] for p in least], [p[1] for p in least]
    ax.plot(x, y, "-o", color=style.edge, markersize=5, linewidth=1.4, label="plans", zorder=3)
    for family in ("plain", "policy"):
        style = STYLES[family]
        points = [p for row in _baselines(rows) if row["family"] == family for p in _points(row, panel)]
        if points:
            ax.plot(
                [p[0] for p in points],
                [p[1] for p in points],
                style.marker,
                color=style.face,
                markeredgecolor=style.edge,
                markersize=13 if style.marker == "*" else 8,
                label=style.label,
                zorder=4,
            )
    ax.set_xlabel("compiled temp (MB)")
    ax.set_ylabel(panel.title)
    ax.set_xlim(left=0)
    ax.margins(x=0.14, y=0.14)
    ax.axhline(0, color="#666666", linewidth=0.8, linestyle=":", zorder=1)
    if max(y, default=0.0) > _STEEP:
        ax.set_yscale("symlog", linthresh=10, linscale=2)
        ax.set_ylim(-5, 2 * max(y))
        ax.yaxis.set_major_formatter("{x:g}")
    ax.grid(color="#e6e6e6", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
