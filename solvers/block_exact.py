"""Options of a block that no rule gives: for a limit on what it keeps and on its peak, the cheapest run is solved for.

Between its forward and its late steps a block's problem has one step for all that comes between. Giving that step a workspace
limits what is kept: with a peak of p and a workspace of p - k, k bytes are left. `repair` makes an order fit, and `intervals`
then solves each point to proven optimality where there are not too many (copies and moments as documented there).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from solvers.block_hash import Kind
from solvers.block_options import Option, Plan
from solvers.bounds import minimum_budget
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph
from solvers.intervals import solve as intervals
from solvers.orders import peak_of
from solvers.repair import repair
from solvers.solution import Options
from solvers.trim import trim

_PEAKS, _KEPT = 3, 4  # points looked at for each block: limits on the peak, and on what is kept
_EXACT_STEPS = 150  # in a block; larger ones are repaired only
_WORK = 0.05  # deterministic time for each point


def exact_plans(kind: Kind, options: Sequence[Option], exact: int) -> list[Plan]:
    """Plans for points with lower peaks than those of the options known.

    Args:
        kind: the block.
        options: measured options, all of the first pass.
        exact: for how many points `intervals` may be run.
    """
    found: dict[Plan, None] = {}
    for peak, kept in _points(kind, options):
        order = _run(_limited(kind, peak, kept), peak, exact > 0)
        exact -= 1
        if order is not None:
            found[plan_of(kind, order)] = None
    return list(found)


def plan_of(kind: Kind, order: Iterable[int]) -> Plan:
    """An order of a block's problem as a plan: what is read after the turn and was not made there is kept."""
    steps = list(order)
    number = {v: k for k, v in enumerate(kind.late)}
    keep, made, late = set[int](), set[int](), list[int]()
    for v in steps[steps.index(kind.turn) + 1 :]:
        q = kind.position.get(v)
        if q is None and v not in number:
            continue
        reads = kind.reads[q] if q is not None else kind.read_late[number[v]]
        keep.update(r for r in reads if r not in made)
        late.append(q if q is not None else -1 - number[v])
        if q is not None:
            made.add(q)
    return Plan(frozenset(keep.difference(kind.outs)), tuple(late))


def _points(kind: Kind, options: Sequence[Option]) -> Iterator[tuple[int, int]]:
    """Limits on peak and kept bytes: below the peaks known, down to the least possible."""
    if not options:
        return
    floor = minimum_budget(kind.graph, order="given").bytes
    peaks = [max(option.forward_peak, option.late_peak - kind.resident) for option in options]
    low, high = floor, max(peaks)
    kept = sorted({option.kept for option in options})
    kept = [kept[round(i * (len(kept) - 1) / (_KEPT - 1))] for i in range(_KEPT)]
    for i in range(_PEAKS):
        peak = low + (high - low) * i // _PEAKS
        for k in dict.fromkeys(kept):
            if k <= peak:
                yield peak, k


def _limited(kind: Kind, peak: int, kept: int) -> Graph:
    nodes = list(kind.graph.nodes)
    nodes[kind.turn] = replace(nodes[kind.turn], workspace=peak - kept)
    return Graph(tuple(nodes), kind.graph.outputs)


def _run(graph: Graph, peak: int, exact: bool) -> Sequence[int] | None:
    start: Sequence[int] | None = graph.steps
    if peak_of(graph, graph.steps) > peak:
        start = repair(graph, graph.steps, peak)
        start = None if start is None else trim(graph, start, peak)
    if not exact or len(graph) > _EXACT_STEPS:
        return start
    try:
        options = Options(work_limit=_WORK, workers=1, starts=() if start is None else (start,))
        return intervals(graph, peak, options).schedule.order
    except (InfeasibleBudget, UnsupportedGraph):
        return start
