"""What the pictures share: lines that differ without colour, and labels at their ends that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from remat_lab.labels import label_points as label_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHORT = 0.8  # of the largest x; a line that ends before is labelled where it ends


class Line(NamedTuple):
    """How a line looks: shade, dashes and marker each tell it apart."""

    color: str
    style: str
    marker: str


LINES = (
    Line("#000000", "-", "s"),
    Line("#6b6b6b", "--", "D"),
    Line("#a85510", "-.", "^"),
    Line("#0b3c5d", "-", "o"),
    Line("#2f75b5", "--", "v"),
    Line("#2e7d32", "-", "P"),
    Line("#558b2f", ":", "X"),
    Line("#6a1b9a", "-", "*"),
    Line("#c62828", "-.", "<"),
    Line("#ad4b4b", "--", ">"),
    Line("#455a64", ":", "h"),
    Line("#00695c", "-", "p"),
    Line("#7a4f01", "--", "d"),
)


def line_styles(names: Sequence[str]) -> dict[str, Line]:
    """A look for each name."""
    return dict(zip(names, cycle(LINES), strict=False))


def tidy(ax: Axes) -> None:
    """A grid behind, no frame above and to the right."""
    ax.grid(color="#e6e6e6", linewidth=0.6, which="major")
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def plain_numbers(ax: Axes) -> None:
    """Logarithmic axes with 0.1, 1, 10 and, where there are few of these, 2 and 5 between."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    for axis, limits in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        if axis.get_scale() == "log" and not isinstance(axis.get_major_locator(), FixedLocator):
            few = limits[1] < 100 * limits[0]
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Writes a name to the right of each line's end, moved up or down where two would touch.

    Args:
        ax: axes of a laid-out figure, with room at the right.
        ends: x, y, text and colour of each.
    """
    figure = ax.get_figure(root=True)
    if figure is None or not ends:
        return
    ax.autoscale(False)
    last = _SHORT * max(x for x, _, _, _ in ends)
    groups: dict[float, list[tuple[float, float, str, str]]] = {}
    for end in ends:
        groups.setdefault(math.inf if end[0] >= last else end[0], []).append(end)
    for group in groups.values():
        _label_group(ax, group, figure.dpi / 72)


def _label_group(ax: Axes, ends: Sequence[tuple[float, float, str, str]], scale: float) -> None:
    """Labels the ends of lines that end at about the same x, in a column; `scale` is pixels for each point."""
    from matplotlib.patheffects import withStroke

    height, pad = 10.5 * scale, 6 * scale
    pixels = [ax.transData.transform((x, y)) for x, y, _, _ in ends]
    right = max(float(p[0]) for p in pixels) + pad
    order = sorted(range(len(ends)), key=lambda k: float(pixels[k][1]))
    places = _spread([float(pixels[k][1]) for k in order], height)
    inverse = ax.transData.inverted()
    for k, y in zip(order, places, strict=True):
        x0, y0 = ends[k][:2]
        x1, y1 = inverse.transform((right + 8 * scale, y))
        ax.annotate(
            ends[k][2],
            xy=(x0, y0),
            xytext=(x1, y1),
            fontsize=8.5,
            va="center",
            ha="left",
            color=ends[k][3],
            annotation_clip=False,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],  # keeps letters clear of lines
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3},
        )


def _spread(wanted: Sequence[float], height: float) -> list[float]:
    """Places at least `height` apart, in the given rising order, each near where it is wanted."""
    groups: list[list[float]] = []  # [sum of wanted centres, number]
    for y in wanted:
        groups.append([y, 1])
        while len(groups) > 1 and _top(groups[-2], height) > _bottom(groups[-1], height):
            total, count = groups.pop()
            groups[-1] = [groups[-1][0] + total, groups[-1][1] + count]
    places: list[float] = []
    for total, count in groups:
        start = total / count - height * (count - 1) / 2
        places += [start + height * k for k in range(int(count))]
    return places


def _top(group: Sequence[float], height: float) -> float:
    return group[0] / group[1] + height * group[1] / 2


def _bottom(group: Sequence[float], height: float) -> float:
    return group[0] / group[1] - height * group[1] / 2
