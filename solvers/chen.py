"""Chen, Xu, Zhang, Guestrin: Training Deep Nets with Sublinear Memory Cost (2016, arXiv:1604.06174), one level of segments.

`sqrt` is the division into about sqrt(n) segments of section 4.1; `chen` is Algorithm 3, memory planning with a budget, and
the search over that budget around sqrt(x y) of the appendix. Both run at most one extra forward pass.

Where this departs from the paper: segments are cut at the graph's own articulation points, found by crossing bytes
(`solvers.segments`); what is kept at a cut is everything that crosses it; the last segment is not recomputed; and
candidates are judged by exact simulation, not by the estimate x + y.

Neither is optimal in general. On a uniform chain of n layers `sqrt` peaks at about 2 sqrt(n) activations, the least
possible order with one extra forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate

from solvers.candidates import choose
from solvers.graph import Graph
from solvers.replay import replay
from solvers.segments import Forward, even_cuts, flat
from solvers.solution import Options, Solution

_GRID_POINTS = 6


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """Algorithm 3 with the grid search: the cheapest candidate within the budget, or without one the lowest peak.

    Raises:
        InfeasibleBudget: if no candidate fits.
        UnsupportedGraph: if the graph has no backward pass.
    """
    return choose(graph, budget, ([c] for c in _planned(Forward.of(graph))), solver="chen", options=options)


def solve_sqrt(graph: Graph, budget: int | None, options: Options) -> Solution:
    """About sqrt(n) segments: the cheapest candidate within the budget, or without one the lowest peak.

    Raises:
        InfeasibleBudget: if no candidate fits.
        UnsupportedGraph: if the graph has no backward pass.
    """
    return choose(graph, budget, ([c] for c in _square_root(Forward.of(graph))), solver="sqrt", options=options)


def sqrt_order(graph: Graph, pieces: int | None = None) -> list[int]:
    """The order for a number of segments of about equal bytes; by default the square root of the number of replayed steps."""
    forward = Forward.of(graph)
    n = len(forward.all_cuts) + 1
    weights = [0, *accumulate(forward.held)]
    return replay(forward, flat(forward, even_cuts(forward.articulation_points, weights, pieces or _root(n), 0, len(forward))))


def memory_plan(forward: Forward, cuts: Sequence[int], limit: float) -> tuple[list[int], int, int]:
    """Algorithm 3: walks the forward pass and closes a segment at the first allowed cut after `limit` bytes.

    Args:
        forward: the forward pass.
        cuts: allowed cuts, ascending (C in the paper).
        limit: bytes that a segment may accumulate before it is closed (b in the paper).

    Returns:
        The chosen cuts, x: bytes kept at them, y: bytes of the largest segment.
    """
    allowed = set(cuts)
    chosen: list[int] = []
    inside = kept = largest = 0
    for q, held in enumerate(forward.held):
        inside += held
        if q + 1 in allowed and inside > limit:
            chosen.append(q + 1)
            kept += forward.crossing[q + 1]
            largest = max(largest, inside)
            inside = 0
    return chosen, kept, max(largest, inside)


def _square_root(forward: Forward) -> Iterator[tuple[str, list[int]]]:
    """n counted in steps and in pieces between articulation points; pieces even in bytes and in number."""
    by_bytes = [0, *accumulate(forward.held)]
    by_steps = [0, *accumulate(forward.replayed)]
    points = forward.articulation_points
    seen: set[tuple[int, ...]] = set()
    for n, counted in ((len(forward.all_cuts) + 1, "steps"), (len(points) + 1, "articulation points")):
        for weights, even in ((by_bytes, "bytes"), (by_steps, "steps")):
            cuts = even_cuts(points, weights, _root(n), 0, len(forward))
            if tuple(cuts) not in seen:
                seen.add(tuple(cuts))
                yield f"sqrt of {n} {counted}, even {even}", replay(forward, flat(forward, cuts))


def _planned(forward: Forward) -> Iterator[tuple[str, list[int]]]:
    seen: set[tuple[int, ...]] = set()
    for points, label in ((forward.articulation_points, "articulation points"), (forward.all_cuts, "all cuts")):
        _, kept, largest = memory_plan(forward, points, 0)
        middle = math.sqrt(kept * largest)
        for k in range(_GRID_POINTS):
            limit = middle * 2 ** (k / (_GRID_POINTS - 1) - 0.5)
            cuts, _, _ = memory_plan(forward, points, limit)
            if tuple(cuts) not in seen:
                seen.add(tuple(cuts))
                yield f"limit of {limit:.4g} bytes at {label}", replay(forward, flat(forward, cuts))


def _root(n: int) -> int:
    return max(1, round(math.sqrt(n)))
