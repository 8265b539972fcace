"""`Plan`: a schedule for a loss, and everything that can be done with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import jax

from remat_lab.applied import applied
from remat_lab.call import Call
from remat_lab.device_memory import MemoryClasses, classify
from remat_lab.errors import InvalidArgument, TargetUnavailable
from remat_lab.explain import Explanation, explain
from remat_lab.flatten import Program
from remat_lab.fuse import Fused
from remat_lab.loop_plan import NestedLoop
from remat_lab.measure import Compiled, compile_jitted, compile_program
from remat_lab.policy_plan import PolicyPlan
from remat_lab.policy_promise import AppliedPolicy, plan_applied
from remat_lab.predicted import Predicted, predict
from remat_lab.programs import Programs
from remat_lab.promise import Round
from remat_lab.selection import Selection
from remat_lab.step import Step
from remat_lab.stored import save_plan
from remat_lab.summary import summarise
from remat_lab.targets import Target, as_target
from remat_lab.trace import Loss
from remat_lab.verify import Difference, largest_difference
from solvers.graph import Graph
from solvers.schedule import Schedule
from solvers.simulate import fullest_step
from solvers.solution import Solution


@dataclass(frozen=True)
class Plan:
    """A planned value-and-gradient step. Make one with `plan`.

    Attributes:
        loss: the user's function and its options.
        call: the arguments planned for, as shapes.
        fused: graph and program.
        solution: the solver's answer.
        budget_bytes: largest peak of temporaries allowed; None if no budget was given.
        seconds: time of tracing, grouping and solving.
        must_save: what is always kept.
        must_recompute: what `apply` never keeps.
        check: "compiled" if the budget is a promise about the compiled program, "planned" if about the prediction.
        rounds: the attempts that it took to keep that promise; empty if nothing was compiled.
        reserved: bytes of what else lies on the device, by name.
        target: the device planned for; None for the one that JAX uses.
        loops: how loops are differentiated that were replaced by nests.
        plain: where loops were replaced, the user's own loss and its step; `loss` then has the nests in it.
        unscheduled: whether the step is plain JAX, left to XLA because as compiled it is within the budget without any
            recomputation; `schedule` and what is predicted from it are then those of keeping everything.
        options: the compiler options of an unscheduled step; None for those that a schedule needs.
        programs: where the step is compiled for its statistics, for plans that share this; None for each plan by itself.
    """

    loss: Loss
    call: Call
    fused: Fused
    solution: Solution
    budget_bytes: int | None
    seconds: float
    must_save: Selection = ()
    must_recompute: Selection = ()
    check: str = "planned"
    rounds: tuple[Round, ...] = ()
    reserved: Mapping[str, int] = field(default_factory=dict[str, int])
    target: Target | None = None
    loops: tuple[NestedLoop, ...] = ()
    plain: tuple[Loss, Fused] | None = None
    unscheduled: bool = False
    options: Mapping[str, str] | None = None
    programs: Programs | None = field(default=None, repr=False, compare=False)

    @property
    def graph(self) -> Graph:
        """What was scheduled."""
        return self.fused.graph

    @property
    def schedule(self) -> Schedule:
        """The order of computations and frees."""
        return self.solution.schedule

    @property
    def program(self) -> Program:
        """The traced step, flat."""
        return self.fused.program

    @property
    def compiler_options(self) -> dict[str, str]:
        """XLA options that the budget is a promise under; empty on GPU and TPU."""
        return as_target(self.target).compiler_options if self.options is None else dict(self.options)

    @property
    def planned_bytes(self) -> int:
        """Predicted peak of temporaries: `predicted.peak_bytes`."""
        return self.solution.peak

    @property
    def fullest(self) -> str:
        """The step at which the prediction peaks, in words: what it writes, and the user's line."""
        return fullest_step(self.graph, self.schedule)

    @property
    def compiled_bytes(self) -> int:
        """Temp bytes of the step compiled with `compiler_options`: what the budget is a promise about."""
        return self.compiled.temp_bytes

    @cached_property
    def compiled(self) -> Compiled:
        """The step compiled with `compiler_options`, and its statistics; compiled once, for `jit` as well if alone."""
        if self.programs is not None:
            return self.programs.compile(self.on_leaves, self.compiler_options)
        return compile_jitted(self._jitted, *as_target(self.target).place(self.call.values))

    @cached_property
    def _jitted(self) -> Any:
        """The step on the traced leaves, jitted: compiling it for its statistics and calling it share one executable."""
        return as_target(self.target).jit(self.on_leaves, compiler_options=self.compiler_options or None)

    @cached_property
    def on_leaves(self) -> Callable[..., list[Any]]:
        """The step as a function of the traced leaves, which returns its results as a list."""
        return partial(self._step.run_flat, self.call)

    @property
    def _step(self) -> Step:
        return Step(self.loss, self.fused, None if self.unscheduled else self.schedule)

    @property
    def _as_written(self) -> Loss:
        """The user's loss, with its own loops."""
        return self.loss if self.plain is None else self.plain[0]

    @property
    def memory(self) -> MemoryClasses:
        """The step's memory by class: parameters, gradients and so on, with what is reserved and the temporaries."""
        temporaries = self.compiled_bytes if self.rounds else self.planned_bytes
        return classify(self.fused, self.call, self.reserved, temporaries)

    def amended(self, **changes: Any) -> Plan:
        """The same schedule with other facts about it (`rounds`, `budget_bytes`, ...); what was compiled is kept."""
        kept = replace(self, **changes)
        made = ("_jitted", "compiled", "on_leaves", "predicted")
        kept.__dict__.update({key: self.__dict__[key] for key in made if key in self.__dict__})
        return kept

    @cached_property
    def predicted(self) -> Predicted:
        """Peak, FLOPs and the live-byte timeline."""
        plain, lends = self.fused if self.plain is None else self.plain[1], as_target(self.target).lends_results
        return predict(self.fused, self.schedule, plain, lends=lends)

    def summary(self) -> str:
        """What the plan keeps, recomputes and costs, in about ten lines; with what `apply` costs once it has been planned."""
        return summarise(self)

    def explain(self, form: Literal["exact", "policy"] = "exact") -> Explanation:
        """A table of what is kept and what is recomputed: bytes, type, primitive, the user's line, and why.

        Args:
            form: "exact" for `value_and_grad`, "policy" for `apply`.
        """
        if form not in ("exact", "policy"):
            raise InvalidArgument(f'form={form!r} is unknown: "exact" explains value_and_grad, "policy" explains apply')
        if form == "exact":
            title, notes = f"exact schedule of {self.loss.name}", tuple(map(str, self.loops))
            return explain(self.fused, self.schedule.recomputed, title, notes)
        found = self.policy_plan
        return explain(found.fused, found.again, f"jax.checkpoint regions of {self.loss.name}")

    def save(self, path: str | Path) -> None:
        """Writes the plan to a file; `remat_lab.load_plan` reads it back, given the function again.

        The file is JSON with a version. It holds no function and no array, and is refused for any other program.

        Raises:
            InvalidArgument: if the plan holds functions: predicates in `must_save` or `must_recompute`.
        """
        save_plan(self, path)

    def value_and_grad(self) -> Callable[..., Any]:
        """The step as a function with the loss's signature.

        It returns what `jax.value_and_grad(loss, argnums, has_aux)` does, runs in the planned order, and is meant to be
        jitted, with `compiler_options` (or use `jit`). Each call traces the loss anew, so arrays that the loss closes over are
        read at that moment.

        Raises (when called):
            PlanMismatch: if shapes, dtypes, static values or the traced program differ from those planned for.
        """

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            call = self.loss.call(args, kwargs)
            call.check_same(self.call)
            return self._step.run(call)

        scheduled.__name__ = f"{self.loss.name}_value_and_grad"
        return scheduled

    @property
    def policy_plan(self) -> PolicyPlan:
        """The best plan that `jax.checkpoint` can express under the same budget; planned when first asked for.

        It has nests of its own for the function's loops, `policy_plan.loops`.

        With `check="compiled"` it is `jax.value_and_grad` of `apply`'s result that keeps the budget, under `compiler_options`.

        Raises:
            InfeasibleBudget: if the budget can only be met by an exact schedule, with the smallest peak of this form.
        """
        return self.applied_policy.plan

    @cached_property
    def applied_policy(self) -> AppliedPolicy:
        """`policy_plan` with the program that it becomes and the attempts that it took."""
        budget = None if self.unscheduled else self.budget_bytes
        wanted = {"must_save": self.must_save, "must_recompute": self.must_recompute}
        check = self.check == "compiled"
        return plan_applied(self._as_written, self.call, budget, self.compiler_options, check=check, **wanted)

    @property
    def policy(self) -> Any:
        """The `jax.checkpoint` policy of `apply`'s regions: hashable, equal by content; None if nothing is kept by name.

        Beside that each region keeps what it hands on to the next one, which is there anyway.
        """
        return self.policy_plan.policy

    def apply(self) -> Callable[..., Any]:
        """A function like the loss, for `jax.grad`, `jit`, `vmap`, `jvp`, a larger loss, and so on.

        It is made of nested `jax.checkpoint` regions with named values. That is less than an exact schedule can do:
        `policy_plan` says what it costs and needs. A budget that keeping everything already meets gives the plain loss.

        Raises:
            InfeasibleBudget: if no plan of this form fits the budget.
        """
        return applied(self._as_written, self.call, self.policy_plan)

    def jit(self) -> Callable[..., Any]:
        """`value_and_grad` compiled with `compiler_options`; static arguments need no declaration.

        Inside a larger jitted program pass `compiler_options` to the outermost `jax.jit` instead: JAX refuses them further in.

        Raises:
            TargetUnavailable: if the plan is for a device that is not here.
        """
        if not as_target(self.target).is_present:
            raise TargetUnavailable(
                f"this plan is for {as_target(self.target).name}, which is not here: it can be measured here and run there"
            )
        step, structure = self._jitted, self.loss.trace(self.call)

        def compiled(*args: Any, **kwargs: Any) -> Any:
            call = self.loss.call(args, kwargs)
            call.check_same(self.call)
            return structure.unflatten(step(*call.values))

        compiled.__name__ = f"{self.loss.name}_value_and_grad"
        return compiled

    def measure(self, target: Target | str | None = None) -> dict[str, Compiled]:
        """Compiles the step under each scheduler of a device, without running it.

        Args:
            target: a device, which need not be here; by default the one that the plan is for.

        Returns:
            Statistics by name of the scheduler; the plan's promise is about the one whose options are `compiler_options`.

        Raises:
            TargetUnavailable: if nothing can be compiled for the target here, with what to install.
        """
        chosen = as_target(self.target if target is None else target)
        step, shapes, schedulers = self.on_leaves, self.call.values, chosen.schedulers.items()
        return {name: compile_program(step, *shapes, target=chosen, compiler_options=options) for name, options in schedulers}

    def verify(self, *args: Any, **kwargs: Any) -> Difference:
        """Runs the plan and plain JAX on real arguments, both compiled with `compiler_options`.

        Returns:
            The largest difference of value, aux and gradients.

        Raises:
            PlanMismatch: if the arguments are not of the shapes planned for.
        """
        call = self.loss.call(args, kwargs)
        call.check_same(self.call)

        loss = self._as_written

        def plain(*values: Any) -> list[Any]:
            traced = loss.trace(call)
            return jax.core.eval_jaxpr(traced.jaxpr, traced.jaxpr.consts, *values)

        options = self.compiler_options or None
        if any(isinstance(v, jax.ShapeDtypeStruct) for v in call.values):
            raise InvalidArgument("verify runs the program, so it needs real arrays, not jax.ShapeDtypeStruct")
        values = call.values
        expected = jax.jit(plain, compiler_options=options)(*values)
        actual = jax.jit(partial(self._step.run_flat, call), compiler_options=options)(*values)
        return largest_difference(expected, actual)
