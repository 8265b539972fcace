"""Improves schedules that are known: large-neighbourhood search by taking recomputations out and repairing what then exceeds.

The search of `repair`, run on the best few starts in turn for as long as time allows. A start that has fallen behind is given
up, so that the better ones get more rounds. Not optimal; it goes on where `greedy` has run out of rules and exact solvers have
too many decisions to make.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from solvers.bounds import infeasible
from solvers.graph import Graph
from solvers.repair import improve
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Progress, Solution, Status, make_solution
from solvers.trim import trim

NAME = "improve"
_ROUNDS = 25  # of one start, before the next has its turn
_PATIENCE = 40  # turns without any improvement after which the search ends
_TURNS_EACH = 4  # before the worst start is given up


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The best schedule found from the starts, and from computing everything once where that fits.

    Args:
        graph: any graph.
        budget: bytes; None for no limit.
        options: `starts`, `time_limit`, `seed`, `progress`.

    Raises:
        InfeasibleBudget: if no start fits.
    """
    began = time.monotonic()
    fitting, peaks = list[list[int]](), list[int]()
    for start in (graph.steps, *options.starts):
        result = simulate(graph, Schedule.from_order(graph, start))
        peaks.append(result.peak)
        if budget is None or result.peak <= budget:
            fitting.append(list(start))
    if not fitting:
        raise infeasible(graph, budget or 0, known_peaks=peaks)
    status = Status.FEASIBLE
    if budget is not None:
        fitting = [trim(graph, start, budget) for start in fitting]
        try:
            status = _search(graph, budget, fitting, options, began)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
    best = min(fitting, key=lambda order: _cost(graph, order))
    return make_solution(graph, best, solver=NAME, budget=budget, seconds=time.monotonic() - began, status=status)


def _search(graph: Graph, budget: int, orders: list[list[int]], options: Options, began: float) -> Status:
    """Improves the orders in place, dropping the worst from time to time."""
    rng, deadline = random.Random(options.seed), began + options.time_limit
    lowest, fruitless, turn = math.inf, 0, 0
    while time.monotonic() < deadline and fruitless < _PATIENCE:
        turn += 1
        k = turn % len(orders)
        orders[k] = improve(graph, orders[k], budget, rng=rng, rounds=_ROUNDS, deadline=deadline)
        cost = min(_cost(graph, order) for order in orders)
        fruitless = 0 if cost < lowest else fruitless + 1
        if cost < lowest and options.progress is not None:
            options.progress(Progress(NAME, time.monotonic() - began, cost, graph.keep_all_cost))
        lowest = min(lowest, cost)
        if cost <= graph.keep_all_cost:
            return Status.FEASIBLE
        if len(orders) > 1 and turn % (_TURNS_EACH * len(orders)) == 0:
            orders.remove(max(orders, key=lambda order: _cost(graph, order)))
    return Status.FEASIBLE if fruitless >= _PATIENCE else Status.TIME_LIMIT


def _cost(graph: Graph, order: Sequence[int]) -> float:
    return math.fsum(graph.nodes[v].cost for v in order)
