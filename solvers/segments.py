"""Where the forward pass of a training graph is narrow, and trees of segments cut there.

A cut is a position in the forward order, with steps before it and steps after it. The values computed before and read by the
forward steps after it *cross* the cut: they are what must be kept to replay the steps after it. Places where few bytes
cross are the articulation points of Chen et al. (2016); here they are found by bytes, so that small values (masks, statistics)
crossing everywhere do not hide them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from solvers.errors import UnsupportedGraph
from solvers.graph import Graph

# Together, the values too small to decide about take at most this fraction of all bytes and of the largest value's, and each at
# most this fraction of the largest value's. Without the second they would grow with depth, and every plan's memory with them.
_NEGLIGIBLE_TOTAL = 1 / 100
_NEGLIGIBLE_TOTAL_OF_LARGEST = 1 / 2
_NEGLIGIBLE_EACH = 1 / 16


@dataclass(frozen=True)
class Forward:
    """The forward pass of a training graph: its steps, and which of them may have to be replayed.

    Attributes:
        graph: the graph.
        steps: steps up to the turn, in the given order, backward ones among them included.
        late: all further steps: the backward pass, and what else is computed after the turn.
        kept: steps whose values are never dropped, because they may not run again, are too small to matter, or on request.
        owners: for a late step and a step that it reads, the position after which the cut must be for the segment that reads
            it to be the one before: a segment that is differentiated as a whole holds what its own derivative reads. Other
            reads are where the value is made.
    """

    graph: Graph
    steps: tuple[int, ...]
    late: tuple[int, ...]
    kept: frozenset[int]
    owners: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int], compare=False, repr=False)

    @classmethod
    def of(cls, graph: Graph, *, keep: Sequence[int] | frozenset[int] = ()) -> Forward:
        """Finds the turn: the place in the order with most forward steps before it and backward steps after it.

        Args:
            graph: the graph.
            keep: further steps to keep.

        Raises:
            UnsupportedGraph: if no step is marked as backward, or none before the turn may be recomputed.
        """
        steps = graph.steps
        score = [0, *accumulate(-1 if graph.nodes[v].backward else 1 for v in steps)]
        turn = max(range(len(score)), key=score.__getitem__)
        if turn == len(steps) or turn == 0:
            raise UnsupportedGraph(
                "segments need a forward pass followed by a backward pass, and this graph has no such turn: "
                "mark its backward nodes, or use a solver for any graph"
            )
        kept = {v for v in steps[:turn] if not graph.may_recompute(v)} | _negligible(graph, steps[:turn]) | set(keep)
        return cls(graph, steps[:turn], steps[turn:], frozenset(kept))

    def __len__(self) -> int:
        return len(self.steps)

    @cached_property
    def position(self) -> dict[int, int]:
        """Where each step stands in `steps`."""
        return {v: q for q, v in enumerate(self.steps)}

    @cached_property
    def replayed(self) -> tuple[bool, ...]:
        """For each position, whether its values may be dropped and are read late, or by a step for which that holds."""
        found = [False] * len(self.steps)
        for q in range(len(self.steps) - 1, -1, -1):
            v = self.steps[q]
            if v in self.kept:
                continue
            for w in self.graph.written(v):
                for reader in self.graph.readers[w]:
                    r = self.position.get(reader)
                    if r is None or found[r]:
                        found[q] = True
        return tuple(found)

    @cached_property
    def last_reader(self) -> tuple[int, ...]:
        """For each position, that of the last replayed step, or owner of a late step, that reads it; its own if none does."""
        last = list(range(len(self.steps)))
        for q, v in enumerate(self.steps):
            for w in self.graph.written(v):
                for reader in self.graph.readers[w]:
                    r = self.position.get(reader)
                    if r is None:
                        last[q] = max(last[q], self.owners.get((reader, v), q))
                    elif self.replayed[r]:
                        last[q] = max(last[q], r)
        return tuple(last)

    @cached_property
    def held(self) -> tuple[int, ...]:
        """For each position, the budgeted bytes that replaying it adds until its late reads."""
        position, graph = self.position, self.graph

        def read_late(w: int) -> bool:
            return any(reader not in position for reader in graph.readers[w])

        return tuple(
            sum(graph.nodes[w].charge for w in graph.written(v) if read_late(w)) if replayed else 0
            for v, replayed in zip(self.steps, self.replayed, strict=True)
        )

    @cached_property
    def crossing(self) -> tuple[int, ...]:
        """For each cut 0..len, the budgeted bytes that cross it. Values that are kept anyway are not counted."""
        change = [0] * (len(self.steps) + 1)
        for q, v in enumerate(self.steps):
            if self.replayed[q] and self.last_reader[q] > q:
                charge = sum(self.graph.nodes[w].charge for w in self.graph.written(v) if self.graph.readers[w])
                change[q + 1] += charge
                change[self.last_reader[q] + 1] -= charge
        return tuple(accumulate(change))

    @cached_property
    def all_cuts(self) -> tuple[int, ...]:
        """Every cut right after a replayed step."""
        return tuple(q + 1 for q in range(len(self.steps) - 1) if self.replayed[q])

    @cached_property
    def articulation_points(self) -> tuple[int, ...]:
        """Cuts crossed by one value, and those where the crossing bytes are a local minimum.

        All cuts of a valley of equal bytes count. If that makes fewer than two, these are all cuts.
        """
        crossers = self._crossers()
        found: list[int] = []
        cuts = self.all_cuts
        low = [self.crossing[c] for c in cuts]
        left_higher = [True] * len(cuts)
        right_higher = [True] * len(cuts)
        for i in range(1, len(cuts)):
            left_higher[i] = low[i] < low[i - 1] or (low[i] == low[i - 1] and left_higher[i - 1])
        for i in range(len(cuts) - 2, -1, -1):
            right_higher[i] = low[i] < low[i + 1] or (low[i] == low[i + 1] and right_higher[i + 1])
        for i, c in enumerate(cuts):
            if (left_higher[i] and right_higher[i]) or crossers[c] == 1:
                found.append(c)
        return tuple(found) if len(found) > 1 else cuts

    def _crossers(self) -> list[int]:
        change = [0] * (len(self.steps) + 1)
        for q, last in enumerate(self.last_reader):
            if self.replayed[q] and last > q:
                change[q + 1] += 1
                change[last + 1] -= 1
        return list(accumulate(change))


@dataclass(eq=False, slots=True)
class Segment:
    """Positions start..stop-1 of the forward order. Children, if any, partition them.

    Attributes:
        start: first position.
        stop: one past the last position.
        children: segments in order; empty for a leaf, whose values are all kept once it has been replayed.
    """

    start: int
    stop: int
    children: list[Segment] = field(default_factory=list, repr=False)


def flat(forward: Forward, cuts: Sequence[int]) -> Segment:
    """One level of segments, between the given cuts."""
    edges = [0, *sorted({c for c in cuts if 0 < c < len(forward)}), len(forward)]
    if len(edges) == 2:
        return Segment(0, len(forward))
    return Segment(0, len(forward), [Segment(a, b) for a, b in pairwise(edges)])


def nested(forward: Forward, split: Callable[[int, int, int], Sequence[int]]) -> Segment:
    """A tree of segments.

    Args:
        forward: the forward pass.
        split: given start, stop and depth of a segment, the cuts inside it; none makes it a leaf.
    """
    root = Segment(0, len(forward))
    todo = [(root, 0)]
    while todo:
        segment, depth = todo.pop()
        edges = [segment.start, *split(segment.start, segment.stop, depth), segment.stop]
        if len(edges) > 2:
            segment.children = [Segment(a, b) for a, b in pairwise(edges)]
            todo.extend((child, depth + 1) for child in segment.children)
    return root


def even_cuts(cuts: Sequence[int], weights: Sequence[int], pieces: int, start: int, stop: int) -> list[int]:
    """At most `pieces - 1` of the cuts, strictly between start and stop, so that the pieces weigh about the same.

    Args:
        cuts: allowed cuts, ascending.
        weights: running total of the weights, one more than there are positions.
        pieces: how many are wanted.
        start: first position.
        stop: one past the last position.
    """
    low, high = bisect_left(cuts, start + 1), bisect_left(cuts, stop)
    chosen: list[int] = []
    for k in range(1, pieces):
        target = weights[start] + (weights[stop] - weights[start]) * k / pieces
        i = bisect_left(cuts, target, low, high, key=weights.__getitem__)
        options = [cuts[j] for j in (i - 1, i) if low <= j < high]
        if not options:
            break
        best = min(options, key=lambda c: abs(weights[c] - target))
        if not chosen or best > chosen[-1]:
            chosen.append(best)
    return chosen


def _negligible(graph: Graph, steps: Sequence[int]) -> set[int]:
    sizes = {v: sum(graph.nodes[w].charge for w in graph.written(v)) for v in steps}
    largest = max(sizes.values())
    each = largest * _NEGLIGIBLE_EACH
    room = min(sum(sizes.values()) * _NEGLIGIBLE_TOTAL, largest * _NEGLIGIBLE_TOTAL_OF_LARGEST)
    found: set[int] = set()
    for v in sorted(steps, key=lambda v: (sizes[v], v)):
        room -= sizes[v]
        if room < 0 or sizes[v] > each:
            break
        found.add(v)
    return found
