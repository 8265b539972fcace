"""What a comparison of strategies found: one row each, ready for JSON, the table and the picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from remat_lab.errors import UnknownRow

SCHEMA = 1  # of the JSON; raised when a key changes its meaning


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a plan holds while it runs.

    Attributes:
        live_bytes: budgeted bytes live during each step.
        starts_backward: step at which the backward pass begins.
        budget_bytes: the budget that the plan was made for; None if none.
    """

    live_bytes: tuple[int, ...]
    starts_backward: int
    budget_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy. What a row does not have (a plan, say, for plain JAX) is None.

    Attributes:
        strategy: its name.
        family: plain, policy, heuristic or optimal.
        status: how far the solver got; "absent", "infeasible" or "failed" for a row without figures; None without a plan.
        reason: why a row is absent, infeasible or failed.
        solver: the solver that found the plan.
        planned_peak_bytes: simulated peak of budgeted bytes.
        planned_total_bytes: the same with the program's outputs.
        compiled_temp_bytes: XLA's temp bytes under the row's own compiler options.
        compiled_temp_by_scheduler: the same under each scheduler that the backend has.
        compiler_options: the row's own options.
        argument_bytes: XLA's argument bytes.
        output_bytes: XLA's output bytes.
        planned_extra_flops_ratio: recomputed FLOPs over those of computing everything once.
        compiled_flops: FLOPs of the executable by XLA's cost analysis, with loops' later trips, which that leaves out.
        compiled_extra_flops_ratio: these over plain JAX's, minus 1.
        step_seconds: median of the timed rounds.
        step_time_ratio: median over rounds of the time relative to plain JAX in the same round.
        step_time_ratio_by_scheduler: of plain JAX compiled with the options of other rows, relative to plain JAX with its own;
            empty for all other rows.
        step_time_ratio_quartiles: first and third quartile of these.
        max_grad_difference: largest absolute difference of any gradient from plain JAX under the same compiler options; None
            with a reason where it is not finite.
        max_grad_relative_difference: the same relative to the leaf's largest magnitude.
        max_value_difference: as `max_grad_difference`, of the loss (and aux).
        bitwise_equal: whether values and gradients have the same bytes.
        cost: the plan's cost, in the unit of the planner's costs (`plan`'s option `costs`).
        planned_extra_cost_ratio: cost of recomputation over that of computing everything once.
        lower_bound: no plan within the budget costs less, relative to `scope`.
        planned_bound_ratio: the bound over the cost of computing everything once, minus 1.
        gap: (cost - lower_bound) / cost of computing everything once.
        scope: what the bound refers to.
        target: the device that the row is about; None for the one that it ran on.
        kernels: kernels that the executable starts (`kernels`); a loop's once per trip.
        kernel_bytes: bytes that they read and write.
        device_peak_bytes: results and temporaries at their peak by the device's own allocator; None where it has none (the CPU)
            or an earlier program's peak hides it.
        plan_seconds: trace, fuse and solve.
        compile_seconds: compilation under the row's own options.
        timeline: live bytes of the plan.
    """

    strategy: str
    family: str
    status: str | None = None
    reason: str | None = None
    solver: str | None = None
    planned_peak_bytes: int | None = None
    planned_total_bytes: int | None = None
    compiled_temp_bytes: int | None = None
    compiled_temp_by_scheduler: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    compiler_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    argument_bytes: int | None = None
    output_bytes: int | None = None
    planned_extra_flops_ratio: float | None = None
    compiled_flops: float | None = None
    compiled_extra_flops_ratio: float | None = None
    step_seconds: float | None = None
    step_time_ratio: float | None = None
    step_time_ratio_by_scheduler: Mapping[str, float] = field(default_factory=dict[str, float])
    step_time_ratio_quartiles: tuple[float, float] | None = None
    max_grad_difference: float | None = None
    max_grad_relative_difference: float | None = None
    max_value_difference: float | None = None
    bitwise_equal: bool | None = None
    cost: float | None = None
    planned_extra_cost_ratio: float | None = None
    lower_bound: float | None = None
    planned_bound_ratio: float | None = None
    gap: float | None = None
    scope: str | None = None
    target: str | None = None
    kernels: int | None = None
    kernel_bytes: int | None = None
    device_peak_bytes: int | None = None
    plan_seconds: float | None = None
    compile_seconds: float | None = None
    timeline: Timeline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `compare` found.

    Attributes:
        title: the name of what was compared.
        rows: one per strategy, plain JAX first.
        keep_all_peak_bytes: simulated peak of the plan that keeps everything; None if nothing was planned.
        settings: how it was measured.
        environment: machine, versions and options.
    """

    title: str
    rows: tuple[Row, ...]
    keep_all_peak_bytes: int | None
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]

    def __getitem__(self, strategy: str) -> Row:
        for row in self.rows:
            if row.strategy == strategy:
                return row
        raise UnknownRow(f"no row {strategy!r}: there are {', '.join(row.strategy for row in self.rows)}")

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready description, which the table and the picture are made from."""
        shallow = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rows"}
        return {"schema": SCHEMA, **shallow, "rows": [asdict(row) for row in self.rows]}

    def save(self, path: str | Path) -> None:
        """Writes the JSON, whole or not at all."""
        from remat_lab.report import write_json

        write_json(self.to_json(), path)

    def plot(self, path: str | Path) -> None:
        """Draws the picture; the path's suffix (.png or .svg) chooses the format."""
        from remat_lab.plots import picture

        picture(self.to_json(), path)

    def __str__(self) -> str:
        from remat_lab.report import as_text

        return as_text(self.to_json())


class Interrupted(KeyboardInterrupt):
    """A comparison was interrupted after its first row.

    Attributes:
        comparison: the rows that were told of until then.
    """

    def __init__(self, comparison: Comparison):
        super().__init__(f"interrupted after {len(comparison.rows)} rows")
        self.comparison = comparison
