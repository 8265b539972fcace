"""From a strategy to a row in the making: its plan or its transformed loss, with what the planner says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from remat_lab.api import analyse, as_loss
from remat_lab.comparison import Row, Timeline
from remat_lab.envelope import Outcome, plan_all
from remat_lab.errors import is_about_the_call
from remat_lab.fuse import CostRule
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from remat_lab.strategies import Strategy, block_transform
from remat_lab.summary import describe_progress
from remat_lab.trial import Entry, Function, Job, failed
from solvers.errors import InfeasibleBudget
from solvers.solution import Progress


def plans_of(
    job: Job,
    planner: Planner,
    chosen: Sequence[Strategy],
    solver: str,
    limits: Mapping[str, Any],
    known: Mapping[int, Plan] | None = None,
) -> dict[int, Outcome]:
    """The optimal plans, by budget in bytes; some may be known already."""
    names = {planner.bytes_of(strategy.budget): strategy.name for strategy in chosen if strategy.family == "optimal"}

    def tell(budget: int) -> Callable[[Progress], None]:
        job.report.start(f"plan {names[budget]}")
        return lambda now: job.report.start(describe_progress(f"plan {names[budget]}", now))

    budgets = [budget for budget in names if budget is not None]
    return plan_all(planner, budgets, solver=solver, tell=tell, known=known, **limits)


def prepare(job: Job, strategy: Strategy, planner: Planner, plans: Mapping[int, Outcome], limits: Mapping[str, Any]) -> Entry:
    """Makes the function that a strategy stands for."""
    job.report.start(f"plan {strategy.name}")
    row = Row(strategy=strategy.name, family=strategy.family, solver=strategy.solver)
    try:
        if strategy.family == "plain":
            return Entry(row, job.differentiate(job.loss))
        if strategy.family == "policy":
            if job.blocks is None:
                return Entry(replace(row, status="absent", reason="the model offers no blocks to transform"))
            blocked = job.blocks(block_transform(strategy.policy))
            return Entry(_modelled(row, job, blocked, planner), job.differentiate(blocked))
        budget = planner.bytes_of(strategy.budget)
        made = planner.plan(None, solver=strategy.solver or "auto", **limits) if budget is None else plans[budget]
        if isinstance(made, Exception):
            raise made
        return Entry(_planned(row, made), made.value_and_grad(), made)
    except InfeasibleBudget as error:
        return Entry(replace(row, status="infeasible", reason=str(error)))
    except Exception as error:
        if strategy.family == "plain" or is_about_the_call(error):
            raise
        return Entry(failed(row, error))
    finally:
        job.report.finish()


def _modelled(row: Row, job: Job, blocked: Function, planner: Planner) -> Row:
    """What a transformed loss costs by the planner's own model, over the untransformed one."""
    losses = [planner.loss, as_loss(blocked, job.argnums, job.has_aux, (), ())]
    plain, written = [analyse(loss, planner.call, costs=planner.costs, as_written=True) for loss in losses]
    cost, flops = [
        (after / before - 1 if before else 0.0)
        for before, after in (
            (plain.graph.keep_all_cost, written.graph.keep_all_cost),
            (plain.flops(plain.graph.steps), written.flops(written.graph.steps)),
        )
    ]
    return replace(row, planned_extra_cost_ratio=cost, planned_extra_flops_ratio=flops)


def _planned(row: Row, made: Plan) -> Row:
    predicted, solution = made.predicted, made.solution
    base = solution.keep_all_cost
    return replace(
        row,
        status=solution.status.value,
        solver=solution.solver,
        planned_peak_bytes=predicted.peak_bytes,
        planned_total_bytes=predicted.total_bytes,
        planned_extra_flops_ratio=predicted.extra_flops_ratio,
        compiler_options=dict(made.compiler_options),
        cost=solution.cost,
        planned_extra_cost_ratio=solution.overhead,
        lower_bound=solution.lower_bound,
        planned_bound_ratio=solution.lower_bound / base - 1 if base else None,
        gap=solution.gap,
        scope=solution.scope,
        plan_seconds=made.seconds,
        timeline=Timeline(
            live_bytes=tuple(predicted.live), starts_backward=predicted.starts_backward, budget_bytes=made.budget_bytes
        ),
    )


def settings_of(job: Job, chosen: Sequence[Strategy], *, solver: str, costs: str | CostRule, **others: Any) -> dict[str, Any]:
    """How rows were made, for the record."""
    return {
        "budgets": [str(strategy.budget) for strategy in chosen if strategy.family == "optimal"],
        "solver": solver,
        "costs": costs if isinstance(costs, str) else getattr(costs, "__name__", "a function"),
        **{key: value for key, value in others.items() if key != "workers"},
        "schedulers": job.schedulers,
    }
