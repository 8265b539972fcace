"""Computing every step once, in the given order: what a program does without rematerialization."""

from __future__ import annotations

import time

from solvers.bounds import infeasible
from solvers.graph import Graph
from solvers.orders import peak_of
from solvers.solution import Options, Solution, make_solution


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """Keeps every value until its last read. Its cost is the least possible, so it is optimal wherever it fits.

    Raises:
        InfeasibleBudget: if its peak is above the budget. Other strategies may still fit.
    """
    del options
    began = time.perf_counter()
    order = graph.steps
    peak = peak_of(graph, order)
    if budget is not None and peak > budget:
        raise infeasible(graph, budget, known_peaks=[peak])
    return make_solution(graph, order, solver="keep_all", budget=budget, seconds=time.perf_counter() - began)
