"""From a strategy to a row in the making: its plan or its transformed loss, with what the planner says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from remat_lab.api import analyse, as_loss
from remat_lab.comparison import Row, Timeline
from remat_lab.envelope import Outcome, envelope, plan_all, plan_one
from remat_lab.errors import is_about_the_call
from remat_lab.fuse import CostRule, Fused
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from remat_lab.programs import Program
from remat_lab.strategies import Strategy, block_transform
from remat_lab.summary import describe_progress
from remat_lab.trace import Loss
from remat_lab.trial import Entry, Function, Job, failed
from solvers.errors import InfeasibleBudget
from solvers.solution import Progress


@dataclass(frozen=True)
class Maker:
    """Makes rows: what they share beside the job.

    Attributes:
        job: what is compared.
        planner: of its loss.
        solver: of the plans under a budget.
        limits: further options of `Planner.plan`.
    """

    job: Job
    planner: Planner
    solver: str
    limits: Mapping[str, Any]

    def plans(self, chosen: Sequence[Strategy], known: Mapping[int, Plan] | None = None) -> dict[int, Outcome]:
        """The optimal plans, by budget in bytes, made one after the other; some may be known already."""
        names = self._budgets(chosen)

        def tell(budget: int) -> Callable[[Progress], None]:
            self.job.report.start(f"plan {names[budget]}")
            return lambda now: self.job.report.start(describe_progress(f"plan {names[budget]}", now))

        return plan_all(self.planner, names, solver=self.solver, tell=tell, known=known, **self.limits)

    def plans_at_once(self, chosen: Sequence[Strategy], made: Callable[[Plan], None]) -> dict[int, Outcome]:
        """The optimal plans, by budget in bytes, made in threads from the smallest on; for functions without loops.

        Args:
            chosen: the strategies, of which those under a budget count.
            made: called with each plan, which may still give way to another one.
        """
        errands, say = self.job.errands, self.job.report.beside

        def make(budget: int, name: str) -> Outcome:
            def hear(now: Progress) -> None:
                errands.tell(partial(say, name, describe_progress(f"plan {name}", now)))

            errands.tell(partial(say, name, f"plan {name}"))
            outcome = plan_one(self.planner, budget, solver=self.solver, progress=hear, **self.limits)
            errands.tell(partial(say, name, ""))
            if isinstance(outcome, Plan):
                errands.tell(partial(made, outcome))
            return outcome

        begun = {budget: errands.start(partial(make, budget, name)) for budget, name in sorted(self._budgets(chosen).items())}
        errands.wait(begun.values())
        return envelope({budget: future.result() for budget, future in begun.items()})

    def entry(self, strategy: Strategy, plans: Mapping[int, Outcome]) -> Entry:
        """Makes the program that a strategy stands for."""
        job, planner = self.job, self.planner
        job.report.start(f"plan {strategy.name}")
        target = None if job.target is None else job.target.name
        row = Row(strategy=strategy.name, family=strategy.family, solver=strategy.solver, target=target)
        try:
            if strategy.family == "plain":
                return Entry(row, job.plain)
            if strategy.family == "policy":
                if job.blocks is None:
                    return Entry(replace(row, status="absent", reason="the model offers no blocks to transform"))
                blocked = job.blocks(block_transform(strategy.policy))
                return Entry(self._modelled(row, blocked), job.differentiate(blocked))
            budget = planner.bytes_of(strategy.budget)
            made = planner.plan(None, solver=strategy.solver or "auto", **self.limits) if budget is None else plans[budget]
            if isinstance(made, Exception):
                raise made
            return Entry(_planned(row, made), Program(made.on_leaves, job.unflatten))
        except InfeasibleBudget as error:
            return Entry(replace(row, status="infeasible", reason=str(error)))
        except Exception as error:
            if strategy.family == "plain" or is_about_the_call(error):
                raise
            return Entry(failed(row, error))
        finally:
            job.report.finish()

    def _budgets(self, chosen: Sequence[Strategy]) -> dict[int, str]:
        """The rows' names by their budgets in bytes."""
        named = {self.planner.bytes_of(strategy.budget): strategy.name for strategy in chosen if strategy.family == "optimal"}
        return {budget: name for budget, name in named.items() if budget is not None}

    def _modelled(self, row: Row, blocked: Function) -> Row:
        """What a transformed loss costs by the planner's own model, over the untransformed one."""
        plain, written = self._plain, self._as_written(as_loss(blocked, self.job.argnums, self.job.has_aux, (), ()))
        cost, flops = [
            (after / before - 1 if before else 0.0)
            for before, after in (
                (plain.graph.keep_all_cost, written.graph.keep_all_cost),
                (plain.flops(plain.graph.steps), written.flops(written.graph.steps)),
            )
        ]
        return replace(row, planned_extra_cost_ratio=cost, planned_extra_flops_ratio=flops)

    @cached_property
    def _plain(self) -> Fused:
        return self._as_written(self.planner.loss)

    def _as_written(self, loss: Loss) -> Fused:
        return analyse(loss, self.planner.call, costs=self.planner.costs, as_written=True)


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
