"""Segments of the graph → regions of the forward program: where exactly each one ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from remat_lab.flatten import Program
from remat_lab.layers import is_light
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


def settle(forward: Program, steps: Sequence[int], values_of: dict[int, tuple[int, ...]]) -> list[int]:
    """For each cut between steps of the graph, the last one that is the same place in the forward program."""
    ends = _ends(forward, steps, values_of)
    moved = list(range(len(ends)))
    for cut in reversed(range(len(ends) - 1)):
        if ends[cut] == ends[cut + 1]:
            moved[cut] = moved[cut + 1]
    return moved


def owners(forward: Program, fused: Fused, steps: Sequence[int], values_of: dict[int, tuple[int, ...]]) -> dict[int, int]:
    """For the other steps of a marked program's graph, the position of the forward step whose derivative each is a part of."""
    ends, own = _ends(forward, steps, values_of), set(steps)
    found: dict[int, int] = {}
    for v in fused.graph.steps:
        if v not in own:
            numbers = [n for k in fused.groups[v].equations if (n := number_of(fused.program.equations[k])) is not None]
            if numbers:
                found[v] = bisect_right(ends, max(numbers)) - 1
    return found


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
