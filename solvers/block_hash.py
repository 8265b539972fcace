"""Blocks of a sequence as problems of their own, equal for blocks of equal structure.

A block's problem is a graph of its own: what it reads from outside (taken to be there), its forward steps, a step that stands
for all that happens until the backward pass comes back, the gradients that come in then, and its late steps. Blocks whose
problems differ in names only are of one kind, and are treated once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from solvers.graph import Graph, Node
from solvers.narrow_cuts import Blocks
from solvers.segments import Forward


@dataclass(frozen=True)
class Kind:
    """A block, apart from its place in the sequence.

    Attributes:
        graph: its problem.
        forward: nodes of its forward steps, by position in the block.
        turn: node that stands for everything between its forward and its late steps.
        incoming: nodes of the late values that it reads.
        late: nodes of its late steps, in order.
        outs: positions of the steps whose values later blocks read.
        reach: for each of these, how many blocks further the last reader is.
        kept: positions of the steps that run once, because they are kept in any case or only later forward steps read them.
        unread: those of them that nothing reads once the first pass is over.
        feeds: positions of the steps whose values later blocks read in the first pass, if not later.
        resident: bytes of late values that pass it by while its late steps run.
        gradients: bytes of late values that are live when its late steps begin.
    """

    graph: Graph
    forward: tuple[int, ...]
    turn: int
    incoming: tuple[int, ...]
    late: tuple[int, ...]
    outs: tuple[int, ...]
    reach: tuple[int, ...]
    kept: frozenset[int]
    unread: frozenset[int]
    feeds: frozenset[int]
    resident: int
    gradients: int

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for blocks of equal structure."""
        return (
            self.graph.structural_hash,
            self.turn,
            self.outs,
            self.reach,
            self.kept,
            self.feeds,
            self.resident,
            self.gradients,
        )

    @cached_property
    def position(self) -> dict[int, int]:
        """Position of each node of a forward step."""
        return {v: q for q, v in enumerate(self.forward)}

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each position, the positions in the block that its step reads."""
        graph, position = self.graph, self.position
        return tuple(
            tuple(sorted({position[s] for u in graph.nodes[v].deps if (s := graph.step_of(u)) in position}))
            for v in self.forward
        )

    @cached_property
    def read_late(self) -> tuple[tuple[int, ...], ...]:
        """For each late step, the positions that it reads."""
        graph, position = self.graph, self.position
        return tuple(
            tuple(sorted({position[s] for u in graph.nodes[v].deps if (s := graph.step_of(u)) in position})) for v in self.late
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Budgeted bytes of keeping what each forward step writes beyond the first pass."""
        graph = self.graph
        return tuple(
            0 if q in self.unread else sum(graph.nodes[w].charge for w in graph.written(v) if graph.readers[w])
            for q, v in enumerate(self.forward)
        )

    @cached_property
    def costs(self) -> tuple[float, ...]:
        """Cost of each forward step."""
        return tuple(self.graph.nodes[v].cost for v in self.forward)

    @cached_property
    def last(self) -> Graph:
        """The problem if nothing will read its outputs any more."""
        nodes = list(self.graph.nodes)
        nodes[self.turn] = replace(nodes[self.turn], deps=())
        return Graph(tuple(nodes), self.graph.outputs)

    @cached_property
    def late_cost(self) -> float:
        """Cost of its late steps."""
        return math.fsum(self.graph.nodes[v].cost for v in self.late)

    @cached_property
    def out_bytes(self) -> int:
        """Bytes of the values that later blocks read."""
        return sum(self.sizes[q] for q in self.outs)


def kinds_of(blocks: Blocks) -> tuple[tuple[int, ...], tuple[Kind, ...]]:
    """For each block the number of its kind, and the kinds."""
    numbers: dict[tuple[object, ...], int] = {}
    kinds: list[Kind] = []
    found: list[int] = []
    for b in range(len(blocks)):
        kind = _kind(blocks, b)
        if kind.key not in numbers:
            numbers[kind.key] = len(kinds)
            kinds.append(kind)
        found.append(numbers[kind.key])
    return tuple(found), tuple(kinds)


def _kind(blocks: Blocks, b: int) -> Kind:
    forward, graph = blocks.forward, blocks.forward.graph
    start, stop = blocks.edges[b], blocks.edges[b + 1]
    mine, late = forward.steps[start:stop], blocks.late[b]
    inside = {*mine, *late}
    build = _Builder(graph)
    outside = [u for v in (*mine, *late) for u in graph.nodes[v].deps if graph.step_of(u) not in inside]
    for u in dict.fromkeys(outside):
        if graph.step_of(u) in forward.position:
            build.add(u, Node("input", 0, 0))
    for v in mine:
        build.add_step(v)
    outs = blocks.outs[b]
    ends = sorted({build.new[w] for q in outs for w in graph.written(forward.steps[q]) if graph.readers[w]})
    turn = build.append(Node("turn", 0, 0, tuple(ends), backward=True))
    incoming = [
        build.add(u, Node("gradient", 0, graph.nodes[u].charge, (turn,), backward=True))
        for u in dict.fromkeys(outside)
        if graph.step_of(u) not in forward.position
    ]
    for v in late:
        build.add_step(v, turn)
    used = set(graph.outputs)
    leave = [
        build.new[w] for v in late for w in graph.written(v) if w in used or any(r not in inside for r in graph.readers[w])
    ]
    once = [q - start for q in range(start, stop) if not forward.replayed[q]]
    brought = sum(build.nodes[v].size for v in incoming)
    return Kind(
        graph=Graph(tuple(build.nodes), tuple(leave)),
        forward=tuple(build.new[v] for v in mine),
        turn=turn,
        incoming=tuple(incoming),
        late=tuple(build.new[v] for v in late),
        outs=tuple(q - start for q in outs),
        reach=tuple(blocks.block_of(forward.last_reader[q]) - b for q in outs),
        kept=frozenset(once),
        unread=frozenset(q for q in once if forward.steps[start + q] not in forward.kept),
        feeds=frozenset(q - start for q in range(start, stop) if _read_further(forward, q, stop)),
        resident=max(0, blocks.resident[b] - brought),
        gradients=blocks.resident[b],
    )


def _read_further(forward: Forward, q: int, stop: int) -> bool:
    graph, position = forward.graph, forward.position
    return any(position.get(r, -1) >= stop for w in graph.written(forward.steps[q]) for r in graph.readers[w])


class _Builder:
    """Nodes of a block's graph, and their numbers by those of the whole graph."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.nodes: list[Node] = []
        self.new: dict[int, int] = {}

    def append(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def add(self, value: int, node: Node) -> int:
        self.new[value] = self.append(node)
        return self.new[value]

    def add_step(self, v: int, *more: int) -> None:
        """A step with all that it writes."""
        node = self.graph.nodes[v]
        deps = tuple(sorted({*(self.new[u] for u in node.deps), *more}))
        lead = self.add(v, replace(node, name="", deps=deps))
        for w in self.graph.parts[v]:
            self.add(w, replace(self.graph.nodes[w], name="", part_of=lead))
