"""Choosing among the orders that a strategy proposes, each judged by exact simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from solvers.bounds import cost_floor, describe_scope, infeasible
from solvers.errors import SolverError
from solvers.graph import Graph
from solvers.orders import peak_of
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Progress, Solution, Status, make_solution


def choose(
    graph: Graph, budget: int | None, groups: Iterable[Iterable[tuple[str, list[int]]]], *, solver: str, options: Options
) -> Solution:
    """The best of some orders: the cheapest within the budget, or the one with the lowest peak if there is no budget.

    Where keeping everything fits the budget, that is the answer.

    Stops proposing when `options.time_limit` is over or on an interrupt, and returns the best order so far.

    Args:
        graph: the graph.
        budget: bytes, or None.
        groups: names and valid orders, made as they are asked for. The orders of a group are of rising cost: once one fits the
            budget, the others of its group are not looked at.
        solver: name of the strategy, for the solution.
        options: time limit and progress callback.

    Raises:
        InfeasibleBudget: if none fits, with the smallest peak among them.
        KeyboardInterrupt: if it came before any was known to fit.
    """
    began = time.perf_counter()
    status = Status.FEASIBLE
    best: tuple[float, float, str, list[int]] | None = None
    peaks = [peak_of(graph, graph.steps)]
    if budget is not None and peaks[0] <= budget:
        groups = [[("keep all", list(graph.steps))]]
    try:
        for name, order in _until_fit(groups, lambda: budget is not None and peaks[-1] <= budget):
            result = simulate(graph, Schedule.from_order(graph, order))
            peaks.append(result.peak)
            key = (result.peak, result.cost) if budget is None else (result.cost, result.peak)
            if (budget is None or result.peak <= budget) and (best is None or key < best[:2]):
                best = (*key, name, order)
                if options.progress is not None:
                    seconds = time.perf_counter() - began
                    options.progress(Progress(solver, seconds, result.cost, graph.keep_all_cost))
            if time.perf_counter() - began > options.time_limit:
                status = Status.TIME_LIMIT
                break
    except KeyboardInterrupt:
        if best is None:
            raise
        status = Status.INTERRUPTED
    if best is None and budget is not None:
        raise infeasible(graph, budget, known_peaks=peaks)
    if best is None:
        raise SolverError(f"{solver} proposed no order at all")
    return make_solution(
        graph,
        best[3],
        solver=solver,
        budget=budget,
        seconds=time.perf_counter() - began,
        status=status,
        lower_bound=cost_floor(graph, budget),
        scope=describe_scope("given"),
        given_order=True,  # what only late steps read is first computed there
        notes={"candidate": best[2]},
    )


def _until_fit(
    groups: Iterable[Iterable[tuple[str, list[int]]]], last_fits: Callable[[], bool]
) -> Iterator[tuple[str, list[int]]]:
    for group in groups:
        for candidate in group:
            yield candidate
            if last_fits():
                break
