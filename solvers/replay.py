"""From a decision what to keep to an order of computations that recomputes the rest.

The forward pass is divided into a tree of segments. Running a segment keeps the values that cross the cuts between its
children, and everything of its last child, which is treated the same way in turn. Before a late step reads a value that was not
kept, the smallest segment around it whose inputs are there is run again, then its child, and so on down. Each segment is run
again at most once, so an order has at most as many computations as the forward pass has steps, times the depth of the tree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from solvers.graph import Graph
from solvers.segments import Forward, Segment


def replay(forward: Forward, root: Segment) -> list[int]:
    """The order of computations for a tree of segments over any training graph.

    What nobody reads is not computed: a value of a dropped segment that only late steps read is first computed there (see
    `in_given_order`); apart from these, first computations keep the given order. The last segment is never recomputed,
    since its values are still live when the backward pass begins.

    Args:
        forward: the forward pass, with the steps that are kept whatever the segments.
        root: segments over all of its positions. Not changed.

    Returns:
        Nodes in order, for `Schedule.from_order`.
    """
    return _Replay(forward, root).run()


def prune(graph: Graph, order: Sequence[int]) -> list[int]:
    """Leaves out computations whose results nobody reads before they are computed again; each step stays at least once."""
    count: dict[int, int] = {}
    for v in order:
        count[v] = count.get(v, 0) + 1
    wanted = set(graph.outputs)
    stays: list[int] = []
    chosen: set[int] = set()
    for v in reversed(order):
        count[v] -= 1
        written = graph.written(v)
        if any(w in wanted for w in written) or (not count[v] and v not in chosen):
            chosen.add(v)
            stays.append(v)
            wanted.difference_update(written)
            wanted.update(graph.nodes[v].deps)
    stays.reverse()
    return stays


def in_given_order(graph: Graph, order: Sequence[int]) -> list[int]:
    """Puts first computations back into the given order, for solvers whose model demands it.

    A step first computed later than its place is computed in its place too, and again where it was if that is allowed. This
    costs one computation of each such step and may raise the peak.
    """
    place = {v: k for k, v in enumerate(graph.steps)}
    done = 0
    result: list[int] = []
    for v in order:
        if place[v] >= done:
            result.extend(graph.steps[done : place[v] + 1])
            done = place[v] + 1
        elif graph.may_recompute(v):
            result.append(v)
    return result


class _Replay:
    """State while an order is made: which positions are available, and which segments have been run."""

    def __init__(self, forward: Forward, root: Segment):
        self.forward, self.root = forward, root
        self.available = [not replayed for replayed in forward.replayed]
        self.opened: set[int] = set()
        self.order: list[int] = []

    def run(self) -> list[int]:
        """Both passes."""
        forward = self.forward
        self.order.extend(forward.steps)
        self.open(self.root)
        for v in forward.late:
            for q in self._positions(forward.graph.nodes[v].deps):
                while not self.available[q]:
                    self.enter(self._closed_segment(q))
            self.order.append(v)
        return prune(forward.graph, self.order)

    def enter(self, segment: Segment) -> None:
        """Runs a segment again, in order, from values that are available."""
        self.order.extend(self.forward.steps[q] for q in range(segment.start, segment.stop) if not self.available[q])
        self.open(segment)

    def open(self, segment: Segment) -> None:
        """Keeps what a segment that was just run keeps: crossing values, down to the whole of its last leaf."""
        while True:
            self.opened.add(id(segment))
            if not segment.children:
                self.available[segment.start : segment.stop] = [True] * (segment.stop - segment.start)
                return
            for child in segment.children[:-1]:
                for q in range(child.start, child.stop):
                    if self.forward.last_reader[q] >= child.stop:
                        self.available[q] = True
            segment = segment.children[-1]

    def _closed_segment(self, q: int) -> Segment:
        segment = self.root
        while id(segment) in self.opened:
            segment = segment.children[bisect_right(segment.children, q, key=lambda child: child.start) - 1]
        return segment

    def _positions(self, values: Iterable[int]) -> list[int]:
        """Positions of the steps that wrote these values, last first, forward steps only."""
        graph, position = self.forward.graph, self.forward.position
        found = {position.get(graph.step_of(u), -1) for u in values}
        return sorted(found - {-1}, reverse=True)
