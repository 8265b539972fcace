"""What must hold for any loss: planned, emitted in both forms, within the budget as compiled, and the numbers of plain JAX.

Tolerance. The three programs compute the same numbers by the same equations, but XLA fuses them differently: sums are
reassociated, products and sums contracted. So results may differ by rounding, magnified by what the program does with it. A
difference counts, per array, relative to the array's own largest magnitude or to a hundredth of that of the largest gradient,
and may be 2^11 units in the last place of the coarsest type that the program computes in (2.4e-4 for float32). XLA's licence to
skip roundings to bfloat16 and float16 is revoked in all programs alike, or there would be no such unit. A program that exceeds
this is compared with itself: plain JAX evaluated operation by operation, where nothing is fused. It fails unless plain JAX is
then at least a quarter as far from itself, which is counted as `unstable`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from programs import Program

import remat_lab as rl
from remat_lab.measure import SCHEDULERS, compile_program
from remat_lab.targets import Target
from solvers.simulate import simulate

OPTIONS = {
    **SCHEDULERS["memory"],
    "xla_allow_excess_precision": "False",
    "xla_backend_optimization_level": "0",  # of machine code, a quarter of the time; XLA's own passes and buffers stay the same
    "xla_llvm_disable_expensive_passes": "True",
}
ULPS = 2.0**11
HALF = ("bfloat16", "float16")


class Strict(Target):
    """The CPU, with programs compiled by `OPTIONS`: the promise is about the very executables that are run here."""

    __slots__ = ()

    @property
    def compiler_options(self) -> dict[str, str]:
        return dict(OPTIONS)


class Wrong(AssertionError):
    """A result that differs from plain JAX, or a broken budget."""


@dataclass
class Outcome:
    """What was seen of one program.

    Attributes:
        exact: largest difference of the exact schedule, relative to the tolerance.
        applied: the same of the applied plan.
        bitwise: whether the exact schedule's results have the same bytes as plain JAX's.
        recomputed: steps that the exact schedule runs again.
        regions: regions of the applied plan.
        unstable: whether plain JAX had to be compared with itself.
        refused: budgets that were refused, of the exact schedule and of the applied plan: those named were used instead.
        rounds: plans that were compiled until both forms were within their budgets; 2 where the first of each was.
        compiled: temp bytes of the exact schedule over its budget.
        compiled_applied: temp bytes of the applied plan over its budget.
        compiled_plain: temp bytes of plain JAX over the keep-all peak.
    """

    exact: float = 0.0
    applied: float = 0.0
    bitwise: bool = False
    recomputed: int = 0
    regions: int = 0
    unstable: bool = False
    refused: int = 0
    rounds: int = 0
    compiled: float = 0.0
    compiled_applied: float = 0.0
    compiled_plain: float = 0.0


def check(program: Program, solver: str = "greedy", **options: Any) -> Outcome:
    """Plans a program under its budget and holds both forms against plain JAX.

    Raises:
        Wrong: if a result differs or a budget is broken. Any other error is one too: the documented ones are handled here.
    """
    wide = jax.enable_x64(True) if program.dtype == "float64" else contextlib.nullcontext()
    with wide:
        return _check(program, solver, options)


def _check(program: Program, solver: str, options: dict[str, Any]) -> Outcome:
    args, out = program.args(), Outcome()
    wanted = {
        "argnums": program.argnums,
        "has_aux": program.has_aux,
        "solver": solver,
        "target": Strict("cpu", "cpu"),
        **options,
    }

    def exact_under(budget: Any) -> rl.Plan:
        return rl.plan(program.loss, *args, budget=budget, **wanted)

    def applied_under(budget: Any) -> rl.Plan:
        other = plan.amended(budget_bytes=budget)
        _ = other.applied_policy
        return other

    plan = _plan(exact_under, program.fraction, out)
    _simulated(plan)
    regions = _plan(applied_under, plan.budget_bytes, out)
    applied = regions.applied_policy
    out.recomputed = sum(plan.schedule.recomputed.values())
    out.regions = len(applied.plan.layout.root.children) or 1
    out.rounds = len(plan.rounds) + len(applied.rounds)
    out.compiled = _held("exact schedule", plan.compiled_bytes, plan.budget_bytes)
    out.compiled_applied = _held("applied plan", applied.compiled_bytes, regions.budget_bytes)
    step = jax.value_and_grad(program.loss, program.argnums, program.has_aux)
    compiled = compile_program(step, *args, compiler_options=OPTIONS)
    out.compiled_plain = compiled.temp_bytes / plan.predicted.keep_all_peak_bytes
    plain = compiled.call(*args)
    exact = plan.jit()(*args)
    shapes = jax.eval_shape(jax.value_and_grad(regions.apply(), program.argnums, program.has_aux), *args)
    replayed = jax.tree.unflatten(jax.tree.structure(shapes), applied.compiled.call(*plan.loss.call(args, {}).values))
    out.bitwise = all(np.array_equal(_bytes(a), _bytes(b)) for a, b in _pairs(plain, exact))
    out.exact, out.applied = (_distance(program, plain, found) for found in (exact, replayed))
    if max(out.exact, out.applied) > 1:
        out.unstable = True
        with jax.disable_jit():
            noise = _distance(program, plain, step(*args))
        if max(out.exact, out.applied) > 4 * noise:
            raise Wrong(f"{out.exact:.3g} and {out.applied:.3g} times the tolerance, plain JAX from itself {noise:.3g}")
    return out


def _plan[P](make: Callable[[Any], P], budget: Any, out: Outcome) -> P:
    """A plan; if the budget is too small, one for the smallest that the error names, which must do."""
    try:
        return make(budget)
    except rl.InfeasibleBudget as error:
        out.refused += 1
        _consistent(error)
        return make(error.minimum)


def _consistent(error: rl.InfeasibleBudget) -> None:
    """No error contradicts itself, calls a bound on schedules one on programs, or names a place that is none."""
    refuted = error.refuted and error.bound_of == error.minimum_of
    if not 0 <= error.lower_bound <= error.minimum or error.minimum <= error.budget or refuted:
        raise Wrong(f"{error.minimum} bytes are said to work, less than {error.lower_bound or error.refuted} not: {error}")
    if error.minimum_of != "compiled" or error.proven:
        raise Wrong(f"a budget is a promise about the compiled program, and what is simulated proves nothing of it: {error}")
    if "unknown" in str(error) or "node 0" in str(error) or not (error.name or error.fullest):
        raise Wrong(f"no step is named, or one that nobody finds: {error}")


def _held(what: str, temp: int, budget: int) -> float:
    if temp > budget:
        raise Wrong(f"the {what} compiles to {temp} bytes of temporaries, its budget is {budget}")
    return temp / budget


def _simulated(plan: rl.Plan) -> None:
    """Every attempt is within what it was asked for, and the last one's schedule needs what was predicted."""
    peak = simulate(plan.graph, plan.schedule).peak
    if peak != plan.rounds[-1].planned_bytes or any(attempt.planned_bytes > attempt.asked_bytes for attempt in plan.rounds):
        raise Wrong(f"the schedule peaks at {peak}, the attempts were {plan.rounds}")


def _pairs(expected: Any, found: Any) -> list[tuple[Any, Any]]:
    if jax.tree.structure(expected) != jax.tree.structure(found):
        raise Wrong(f"{jax.tree.structure(found)} instead of {jax.tree.structure(expected)}")
    return list(zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True))


def _bytes(x: Any) -> Any:
    return np.frombuffer(np.asarray(x).tobytes(), np.uint8)


def _distance(program: Program, expected: Any, found: Any) -> float:
    """The largest difference of two results, relative to what is allowed."""
    kinds = {step.kind for step in program.steps} & {"cast"}
    halves = [d for d in (program.dtype, program.loss_dtype) if d in HALF] or kinds
    unit = float(jnp.finfo("bfloat16" if halves else program.dtype).eps)
    allowed = min(ULPS * unit, 2.0**-4)  # at half precision a rounding is 0.4 %: what is wrong is wrong by much more
    largest = max(float(np.max(np.abs(np.asarray(g, np.float64)), initial=0.0)) for g in jax.tree.leaves(expected[1]))
    worst = 0.0
    for a, b in _pairs(expected, found):
        if (a.shape, a.dtype, jax.typeof(a).weak_type) != (b.shape, b.dtype, jax.typeof(b).weak_type):
            raise Wrong(f"{jax.typeof(b)} instead of {jax.typeof(a)}")
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return float("inf")
        ok = np.isfinite(x)
        scale = max(float(np.max(np.abs(x), where=ok, initial=0.0)), largest / 100, 1e-30)
        worst = max(worst, float(np.max(np.abs(x - y), where=ok, initial=0.0)) / scale / allowed)
    return worst
