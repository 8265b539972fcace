"""The trade between memory and work of one loss: plans at many budgets, JAX's own policies as points beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from remat_lab import environment
from remat_lab.api import as_loss, planner_for
from remat_lab.arguments import is_concrete, materialise
from remat_lab.budget import parse_budget
from remat_lab.comparison import Comparison, Row
from remat_lab.entries import Maker, settings_of
from remat_lab.errors import InvalidArgument
from remat_lab.fuse import CostRule
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from remat_lab.strategies import FIXED, Budget, Strategy
from remat_lab.timed import run_rows
from remat_lab.trial import Entry, Function, Job, Report, Reporter, compile_row, with_temps
from solvers.errors import InfeasibleBudget

SCHEMA = "remat_lab.frontier/1"
BASELINES = ("plain", "nn_remat", "dots_saveable", "dots_with_no_batch_dims_saveable")


@dataclass(frozen=True, slots=True)
class Excess:
    """Where a baseline is better than every plan that needs no more memory than it.

    Attributes:
        baseline: the row of the baseline.
        scheduler: the scheduler under which its memory was taken.
        measure: "cost" by the planner's model, or "FLOPs" as compiled; each is compared for itself.
        plan: the best plan by that measure within that memory; None if there is none.
        amount: by how much that plan's ratio is above the baseline's; None without a plan.
    """

    baseline: str
    scheduler: str
    measure: str
    plan: str | None
    amount: float | None


MEASURES: dict[str, Callable[[Row], float | None]] = {
    "cost": lambda row: 0.0 if row.family == "plain" else row.planned_extra_cost_ratio,
    "FLOPs": lambda row: row.compiled_extra_flops_ratio,
}


@dataclass(frozen=True, slots=True)
class Frontier:
    """What `frontier` found.

    Attributes:
        comparison: a row for each baseline and each plan; plans from the smallest budget to keeping everything.
        taken: where baselines are better than every schedule, before they became plans themselves.
    """

    comparison: Comparison
    taken: tuple[Excess, ...] = ()

    @property
    def plans(self) -> list[Row]:
        """The plans that there are; those of schedules from the smallest budget up: along them cost falls."""
        return [row for row in self.comparison.rows if row.family == "optimal" and row.compiled_temp_bytes is not None]

    @property
    def baselines(self) -> list[Row]:
        """Plain JAX and its policies as compiled."""
        return _baselines(self.comparison.rows)

    def excesses(self) -> list[Excess]:
        """Where plain JAX or a policy, under any scheduler, is better than every plan within the memory that it takes there."""
        return find_excesses(self.baselines, self.plans)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready description, which the table and the picture are made from."""
        found = {"excesses": [asdict(one) for one in self.excesses()], "taken": [asdict(one) for one in self.taken]}
        return {**self.comparison.to_json(), "schema": SCHEMA, **found}

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
    keeping everything, a plan is also made for exactly the memory that it takes. Where it is better than every schedule within
    that memory nonetheless, by cost or by FLOPs as compiled, it is itself the plan.

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
    planner.programs, maker = job.programs, Maker(job, planner, solver, limits)
    plain = compile_row(job, maker.entry(FIXED["plain"], {}))
    others = [compile_row(job, maker.entry(FIXED[name], {}), plain.row) for name in BASELINES if name != "plain"]
    baselines = [with_temps(job, entry) for entry in (plain, *others)]
    known: dict[int, Plan] = {}
    if asked is None:
        job.report.start("find the smallest budget")
        smallest, plan = _smallest(planner, solver, limits)
        known = {} if plan is None else {smallest: plan}
        ends = smallest, planner.keep_all_peak_bytes
        asked = [(_percentage(budget, ends[1]), budget) for budget in _between(*ends, points)]
    asked = _with_baselines(asked, baselines)
    chosen = [Strategy(f"optimal@{name}", "optimal", solver=solver, budget=budget) for name, budget in asked]
    plans = maker.plans(chosen, known)
    planned = [compile_row(job, maker.entry(strategy, plans), plain.row) for strategy in chosen]
    entries = [*baselines, *planned]
    rows = run_rows(job, entries, rounds) if execute else [entry.row for entry in entries]
    taken = find_excesses(_baselines(rows), [row for row in rows if row.family == "optimal" and row.compiled_temp_bytes])
    return Frontier(
        taken=tuple(taken),
        comparison=Comparison(
            title=title or planner.loss.name,
            rows=(*rows, *_as_plans(rows, taken)),
            keep_all_peak_bytes=planner.keep_all_peak_bytes,
            settings=settings_of(job, chosen, solver=solver, costs=costs, rounds=rounds, **limits),
            environment=environment.describe(),
        ),
    )


def _baselines(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.family in ("plain", "policy") and row.compiled_temp_bytes is not None]


def find_excesses(baselines: Iterable[Row], plans: Sequence[Row]) -> list[Excess]:
    """Where baselines, under any scheduler, are better by some measure than every plan within their memory."""
    found: list[Excess] = []
    for row in baselines:
        for scheduler, temp in row.compiled_temp_by_scheduler.items():
            within = [plan for plan in plans if temp is not None and (plan.compiled_temp_bytes or 0) <= temp]
            for name, measure in MEASURES.items():
                theirs = measure(row)
                if temp is None or theirs is None:
                    continue
                ours = {plan.strategy: value for plan in within if (value := measure(plan)) is not None}
                best = min(ours, key=ours.__getitem__, default=None)
                if best is None or ours[best] > theirs:
                    found.append(Excess(row.strategy, scheduler, name, best, None if best is None else ours[best] - theirs))
    return found


def _as_plans(rows: Iterable[Row], taken: Iterable[Excess]) -> list[Row]:
    """The baselines that schedules do not reach, as plans: under the scheduler where they are better."""
    by_name = {row.strategy: row for row in rows}
    chosen = dict.fromkeys((excess.baseline, excess.scheduler) for excess in taken)
    return [
        replace(
            by_name[baseline],
            strategy=f"{baseline}, {scheduler}",
            family="optimal",
            solver=baseline,
            planned_extra_cost_ratio=MEASURES["cost"](by_name[baseline]),
            compiled_temp_bytes=by_name[baseline].compiled_temp_by_scheduler[scheduler],
        )
        for baseline, scheduler in chosen
    ]


def _smallest(planner: Planner, solver: str, limits: dict[str, Any]) -> tuple[int, Plan | None]:
    """The smallest budget that a plan is known to keep as compiled, and that plan if it was made."""
    budget = 1
    for check in ("planned", "compiled", "compiled"):
        try:
            plan = planner.plan(budget, solver=solver, check=check, **limits)
        except InfeasibleBudget as error:
            budget = min(max(error.minimum, budget + 1), planner.keep_all_peak_bytes)
        else:
            return budget, plan if check == "compiled" else None
    return budget, None


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
