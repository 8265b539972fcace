"""Optimal schedules for a given order, by retention intervals on CP-SAT: the flagship solver.

The model is that of MOCCASIN (Bartan et al., "MOCCASIN: Efficient Tensor Rematerialization for Neural Networks", ICML 2023):
steps are first computed in the given order, each value is retained for at most `copies` intervals, and a cumulative
constraint holds the budget. `intervals_model` writes it down, and says where it departs from the paper.

Optimal means: cheapest among the schedules
- whose first computations keep the given order (that of the cheapest start, if its own differs) and which, before each of
  them, recompute steps in increasing position, each at most once (again only where the start does);
- that compute each step at most `copies` times in all (more only for steps that the start computes more often);
- that recompute at the moments of `prune`. For graphs with up to `EVERY_MOMENT` events these are all that could be useful, so
  nothing is left out; for larger ones only those just before a late use. `Solution.scope` says which it was.

The search starts from the best of the orders that it is given and of keeping everything, and never returns anything worse. The
whole model is solved first. Where its share of the time proves nothing, a large-neighbourhood search (`intervals_lns`)
improves the best schedule, or brings one within the budget where none is known. What the model leaves out altogether: other
orders of first computations, and values kept outside the budget (offloading).
"""

from __future__ import annotations

from dataclasses import replace

from solvers import bounds
from solvers.errors import InfeasibleBudget, InvalidOption, UnsupportedGraph
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.intervals_lns import improve
from solvers.intervals_search import Search
from solvers.orders import best_fit, keeps_given_order
from solvers.renumber import Renumbered, first_computations
from solvers.solution import Options, Solution, Status, make_solution

NAME = "intervals"
EVERY_MOMENT = 6000
_WHOLE_SHARE = 0.4  # of the limits, for the whole model


def solve(graph: Graph, budget: int | None, options: Options, *, copies: int | None = None) -> Solution:
    """The cheapest schedule within a budget, or the best known one with a bound.

    Args:
        graph: any graph.
        budget: bytes; None for no limit.
        options: limits, and orders to start from.
        copies: how often a step may be computed in all. None for 2, then more where nothing that fits is found with that, or as
            long as more lowers the optimum and that is quickly proved.

    Raises:
        InfeasibleBudget: if nothing fits, or nothing that fits was found; its `proven` says which.
        UnsupportedGraph: if the graph is too large for a model, and neither a start nor greedy eviction fits.
        KeyboardInterrupt: if it came before any schedule was known.
        InvalidOption: if copies is below 1.
    """
    if copies is not None and copies < 1:
        raise InvalidOption(f"copies is {copies!r}: every step is computed at least once, so give 1 or more")
    base = _base_order(graph, budget, options)
    if base is None:
        return _solve(graph, budget, options, copies)
    other = Renumbered.of(graph, base)
    starts = [other.there(start) for start in (*options.starts, graph.steps)]
    found = _solve(other.graph, budget, replace(options, starts=starts), copies)
    return make_solution(
        graph,
        other.back(found.schedule.order),
        solver=NAME,
        budget=budget,
        seconds=found.seconds,
        status=found.status,
        lower_bound=found.lower_bound,
        scope=found.scope.replace("the given order", "the order of the best start"),
    )


def _base_order(graph: Graph, budget: int | None, options: Options) -> tuple[int, ...] | None:
    """First computations of the cheapest start that fits, or None if they are in the given order."""
    best = best_fit(graph, budget, (graph.steps, *options.starts))
    return None if best is None or keeps_given_order(graph, best) else first_computations(best)


def _solve(graph: Graph, budget: int | None, options: Options, copies: int | None) -> Solution:
    """The same for first computations in the given order."""
    search = Search(graph, budget, options, copies=copies, most_moments=EVERY_MOMENT)
    if search.budget < bounds.minimum_budget(graph, order="given").bytes:
        raise bounds.infeasible(graph, search.budget, known_peaks=search.peaks, order="given")
    if search.cost <= graph.keep_all_cost:
        return _solution(search, Status.OPTIMAL, budget, "any schedule")
    try:
        if not search.interrupted:
            _explore(search)
    except KeyboardInterrupt:
        search.interrupted = True
    except UnsupportedGraph:
        if search.order is None:
            raise
        return _solution(search, Status.FEASIBLE, budget, bounds.describe_scope("given"))
    if search.order is None:
        if search.closed:
            raise _infeasible(search)
        status = Status.INTERRUPTED if search.interrupted else Status.TIME_LIMIT
        seconds, peaks = search.seconds, search.peaks
        return stopped(graph, search.budget, solver=NAME, status=status, seconds=seconds, known_peaks=peaks, order="given")
    if search.closed:
        return _solution(search, Status.OPTIMAL, budget, search.scope)
    return _solution(search, Status.INTERRUPTED if search.interrupted else Status.TIME_LIMIT, budget, search.scope)


def _explore(search: Search) -> None:
    """The whole model first, then neighbourhoods; neighbourhoods alone while a large graph has no schedule that fits.

    For small graphs greedy eviction comes in late, because its schedules may lie outside the model's scope.
    """
    search.prepare(greedy=not search.complete)
    if search.complete or not search.excess:
        search.solve_whole(search.left * _WHOLE_SHARE)
        while search.closed and search.order is None and search.allow_more_copies():
            search.solve_whole(search.left * _WHOLE_SHARE)
        search.try_more_copies()
    if search.order is None and search.left > 0 and search.complete:
        search.prepare(greedy=True)
    improve(search)


def _solution(search: Search, status: Status, budget: int | None, scope: str) -> Solution:
    return make_solution(
        search.graph,
        search.order or (),
        solver=NAME,
        budget=budget,
        seconds=search.seconds,
        status=status,
        lower_bound=search.lower_bound,
        scope=scope,
        given_order=True,
    )


def _infeasible(search: Search) -> InfeasibleBudget:
    """What is known of the budget when nothing that fits was found."""
    error = bounds.infeasible(search.graph, search.budget, known_peaks=search.peaks, order="given")
    if not (search.closed and search.units.exact_bytes):
        return error
    return error.changed(lower_bound=search.budget + 1, relative_to=search.scope)
