"""Exact search backwards over the sets of values that are still needed: strongest where the budget is tight.

Where little fits, a linear program keeps a little of everything, and its bound is weak; but then few sets of values can be
live at all. This solver goes back in time, stage by stage, over the sets of `needs`, and keeps for each the least cost of
all that comes after: dynamic programming over what is live, the idea behind `chain` and `revolve`, on any graph. A set is
dropped if

- it holds another one that costs no more (dominance),
- its cost and a bound on what comes before it (`potentials`) together exceed the best known schedule, or
- its layer is full: those with the lowest sum stay. The lowest sum ever dropped so is a bound on everything dropped.

So each sweep ends with a schedule, the best within its width, and with a proven bound; a sweep that dropped nothing for want of
room proves the best schedule optimal. Sweeps follow each other, each several times as wide. (Cut to a width, that is beam
search, Lowerre 1976; with a bound from what was cut it is anytime like the restricted decision diagrams of Bergman et al.,
"Discrete Optimization with Decision Diagrams", INFORMS J. Computing 2016.)

Model: that of `brute_force(order="given")`, any number of copies, in which the optimum is found. Where stages are contracted it
is a little wider (see `needs`): bounds hold for the former all the same, and the schedule may be cheaper than its optimum.
Optimal where the status says so. A sweep takes time in proportion to width x stages x values.
"""

from __future__ import annotations

import math
import time

from solvers.bounds import impossible
from solvers.frontier_sweep import Sweep
from solvers.graph import Graph
from solvers.greedy import RULES, greedy_order
from solvers.incumbent import Search
from solvers.lp_bound import Bound, prove
from solvers.needs import NeedSpace
from solvers.solution import Options, Solution, Status, make_solution
from solvers.timeline import Timeline
from solvers.trim import trim

NAME = "frontier"

_GREEDY_SHARE = 0.05  # of the time limit, at most, for a first schedule
_SEARCHING = 2000  # width up to which sweeps look for schedules
_GOAL = 0.019  # of the cost of everything: a gap that is closed first
_FIRST_WIDTH, _WIDER, _WIDEST = 500, 4, 1 << 18
_SAFETY = 0.7  # of the time left: what a sweep may take if that takes as long for its width as the one before
_BOUND_SHARE = 0.25  # of the time limit, at most, for the linear bound
_WIDTH_PER_WORK = 100  # with a work limit: the widest sweep per unit of it


def solve(graph: Graph, budget: int | None, options: Options, *, contract: bool = True) -> Solution:
    """The cheapest schedule in the given order within the budget.

    Args:
        graph: any graph.
        budget: bytes; None for no limit.
        options: `time_limit`, `progress`, and `starts`: the cheaper the best that fits, the more is pruned. A `work_limit`
            limits the width of sweeps.
        contract: whether stages that cannot matter are contracted, which is faster.

    Returns:
        OPTIMAL, or the best schedule found in time or before an interrupt, with the best bound proven so far.

    Raises:
        InfeasibleBudget: if nothing fits in the given order (proven), or nothing was found in time.
        UnsupportedGraph: if the graph has too many values for sets of them (see `needs`), and no start or greedy eviction fits.
        KeyboardInterrupt: if it came before any schedule was known.
    """
    if budget is None:
        return make_solution(graph, graph.steps, solver=NAME, budget=None, seconds=0.0)
    return _Search(graph, budget, options, contract).solve()


class _Search(Search):
    """The search, and its sweeps."""

    name = NAME

    def __init__(self, graph: Graph, budget: int, options: Options, contract: bool):
        super().__init__(graph, budget, options)
        self.contract = contract
        self.width = 0

    def notes(self) -> dict[str, str]:
        """What the solution says of the search."""
        return {"width": str(self.width)}

    def start(self) -> None:
        """Greedy eviction by a few rules, where nothing in the given order is known to fit; what is dearer is pruned."""
        repeatable = self.options.work_limit is not None
        deadline = math.inf if repeatable else self.began + _GREEDY_SHARE * self.options.time_limit
        for rule in RULES[:3]:
            if math.isinf(self.limit) and (order := greedy_order(self.graph, self.budget, rule, deadline=deadline)) is not None:
                self.offer(order)

    def run(self) -> Status:
        """Sweeps of growing width, until one drops nothing for want of room, or time runs out.

        Raises:
            InfeasibleBudget: if a sweep proves that nothing fits.
        """
        limits, once = self.options, self.graph.keep_all_cost
        deadline = self.began + limits.time_limit
        starts = [self.best] if self.best is not None else []
        proof = prove(self.graph, self.budget, Options(time_limit=_BOUND_SHARE * limits.time_limit, starts=starts))
        if math.isinf(proof.cost):
            raise impossible(self.graph, self.budget)
        self.raise_bound(proof.cost)
        widest = _WIDEST if limits.work_limit is None else max(_FIRST_WIDTH, int(_WIDTH_PER_WORK * limits.work_limit))
        sweep, width = self._sweep(proof), _FIRST_WIDTH
        while width <= widest and time.monotonic() < deadline:
            if self._is_proven():
                return Status.OPTIMAL
            if sweep.cap > 2 * (self.limit - once):  # steps that are too dear now need not be looked at
                sweep = self._sweep(proof)
            self.width, before = width, time.monotonic()
            limit = self._aim()
            found = sweep.run(width, limit - once, deadline)
            if found.order is not None:
                self.offer(trim(self.graph, found.order, self.budget))
            self.raise_bound(min(limit, once + found.floor))
            if found.complete and math.isinf(self.limit):
                raise impossible(self.graph, self.budget)
            if found.complete and (found.order is not None or limit == self.limit):
                return Status.OPTIMAL
            width = self._next_width(time.monotonic() - before, deadline)
        return Status.OPTIMAL if self._is_proven() else Status.TIME_LIMIT

    def _aim(self) -> float:
        """What schedules must cost less than to count in the next sweep.

        Sweeps wider than the first few, which look for schedules, first only prove that nothing is much cheaper than the best:
        that needs far fewer states.
        """
        aim = self.limit - _GOAL * self.graph.keep_all_cost
        return aim if self.width > _SEARCHING and self.bound < aim else self.limit

    def _next_width(self, seconds: float, deadline: float) -> int:
        """Some times as wide, but not so wide that the sweep, going by the last one, would not end in time."""
        wider = _WIDER * self.width
        if self.options.work_limit is not None:
            return wider
        affordable = _SAFETY * (deadline - time.monotonic()) / max(seconds, 1e-3)
        return min(wider, max(_FIRST_WIDTH, int(self.width * affordable)))

    def _is_proven(self) -> bool:
        return self.limit <= self.bound or math.isclose(self.limit, self.bound, rel_tol=1e-12)

    def _sweep(self, proof: Bound) -> Sweep:
        cap = self.limit - self.graph.keep_all_cost
        timeline = Timeline(self.graph, cap=cap, closed=True)
        return Sweep(NeedSpace(timeline, self.budget, contract=self.contract), proof.events, cap)
