"""The trade between memory and work of one loss: plans at many budgets, JAX's own policies as points beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remat_lab import environment
from remat_lab.api import as_loss, planner_for
from remat_lab.arguments import is_concrete, materialise
from remat_lab.budget import parse_budget
from remat_lab.comparison import Comparison, Row
from remat_lab.entries import plans_of, prepare, settings_of
from remat_lab.errors import InvalidArgument
from remat_lab.fuse import CostRule
from remat_lab.planner import Planner
from remat_lab.strategies import FIXED, Budget, Strategy
from remat_lab.trial import Entry, Function, Job, Report, Reporter, compile_row, relative_flops, run_rows
from solvers.errors import InfeasibleBudget

SCHEMA = "remat_lab.frontier/1"
BASELINES = ("plain", "nn_remat", "dots_saveable", "dots_with_no_batch_dims_saveable")


@dataclass(frozen=True, slots=True)
class Excess:
    """Where a baseline is better than every plan that needs no more than it.

    Attributes:
        baseline: the row of the baseline.
        scheduler: the scheduler under which its memory was taken.
        plan: the cheapest plan within that memory; None if there is none.
        cost: by how much that plan's modelled cost ratio is above the baseline's.
        flops: the same of FLOPs as compiled, over plain JAX's.
    """

    baseline: str
    scheduler: str
    plan: str | None
    cost: float | None
    flops: float | None


@dataclass(frozen=True, slots=True)
class Frontier:
    """What `frontier` found.

    Attributes:
        comparison: a row for each baseline and each plan; plans from the smallest budget to keeping everything.
    """

    comparison: Comparison

    @property
    def plans(self) -> list[Row]:
        """The plans that there are, from the smallest budget up: compiled temp rises along them and cost falls."""
        return [row for row in self.comparison.rows if row.family == "optimal" and row.compiled_temp_bytes is not None]

    @property
    def baselines(self) -> list[Row]:
        """Plain JAX and its policies as compiled."""
        kept = [row for row in self.comparison.rows if row.family in ("plain", "policy")]
        return [row for row in kept if row.compiled_temp_bytes is not None]

    def excesses(self) -> list[Excess]:
        """Where plain JAX or a policy, under any scheduler, is better than every plan within the memory that it takes there."""
        found: list[Excess] = []
        for row in self.baselines:
            for scheduler, temp in row.compiled_temp_by_scheduler.items():
                if temp is not None and (excess := self._excess(row, scheduler, temp)) is not None:
                    found.append(excess)
        return found

    def _excess(self, row: Row, scheduler: str, temp: int) -> Excess | None:
        within = [plan for plan in self.plans if (plan.compiled_temp_bytes or 0) <= temp]
        best = min(within, key=lambda plan: plan.planned_extra_cost_ratio or 0.0, default=None)
        if best is None:
            return Excess(row.strategy, scheduler, None, None, None)
        cost = (best.planned_extra_cost_ratio or 0.0) - (row.planned_extra_cost_ratio or 0.0)
        flops = _difference(best.compiled_extra_flops_ratio, row.compiled_extra_flops_ratio)
        if cost <= 0 and (flops is None or flops <= 0):
            return None
        return Excess(row.strategy, scheduler, best.strategy, cost, flops)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready description, which the table and the picture are made from."""
        return {**self.comparison.to_json(), "schema": SCHEMA, "excesses": [asdict(one) for one in self.excesses()]}

    def save(self, path: str | Path) -> None:
        """Writes the JSON, whole or not at all."""
        from remat_lab.report import write_json

        write_json(self.to_json(), path)

    def plot(self, path: str | Path) -> None:
        """Draws the picture; the path's suffix (.png or .svg) chooses the format."""
        from remat_lab.plot_frontier import picture

        picture(self.to_json(), path)

    def __str__(self) -> str:
        return str(self.comparison)


def frontier(
    loss: Function,
    *args: Any,
    blocks: Callable[[Function], Function] | None = None,
    budgets: Iterable[Budget] | None = None,
    points: int = 8,
    solver: str = "auto",
    costs: str | CostRule = "roofline",
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    execute: bool = False,
    real_args: tuple[Any, ...] | None = None,
    rounds: int = 0,
    seed: int = 0,
    time_limit: float = 10.0,
    workers: int | None = None,
    title: str | None = None,
    progress: Report | None = None,
) -> Frontier:
    """Plans one loss at many budgets, each held to its budget as compiled, beside plain JAX and its policies.

    Each search starts from the plan for the next smaller budget. Where plain JAX or a policy lies between the smallest plan and
    keeping everything, a plan is also made for exactly the memory that it takes.

    Args:
        loss: scalar function of `*args`.
        *args: arrays or `jax.ShapeDtypeStruct`s.
        blocks: as for `compare`: makes the points of `nn.remat` and of the policies per block.
        budgets: in the forms of `plan`; None for `points` of them, at equal ratios from the smallest known to keeping all.
        points: how many budgets, at least 2.
        solver: the solver of the plans.
        costs: what the plans minimise, as for `plan`.
        argnums: which arguments to differentiate.
        has_aux: whether the loss returns `(value, aux)`.
        execute: whether to run each program once and check it against plain JAX.
        real_args: what to run on; None to make arrays from the seed.
        rounds: how often each program is timed; more than 0 means `execute`.
        seed: of made-up arrays and of the solver.
        time_limit: seconds for each plan that is tried.
        workers: threads of the solver.
        title: what the result is called.
        progress: as for `compare`.

    Raises:
        RematLabError: if the loss cannot be planned at all, or an option is not one.
        InvalidBudget: if a budget is not one.
    """
    if points < 2:
        raise InvalidArgument(f"points={points}: a frontier has two ends, so at least 2")
    if rounds < 0:
        raise InvalidArgument(f"rounds={rounds}: zero (no timings) or more")
    whole = as_loss(loss, argnums, has_aux, (), ())
    planner = planner_for(whole, whole.call(args, {}), costs=costs)
    limits: dict[str, Any] = {"seed": seed, "time_limit": time_limit, "workers": workers}
    asked: list[tuple[str, int]] | None = None
    if budgets is not None:
        asked = [(str(budget), parse_budget(budget, planner.keep_all_peak_bytes)) for budget in budgets]
    execute = execute or rounds > 0
    runnable = () if not execute else real_args or (args if is_concrete(args) else materialise(args, seed))
    total = 3 * (len(BASELINES) + (points if asked is None else len(asked))) + rounds
    job = Job(loss, args, runnable, blocks, argnums, has_aux, Reporter(progress, total))
    baselines = [compile_row(job, prepare(job, FIXED[name], planner, {}, limits)) for name in BASELINES]
    if asked is None:
        job.report.start("find the smallest budget")
        ends = _smallest(planner, solver, limits), planner.keep_all_peak_bytes
        asked = [(_percentage(budget, ends[1]), budget) for budget in _between(*ends, points)]
    asked = _with_baselines(asked, baselines)
    chosen = [Strategy(f"optimal@{name}", "optimal", solver=solver, budget=budget) for name, budget in asked]
    plans = plans_of(job, planner, chosen, solver, limits)
    planned = [compile_row(job, prepare(job, strategy, planner, plans, limits)) for strategy in chosen]
    entries = [*baselines, *planned]
    rows = run_rows(job, entries, rounds) if execute else relative_flops(entries)
    return Frontier(
        Comparison(
            title=title or planner.loss.name,
            rows=tuple(rows),
            keep_all_peak_bytes=planner.keep_all_peak_bytes,
            settings=settings_of(job, chosen, solver=solver, costs=costs, rounds=rounds, **limits),
            environment=environment.describe(),
        )
    )


def _smallest(planner: Planner, solver: str, limits: dict[str, Any]) -> int:
    """The smallest budget that a plan is known to keep as compiled."""
    try:
        planner.plan(1, solver=solver, check="planned", **limits)
    except InfeasibleBudget as error:
        budget = min(error.minimum, planner.keep_all_peak_bytes)
    else:
        return 1
    try:
        planner.plan(budget, solver=solver, **limits)
    except InfeasibleBudget as error:
        return min(error.minimum, planner.keep_all_peak_bytes)
    return budget


def _between(low: int, high: int, points: int) -> list[int]:
    """Budgets at equal ratios: where memory is scarce, a little more of it saves the most work."""
    ratio = high / low if low else 1.0
    return sorted({min(high, max(low, round(low * ratio ** (i / (points - 1))))) for i in range(points)})


def _percentage(budget: int, keep_all: int) -> str:
    return f"{budget / keep_all:.3f}" if keep_all else "1.0"


def _with_baselines(asked: list[tuple[str, int]], baselines: Sequence[Entry]) -> list[tuple[str, int]]:
    """The budgets, and the memory that each baseline takes under each scheduler where that lies between them."""
    known = {budget: name for name, budget in asked}
    low, high = min(known), max(known)
    for entry in baselines:
        for scheduler, temp in entry.row.compiled_temp_by_scheduler.items():
            if temp is not None and low < temp < high:
                known.setdefault(temp, f"{entry.row.strategy}, {scheduler}")
    return [(name, budget) for budget, name in sorted(known.items())]


def _difference(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs
