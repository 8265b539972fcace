"""The planned step as it runs: traced anew, compared with what was planned for, and run in the planned order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from remat_lab.call import Call
from remat_lab.emit import run_schedule
from remat_lab.errors import InvalidLoss, PlanMismatch
from remat_lab.flatten import Program, flatten
from remat_lab.fuse import Fused
from remat_lab.mismatch import other_program
from remat_lab.trace import Loss, Traced
from solvers.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Step:
    """A loss's value-and-gradient step under a schedule.

    Attributes:
        loss: what is traced.
        fused: what the schedule was made for.
        schedule: the order; None leaves the step to XLA.
    """

    loss: Loss
    fused: Fused
    schedule: Schedule | None

    def run(self, call: Call) -> Any:
        """Value and gradient, as `jax.value_and_grad` returns them.

        Raises:
            PlanMismatch: if the loss traces to another program than the one planned.
        """
        traced, program = self._retrace(call)
        if self.schedule is None:
            return traced.unflatten(jax.core.eval_jaxpr(traced.jaxpr, traced.jaxpr.consts, *call.values))
        arrays = {v: c for v, c in program.constants.items() if "Ref" not in type(program.avals[v]).__name__}
        arrays, values = _not_differentiable((arrays, call.values))
        program = replace(program, constants={**program.constants, **arrays})
        return traced.unflatten(run_schedule(self.fused, self.schedule, program, values))

    def run_flat(self, call: Call, *values: Any) -> list[Any]:
        """The results as a list, for other values of the traced leaves than those of the call."""
        traced, program = self._retrace(call)
        if self.schedule is None:
            return jax.core.eval_jaxpr(traced.jaxpr, traced.jaxpr.consts, *values)
        return run_schedule(self.fused, self.schedule, program, values)

    def _retrace(self, call: Call) -> tuple[Traced, Program]:
        traced = self.loss.trace(call)
        program = flatten(traced.jaxpr)
        if program.fingerprint != self.fused.program.fingerprint:
            raise PlanMismatch(other_program(self.loss.name, self.fused.program, program, call.paths_of_values))
        return traced, program


@jax.custom_jvp
def _not_differentiable(inputs: Any) -> Any:
    """The inputs of what is already a gradient: differentiated again, inlined custom rules would be lost without a word."""
    return inputs


@_not_differentiable.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    raise InvalidLoss(
        "an exact schedule is a finished program and cannot be differentiated again: take derivatives of the loss first, "
        "and plan what you really run"
    )
