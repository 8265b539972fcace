"""Every strategy on one loss, side by side: planned, compiled, checked against plain JAX, and timed in alternation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from remat_lab import environment
from remat_lab.api import as_loss, planner_for
from remat_lab.arguments import is_concrete, materialise
from remat_lab.budget import parse_budget
from remat_lab.comparison import Comparison, Interrupted, Row
from remat_lab.entries import Maker, settings_of
from remat_lab.errors import InvalidArgument
from remat_lab.fuse import CostRule
from remat_lab.rows import Rows
from remat_lab.strategies import Budget, select
from remat_lab.targets import Target, as_target
from remat_lab.trial import Function, Job, Report, Reporter
from solvers import available


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
    targets: Sequence[str | Target] = (),
    title: str | None = None,
    progress: Report | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
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
        targets: devices to compare on, by name (see `remat-lab targets`) or as `Target`s; none for the one that JAX uses. What
            is not here is planned and compiled for, not run. Each has rows of its own, plain JAX first.
        title: what the result is called; the loss's name by default.
        progress: called with what is being done, how many parts of the work are done, and how many there are.
        on_row: called with each row as soon as it is compiled and checked, in the order of the table, and with all rows once
            more when times and what else takes long are known.

    Returns:
        One row per strategy, plain JAX first.

    Raises:
        RematLabError: if the loss cannot be planned at all, or a strategy or solver is unknown.
        InvalidBudget: if a budget is not one.
        InfeasibleBudget: only if `strict`.
        TargetUnavailable: if nothing can be compiled for a target here, with what to install.
        Interrupted: for a KeyboardInterrupt that comes after the first row; it has the comparison so far.
    """
    if solver not in available():
        raise InvalidArgument(f"there is no solver {solver!r}: choose one of {', '.join(available())}")
    if rounds < 0:
        raise InvalidArgument(f"rounds is {rounds}: zero (no timings) or more")
    chosen = select(strategies, budgets, solver)
    for strategy in chosen:
        if strategy.budget is not None:
            parse_budget(strategy.budget, keep_all_peak=1 << 40)  # whether it is one: before the work, not in the middle
    places: list[Target | None] = [as_target(target) for target in targets] or [None]
    for place in places:
        if place is not None:
            place.device()  # refused before the work, not in the middle
    runs = any(place is None or place.is_present for place in places)
    runnable = real_args if real_args is not None else args if is_concrete(args) or not runs else materialise(args, seed)
    reporter = Reporter(progress, len(places) * (3 * len(chosen) + max(rounds, 0)))
    whole = as_loss(loss, argnums, has_aux, (), ())
    limits: dict[str, Any] = {"seed": seed, "time_limit": time_limit, "workers": workers}
    peaks: list[int] = []
    told: dict[tuple[str | None, str], Row] = {}

    def tell(row: Row) -> None:
        told[row.target, row.strategy] = row
        on_row(row)

    jobs = [Job(loss, args, runnable, blocks, argnums, has_aux, reporter, place) for place in places]

    def comparison() -> Comparison:
        return Comparison(
            title=title or whole.name,
            rows=tuple(told.values()),
            keep_all_peak_bytes=peaks[0],
            settings=settings_of(jobs[0], chosen, solver=solver, costs=costs, rounds=rounds, **limits),
            environment=environment.describe(),
        )

    try:
        for job in jobs:
            reporter.start("trace and group")
            planner = planner_for(whole, job.call, costs=costs, target=job.target)
            planner.programs = job.programs
            peaks.append(planner.keep_all_peak_bytes)
            Rows(Maker(job, planner, solver, limits), tell).make(chosen, strict=strict, rounds=rounds)
    except KeyboardInterrupt as error:
        if told:
            raise Interrupted(comparison()) from error
        raise
    return comparison()
