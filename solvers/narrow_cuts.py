"""A training graph as a sequence of blocks, cut where few bytes cross.

The forward pass is cut at local minima of the bytes that cross (articulation points where there are any; else places such as
those between the layers of a U-Net, where skips cross too). A block so cheap that replaying it costs next to nothing beside
its neighbours is joined to the one before: the mask of an activation, say, is read by the backward pass of what it follows.

Each step after the turn goes to the block whose inner values it reads. Since the backward pass comes back through the blocks,
the numbers so found must not rise; steps that would break that go with their neighbours.

Nothing here has to be exact: any assignment gives valid schedules (`compose`), a bad one only dear ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from solvers.graph import Graph
from solvers.segments import Forward

_CHEAP = 0.2  # of the mean cost of a block; cheaper ones are joined to the one before
_MOST_BLOCKS = 4000
_HIGHER = 1.1, 1.75  # a cut crossed by so many times the bytes of some near ones on either side is one inside a block
_NEAR = 3
_NEGLIGIBLE = 1 / 200  # of the budget: what values that are kept in any case may take together


@dataclass(frozen=True)
class Blocks:
    """The forward pass in blocks, each with its part of the backward pass.

    Attributes:
        forward: the forward pass.
        edges: positions in `forward.steps` where blocks begin, and the end.
        late: for each block, its steps after the turn, in the given order.
    """

    forward: Forward
    edges: tuple[int, ...]
    late: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, graph: Graph, budget: int, *, most: int = _MOST_BLOCKS) -> Blocks:
        """Cuts a graph.

        Args:
            graph: the graph.
            budget: bytes; values that are next to nothing beside it are always kept.
            most: number of blocks allowed.

        Raises:
            UnsupportedGraph: if the graph has no backward pass.
        """
        forward = _with_small_kept(Forward.of(graph), budget)
        edges = (0, *_chosen_cuts(forward, most), len(forward))
        return cls(forward, edges, _assigned(forward, edges))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def block_of(self, position: int) -> int:
        """The block of a position of the forward pass."""
        return bisect_right(self.edges, position) - 1

    @cached_property
    def outs(self) -> tuple[tuple[int, ...], ...]:
        """For each block, the positions in it whose values are read by replayed steps of later blocks."""
        last, replayed = self.forward.last_reader, self.forward.replayed
        return tuple(tuple(q for q in range(a, b) if replayed[q] and last[q] >= b) for a, b in pairwise(self.edges))

    @cached_property
    def resident(self) -> tuple[int, ...]:
        """For each block, and for none at the end, budgeted bytes of late values that live when its late steps begin."""
        graph, count = self.forward.graph, len(self)
        block_of = {v: b for b, steps in enumerate(self.late) for v in steps}
        change = [0] * (count + 2)
        for v in self.forward.late:
            for w in graph.written(v):
                readers = [block_of.get(r, 0) for r in graph.readers[w]]
                end = -1 if w in self._outputs else min(readers, default=block_of[v])
                if end < block_of[v]:  # live when blocks block_of[v] - 1 down to end begin
                    change[max(end, 0)] += graph.nodes[w].charge
                    change[block_of[v]] -= graph.nodes[w].charge
        for q, end in self.read_below.items():
            charge = sum(graph.nodes[w].charge for w in graph.written(self.forward.steps[q]) if graph.readers[w])
            change[end] += charge
            change[self.block_of(q)] -= charge
        return tuple(accumulate(change))[: count + 1]

    @cached_property
    def read_below(self) -> dict[int, int]:
        """For forward positions that late steps of earlier blocks read, the earliest of these blocks."""
        found: dict[int, int] = {}
        for b, steps in enumerate(self.late):
            for v in steps:
                for u in self.forward.graph.nodes[v].deps:
                    q = self.forward.position.get(self.forward.graph.step_of(u))
                    if q is not None and self.forward.replayed[q] and q >= self.edges[b + 1]:
                        found.setdefault(q, b)
        return found

    @cached_property
    def _outputs(self) -> frozenset[int]:
        return frozenset(self.forward.graph.outputs)


def _with_small_kept(forward: Forward, budget: int) -> Forward:
    graph = forward.graph
    sizes = {v: sum(graph.nodes[w].charge for w in graph.written(v)) for v in forward.steps}
    kept = {v for v in forward.steps if not graph.may_recompute(v) or not sizes[v]}
    by_size: dict[int, list[int]] = {}
    for v in sizes.keys() - kept:
        by_size.setdefault(sizes[v], []).append(v)
    room = budget * _NEGLIGIBLE
    for size in sorted(by_size):  # all of a size or none, so that equal blocks stay equal
        room -= size * len(by_size[size])
        if room < 0:
            break
        kept.update(by_size[size])
    return Forward(graph, forward.steps, forward.late, frozenset(kept))


def _chosen_cuts(forward: Forward, most: int) -> list[int]:
    """The cuts in valleys of crossing bytes, without those that would make a block of next to no cost."""
    cuts = list(forward.all_cuts)
    low = [forward.crossing[c] for c in cuts]
    found: list[int] = []
    i = 0
    while i < len(cuts):
        j = i
        while j + 1 < len(cuts) and low[j + 1] == low[i]:
            j += 1
        if (i == 0 or low[i - 1] > low[i]) and (j + 1 == len(cuts) or low[j + 1] > low[i]):
            found.extend(cuts[i : j + 1])
        i = j + 1
    found = _without_inner(forward, found)
    costs = [0.0, *accumulate(forward.graph.nodes[v].cost for v in forward.steps)]
    while True:
        least = _CHEAP * costs[-1] / (len(found) + 1)
        kept: list[int] = []
        for c in reversed(found):
            if costs[c] < least:
                break
            if costs[kept[-1] if kept else -1] - costs[c] >= least:
                kept.append(c)
            elif kept and forward.crossing[c] < forward.crossing[kept[-1]]:
                kept[-1] = c
        kept.reverse()
        if len(kept) == len(found):
            break
        found = kept
    while len(found) > most:
        found = found[1::2]
    return found


def _without_inner(forward: Forward, cuts: Sequence[int]) -> list[int]:
    low = [forward.crossing[c] for c in cuts]
    kept: list[int] = []
    for i, c in enumerate(cuts):
        left, right = low[max(0, i - _NEAR) : i], low[i + 1 : i + 1 + _NEAR]
        around = max(min(left, default=low[i]), min(right, default=low[i]))
        if not _HIGHER[0] * around < low[i] < _HIGHER[1] * around:
            kept.append(c)
    return kept


def _assigned(forward: Forward, edges: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    anchors = [_anchor(forward, edges, v) for v in forward.late]
    stays = set(_longest_falling([(t, a) for t, a in enumerate(anchors) if a is not None]))
    late: list[list[int]] = [[] for _ in range(len(edges) - 1)]
    current, waiting = len(late) - 1, list[int]()
    for t, v in enumerate(forward.late):
        anchor = anchors[t]
        if t in stays and anchor is not None:
            late[anchor].extend((*waiting, v))
            current, waiting = anchor, []
        elif any(forward.graph.step_of(u) not in forward.position for u in forward.graph.nodes[v].deps):
            late[current].extend((*waiting, v))  # it goes on from gradients of the block that the pass is in
            waiting = []
        else:
            waiting.append(v)  # it prepares what comes next
    late[current].extend(waiting)
    return tuple(map(tuple, late))


def _anchor(forward: Forward, edges: Sequence[int], step: int) -> int | None:
    """The block that a late step belongs to by what it reads; None if it reads nothing that tells."""
    graph = forward.graph
    inner: list[int] = []
    crossing: list[int] = []
    for u in graph.nodes[step].deps:
        q = forward.position.get(graph.step_of(u))
        if q is not None and forward.replayed[q]:
            b = bisect_right(edges, q) - 1
            reader = bisect_right(edges, forward.last_reader[q]) - 1
            if reader == b:
                inner.append(b)
            elif reader == b + 1:  # what is read further on is kept for long, and tells nothing
                crossing.append(reader)
    return max(inner, default=min(crossing, default=None))  # what crosses is there in the block that it comes from, too


def _longest_falling(items: Sequence[tuple[int, int]]) -> list[int]:
    """Keys of a longest subsequence whose values never rise, by patience sorting."""
    tails: list[int] = []  # least negated value that ends a subsequence of each length
    ends: list[int] = []
    before: list[int] = []
    for k, (_, value) in enumerate(items):
        length = bisect_right(tails, -value)
        before.append(ends[length - 1] if length else -1)
        if length == len(tails):
            tails.append(-value)
            ends.append(k)
        else:
            tails[length], ends[length] = -value, k
    found: list[int] = []
    k = ends[-1] if ends else -1
    while k >= 0:
        found.append(items[k][0])
        k = before[k]
    return found[::-1]
