"""Memory against time for each model: plain JAX, its policies, heuristics and optimal plans in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.compared import measure, point, strategies_of
from experiments.figures import label_points, tidy
from experiments.models.sizes import SMALL
from experiments.records import Point, Row
from experiments.sweeps import Experiment
from experiments.tables import Section
from remat_lab.plots import STYLES
from remat_lab.units import MEGABYTE, difference, megabytes, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MODELS: dict[str, dict[str, Any]] = SMALL | {"mlp": {"layers": 16}, "lstm": {"length": 64}}


def points(preset: str, target: str | None) -> list[Point]:
    """One point for each model; timed, unless it is compiled for a device that is not here."""
    if preset == "smoke":
        small = {"layers": 6, "batch": 128, "width": 32}
        wanted = ("nn_remat", "keep_all", "sqrt", "optimal")
        return [point("mlp", "mlp", target, budgets=("0.5",), strategies=wanted, rounds=0, time_limit=1.0, **small)]
    budgets = ("0.8", "0.6", "0.45", "0.35", "0.25")
    rounds = 0 if target is not None else 11
    return [
        point(name, name, target, budgets=budgets, strategies=None, rounds=rounds, time_limit=8.0, **options)
        for name, options in _MODELS.items()
    ]


def work(one: dict[str, Any]) -> float | None:
    """Step time in percent of plain JAX; without timings, FLOPs in percent of plain JAX."""
    ratio = one.get("step_time_ratio")
    if ratio is not None:
        return 100 * float(ratio)
    flops = one.get("compiled_extra_flops_ratio")
    return None if flops is None else 100 * (1 + float(flops))


def tables(rows: Sequence[Row]) -> list[Section]:
    """One table for each model."""
    sections: list[Section] = []
    for row in rows:
        lines = [
            [
                one["strategy"],
                megabytes(one["planned_peak_bytes"]),
                megabytes(one["compiled_temp_bytes"]),
                percent(one["compiled_extra_flops_ratio"]),
                percent(one["step_time_ratio"], sign=False, digits=0),
                difference(one["max_grad_difference"], one["bitwise_equal"]),
            ]
            for one in strategies_of(row)
        ]
        columns = ("strategy", "planned, MB", "compiled, MB", "extra FLOPs", "step time", "gradients")
        sections.append(Section(_title(row), columns, lines))
    return sections


def draw(rows: Sequence[Row]) -> Figure:
    """A panel for each model, every row with its name."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if strategies_of(row)]
    columns = min(3, len(shown)) or 1
    lines = -(-len(shown) // columns) or 1
    figure = Figure(figsize=(7.2 * columns, 5.6 * lines), layout="constrained")
    figure.suptitle("Memory against time, every strategy; nearer to the corner is better", fontsize=11)
    axes = [ax for line in figure.subplots(lines, columns, squeeze=False) for ax in line]
    for row, ax in zip(shown, axes, strict=False):
        _panel(ax, row)
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    if shown:
        found = {text: handle for ax in axes for handle, text in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.draw_without_rendering()  # settles the layout, which the labels depend on
    for row, ax in zip(shown, axes, strict=False):
        placed = [(one["compiled_temp_bytes"] / MEGABYTE, y, one["strategy"]) for one in strategies_of(row) if (y := work(one))]
        label_points(ax, [(x, y) for x, y, _ in placed], [name for _, _, name in placed])
    return figure


def _panel(ax: Axes, row: Row) -> None:
    for family, style in STYLES.items():
        mine = [(one["compiled_temp_bytes"] / MEGABYTE, work(one)) for one in strategies_of(row) if one["family"] == family]
        mine = [(x, y) for x, y in mine if y is not None]
        if mine:
            (drawn,) = ax.plot(*zip(*mine, strict=True), style.marker, color=style.face, label=style.label, zorder=3)
            drawn.set(markeredgecolor=style.edge, markersize=13 if style.marker == "*" else 7)
    timed = any(one.get("step_time_ratio") is not None for one in strategies_of(row))
    ax.axhline(100, color="#666666", linewidth=0.8, linestyle=":")
    ax.set_title(_title(row), fontsize=9.5, loc="left")
    ax.set_xlabel("compiled temporaries (MB)")
    ax.set_ylabel("step time (% of plain JAX)" if timed else "FLOPs (% of plain JAX): not timed")
    ax.margins(x=0.15, y=0.15)
    ax.set_xlim(left=0)
    tidy(ax)


def _title(row: Row) -> str:
    options = ", ".join(f"{key} {value}" for key, value in row["point"]["options"].items())
    return f"{row['point']['model']}{f' ({options})' if options else ''}"


EXPERIMENT = Experiment(name="frontier", title="Memory against time", points=points, measure=measure, tables=tables, draw=draw)
