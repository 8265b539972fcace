"""What a solver returns that was stopped before it had a schedule of its own: the best of the cheap strategies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from solvers.bounds import Order, infeasible
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph
from solvers.orders import best_fit, peak_of
from solvers.solution import Options, Solution, Status, make_solution

_SECONDS = 1.0  # for each of them; more than enough but for the largest graphs


def stopped(
    graph: Graph,
    budget: int,
    *,
    solver: str,
    status: Status,
    seconds: float,
    known_peaks: Iterable[int] = (),
    order: Order = "any",
) -> Solution:
    """The cheapest schedule of the strategies that take milliseconds, with no bound of its own.

    Args:
        graph: the graph.
        budget: bytes.
        solver: who was stopped.
        status: TIME_LIMIT or INTERRUPTED.
        seconds: time spent.
        known_peaks: simulated peaks that the solver itself knows, bytes.
        order: what the solver plans for; the floor of its error then speaks of that.

    Raises:
        InfeasibleBudget: if none of them fits and time ran out.
        KeyboardInterrupt: if none of them fits and the solver was interrupted, so that callers stop too.
    """
    from solvers import chen, recursive  # a large import for what is seldom needed

    orders: list[Sequence[int]] = [graph.steps]
    peaks = [peak_of(graph, graph.steps), *known_peaks]
    for run in (chen.solve_sqrt, chen.solve, recursive.solve):
        try:
            orders.append(run(graph, budget, Options(time_limit=_SECONDS)).schedule.order)
        except InfeasibleBudget as error:
            peaks.append(error.minimum)
        except UnsupportedGraph:
            continue
    best = best_fit(graph, budget, orders)
    if best is not None:
        notes = {"schedule": "a cheap strategy"}
        return make_solution(graph, best, solver=solver, budget=budget, seconds=seconds, status=status, notes=notes)
    if status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    raise infeasible(graph, budget, known_peaks=peaks, order=order)
