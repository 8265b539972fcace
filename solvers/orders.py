"""What an order of computations is by itself: its cost, its peak, and the class of schedules that it belongs to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from solvers.graph import Graph
from solvers.schedule import Schedule
from solvers.simulate import simulate


def cost_of(graph: Graph, order: Iterable[int]) -> float:
    """Total cost, as `simulate` counts it."""
    return math.fsum(graph.nodes[v].cost for v in order)


def peak_of(graph: Graph, order: Iterable[int]) -> int:
    """Simulated peak of budgeted bytes."""
    return simulate(graph, Schedule.from_order(graph, order)).peak


def best_fit(graph: Graph, budget: int | None, orders: Iterable[Sequence[int]]) -> Sequence[int] | None:
    """The cheapest of some valid orders that fit the budget, the first of several; None if none does."""
    fitting = (order for order in orders if budget is None or peak_of(graph, order) <= budget)
    return min(fitting, key=lambda order: cost_of(graph, order), default=None)


def keeps_given_order(graph: Graph, order: Iterable[int]) -> bool:
    """Whether every step runs, and for the first time in the given order: what bounds for that order speak of."""
    return tuple(dict.fromkeys(order)) == graph.steps


def runs_in_stages(graph: Graph, order: Iterable[int]) -> bool:
    """Whether an order lies in the space of `brute_force(order="given")`.

    That is, it keeps the given order, recomputes in increasing position before each first computation, and ends with the
    last of those.
    """
    stage, last = 0, -1
    for v in order:
        if stage == len(graph.steps) or not last < v <= graph.steps[stage]:
            return False
        last = v
        if v == graph.steps[stage]:
            stage, last = stage + 1, -1
    return stage == len(graph.steps)
