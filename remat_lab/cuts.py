"""Segments of the graph → regions of the forward program: where exactly each one ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from remat_lab.flatten import Program
from remat_lab.layers import is_light
from remat_lab.naming import is_nameable
from remat_lab.segments import Region, number_of
from remat_lab.steps import Fused
from solvers.segment_search import SegmentPlan
from solvers.segments import Segment


def regions_of(forward: Program, found: SegmentPlan, values_of: dict[int, tuple[int, ...]]) -> Region:
    """Segments of the graph as ranges of the forward program's equations."""
    ends = _ends(forward, found.forward.steps, values_of)

    def region(segment: Segment, start: int, stop: int) -> Region:
        edges = [start, *(ends[child.stop] for child in segment.children[:-1]), stop]
        children = [region(child, a, b) for child, a, b in zip(segment.children, edges[:-1], edges[1:], strict=False) if a < b]
        return Region(start, stop, tuple(children) if len(children) > 1 else ())

    return region(found.tree, 0, len(forward.equations))


def crossing(forward: Program, root: Region) -> list[int]:
    """The values that regions hand on: made before the end of one, and read after it by another."""
    ends, todo = set[int](), [root]
    while todo:
        region = todo.pop()
        ends.update(child.stop for child in region.children[:-1])
        todo.extend(region.children)
    edges = sorted(ends)
    return [
        v
        for v, k in forward.producer.items()
        if is_nameable(forward.avals[v])
        and (at := bisect_right(edges, k)) < len(edges)
        and max(forward.readers.get(v, ()), default=-1) >= edges[at]
    ]


def settle(forward: Program, steps: Sequence[int], values_of: dict[int, tuple[int, ...]]) -> list[int]:
    """For each cut between steps of the graph, the last one that is the same place in the forward program."""
    ends = _ends(forward, steps, values_of)
    moved = list(range(len(ends)))
    for cut in reversed(range(len(ends) - 1)):
        if ends[cut] == ends[cut + 1]:
            moved[cut] = moved[cut + 1]
    return moved


def owners(
    forward: Program, fused: Fused, steps: Sequence[int], values_of: dict[int, tuple[int, ...]]
) -> dict[tuple[int, int], int]:
    """Where the reads of late steps belong: for each step of a marked program's graph that is none of `steps`, and each of
    `steps` that it reads, the position of the forward step whose derivative reads it.

    One kernel may hold the last equations of a layer's derivative and the first of the layer's before: each belongs to its own.
    """
    ends, own, primal = _ends(forward, steps, values_of), set(steps), primal_equations(fused.program, len(forward.outputs))
    found: dict[tuple[int, int], int] = {}
    for v in fused.graph.steps:
        if v in own:
            continue
        behind = {u: {step} for u in fused.groups[v].reads if (step := _step_of(fused, u)) in own}
        for k in fused.groups[v].equations:
            q = fused.program.equations[k]
            read = set[int]().union(*(behind.get(u, ()) for u in q.reads))
            if k in primal and k != fused.groups[v].root:  # computed again for the derivative of what reads it
                behind.update(dict.fromkeys(q.outs, read))
            elif (number := number_of(q)) is not None:
                place = bisect_right(ends, number) - 1
                found.update({(v, step): max(place, found.get((v, step), 0)) for step in read})
    return found


def _step_of(fused: Fused, value: int) -> int | None:
    node = fused.node_of.get(value)
    return None if node is None else fused.graph.step_of(node)


def primal_equations(program: Program, outputs: int) -> frozenset[int]:
    """The equations that the first outputs are computed by."""
    needed = {v for v in program.outputs[:outputs] if isinstance(v, int)}
    found: set[int] = set()
    for k in reversed(range(len(program.equations))):
        if not needed.isdisjoint(program.equations[k].outs):
            found.add(k)
            needed.update(program.equations[k].reads)
    return frozenset(found)


def _ends(forward: Program, steps: Sequence[int], values_of: dict[int, tuple[int, ...]]) -> list[int]:
    """For each cut between steps of the graph, how many equations of the forward program come before it."""
    ends, settled = [0], settled_cuts(forward)
    for v in steps:
        place = max((forward.producer[value] + 1 for value in values_of.get(v, ())), default=0)
        ends.append(max(ends[-1], settled[place]))
    return ends


def settled_cuts(forward: Program) -> list[int]:
    """For each cut, where to move it: within its layer, to the last place from there on where the fewest bytes cross.

    What crosses a cut has no barrier of its own. Cut between an activation function and what it reads, say, and XLA fuses that
    into the backward pass too, which keeps everything that it was computed from.
    """
    count = len(forward.equations)
    last = {v: k for k, q in enumerate(forward.equations) for v in q.reads} | {
        v: count for v in forward.outputs if isinstance(v, int)
    }
    change = [0] * (count + 2)
    for v, k in forward.producer.items():
        if v in last:
            change[k + 1] += forward.bytes[v]
            change[last[v] + 1] -= forward.bytes[v]
    crossing = list(accumulate(change))
    settled = list(range(count + 1))
    for cut in reversed(range(count)):
        if is_light(forward.equations[cut].eqn) and crossing[settled[cut + 1]] <= crossing[cut]:
            settled[cut] = settled[cut + 1]
    return settled
