"""Plans under several budgets: each made with the smaller ones' schedules to start from, none worse than another that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from remat_lab.errors import is_about_the_call
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from solvers.solution import Progress

Outcome = Plan | Exception


def plan_all(
    planner: Planner,
    budgets: Iterable[int],
    *,
    solver: str = "auto",
    tell: Callable[[int], Callable[[Progress], None] | None] = lambda budget: None,
    known: Mapping[int, Plan] | None = None,
    **options: Any,
) -> dict[int, Outcome]:
    """Plans for every budget, from the smallest to the largest.

    A schedule that fits a budget fits every larger one, so each search starts from the last. Afterwards a plan gives way to one
    for another budget that fits its own and costs less, or costs as much and needs less: along the budgets cost never rises and
    the compiled size never falls.

    Args:
        planner: what to plan.
        budgets: bytes.
        solver: a name from `solvers.available()`.
        tell: for a budget, what is called while its plan is made.
        known: plans by budget that were made before.
        **options: further options of `Planner.plan`.

    Returns:
        For each budget a plan, or the error that says why there is none.

    Raises:
        RematLabError: for an unknown solver or option.
    """
    found: dict[int, Outcome] = {}
    starts: list[tuple[int, ...]] = []
    for budget in sorted(set(budgets)):
        before = (known or {}).get(budget)
        outcome = before or plan_one(planner, budget, solver=solver, starts=starts[-1:], progress=tell(budget), **options)
        found[budget] = outcome
        if isinstance(outcome, Plan):
            starts.append(outcome.schedule.order)
    return envelope(found)


def plan_one(planner: Planner, budget: int, **options: Any) -> Outcome:
    """A plan for a budget in bytes, or the error that says why there is none.

    Raises:
        RematLabError: if the loss, the call or an option is what is wrong.
    """
    try:
        return planner.plan(budget, **options)
    except Exception as error:
        if is_about_the_call(error):
            raise
        return error


def envelope(found: dict[int, Outcome]) -> dict[int, Outcome]:
    """The same plans, each replaced by the best of all those that fit its budget."""
    plans = [plan for plan in found.values() if isinstance(plan, Plan)]
    best: dict[int, Outcome] = {}
    for budget, outcome in found.items():
        fitting = [plan for plan in plans if needs(plan) <= budget]
        chosen = min(fitting, key=_merit, default=None)
        keeps_own = chosen is None or (isinstance(outcome, Plan) and _merit(outcome) == _merit(chosen))
        best[budget] = outcome if chosen is None or keeps_own else _for_budget(chosen, budget, outcome)
    return best


def _merit(plan: Plan) -> tuple[float, int]:
    return plan.solution.cost, needs(plan)


def needs(plan: Plan) -> int:
    """What a plan is held to its budget by: temp bytes as compiled, or as planned where nothing was compiled."""
    return plan.compiled_bytes if plan.check == "compiled" else plan.planned_bytes


def _for_budget(plan: Plan, budget: int, outcome: Outcome) -> Plan:
    """Another budget's plan under this one, with what is proven about this one."""
    solution = replace(plan.solution, budget=budget)
    if isinstance(outcome, Plan):
        own = outcome.solution
        solution = replace(solution, lower_bound=min(own.lower_bound, solution.cost), scope=own.scope)
    return plan.amended(budget_bytes=budget, solution=solution)
