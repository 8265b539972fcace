"""Optimal schedules for a given order, by retention intervals on CP-SAT: the flagship solver.

The model is that of MOCCASIN (Bartan et al., "MOCCASIN: Efficient Tensor Rematerialization for Neural Networks", ICML 2023):
steps are first computed in the given order, each value is retained for at most `copies` intervals, and a cumulative
constraint holds the budget. `intervals_model` writes it down, and says where it departs from the paper.

Optimal means: cheapest among the schedules
- whose first computations keep the given order and which, before each of them, recompute steps in increasing position, each
  at most once;
- that compute each step at most `copies` times in all (more only for steps that the best start computes more often);
- that recompute at the moments of `prune`. For graphs with up to `EVERY_MOMENT` events these are all that could be useful, so
  nothing is left out; for larger ones only those just before a late use. `Solution.scope` says which it was.

The search starts from the best of the orders that it is given and of keeping everything, and never returns anything worse. The
whole model is solved first. Where its share of the time proves nothing, a large-neighbourhood search (`intervals_lns`)
improves the best schedule, or brings one within the budget where none is known.
"""

from __future__ import annotations

from solvers import bounds
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph
from solvers.intervals_search import Search
from solvers.solution import Options, Solution, Status, make_solution

EVERY_MOMENT = 6000


def solve(graph: Graph, budget: int | None, options: Options, *, copies: int = 2) -> Solution:
    """The cheapest schedule within a budget, or the best known one with a bound.

    Args:
        graph: any graph.
        budget: bytes; None for no limit.
        options: limits, and orders to start from.
        copies: how often a step may be computed in all.

    Raises:
        InfeasibleBudget: if nothing fits, or nothing that fits was found; its `proven` says which.
        ValueError: if copies is below 1.
    """
    if copies < 1:
        raise ValueError(f"copies is {copies!r}: every step is computed at least once, so give 1 or more")
    search = Search(graph, budget, options, copies=copies, most_moments=EVERY_MOMENT)
    if search.budget < bounds.minimum_budget(graph, order="given").bytes:
        raise bounds.infeasible(graph, search.budget, known_peaks=search.peaks, order="given")
    if search.cost <= graph.keep_all_cost:
        return _solution(search, Status.OPTIMAL, budget, "any schedule")
    search.prepare()
    search.solve_whole(search.left)
    if search.order is None:
        raise _infeasible(search)
    if search.closed:
        return _solution(search, Status.OPTIMAL, budget, search.scope)
    return _solution(search, Status.INTERRUPTED if search.interrupted else Status.TIME_LIMIT, budget, search.scope)


def _solution(search: Search, status: Status, budget: int | None, scope: str) -> Solution:
    return make_solution(
        search.graph,
        search.order or (),
        solver="intervals",
        budget=budget,
        seconds=search.seconds,
        status=status,
        lower_bound=search.lower_bound,
        scope=scope,
    )


def _infeasible(search: Search) -> InfeasibleBudget:
    """What is known of the budget when nothing that fits was found."""
    error = bounds.infeasible(search.graph, search.budget, known_peaks=search.peaks, order="given")
    if not (search.closed and search.units.exact_bytes):
        return error
    return InfeasibleBudget(
        budget=error.budget,
        minimum=error.minimum,
        lower_bound=search.budget + 1,
        relative_to=search.scope,
        bottleneck=error.bottleneck,
        name=error.name,
    )
