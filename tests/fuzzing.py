"""What must hold for any loss: planned, emitted in both forms, run, and compared with plain JAX.

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
from solvers.simulate import simulate

OPTIONS = {**SCHEDULERS["memory"], "xla_allow_excess_precision": False}
ULPS = 2.0**11
HALF = ("bfloat16", "float16")


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
        regions: regions of the applied plan; 0 where it refused the budget and the smallest that it named was used.
        unstable: whether plain JAX had to be compared with itself.
        compiled: temp bytes of the exact schedule over its budget.
        compiled_plain: temp bytes of plain JAX over the keep-all peak.
    """

    exact: float = 0.0
    applied: float = 0.0
    bitwise: bool = False
    recomputed: int = 0
    regions: int = 0
    unstable: bool = False
    compiled: float = 0.0
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
    wanted = {"argnums": program.argnums, "has_aux": program.has_aux, "solver": solver, "check": "planned", **options}
    plan = _plan(lambda budget: rl.plan(program.loss, *args, budget=budget, **wanted), program.fraction)
    _hold_budget(plan.graph, plan.schedule, plan.budget_bytes)
    out.recomputed = sum(plan.schedule.recomputed.values())
    steps = {"plain": jax.value_and_grad(program.loss, program.argnums, program.has_aux), "exact": plan.value_and_grad()}
    applied = _plan(
        lambda budget: _policy(plan if budget is None else rl.plan(program.loss, *args, budget=budget, **wanted)), None
    )
    if applied.policy_plan.peak_bytes > applied.budget_bytes:
        raise Wrong(f"the applied plan peaks at {applied.policy_plan.peak_bytes}, its budget is {applied.budget_bytes}")
    out.regions = len(applied.policy_plan.layout.root.children) or 1
    steps["applied"] = jax.value_and_grad(applied.apply(), program.argnums, program.has_aux)
    compiled = {name: compile_program(step, *args, compiler_options=OPTIONS) for name, step in steps.items()}
    results = {name: program_.call(*args) for name, program_ in compiled.items()}
    out.compiled = compiled["exact"].temp_bytes / plan.budget_bytes
    out.compiled_plain = compiled["plain"].temp_bytes / plan.predicted.keep_all_peak_bytes
    plain = results["plain"]
    out.bitwise = all(np.array_equal(_bytes(a), _bytes(b)) for a, b in _pairs(plain, results["exact"]))
    out.exact, out.applied = (_distance(program, plain, results[name]) for name in ("exact", "applied"))
    if max(out.exact, out.applied) > 1:
        out.unstable = True
        with jax.disable_jit():
            noise = _distance(program, plain, steps["plain"](*args))
        if max(out.exact, out.applied) > 4 * noise:
            raise Wrong(f"{out.exact:.3g} and {out.applied:.3g} times the tolerance, plain JAX from itself {noise:.3g}")
    return out


def _plan(make: Callable[[Any], Any], budget: Any) -> Any:
    """A plan; if the budget is too small, one for the smallest that the error names, which must do."""
    try:
        return make(budget)
    except rl.InfeasibleBudget as error:
        return make(error.minimum)


def _policy(plan: rl.Plan) -> rl.Plan:
    _ = plan.policy_plan
    return plan


def _hold_budget(graph: Any, schedule: Any, budget: int) -> None:
    peak = simulate(graph, schedule).peak
    if peak > budget:
        raise Wrong(f"the schedule peaks at {peak}, its budget is {budget}")


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
