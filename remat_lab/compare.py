"""Every strategy on one loss, side by side: planned, compiled, checked against plain JAX, and timed in alternation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from remat_lab import environment
from remat_lab.api import as_loss, planner_for
from remat_lab.arguments import is_concrete, materialise
from remat_lab.budget import parse_budget
from remat_lab.comparison import Comparison, Row, Timeline
from remat_lab.envelope import Outcome, plan_all
from remat_lab.errors import InvalidArgument, RematLabError
from remat_lab.fuse import CostRule
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from remat_lab.strategies import Budget, Strategy, block_transform, select
from remat_lab.summary import describe_progress
from remat_lab.trial import Entry, Function, Job, References, Report, Reporter, check_row, compile_row, failed, time_rows
from solvers import available
from solvers.errors import InfeasibleBudget, InvalidBudget
from solvers.solution import Progress


def compare(
    loss: Function,
    *args: Any,
    blocks: Callable[[Function], Function] | None = None,
    budgets: Iterable[Budget] = (0.7, 0.5, 0.3),
    strategies: Iterable[str] | None = None,
    solver: str = "auto",
    costs: str | CostRule = "roofline",
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    real_args: tuple[Any, ...] | None = None,
    seed: int = 0,
    rounds: int = 11,
    time_limit: float = 20.0,
    workers: int | None = None,
    strict: bool = False,
    title: str | None = None,
    progress: Report | None = None,
) -> Comparison:
    """Sets rematerialization strategies side by side on one loss.

    Each strategy's `value_and_grad` is compiled under its own compiler options and under every scheduler that the backend
    has, run once and compared with plain JAX compiled under the same options, and timed in alternation with all the others.
    A strategy that fails is a row that says why; nothing else is lost.

    Args:
        loss: scalar function of `*args`.
        *args: arrays, or `jax.ShapeDtypeStruct`s, which are replaced by made-up arrays where the program runs.
        blocks: `blocks(transform)` rebuilds the loss with each block wrapped by `transform`, a function of a block. Without it
            the rows nn_remat, dots_saveable and dots_with_no_batch_dims_saveable are absent.
        budgets: budgets of the optimal plans, in the forms of `plan`.
        strategies: which rows: names as in the result, "optimal" for all budgets, "optimal@0.4" for one; None for all.
        solver: the solver of the optimal plans.
        costs: what the plans minimise, as for `plan`.
        argnums: which arguments to differentiate.
        has_aux: whether the loss returns `(value, aux)`.
        real_args: what to run on; None to make arrays from the seed, see `arguments.materialise`.
        seed: of made-up arrays and of the solver.
        rounds: how often each row is timed; 0 leaves times out.
        time_limit: seconds for each optimal plan.
        workers: threads of the solver.
        strict: raise `InfeasibleBudget` before anything is compiled, instead of making a row of it.
        title: what the result is called; the loss's name by default.
        progress: called with what is being done, how many parts of the work are done, and how many there are.

    Returns:
        One row per strategy, plain JAX first.

    Raises:
        RematLabError: if the loss cannot be planned at all, or a strategy or solver is unknown.
        InvalidBudget: if a budget is not one.
        InfeasibleBudget: only if `strict`.
    """
    if solver not in available():
        raise InvalidArgument(f"there is no solver {solver!r}: choose one of {', '.join(available())}")
    if rounds < 0:
        raise InvalidArgument(f"rounds is {rounds}: zero (no timings) or more")
    chosen = select(strategies, budgets, solver)
    for strategy in chosen:
        if strategy.budget is not None:
            parse_budget(strategy.budget, keep_all_peak=1 << 40)  # whether it is one: before the work, not in the middle
    runnable = real_args if real_args is not None else args if is_concrete(args) else materialise(args, seed)
    job = Job(loss, args, runnable, blocks, argnums, has_aux, Reporter(progress, 3 * len(chosen) + max(rounds, 0)))
    whole = as_loss(loss, argnums, has_aux, (), ())
    planner = planner_for(whole, whole.call(args, {}), costs=costs)
    limits = {"seed": seed, "time_limit": time_limit, "workers": workers}
    plans = _plans(job, planner, chosen, solver, strict, limits)
    entries = [_prepare(job, strategy, planner, plans, limits) for strategy in chosen]
    entries = [compile_row(job, entry) for entry in entries]
    references = References(job, entries[0])
    entries = [check_row(job, entry, references) for entry in entries]
    rows = time_rows(job, entries, references, rounds)
    settings = {
        "budgets": [str(strategy.budget) for strategy in chosen if strategy.family == "optimal"],
        "solver": solver,
        "costs": costs if isinstance(costs, str) else getattr(costs, "__name__", "a function"),
        "seed": seed,
        "rounds": rounds,
        "time_limit": time_limit,
        "schedulers": job.schedulers,
    }
    peaks = [entry.plan.predicted.keep_all_peak_bytes for entry in entries if entry.plan is not None]
    return Comparison(
        title=title or str(getattr(loss, "__name__", type(loss).__name__)),
        rows=tuple(rows),
        keep_all_peak_bytes=peaks[0] if peaks else None,
        settings=settings,
        environment=environment.describe(),
    )


def _plans(
    job: Job, planner: Planner, chosen: Sequence[Strategy], solver: str, strict: bool, limits: Mapping[str, Any]
) -> dict[int, Outcome]:
    """The optimal plans, by budget in bytes."""
    names = {planner.bytes_of(strategy.budget): strategy.name for strategy in chosen if strategy.family == "optimal"}

    def tell(budget: int) -> Callable[[Progress], None]:
        job.report.start(f"plan {names[budget]}")
        return lambda now: job.report.start(describe_progress(f"plan {names[budget]}", now))

    found = plan_all(planner, [budget for budget in names if budget is not None], solver=solver, tell=tell, **limits)
    for outcome in found.values():
        if strict and isinstance(outcome, InfeasibleBudget):
            raise outcome
    return found


def _prepare(job: Job, strategy: Strategy, planner: Planner, plans: Mapping[int, Outcome], limits: Mapping[str, Any]) -> Entry:
    """Makes the function that a strategy stands for."""
    job.report.start(f"plan {strategy.name}")
    row = Row(strategy=strategy.name, family=strategy.family, solver=strategy.solver)
    try:
        if strategy.family == "plain":
            return Entry(row, job.differentiate(job.loss))
        if strategy.family == "policy":
            if job.blocks is None:
                return Entry(replace(row, status="absent", reason="the model offers no blocks to transform"))
            return Entry(row, job.differentiate(job.blocks(block_transform(strategy.policy))))
        budget = planner.bytes_of(strategy.budget)
        made = planner.plan(None, solver=strategy.solver or "auto", **limits) if budget is None else plans[budget]
        if isinstance(made, Exception):
            raise made
        return Entry(_planned(row, made), made.value_and_grad(), made)
    except InfeasibleBudget as error:
        return Entry(replace(row, status="infeasible", reason=str(error)))
    except (InvalidBudget, RematLabError):
        raise  # about the loss or the call, not about this strategy
    except Exception as error:
        if strategy.family == "plain":
            raise
        return Entry(failed(row, error))
    finally:
        job.report.finish()


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
