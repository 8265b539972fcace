"""The promise about the compiled program, for decorated functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax

from remat_lab import promise
from remat_lab.differentiated import emitted_step, inexact_inputs
from remat_lab.loop_policy import planned_function
from remat_lab.measure import compile_jitted
from remat_lab.policy_plan import Budget, PolicyPlan
from remat_lab.refs import forward_program
from remat_lab.segments import Emitter
from remat_lab.targets import as_target
from solvers.errors import InfeasibleBudget

Run = Callable[..., Sequence[Any]]


class Segmented:
    """A function's regions as a program of their own: its forward and backward pass, given the gradients of its results.

    Attributes:
        plan: regions and names.
        compiler_options: what the program is compiled with.
    """

    def __init__(self, plan: PolicyPlan, run: Run, shapes: Sequence[Any], compiler_options: Mapping[str, str]):
        self.plan, self.compiler_options = plan, compiler_options
        self._run, self._shapes = run, shapes

    @property
    def planned_bytes(self) -> int:
        """Predicted peak of temporaries."""
        return self.plan.peak_bytes

    @property
    def fullest(self) -> str:
        """The step at which it peaks, in words."""
        return self.plan.fullest

    @cached_property
    def compiled_bytes(self) -> int:
        """Temp bytes of the program compiled with `compiler_options`."""
        program = forward_program(planned_function(self._run, self.plan), self._shapes).program
        step, shapes = emitted_step(program, Emitter(program, self.plan.layout), inexact_inputs(program))
        return compile_jitted(jax.jit(step, compiler_options=dict(self.compiler_options) or None), *shapes).temp_bytes


def hold_segments(make: Callable[[Budget], PolicyPlan], budget: Budget, run: Run, shapes: Sequence[Any]) -> PolicyPlan:
    """The plan whose regions, compiled by themselves, are within a budget.

    Args:
        make: plans for a budget.
        budget: as in `plan_policy`.
        run: what is planned, from arrays to a sequence of arrays.
        shapes: of its arguments.

    Raises:
        InfeasibleBudget: if no attempt compiles within the budget.
    """
    first: PolicyPlan | InfeasibleBudget
    try:
        first = make(budget)
    except InfeasibleBudget as error:
        first, limit = error, error.budget
    else:
        if first.budget_bytes is None:
            return first
        limit = first.budget_bytes
    options = as_target(None).compiler_options

    def attempt(asked: int) -> Segmented:
        found = first if asked == limit else make(asked)
        if isinstance(found, InfeasibleBudget):
            raise found
        return Segmented(found, run, shapes, options)

    return replace(promise.hold(attempt, limit)[0].plan, budget_bytes=limit)
