"""Placing text beside points so that no two labels overlap."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEADER = "#666666"


class Box(NamedTuple):
    """An axis-aligned rectangle."""

    left: float
    bottom: float
    width: float
    height: float

    @property
    def center(self) -> tuple[float, float]:
        """The middle."""
        return self.left + self.width / 2, self.bottom + self.height / 2

    def overlap(self, other: Box) -> float:
        """Shared area."""
        wide = min(self.left + self.width, other.left + other.width) - max(self.left, other.left)
        high = min(self.bottom + self.height, other.bottom + other.height) - max(self.bottom, other.bottom)
        return max(0.0, wide) * max(0.0, high)

    def contains(self, other: Box) -> bool:
        """Whether the other lies inside."""
        return (
            self.left <= other.left
            and self.bottom <= other.bottom
            and other.left + other.width <= self.left + self.width
            and other.bottom + other.height <= self.bottom + self.height
        )


def place_labels(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    *,
    marker: float,
    gap: float = 2.0,
    clear: Sequence[tuple[float, float]] = (),
) -> list[Box]:
    """Finds a rectangle for each label near its point, clear of all markers and all other labels.

    Greedy: the most crowded points choose first, each taking the nearest free place, first on rings around the point and then
    on a grid over all of `bounds`. Only if even the grid has no free place does a label overlap, as little as possible.

    Args:
        points: centres of the markers, in any one unit.
        sizes: widths and heights of the labels.
        bounds: where labels may lie.
        marker: radius of a marker.
        gap: least distance between things.
        clear: further points, without labels, that none should lie on.

    Returns:
        One rectangle per label, in the order given.
    """
    markers = [Box(x - marker, y - marker, 2 * marker, 2 * marker) for x, y in (*points, *clear)]
    reach = max((max(size) for size in sizes), default=0.0)
    crowd = [sum(math.dist(p, q) < reach for q in points) for p in points]
    placed: dict[int, Box] = {}
    for i in sorted(range(len(points)), key=lambda i: (-crowd[i], i)):
        best: tuple[float, Box] | None = None
        for place in _places(points[i], sizes[i], bounds, marker + gap):
            spaced = Box(place.left - gap, place.bottom - gap, place.width + 2 * gap, place.height + 2 * gap)
            taken = sum(map(spaced.overlap, placed.values())) + sum(map(spaced.overlap, markers))
            if best is None or taken < best[0]:
                best = (taken, place)
            if taken == 0:
                break
        if best is not None:
            placed[i] = best[1]
    return [placed[i] for i in range(len(points))]


def _places(point: tuple[float, float], size: tuple[float, float], bounds: Box, away: float) -> Iterator[Box]:
    """Places inside the bounds, good ones first: right, left, above, below, diagonal, farther out, anywhere."""
    (x, y), (width, height) = point, size
    found = False
    for ring in range(8):
        distance = away + ring * height * 0.75
        for angle in (0, 180, 90, 270, 30, -30, 150, 210, 60, -60, 120, 240):
            c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            center = x + c * (distance + width / 2), y + s * (distance + height / 2)
            place = Box(center[0] - width / 2, center[1] - height / 2, width, height)
            if bounds.contains(place):
                found = True
                yield place
    columns = max(1, int((bounds.width - width) // (height / 2)) + 1)
    rows = max(1, int((bounds.height - height) // (height / 2)) + 1)
    grid = [
        Box(bounds.left + i * height / 2, bounds.bottom + j * height / 2, width, height)
        for i in range(columns)
        for j in range(rows)
    ]
    inside = [place for place in grid if bounds.contains(place)]
    if not found and not inside:
        inside = grid[:1]  # larger than the bounds: better cut off than lost
    yield from sorted(inside, key=lambda place: math.dist(place.center, point))


def label_points(
    ax: Axes, data: Sequence[tuple[float, float]], texts: Sequence[str], clear: Sequence[tuple[float, float]] = ()
) -> None:
    """Writes a text beside each point of a laid-out figure; a line leads from one that had to go farther away.

    Args:
        ax: axes whose layout and limits are settled.
        data: the points, in the units of the axes.
        texts: one for each.
        clear: what the texts should leave clear: further points, such as some of a line.
    """
    from matplotlib.patheffects import withStroke

    figure = ax.get_figure(root=True)
    if figure is None or not data:
        return
    ax.autoscale(False)
    scale = figure.dpi / 72  # pixels per point
    points, others = (
        [(float(x), float(y)) for x, y in (ax.transData.transform(point) for point in given)] for given in (data, clear)
    )
    halo = [withStroke(linewidth=2.5, foreground="white")]  # keeps letters clear of grid lines
    shown = [ax.text(0, 0, text, fontsize=8.5, transform=None, zorder=5, path_effects=halo) for text in texts]
    extents = [text.get_window_extent() for text in shown]
    frame = ax.get_window_extent()
    bounds = Box(frame.x0, frame.y0, frame.width, frame.height)
    marker = 5.5 * scale
    boxes = place_labels(points, [(e.width, e.height) for e in extents], bounds, marker=marker, gap=2 * scale, clear=others)
    for text, box, point in zip(shown, boxes, points, strict=True):
        inverse = ax.transData.inverted()
        text.set_transform(ax.transData)
        text.set_position(tuple(inverse.transform((box.left, box.bottom))))
        text.set_verticalalignment("bottom")
        nearest = (
            min(max(point[0], box.left), box.left + box.width),
            min(max(point[1], box.bottom), box.bottom + box.height),
        )
        away = math.dist(nearest, point)
        if away > 2.5 * marker:
            (x0, y0), (x1, y1) = inverse.transform((point, nearest))
            ax.plot([x0, x1], [y0, y1], color=_LEADER, linewidth=0.7, zorder=2)
