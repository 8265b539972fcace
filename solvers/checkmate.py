"""The optimal schedule by mixed-integer programming: Checkmate (Jain et al., MLSys 2020, arXiv:1910.02653, section 4).

Model: first computations in the given order; before each, any earlier steps run again, each at most once and in increasing
position; values are kept or dropped at any time. Optimal in that space, with no limit on copies, when the backend finishes;
where less than 1e-6 of the budget decides, which is the backend's tolerance, the schedule is returned as feasible.
`checkmate_model` holds the program and lists where it departs from the paper's. Its size grows with the square
of the graph: up to about 100 nodes it ends within seconds to minutes, beyond about 250 it is seldom worth a try.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from solvers.bounds import describe_scope, impossible, infeasible, minimum_budget
from solvers.checkmate_model import CheckmateModel
from solvers.errors import UnsupportedGraph
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.linear import Outcome, solve_whole
from solvers.lp_bound import prove
from solvers.orders import best_fit, cost_of, peak_of
from solvers.solution import Options, Solution, Status, make_solution
from solvers.timeline import Timeline

NAME = "checkmate"
SCOPE = describe_scope("given")
MAX_VARIABLES = 400_000

_TOLERANCE = 1e-6  # by which the backends let rows be violated; bytes are divided by the budget there
_BOUND_SHARE = 0.2  # of the time limit, at most, for the linear bound that is returned when time runs out


def solve(graph: Graph, budget: int | None, options: Options, *, backend: str = "HIGHS") -> Solution:
    """The cheapest schedule in Checkmate's model within the budget.

    Args:
        graph: any graph; one whose program would exceed 400,000 variables is refused unless a start fits.
        budget: bytes; None for no limit.
        options: `time_limit`, and `starts`, which are hints and the answer to fall back on.
        backend: HIGHS or SCIP, which alone takes the starts as hints.

    Returns:
        OPTIMAL, or the best of what was found and the starts with the linear bound: the backend's own bound means
        nothing when time runs out. A start in another order that is cheaper comes back as feasible, with no bound.

    Raises:
        InfeasibleBudget: if nothing fits in the given order (proven), or nothing was found in time.
        KeyboardInterrupt: if it came before any schedule was known.
        UnsupportedGraph: if the program would be too large and no start fits.
    """
    began = time.monotonic()
    incumbent = best_fit(graph, budget, (graph.steps, *options.starts))
    if incumbent is None and budget is not None and budget < minimum_budget(graph, order="given").bytes:
        raise infeasible(graph, budget, order="given")
    if budget is None or (incumbent and cost_of(graph, incumbent) <= graph.keep_all_cost):
        once = incumbent or graph.steps
        return make_solution(graph, once, solver=NAME, budget=budget, seconds=time.monotonic() - began)
    order, status, bound = incumbent, Status.TIME_LIMIT, graph.keep_all_cost
    try:
        starts = [incumbent] if incumbent else []
        bound = prove(graph, budget, Options(time_limit=_BOUND_SHARE * options.time_limit, starts=starts)).cost
        if math.isinf(bound):
            raise impossible(graph, budget)
        left = options.time_limit - (time.monotonic() - began)
        order, status = _search(graph, budget, incumbent, left, backend)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    if order is None:
        return stopped(graph, budget, solver=NAME, status=status, seconds=time.monotonic() - began, order="given")
    if status is Status.OPTIMAL:
        bound = cost_of(graph, order)
    return make_solution(
        graph,
        order,
        solver=NAME,
        budget=budget,
        seconds=time.monotonic() - began,
        status=status,
        lower_bound=bound,
        scope=SCOPE,
        given_order=True,
        notes={"backend": backend},
    )


def _search(
    graph: Graph, budget: int, incumbent: Sequence[int] | None, seconds: float, backend: str
) -> tuple[Sequence[int] | None, Status]:
    known = cost_of(graph, incumbent) if incumbent else math.inf
    timeline = Timeline(graph, cap=known - graph.keep_all_cost)
    if CheckmateModel.size(timeline, budget) > MAX_VARIABLES:
        if incumbent:
            return incumbent, Status.FEASIBLE
        raise UnsupportedGraph(
            f"checkmate's program for {len(graph.steps)} steps exceeds {MAX_VARIABLES:,} variables: use intervals, or a start"
        )
    deadline = time.monotonic() + seconds
    for margin in (0, math.ceil(2 * _TOLERANCE * budget)):
        model = CheckmateModel(timeline, budget - margin)
        hint = model.hint(incumbent) if incumbent else {}
        outcome = solve_whole(model.program, seconds=deadline - time.monotonic(), backend=backend, hint=hint)
        certain = Status.FEASIBLE if margin else Status.OPTIMAL
        if outcome.infeasible:
            if incumbent is None and not margin:
                raise impossible(graph, budget)
            return incumbent, certain  # nothing is cheaper than the start that the program was cut down with
        order = model.order(outcome.values) if outcome.values else None
        if order is not None and peak_of(graph, order) <= budget:
            best = best_fit(graph, budget, [order, incumbent] if incumbent else [order])
            return best, certain if outcome.optimal else _ended(outcome)
        if not outcome.optimal:
            return incumbent, _ended(outcome)
    return incumbent, Status.FEASIBLE


def _ended(outcome: Outcome) -> Status:
    return Status.INTERRUPTED if outcome.interrupted else Status.TIME_LIMIT
