"""The promise about the compiled program, for plans that `jax.checkpoint` expresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax

from remat_lab import promise
from remat_lab.applied import applied, forward_function
from remat_lab.call import Call
from remat_lab.loop_policy import UNLIMITED, plan_policy_with_loops
from remat_lab.measure import Compiled, compile_jitted
from remat_lab.policy_plan import PolicyPlan
from remat_lab.selection import Selection
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
    def fullest(self) -> str:
        """The step at which it peaks, in words."""
        return self.plan.fullest

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


def plan_applied(
    loss: Loss,
    call: Call,
    budget: int | None,
    compiler_options: Mapping[str, str],
    *,
    check: bool = True,
    must_save: Selection = (),
    must_recompute: Selection = (),
) -> AppliedPolicy:
    """The best policy plan for a loss within a budget.

    Args:
        loss: what is planned.
        call: its arguments, as shapes.
        budget: largest peak of temporaries, bytes; None for no limit.
        compiler_options: what the program is compiled with.
        check: whether the budget is a promise about `jax.value_and_grad` of the applied loss as compiled with these options.
        must_save: see `plan_policy`.
        must_recompute: see `plan_policy`.

    Raises:
        InfeasibleBudget: if no plan of this form fits.
    """
    run, _ = forward_function(loss, call)
    position = {leaf: p for p, leaf in enumerate(call.traced)}
    wanted: dict[str, Any] = {"must_save": must_save, "must_recompute": must_recompute}
    wanted["differentiated"] = [position[leaf] for leaf in call.differentiated]

    def make(asked: int) -> PolicyPlan:
        return plan_policy_with_loops(run, call.values, budget=asked, **wanted)

    def attempt(asked: int) -> AppliedPolicy:
        return AppliedPolicy(make(asked), loss, call, compiler_options)

    if budget is None or not check:
        return attempt(UNLIMITED if budget is None else budget)
    found, rounds = promise.hold(attempt, budget)
    found.plan, found.rounds = replace(found.plan, budget_bytes=budget), rounds
    return found
