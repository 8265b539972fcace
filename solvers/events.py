"""The optimal schedule for the given order by refining a coarse time line: Checkmate's program, only the part that binds.

Checkmate's program (Jain et al., MLSys 2020, section 4) grows with the square of the graph, and nearly all of it is slack:
memory binds at a few steps. This solver begins with the program of `event_model` at the few events that the linear bound
(`lp_bound`) asked for, and solves it to optimality. Its optimum is a lower bound, and its solution an order of computations,
which is simulated. Where that order exceeds the budget at a first computation, that step becomes an event; where it does
during a recomputation, its stage does, and then is accounted for in detail. Then it is solved again. An order that fits costs
what the bound says, and so is optimal. In the limit this is Checkmate's program, so it ends; often a tenth of the steps do.

Model: that of `checkmate` and of `brute_force(order="given")`, any number of copies. Optimal up to the backend's relative
tolerance of 1e-6: where less than that part of the budget decides, the schedule is returned as feasible. Each order that does
not fit is also repaired (`repair`), so there is a schedule to return when time runs out, and no step dearer than its overhead
is considered again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from solvers.bounds import impossible
from solvers.event_model import EventModel
from solvers.graph import Graph
from solvers.incumbent import Search
from solvers.linear import Outcome, solve_relaxation, solve_whole
from solvers.lp_bound import common_divisor, prove, round_up
from solvers.orders import keeps_given_order
from solvers.repair import repair
from solvers.rounding import THRESHOLDS, round_keeping
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Solution, Status, make_solution
from solvers.timeline import Timeline
from solvers.trim import trim

NAME = "events"

_BOUND_SHARE = 0.25  # of the time limit, at most, for the linear bound
_ROUNDING_SHARE = 0.05  # of what is left, at most, for rounding each relaxation
_SLICE = 0.7  # of what is left, for one round
_REPAIR_SHARE = 0.02  # of what is left, at most, for each repair
_TOLERANCE = 1e-6  # relative error of a backend's optimum


def solve(graph: Graph, budget: int | None, options: Options, *, backend: str = "HIGHS") -> Solution:
    """The cheapest schedule in the given order within the budget.

    Args:
        graph: any graph.
        budget: bytes; None for no limit.
        options: `time_limit`, `progress`, and `starts`: the cheapest that fits shrinks the program and is fallen back on.
        backend: HIGHS or SCIP.

    Returns:
        OPTIMAL, or the best schedule found in time or before an interrupt, with the best bound proven so far. A start in
        another order that is cheaper comes back as feasible, with no bound.

    Raises:
        InfeasibleBudget: if nothing fits in the given order (proven), or nothing was found in time.
        KeyboardInterrupt: if it came before any schedule was known.
    """
    if budget is None:
        return make_solution(graph, graph.steps, solver=NAME, budget=None, seconds=0.0)
    return _Search(graph, budget, options, backend).solve()


class _Search(Search):
    """The search, and its time line."""

    name = NAME

    def __init__(self, graph: Graph, budget: int, options: Options, backend: str):
        super().__init__(graph, budget, options)
        self.backend = backend
        self.events: set[int] = set()
        self.detailed: set[int] = set()
        self.rounds = 0
        self.failures = 0
        self.margin = 0  # bytes held back from the program

    def raise_bound(self, bound: float) -> None:
        """Takes a proven bound; the program leaves out what costs more than the best in any order."""
        super().raise_bound(min(bound, self.cost))

    def optimum(self) -> float:
        """The bound that `Status.OPTIMAL` proves."""
        return self.cost

    def notes(self) -> dict[str, str]:
        """What the solution says of the search."""
        return {"backend": self.backend, "rounds": str(self.rounds), "events": str(len(self.events))}

    def run(self) -> Status:
        """Refines until the best order is proven optimal, or time runs out."""
        starts = [self.best] if self.best is not None else []
        proof = prove(self.graph, self.budget, Options(time_limit=_BOUND_SHARE * self.options.time_limit, starts=starts))
        if math.isinf(proof.cost):
            raise impossible(self.graph, self.budget)
        self.raise_bound(proof.cost)
        self.events.update(proof.events)
        while not self.proven() and self.left() > 0:
            timeline = Timeline(self.graph, cap=self.cost - self.graph.keep_all_cost, closed=True)
            model = EventModel(timeline, max(1, self.budget - self.margin), self.events, self.detailed)
            fixed = self._relax(model)
            hint = model.point(self.best) if self.best is not None and keeps_given_order(self.graph, self.best) else {}
            if self.proven():
                break
            outcome = solve_whole(model.program, seconds=self._slice(), backend=self._backend(), hint=hint, fixed=fixed)
            self.rounds += 1
            if not self.margin:
                self.raise_bound(self.graph.keep_all_cost + outcome.bound * (1 - _TOLERANCE))
            if outcome.infeasible:  # nothing is cheaper than what the program was cut down with
                if self.margin:
                    break
                if self.best is None:
                    raise impossible(self.graph, self.budget)
                return Status.OPTIMAL
            if outcome.values and self._take(model, outcome):
                return Status.FEASIBLE if self.margin and not self.proven() else Status.OPTIMAL
            if outcome.interrupted:
                return Status.INTERRUPTED
            self.failures += not outcome.optimal
        if self.proven():
            return Status.OPTIMAL
        return Status.FEASIBLE if self.margin and self.left() > 0 else Status.TIME_LIMIT

    def proven(self) -> bool:
        """Whether the best order costs what the bound says, up to the backend's tolerance."""
        once = self.graph.keep_all_cost
        return self.cost - once <= (self.bound - once) * (1 + 2 * _TOLERANCE)

    def _relax(self, model: EventModel) -> dict[int, float]:
        """Solves the relaxation, offers what rounding it gives, and returns the variables that cannot improve on the best."""
        outcome = solve_relaxation(model.program, seconds=self.left())
        if outcome.values:
            stop = self.left() * (1 - _ROUNDING_SHARE)
            for threshold in THRESHOLDS:
                if self.left() > stop:
                    self._offer_repaired(model.order(round_keeping(model, outcome.values, threshold)))
        if not outcome.weights or math.isinf(self.cost):
            return {}
        return model.program.settled(outcome.weights, self.cost - self.graph.keep_all_cost)

    def _slice(self) -> float:
        """Seconds for one round, which leaves some to refine an order that does not fit."""
        return self.left() * (_SLICE if self.left() > 10 else 1.0)

    def _backend(self) -> str:
        """The chosen backend, and the other one after each round that ended without a proof."""
        return self.backend if self.failures % 2 == 0 else ("SCIP" if self.backend == "HIGHS" else "HIGHS")

    def _offer_repaired(self, order: Sequence[int]) -> bool:
        """Offers an order, or failing that what repairing it gives; returns whether it fits as it is."""
        if self.offer(order):
            return True
        limit = time.monotonic() + _REPAIR_SHARE * max(self.left(), 0.0)
        repaired = repair(self.graph, order, self.budget, cost_limit=self.cost, deadline=limit)
        if repaired is not None:
            self.offer(trim(self.graph, repaired, self.budget))
        return False

    def _take(self, model: EventModel, outcome: Outcome) -> bool:
        """Uses one solution: bound, order, and finer time line. Returns whether it is optimal and fits."""
        extra = math.fsum(c * round(x) for c, x in zip(model.program.costs, outcome.values, strict=True) if c)
        if outcome.optimal and not self.margin:
            unit = common_divisor(model.timeline)
            self.raise_bound(self.graph.keep_all_cost + round_up(extra * (1 - _TOLERANCE), unit))
        order = model.order(outcome.values)
        if self._offer_repaired(order):
            return outcome.optimal
        if not self._refine(order) and outcome.optimal:
            # Nothing but the backend's tolerance lies between this order and the budget. What is dearer by less is lost.
            self.margin = max(1, 2 * self.margin, math.ceil(_TOLERANCE * self.budget))
        return False

    def _refine(self, order: Sequence[int]) -> bool:
        """Adds the moments at which an order exceeds the budget to the time line; returns whether any is new."""
        live = simulate(self.graph, Schedule.from_order(self.graph, order)).live
        before = len(self.events) + len(self.detailed)
        stage = 0
        for v, used in zip(order, live, strict=True):
            first = v == self.graph.steps[stage]
            if used > self.budget:
                if not first and {stage - 1, stage} <= self.events:
                    self.detailed.add(stage)
                self.events.update((stage,) if first else (stage - 1, stage))
            stage += first
        return len(self.events) + len(self.detailed) > before
