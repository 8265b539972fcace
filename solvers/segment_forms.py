"""Where to cut a forward pass: the candidates from which a search for segments starts, by name of a strategy.

Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016): segments of even weight (section 4) and trees of segments
(section 4.3), with cuts at articulation points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from solvers.segments import Forward, Segment, even_cuts, nested

_SHARES = (0.35, 0.2, 0.5, 0.1, 0.7, 1.0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan of segments.

    Attributes:
        cuts: of one level of segments; unused if there is a tree.
        keep: nodes that are kept although their segment is replayed.
        tree: segments on several levels.
    """

    cuts: tuple[int, ...]
    keep: frozenset[int]
    tree: Segment | None = None


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where a forward pass may be cut.

    Attributes:
        base: the forward pass.
        points: narrow places.
        everywhere: all places after a step that may be replayed.
        weights: bytes that replaying adds, summed up to each cut.
    """

    base: Forward
    points: tuple[int, ...]
    everywhere: tuple[int, ...]
    weights: list[int]

    @classmethod
    def of(cls, base: Forward, settled: Sequence[int] | None = None) -> Cuts:
        """Those of a forward pass; with `settled`, the places to which they move."""

        def moved(cuts: tuple[int, ...]) -> tuple[int, ...]:
            return cuts if settled is None else tuple(sorted({settled[c] for c in cuts} - {0, len(base)}))

        return cls(base, moved(base.articulation_points), moved(base.all_cuts), [0, *accumulate(base.held)])

    def even(self, pieces: int) -> Candidate:
        """Segments of even weight, nothing more kept."""
        return Candidate(tuple(even_cuts(self.points, self.weights, pieces, 0, len(self.base))), frozenset())

    def tree(self, cuts: Sequence[int], ways: int, depth: int) -> Candidate:
        """Segments of even weight on several levels, each in so many parts."""

        def split(start: int, stop: int, level: int) -> list[int]:
            return [] if level == depth else even_cuts(cuts, self.weights, ways, start, stop)

        return Candidate((), frozenset(), nested(self.base, split))


Form = Callable[[Cuts], Iterator[Candidate]]


def even_segments(cuts: Cuts) -> Iterator[Candidate]:
    """One level of even segments at articulation points, for several numbers of segments; the likeliest to be good first."""
    counts = [round(len(cuts.points) * share) + 1 for share in _SHARES]
    for pieces in dict.fromkeys([*counts, 2, 3, 1]):
        yield cuts.even(pieces)


def trees(cuts: Cuts) -> Iterator[Candidate]:
    """Segments on two to five levels, each in two to four parts."""
    for ways in (2, 3, 4):
        for depth in (2, 3, 5):
            for places in (cuts.points, cuts.everywhere):
                yield cuts.tree(places, ways, depth)


def square_root(cuts: Cuts) -> Iterator[Candidate]:
    """As many segments as the root of the number of articulation points."""
    yield cuts.even(math.isqrt(len(cuts.points) + 1))


def recursive(cuts: Cuts) -> Iterator[Candidate]:
    """Halves of halves, on one level up to as many as there are."""
    for depth in range(1, len(cuts.base).bit_length() + 1):
        yield cuts.tree(cuts.points, 2, depth)
