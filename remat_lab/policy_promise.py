"""The promise about the compiled program, for plans that `jax.checkpoint` expresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax

from remat_lab import promise
from remat_lab.applied import applied
from remat_lab.call import Call
from remat_lab.measure import Compiled, compile_jitted
from remat_lab.policy_plan import PolicyPlan
from remat_lab.trace import Loss


class AppliedPolicy:
    """A policy plan and the program that it becomes.

    Attributes:
        plan: regions and names.
        compiler_options: what the program is compiled with.
        rounds: the attempts that led to it.
    """

    def __init__(self, plan: PolicyPlan, loss: Loss, call: Call, compiler_options: Mapping[str, str]):
        self.plan, self.compiler_options = plan, compiler_options
        self.rounds: tuple[promise.Round, ...] = ()
        self._loss, self._call = loss, call

    @property
    def planned_bytes(self) -> int:
        """Predicted peak of temporaries."""
        return self.plan.peak_bytes

    @property
    def compiled_bytes(self) -> int:
        """Temp bytes of `jax.value_and_grad` of the applied loss."""
        return self.compiled.temp_bytes

    @cached_property
    def compiled(self) -> Compiled:
        """`jax.value_and_grad` of the applied loss, compiled with `compiler_options`."""
        loss = replace(self._loss, fun=applied(self._loss, self._call, self.plan))
        traced = loss.trace(self._call)

        def run(*values: Any) -> Any:
            return jax.core.eval_jaxpr(traced.jaxpr, traced.jaxpr.consts, *values)

        return compile_jitted(jax.jit(run, compiler_options=dict(self.compiler_options) or None), *self._call.values)


def hold(
    make: Callable[[int], PolicyPlan],
    budget: int,
    loss: Loss,
    call: Call,
    compiler_options: Mapping[str, str],
) -> AppliedPolicy:
    """The policy plan whose program compiles within a budget.

    Args:
        make: plans for a number of bytes.
        budget: largest temp bytes of the compiled program.
        loss: what is planned.
        call: its arguments, as shapes.
        compiler_options: what the promise is about.

    Raises:
        InfeasibleBudget: if no attempt compiles within the budget.
    """
    found, rounds = promise.hold(lambda asked: AppliedPolicy(make(asked), loss, call, compiler_options), budget)
    found.rounds = rounds
    return found
