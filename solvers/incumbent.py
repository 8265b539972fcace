"""What an exact search in the given order holds: the best schedule so far and the proven bound, and how such a search ends."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from solvers.bounds import describe_scope, infeasible, minimum_budget
from solvers.errors import UnsupportedGraph
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.orders import keeps_given_order
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Progress, Solution, Status, make_solution

SCOPE = describe_scope("given")


class Search:
    """The state of one search.

    Attributes:
        best: the cheapest order known that fits, and `cost` what it costs.
        limit: the cost of the cheapest known in the given order: what is dearer can be pruned.
        bound: proven; no schedule in the given order costs less.
    """

    name: str

    def __init__(self, graph: Graph, budget: int, options: Options):
        self.graph, self.budget, self.options = graph, budget, options
        self.began = time.monotonic()
        self.best: Sequence[int] | None = None
        self.cost = math.inf
        self.limit = math.inf
        self.bound = graph.keep_all_cost

    def left(self) -> float:
        """Seconds until the time limit."""
        return self.options.time_limit - (time.monotonic() - self.began)

    def offer(self, order: Sequence[int]) -> bool:
        """Takes an order if it fits and is cheaper than the best; returns whether it fits."""
        result = simulate(self.graph, Schedule.from_order(self.graph, order))
        if result.peak > self.budget:
            return False
        if keeps_given_order(self.graph, order):
            self.limit = min(self.limit, result.cost)
        if result.cost < self.cost:
            self.best, self.cost = order, result.cost
            self.report()
        return True

    def raise_bound(self, bound: float) -> None:
        """Takes a proven bound."""
        if bound > self.bound:
            self.bound = min(bound, self.limit)
            self.report()

    def report(self) -> None:
        """Tells the caller where the search is."""
        if self.options.progress is not None:
            self.options.progress(Progress(self.name, time.monotonic() - self.began, self.cost, self.bound))

    def start(self) -> None:
        """Looks for schedules before `run`, where the starts are not enough."""

    def run(self) -> Status:
        """Searches until the best order is proven optimal, or time runs out."""
        raise NotImplementedError

    def notes(self) -> dict[str, str]:
        """What the solution says of the search."""
        return {}

    def optimum(self) -> float:
        """The bound that `Status.OPTIMAL` proves."""
        return self.limit

    def solve(self) -> Solution:
        """The best schedule that there is in time, or was before an interrupt, with the best bound.

        Raises:
            InfeasibleBudget: if nothing fits in the given order (proven), or nothing was found in time.
            UnsupportedGraph: if the search cannot take the graph and no schedule is known.
            KeyboardInterrupt: if it came before any schedule was known.
        """
        graph, budget, status = self.graph, self.budget, Status.OPTIMAL
        try:
            for order in (graph.steps, *self.options.starts):
                self.offer(order)
            if self.best is None and budget < minimum_budget(graph, order="given").bytes:
                raise infeasible(graph, budget, order="given")
            self.start()
            if self.cost > graph.keep_all_cost:
                status = self.run()
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        except UnsupportedGraph:
            if self.best is None:
                raise
            status = Status.FEASIBLE
        seconds = time.monotonic() - self.began
        if self.best is None:
            return stopped(graph, budget, solver=self.name, status=status, seconds=seconds, order="given")
        return make_solution(
            graph,
            self.best,
            solver=self.name,
            budget=budget,
            seconds=seconds,
            status=status,
            lower_bound=self.optimum() if status is Status.OPTIMAL else self.bound,
            scope=SCOPE,
            given_order=True,
            notes=self.notes(),
        )
