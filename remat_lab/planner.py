"""One loss and one set of arguments, traced and grouped once: plans for any number of budgets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from remat_lab import promise
from remat_lab.budget import parse_budget
from remat_lab.call import Call
from remat_lab.errors import InvalidArgument
from remat_lab.fuse import CostRule, Fused
from remat_lab.loop import PlannedLoop
from remat_lab.loop_loss import sites_of, with_loops
from remat_lab.loop_plan import LoopPlanner, Variant
from remat_lab.plans import Plan
from remat_lab.programs import Programs
from remat_lab.selection import Selection, select_values
from remat_lab.starts import starts as policy_starts
from remat_lab.targets import Target, as_target
from remat_lab.trace import Loss
from remat_lab.units import size
from solvers.errors import InfeasibleBudget, InvalidOption
from solvers.simulate import keep_all_peak
from solvers.solution import Progress, Solution
from solvers.solve import solve

CHECKS = ("compiled", "planned")

_PLAIN_AT_LEAST = 0.6  # of keeping all as planned: XLA's own fusion saves less than the rest
_SPARE, _SPARE_BYTES = 0.02, 1 << 20  # compiled to so much less, a plan is worth another search and compilation
_STARTED = ("auto", "intervals")  # solvers that start from the schedules of JAX's policies


class Planner:
    """Plans for one traced program.

    Attributes:
        loss: the user's function and its options.
        call: the arguments planned for, as shapes.
        fused: graph and program.
        costs: what recomputation is charged, as for `plan`.
        analyse: traces and groups another loss in the same way; without it the loops of this one stay as they are.
        target: the device planned for; None for the one that JAX uses.
        keep_all_peak_bytes: predicted peak of temporaries with everything kept: what fractions of a budget refer to.
        programs: where steps are compiled, for plans and others that share this; None for each plan by itself.
    """

    def __init__(
        self,
        loss: Loss,
        call: Call,
        fused: Fused,
        *,
        costs: str | CostRule = "roofline",
        must_save: Selection = (),
        must_recompute: Selection = (),
        target: Target | None = None,
        analyse: Callable[[Loss], Fused] | None = None,
    ):
        select_values(fused.program, must_recompute)  # refuses names that do not exist before anything is solved
        self.loss, self.call, self.fused, self.costs = loss, call.abstract(), fused, costs
        self.must_save, self.must_recompute = must_save, must_recompute
        self.target = target
        self.keep_all_peak_bytes = keep_all_peak(fused.graph)
        self.programs: Programs | None = None
        plain = Variant(loss, fused, self.keep_all_peak_bytes)
        self._loops: LoopPlanner | None = None
        if analyse is not None:

            def rewrite(planned: Mapping[int, PlannedLoop]) -> tuple[Loss, Fused]:
                other = with_loops(loss, planned)
                return other, analyse(other)

            self._loops = LoopPlanner(partial(sites_of, loss, self.call), rewrite, plain)

    @property
    def has_loops(self) -> bool:
        """Whether plans choose how loops are differentiated, which traces the function anew."""
        return self._loops is not None and bool(self._loops.loops)

    def bytes_of(self, budget: object) -> int | None:
        """A budget in any of its forms, in bytes."""
        return None if budget is None else parse_budget(budget, self.keep_all_peak_bytes)

    def plan(
        self,
        budget: int | None,
        *,
        solver: str = "auto",
        check: str = "compiled",
        seconds: float = 0.0,
        starts: Sequence[Sequence[int]] = (),
        progress: Callable[[Progress], None] | None = None,
        **limits: Any,
    ) -> Plan:
        """The plan for a budget in bytes.

        Args:
            budget: bytes; None for no limit.
            solver: a name from `solvers.available()`.
            check: "compiled" returns only a plan that compiles within its budget, plain JAX if that does while the plan
                recomputes something and the solver is "auto"; what a plan compiles to less than planned, as temporaries may
                lie in buffers of results (`Predicted.temp_bytes`), is planned with once more. "planned" trusts the prediction.
            seconds: time already spent on tracing.
            starts: orders known to be valid, to start the search from.
            progress: called by the solver, and after each compilation.
            **limits: further options of `solvers.solve.solve`.

        Raises:
            InfeasibleBudget: if no plan was found that keeps it.
            InvalidArgument: for an unknown solver, check or option.
        """
        if check not in CHECKS:
            raise InvalidArgument(
                f'check={check!r} is unknown: "compiled" compiles and holds the plan to its budget, "planned" does not'
            )

        start = time.perf_counter()

        def make(asked: int | None) -> Plan:
            def schedule(variant: Variant, limit: int | None) -> Solution:
                return self._solve(variant.fused, limit, solver, starts, progress=progress, **limits)

            if self._loops is None:
                variant = Variant(self.loss, self.fused, self.keep_all_peak_bytes)
                solution = schedule(variant, asked)
            else:
                variant, solution = self._loops.choose(asked, schedule)
            if variant.loops:
                scope = f"{solution.scope}, with these loops"
                solution = replace(solution, scope=scope, keep_all_cost=self.fused.graph.keep_all_cost)
            return Plan(
                loss=variant.function,
                call=self.call,
                fused=variant.fused,
                loops=variant.loops,
                plain=(self.loss, self.fused) if variant.loops else None,
                solution=solution,
                budget_bytes=budget,
                seconds=seconds + time.perf_counter() - start,
                must_save=self.must_save,
                must_recompute=self.must_recompute,
                check=check,
                target=self.target,
                programs=self.programs,
            )

        if budget is None or check == "planned":
            return make(budget)

        def tell(attempt: promise.Round, number: int) -> None:
            if progress is not None:
                text = f"plan {number} compiles to {size(attempt.compiled_bytes)} of {size(budget)}"
                progress(Progress(text, time.perf_counter() - start, math.nan, math.nan))

        try:
            plan, rounds = promise.hold(make, budget, tell=tell)
        except InfeasibleBudget as error:
            if solver != "auto":
                raise
            return self._plain_or(error)
        free = self._unscheduled(budget) if solver == "auto" and plan.solution.overhead > 0 else None
        return _with_spare(plan.amended(rounds=rounds), budget, make) if free is None else free

    def _unscheduled(self, budget: int) -> Plan | None:
        """Plain JAX, if as compiled it is within the budget under either of the backend's schedulers, and likely to be."""
        return None if budget < _PLAIN_AT_LEAST * self.keep_all_peak_bytes else self._plain_within(budget)

    def _plain_within(self, budget: int) -> Plan | None:
        """The same, compiled whatever is likely."""
        for plan in self._plain_steps:
            if plan.compiled_bytes <= budget:
                round_ = promise.Round(budget, plan.planned_bytes, plan.compiled_bytes)
                return plan.amended(budget_bytes=budget, rounds=(round_,))
        return None

    def _plain_or(self, refused: InfeasibleBudget) -> Plan:
        """Plain JAX where no schedule was found, however little it was expected to fit: predictions may count too much.

        Raises:
            InfeasibleBudget: if it is above the budget as well, with what it needs if that is the least known.
        """
        plain = self._plain_within(refused.budget)
        if plain is not None:
            return plain
        least = min(plan.compiled_bytes for plan in self._plain_steps)
        known = {"minimum": least, "fullest": ""} if least < refused.minimum else {}
        raise refused.changed(relative_to=f"{refused.relative_to}, and plain JAX", **known) from None

    @cached_property
    def _plain_steps(self) -> list[Plan]:
        """Plain JAX under each scheduler, the one that schedules need first."""
        solution = solve(self.fused.graph, None, "keep_all")
        target = as_target(self.target)
        options = sorted(target.schedulers.values(), key=lambda given: given != target.compiler_options)
        common = {"loss": self.loss, "call": self.call, "fused": self.fused, "solution": solution}
        common |= {"target": self.target, "programs": self.programs}
        wanted = {"must_save": self.must_save, "must_recompute": self.must_recompute, "check": "compiled"}
        return [
            Plan(**common, **wanted, budget_bytes=None, seconds=0.0, unscheduled=True, options=given)  # type: ignore[arg-type]
            for given in options
        ]

    def _solve(
        self, fused: Fused, budget: int | None, solver: str, starts: Sequence[Sequence[int]], **options: Any
    ) -> Solution:
        try:
            if budget is not None and solver in _STARTED and budget < keep_all_peak(fused.graph):
                options["starts"] = [*policy_starts(fused, budget), *(starts if fused is self.fused else ())]
            return solve(fused.graph, budget, solver, **options)
        except InvalidOption as error:
            raise InvalidArgument(str(error)) from error


def _with_spare(plan: Plan, budget: int, make: Callable[[int], Plan]) -> Plan:
    """A cheaper plan that is above the budget as solvers count, but not as compiled, if there is one; else the same plan.

    Solvers give every temporary memory of its own, so that what they hold to a budget may compile to less.
    """
    spare = plan.planned_bytes - plan.compiled_bytes
    if plan.solution.overhead <= 0 or spare < max(_SPARE_BYTES, _SPARE * budget):
        return plan
    try:
        other = make(budget + spare)
    except InfeasibleBudget:
        return plan
    if other.solution.cost >= plan.solution.cost or other.predicted.temp_bytes > budget or other.compiled_bytes > budget:
        return plan
    return other.amended(rounds=(*plan.rounds, promise.Round(budget + spare, other.planned_bytes, other.compiled_bytes)))
