"""Policies for functions with loops: nests for the loops, regions and names for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from remat_lab.budget import parse_budget
from remat_lab.loop import PlannedLoop
from remat_lab.loop_plan import LoopPlanner, Variant
from remat_lab.loop_sites import find_sites, run_with
from remat_lab.policy_plan import Budget, PolicyPlan, plan_policy
from remat_lab.refs import forward_program
from remat_lab.steps import Fused

Run = Callable[..., Sequence[Any]]
UNLIMITED = 1 << 62  # bytes


@dataclass(frozen=True)
class _Priced:
    plan: PolicyPlan

    @property
    def cost(self) -> float:
        """Of the whole step, in the unit of its graph."""
        solution = self.plan.solution
        return self.plan.fused.graph.keep_all_cost if solution is None else solution.cost


def plan_policy_with_loops(run: Run, values: Sequence[Any], *, budget: Budget | None, **options: Any) -> PolicyPlan:
    """As `plan_policy`, with nests for the function's loops where keeping everything does not fit.

    The nests are chosen for plans of this form, whatever an exact schedule of the same function does with its loops.

    Args:
        run: from arrays to a sequence of arrays.
        values: its arguments; shapes are enough.
        budget: as for `plan_policy`.
        **options: further options of `plan_policy`.

    Returns:
        The plan; it is for `planned_function(run, plan)`.

    Raises:
        InfeasibleBudget: if no plan of this form fits.
    """
    program = forward_program(run, values).program
    inexact = [i for i, v in enumerate(program.inputs) if jax.dtypes.issubdtype(program.avals[v].dtype, jax.numpy.inexact)]
    differentiated: Sequence[int] | None = options.get("differentiated")
    sites = find_sites(program, inexact if differentiated is None else differentiated)
    if budget is None or not sites:
        return plan_policy(run, values, budget=budget, **options)
    base = plan_policy(run, values, budget=UNLIMITED, **options)
    limit = parse_budget(budget, base.keep_all_peak_bytes)
    if base.peak_bytes <= limit:
        return replace(base, budget_bytes=limit)

    def rewrite(planned: Any) -> tuple[Run, Fused]:
        other = _with_loops(run, planned)
        return other, plan_policy(other, values, budget=UNLIMITED, **options).fused

    def solve(variant: Variant, asked: int | None) -> _Priced:
        return _Priced(plan_policy(variant.function, values, budget=asked, **options))

    planner = LoopPlanner(lambda: sites, rewrite, Variant(run, base.fused, base.keep_all_peak_bytes))
    variant, found = planner.choose(limit, solve)
    return replace(found.plan, loops=dict(variant.planned))


def planned_function(run: Run, plan: PolicyPlan) -> Run:
    """The function that a plan is for: the user's own, with its loops replaced if the plan has nests for them."""
    return _with_loops(run, plan.loops) if plan.loops else run


def _with_loops(run: Run, planned: dict[int, PlannedLoop]) -> Run:
    return lambda *values: run_with(run, values, planned, "the function")
