"""Recognises a chain of stages inside a training graph.

The forward pass is cut wherever a single value crosses to later forward steps; the steps between two cuts are a stage, and the
crossing value is its output. Each backward step must belong to one stage: it may read the input of its stage, any value
of its stage, and any earlier backward value, and backward steps must come in order of falling stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from solvers.errors import UnsupportedGraph
from solvers.graph import Graph

_ADVICE = 'use "intervals", "greedy" or "auto", which accept any graph'


@dataclass(frozen=True, slots=True)
class Stage:
    """A piece of the chain.

    Attributes:
        inputs: the value that it reads from the stage before; empty for the first stage.
        outputs: the value that the next stage reads; empty for the last stage.
        advance: its steps that lead to the output, in order.
        full: its steps that lead to what its backward part reads, in order; all of them for the last stage.
        saved: its values that its backward part reads.
        backward: its backward steps, in order.
        once: whether a step of `advance` may not be repeated.
        resident: backward values, and outputs of the graph, that are live when the backward part begins.
        leaves: the same when it ends.
    """

    inputs: frozenset[int]
    outputs: frozenset[int]
    advance: tuple[int, ...]
    full: tuple[int, ...]
    saved: frozenset[int]
    backward: tuple[int, ...]
    once: bool
    resident: frozenset[int]
    leaves: frozenset[int]


def view_chain(graph: Graph) -> tuple[Stage, ...]:
    """The stages of a training chain, in forward order.

    Raises:
        UnsupportedGraph: naming the node that breaks the chain.
    """
    turn = next((p for p, v in enumerate(graph.steps) if graph.nodes[v].backward), None)
    if not turn:
        raise UnsupportedGraph(
            f"a training chain has forward nodes, then nodes marked as backward, and this graph has not: {_ADVICE}"
        )
    forward, backward = graph.steps[:turn], graph.steps[turn:]
    pieces, outs = _cut(graph, forward)
    stage_of = {w: s for s, piece in enumerate(pieces) for v in piece for w in graph.written(v)}
    for o in graph.outputs:
        if stage_of.get(o, len(pieces)) < len(pieces) - 1:
            raise UnsupportedGraph(
                f"node {o} ({graph.nodes[o].name!r}) breaks the chain: an output amid the forward pass: {_ADVICE}"
            )
    parts = _assign(graph, backward, stage_of, outs)
    resident = _resident(graph, parts, forward)
    stages: list[Stage] = []
    for s, piece in enumerate(pieces):
        inputs = frozenset({outs[s - 1]} if s else ())
        outputs = frozenset({outs[s]} if s < len(outs) else ())
        saved = frozenset(u for b in parts[s] for u in graph.nodes[b].deps if stage_of.get(u) == s)
        advance = _leading_to(graph, piece, outputs)
        full = _leading_to(graph, piece, saved) if s < len(outs) else tuple(piece)
        for v in piece:
            if v not in advance and v not in full:
                raise UnsupportedGraph(f"node {v} ({graph.nodes[v].name!r}) breaks the chain: nothing needs it: {_ADVICE}")
        stages.append(
            Stage(
                inputs=inputs,
                outputs=outputs,
                advance=advance,
                full=full,
                saved=saved,
                backward=tuple(parts[s]),
                once=not all(graph.may_recompute(v) for v in advance),
                resident=resident[s + 1],
                leaves=resident[s],
            )
        )
    return tuple(stages)


def peak_between(
    graph: Graph, steps: Sequence[int], *, live: Iterable[int], keep: Iterable[int] = (), ignore: Iterable[int] = ()
) -> int:
    """Peak bytes of running steps in order, freeing each value after its last read here.

    Args:
        graph: the graph.
        steps: what is run.
        live: values live at the start.
        keep: values not freed.
        ignore: values whose bytes are counted elsewhere.
    """
    uncounted, kept = set(ignore), set(keep)
    last = {u: p for p, v in enumerate(steps) for u in graph.nodes[v].deps}
    now = {u for u in live if u in kept or u in last}

    def charge(values: Iterable[int]) -> int:
        return sum(graph.nodes[u].charge for u in values if u not in uncounted)

    peak = level = charge(now)
    for p, v in enumerate(steps):
        fresh = set(graph.written(v)) - now
        now |= fresh
        level += charge(fresh)
        peak = max(peak, level + graph.nodes[v].workspace)
        gone = {u for u in (*graph.nodes[v].deps, *fresh) if u in now and u not in kept and last.get(u, -1) <= p}
        now -= gone
        level -= charge(gone)
    return peak


def _cut(graph: Graph, forward: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Pieces of the forward pass, and the value that crosses each cut between them."""
    inside = set(forward)
    ends = {w: max((r for r in graph.readers[w] if r in inside), default=-1) for v in forward for w in graph.written(v)}
    crossing: set[int] = set()
    pieces: list[list[int]] = [[]]
    outs: list[int] = []
    for v in forward:
        pieces[-1].append(v)
        crossing.update(graph.written(v))
        crossing = {u for u in crossing if ends[u] > v}
        if len(crossing) == 1 and (not outs or outs[-1] not in crossing):
            outs.extend(crossing)
            pieces.append([])
    if len(pieces) == 1 and len(forward) > 1:
        raise UnsupportedGraph(f"no cut of the forward pass is crossed by a single value, so it is no chain: {_ADVICE}")
    return pieces, outs


def _assign(graph: Graph, backward: Sequence[int], stage_of: dict[int, int], outs: Sequence[int]) -> list[list[int]]:
    """The backward steps of each stage."""
    crosses = {value: s for s, value in enumerate(outs)}
    spans: list[tuple[int, int]] = []
    for b in backward:
        low, high = 0, len(outs)
        for u in graph.nodes[b].deps:
            if u in crosses:
                low, high = max(low, crosses[u]), min(high, crosses[u] + 1)
            elif u in stage_of:
                low, high = max(low, stage_of[u]), min(high, stage_of[u])
        spans.append((low, high))
    # Each takes the lowest stage that those after it allow: a step that reads the value between two stages need not wait for
    # the input of the lower one, and so the finest division is found.
    parts: list[list[int]] = [[] for _ in range(len(outs) + 1)]
    floor = 0
    for b, (low, high) in zip(reversed(backward), reversed(spans), strict=True):
        floor = max(floor, low)
        if floor > high:
            raise UnsupportedGraph(
                f"node {b} ({graph.nodes[b].name!r}) breaks the chain: it reads values of stages that are not adjacent, or of "
                f"a stage below one that is read later: {_ADVICE}"
            )
        parts[floor].append(b)
    for part in parts:
        part.reverse()
    return parts


def _resident(graph: Graph, parts: list[list[int]], forward: Sequence[int]) -> list[frozenset[int]]:
    """For each stage, the lasting values live after its backward part; one entry more for the start."""
    lasting = {o for o in graph.outputs if graph.step_of(o) in set(forward)}
    found: list[frozenset[int]] = [frozenset()] * (len(parts) + 1)
    stage_of_step = {b: s for s, part in enumerate(parts) for b in part}
    made: dict[int, int] = {}
    for s in range(len(parts) - 1, -1, -1):
        for b in parts[s]:
            for w in graph.written(b):
                readers = [stage_of_step[r] for r in graph.readers[w]]
                made[w] = -1 if w in graph.outputs else min(readers, default=s)
        found[s] = frozenset(lasting | {w for w, end in made.items() if end < s})
    return found


def _leading_to(graph: Graph, piece: Sequence[int], values: Iterable[int]) -> tuple[int, ...]:
    inside = set(piece)
    wanted = {graph.step_of(w) for w in values} & inside
    for v in reversed(piece):
        if v in wanted:
            wanted.update({graph.step_of(u) for u in graph.nodes[v].deps} & inside)
    return tuple(v for v in piece if v in wanted)
