"""A part of a schedule as a problem of its own, so that a deep network can be improved a few blocks at a time.

Some steps of a graph are free: where they run again may be decided anew. Everything else stays as an order has it, and is
merged: each run of computations that touches no value of the free steps becomes one step, whose workspace is what the run
needs at most. The bytes that the rest keeps between these steps become values of theirs, so that the part's memory is that of
the whole at every moment, whatever is done with the free steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from solvers.graph import Graph, Node
from solvers.schedule import Schedule
from solvers.simulate import simulate


@dataclass(frozen=True)
class Excerpt:
    """The problem.

    Attributes:
        graph: free steps and merged ones.
        order: the present order in it.
        runs: for each of its steps, the computations that it stands for.
    """

    graph: Graph
    order: tuple[int, ...]
    runs: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, graph: Graph, order: Sequence[int], wanted: Collection[int]) -> Excerpt:
        """Takes an order apart.

        Args:
            graph: the graph.
            order: a valid order.
            wanted: steps that are to be free. Those that may not run again stay as they are, and so do those that read what the
                rest computes more than once, since these values come and go.
        """
        return _Builder(graph, order, _free(graph, order, wanted)).build()

    def back(self, order: Sequence[int]) -> list[int]:
        """An order of the part as one of the whole: as valid, with the same peak and cost."""
        return [v for step in order for v in self.runs[step]]


def _free(graph: Graph, order: Sequence[int], wanted: Collection[int]) -> set[int]:
    count = Counter(order)
    free = {v for v in wanted if graph.may_recompute(v) and count[v]}
    todo = sorted(free)
    while todo:
        v = todo.pop()
        sources = {graph.step_of(u) for u in graph.nodes[v].deps}
        if v in free and any(count[s] > 1 and s not in free for s in sources):
            free.remove(v)
            todo.extend(r for w in graph.written(v) for r in graph.readers[w] if r in free)
    return free


@dataclass
class _Builder:
    """The parts of an order on the way to a graph.

    Attributes:
        shown: values that are values of the excerpt: of free steps, and what these read.
        groups: the order in pieces [start, stop): one free step, one that has to do with what is shown, or a run of others.
        live: bytes at each position, of what is not shown.
        between: bytes of what is not shown that are live after each position.
    """

    graph: Graph
    order: Sequence[int]
    free: set[int]
    shown: set[int] = field(init=False)
    groups: list[tuple[int, int]] = field(init=False)
    live: list[int] = field(init=False)
    between: list[int] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.graph
        self.shown = {u for v in self.free for u in (*graph.written(v), *graph.nodes[v].deps)}
        self.groups = list(self._pieces())
        self._measure()

    def _pieces(self) -> Iterator[tuple[int, int]]:
        start = 0
        for p, v in enumerate(self.order):
            if v in self.free or not self.shown.isdisjoint((*self.graph.nodes[v].deps, *self.graph.written(v))):
                if start < p:
                    yield start, p
                yield p, p + 1
                start = p + 1
        if start < len(self.order):
            yield start, len(self.order)

    def _measure(self) -> None:
        graph, n = self.graph, len(self.order)
        shown, hidden = [0] * (n + 2), [0] * (n + 2)  # changes at positions
        births: dict[int, int] = {}
        last: dict[int, int] = {}

        def end(w: int) -> None:
            change = shown if w in self.shown else hidden
            change[births[w]] += graph.nodes[w].charge
            change[last[w] + 1] -= graph.nodes[w].charge

        for p, v in enumerate(self.order):
            last.update(dict.fromkeys(graph.nodes[v].deps, p))
            for w in graph.written(v):
                if w in births:
                    end(w)
                births[w] = last[w] = p
        last.update(dict.fromkeys(graph.outputs, n))
        for w in births:
            end(w)
        held = simulate(graph, Schedule.from_order(graph, self.order)).live
        self.live = [all_ - mine for all_, mine in zip(held, accumulate(shown), strict=False)]
        # What is live after a position is what is live at the next one, less what is written there.
        written = [sum(graph.nodes[w].charge for w in graph.written(v) if w not in self.shown) for v in self.order]
        at = list(accumulate(hidden))[: n + 1]
        self.between = [bytes_ - new for bytes_, new in zip(at[1:], (*written[1:], 0), strict=True)]

    def build(self) -> Excerpt:
        """The graph: merged steps hold what lies between them as values, each from where it grows to where it falls again."""
        graph = self.graph
        grown, fallen, kept = self._levels()
        nodes: list[Node] = []
        number: dict[int, int] = {}  # of values shown
        level: dict[tuple[int, int], int] = {}  # of what else is kept, by the groups at which it grows and falls
        order: list[int] = []
        runs: dict[int, tuple[int, ...]] = {}
        late = False

        def add(w: int, step: int, **changes: Any) -> None:
            number[w] = len(nodes)
            nodes.append(replace(graph.nodes[w], part_of=None if step == len(nodes) else step, **changes))

        for g, (start, stop) in enumerate(self.groups):
            v = self.order[start]
            steps = tuple(self.order[start:stop])
            late |= any(graph.nodes[s].backward for s in steps)
            if v in self.free:
                if v not in number:
                    runs[len(nodes)] = steps
                    deps = tuple(number[u] for u in graph.nodes[v].deps)
                    add(v, len(nodes), deps=deps)
                    for w in graph.parts[v]:
                        add(w, number[v])
                order.append(number[v])
                continue
            step = len(nodes)
            runs[step] = steps
            order.append(step)
            reads = dict.fromkeys(number[u] for s in steps for u in graph.nodes[s].deps if u in self.shown)
            reads |= dict.fromkeys(level[key] for key in fallen.get(g, ()))
            nodes.append(
                Node(
                    name=f"{len(steps)} steps from {graph.nodes[v].name}",
                    cost=math.fsum(graph.nodes[s].cost for s in steps),
                    size=0,
                    deps=tuple(reads),
                    workspace=max(self.live[start:stop]) - max(self._before(start), self.between[stop - 1]),
                    recomputable=False,
                    backward=late,
                )
            )
            for w in graph.written(v):
                if w in self.shown:
                    add(w, step, deps=(), cost=0, workspace=0)
            for end, size in grown.get(g, {}).items():
                level[g, end] = len(nodes)
                nodes.append(Node("what else is kept", 0, size, part_of=step))
        outputs = [number[o] for o in graph.outputs if o in number] + [level[key] for key in kept]
        return Excerpt(Graph(tuple(nodes), tuple(outputs)), tuple(order), runs)

    def _before(self, position: int) -> int:
        return self.between[position - 1] if position else 0

    def _levels(self) -> tuple[dict[int, dict[int, int]], dict[int, list[tuple[int, int]]], list[tuple[int, int]]]:
        """What is kept between groups: bytes by where they grow and where they fall, last grown first.

        Returns:
            For each group that grows the bytes by the group at which they fall; for each that falls, the pairs; and the pairs
            that are left at the end.
        """
        grown: dict[int, dict[int, int]] = {}
        fallen: dict[int, list[tuple[int, int]]] = {}
        stack: list[tuple[int, int]] = []
        for g, (start, stop) in enumerate(self.groups):
            change = self.between[stop - 1] - self._before(start)
            if change > 0:
                stack.append((g, change))
            while change < 0:
                at, size = stack.pop()
                taken = min(size, -change)
                grown.setdefault(at, {})[g] = taken
                fallen.setdefault(g, []).append((at, g))
                change += taken
                if taken < size:
                    stack.append((at, size - taken))
        end = len(self.groups)
        for at, size in stack:
            grown.setdefault(at, {})[end] = size
        return grown, fallen, [(at, end) for at, _ in stack]
