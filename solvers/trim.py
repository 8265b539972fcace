"""Takes unnecessary recomputations out of an order.

A recomputation is unnecessary when the instance before it can be kept until the reads it served, within the budget. Taking
one out also shortens the lives of its inputs, which may make room for the next, so passes repeat until nothing changes.
The order that remains is minimal: no single recomputation can be removed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np

from solvers.graph import Graph

_MACHINE_BYTES = 1 << 60  # beyond it, bytes are counted in Python's integers


def trim(graph: Graph, order: Sequence[int], budget: int) -> list[int]:
    """Removes recomputations, the most expensive first, as long as the simulated peak stays within the budget.

    Args:
        graph: the graph.
        order: a valid order whose peak is within the budget.
        budget: bytes.

    Returns:
        A valid order with the same or lower cost, and a peak within the budget.
    """
    occupancy = _Occupancy(graph, order)
    changed = True
    while changed:
        changed = False
        for p in sorted(occupancy.repeats, key=lambda p: (-graph.nodes[order[p]].cost, p)):
            changed |= occupancy.remove(p, budget)
    return [v for p, v in enumerate(order) if occupancy.active[p]]


class _Occupancy:
    """Bytes live at each position, kept up to date while computations are removed."""

    def __init__(self, graph: Graph, order: Sequence[int]):
        self.graph, self.order = graph, order
        n = len(order)
        self.active = [True] * n
        self.repeats: set[int] = set()
        self.births: list[list[int]] = [[] for _ in graph.nodes]  # per step, the positions that compute it
        self.reads: list[list[int]] = [[] for _ in graph.nodes]  # per value, the positions that read it
        most = sum(node.charge + node.workspace for node in graph.nodes)
        # What a removed position holds, so that no sum of sizes makes it the largest of a range.
        self.absent = -4 * max(most, 1)
        self.live = np.array([graph.nodes[v].workspace for v in order], np.int64 if most < _MACHINE_BYTES else object)
        for p, v in enumerate(order):
            if self.births[v]:
                self.repeats.add(p)
            self.births[v].append(p)
            for u in dict.fromkeys(graph.nodes[v].deps):
                self.reads[u].append(p)
        for o in graph.outputs:
            self.reads[o].append(n)
        for p, v in enumerate(order):
            for w in graph.written(v):
                self._add(w, p, self.last_read(w, p) + 1, 1)

    def last_read(self, value: int, birth: int) -> int:
        """Position of the last read of the instance computed at `birth`, or `birth` if there is none."""
        births = self.births[self.graph.step_of(value)]
        k = bisect_left(births, birth) + 1
        # The computation at births[k] does not read its own value, so a read at or after it is of the later instance.
        reads = self.reads[value]
        i = bisect_left(reads, births[k]) if k < len(births) else len(reads)
        return reads[i - 1] if i and reads[i - 1] > birth else birth

    def _add(self, value: int, start: int, stop: int, sign: int) -> None:
        amount = sign * self.graph.nodes[value].charge
        if amount:
            self.live[start:stop] += amount

    def _kept(self, p: int) -> list[tuple[int, int]]:
        """Values read from the instance at p, with the end of the life of the instance before it."""
        v = self.order[p]
        births = self.births[v]
        before = births[bisect_left(births, p) - 1]
        return [(w, self.last_read(w, before)) for w in self.graph.written(v) if self.last_read(w, p) > p]

    def remove(self, p: int, budget: int) -> bool:
        """Takes the computation at p out if what is left stays within the budget; False, and no change, otherwise."""
        shorter = self._release_inputs(p)
        kept = self._kept(p)
        if not self._fits(p, kept, budget):
            for u, start, stop in shorter:
                insort(self.reads[u], p)
                self._add(u, start, stop, 1)
            return False
        v = self.order[p]
        for w in self.graph.written(v):
            if self.last_read(w, p) == p:
                self._add(w, p, p + 1, -1)
        for w, end in kept:
            self._add(w, end + 1, p, 1)
        self.births[v].remove(p)
        self.active[p] = False
        self.repeats.discard(p)
        self.live[p] = self.absent
        return True

    def _release_inputs(self, p: int) -> list[tuple[int, int, int]]:
        """Cancels the reads made at p; for each value read, the range in which it was live only for that."""
        shorter: list[tuple[int, int, int]] = []
        for u in dict.fromkeys(self.graph.nodes[self.order[p]].deps):
            births = self.births[self.graph.step_of(u)]
            birth = births[bisect_left(births, p) - 1]
            end = self.last_read(u, birth)
            self.reads[u].remove(p)
            start = self.last_read(u, birth) + 1
            self._add(u, start, end + 1, -1)
            shorter.append((u, start, end + 1))
        return shorter

    def _fits(self, p: int, kept: list[tuple[int, int]], budget: int) -> bool:
        ends = sorted((end, self.graph.nodes[w].charge) for w, end in kept)
        extra = 0
        for k, (end, charge) in enumerate(ends):
            extra += charge
            stop = ends[k + 1][0] + 1 if k + 1 < len(ends) else p
            segment = self.live[end + 1 : stop]
            if len(segment) and segment.max() + extra > budget:
                return False
        return True
