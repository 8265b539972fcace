"""The picture of memory against size: what is planned for feature maps, and the whole step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.figures import Line, label_ends, line_styles, plain_numbers, tidy
from experiments.growth_tables import ORDER, curve, model_of, models, strategies
from experiments.records import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ALWAYS = (*ORDER, "optimal@0.5", "optimal@0.2", "optimal@0.1")  # look the same in every picture
_NAMES = {"lstm": "scan", "lstm unrolled": "written out"}


def draw(rows: Sequence[Row], unit: str, title: str) -> Figure:
    """For each model a panel of planned temporaries and one of the whole step, both axes logarithmic."""
    from matplotlib.figure import Figure

    found, names = models(rows), strategies(rows)
    looks = line_styles([*_ALWAYS, *(name for name in names if name not in _ALWAYS)])
    styles = {name: looks[name] for name in names}
    figure = Figure(figsize=(13.5, 5.4 * len(found)), layout="constrained")
    figure.suptitle(title, fontsize=11)
    grid = figure.subplots(len(found), 2, squeeze=False)
    drawn: list[tuple[Axes, list[tuple[float, float, str, str]]]] = []
    for model, (left, right) in zip(found, grid, strict=True):
        name = f"{_name(model)}: " if len(found) > 1 else ""
        drawn.append((left, _panel(left, rows, model, styles, "planned_bytes", "temp_bytes")))
        left.set_title(f"{name}temporaries of forward and backward pass", fontsize=9.5, loc="left")
        drawn.append((right, _panel(right, rows, model, styles, "planned_total_bytes", "total_bytes")))
        right.set_title(f"{name}whole step: arguments, results and temporaries", fontsize=9.5, loc="left")
        for ax in (left, right):
            _axes(ax, rows, model, unit)
            plain_numbers(ax)
    _legend(figure)
    figure.draw_without_rendering()  # settles the layout, which the labels depend on
    for ax, ends in drawn:
        label_ends(ax, ends)
    return figure


def _name(model: str) -> str:
    name, separator, target = model.partition(", ")
    return f"{_NAMES.get(name, name)}{separator}{target}"


def _panel(
    ax: Axes, rows: Sequence[Row], model: str, styles: dict[str, Line], planned: str, compiled: str
) -> list[tuple[float, float, str, str]]:
    """Lines of what is planned, rings of what is compiled; returns where each line ends."""
    ends: list[tuple[float, float, str, str]] = []
    scale, name = _unit(rows, model)
    ax.set_ylabel(name)
    for strategy, line in styles.items():
        points = [(x, y / scale) for x, y in curve(rows, model, strategy, planned)]
        rings = [(x, y / scale) for x, y in curve(rows, model, strategy, compiled)]
        if points:
            ax.plot(*zip(*points, strict=True), color=line.color, linestyle=line.style, marker=line.marker, markersize=4.5)
        if rings:
            joined = "" if points else line.style
            (drawn,) = ax.plot(*zip(*rings, strict=True), color=line.color, marker=line.marker, linestyle=joined)
            drawn.set(markerfacecolor="none", markersize=8.5, markeredgewidth=1.3)
        if points or rings:
            x, y = max([*points, *rings])
            ends.append((x, y, strategy, line.color))
    return ends


def _unit(rows: Sequence[Row], model: str) -> tuple[float, str]:
    """Gigabytes, or megabytes for what is small."""
    sizes = [row["result"].get("planned_bytes", 0) for row in rows if model_of(row) == model]
    return (1e9, "GB") if max(sizes, default=0) >= 1e9 else (1e6, "MB")


def _axes(ax: Axes, rows: Sequence[Row], model: str, unit: str) -> None:
    from matplotlib.ticker import NullLocator

    sizes = sorted({row["point"]["size"] for row in rows if model_of(row) == model})
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlim(sizes[0] * 0.9, sizes[-1] * (sizes[-1] / sizes[0]) ** 0.42 * 1.15)  # room for the names
    ax.set_xlabel(unit)
    tidy(ax)


def _legend(figure: Figure) -> None:
    from matplotlib.lines import Line2D

    filled = Line2D([], [], color="#555555", marker="o", markersize=4.5, label="planned")
    hollow = Line2D([], [], color="#555555", marker="o", linestyle="", markerfacecolor="none", markersize=8.5, label="compiled")
    figure.legend(handles=[filled, hollow], loc="outside lower center", ncols=2, frameon=False, fontsize=9)
