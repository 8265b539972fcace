"""What to keep if bytes have a price: the set of values that costs least, kept and recomputed together.

Steps whose values are needed must either be kept, for their size times the price, or run again, for their cost, which makes
what they read needed too. That is a minimum cut, so the optimum for each price is found exactly (up to the rounding of
capacities to whole numbers, always down). Over all prices these are the convex hull of (bytes kept, cost of recomputation).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ortools.graph.python.max_flow import SimpleMaxFlow  # type: ignore[import-untyped]

from solvers.errors import SolverError

_CAPACITY = 1 << 45


@dataclass(frozen=True, slots=True)
class Cut:
    """The best choice for one price.

    Attributes:
        kept: steps whose values are needed and kept.
        again: steps that run again.
        floor: price times bytes kept plus cost of what runs again is at least this for every choice.
    """

    kept: frozenset[int]
    again: frozenset[int]
    floor: float


def priced_cut(
    costs: Sequence[float], sizes: Sequence[int], reads: Sequence[Collection[int]], needed: Collection[int], price: float
) -> Cut:
    """Solves it.

    Args:
        costs: of running each step again.
        sizes: bytes of keeping its values.
        reads: for each step, the steps that must be kept or run again if it runs again; what is there anyway is left out.
        needed: steps that must be kept or run again.
        price: cost of keeping a byte.
    """
    n = len(costs)
    keeping = [size * price for size in sizes]
    total = sum(min(k, c) for k, c in zip(keeping, costs, strict=True)) + max((*keeping, *costs), default=0.0) or 1.0
    scale = _CAPACITY / total
    infinite = 4 * _CAPACITY
    source, sink = 2 * n, 2 * n + 1
    flow = SimpleMaxFlow()
    reach: set[int] = set()
    todo = list(needed)
    while todo:
        v = todo.pop()
        if v not in reach:
            reach.add(v)
            todo.extend(reads[v])
    if not reach:
        return Cut(frozenset(), frozenset(), 0.0)
    for v in sorted(reach):
        flow.add_arc_with_capacity(2 * v, 2 * v + 1, min(infinite, int(keeping[v] * scale)))
        flow.add_arc_with_capacity(2 * v + 1, sink, min(infinite, int(costs[v] * scale)))
        for u in sorted(set(reads[v])):
            flow.add_arc_with_capacity(2 * v + 1, 2 * u, infinite)
    for v in sorted(set(needed)):
        flow.add_arc_with_capacity(source, 2 * v, infinite)
    if flow.solve(source, sink) != flow.OPTIMAL:
        raise SolverError("the minimum cut of priced values was not found: capacities overflow")
    there = set(flow.get_source_side_min_cut())
    again = frozenset(v for v in reach if 2 * v + 1 in there)
    kept = frozenset(v for v in reach if 2 * v in there and v not in again)
    return Cut(kept, again, flow.optimal_flow() / scale)
