"""Values that are transposed for dots wait as they were before: XLA:CPU then takes its fast kernel, and copies once."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_lab as rl
from remat_lab import turned
from remat_lab.verify import largest_difference

HEADS, WIDTH, LENGTH = 4, 8, 16
KEY_BIAS = 5  # among the weights


def attention(weights, x):
    q, k, v = (jnp.einsum("blw,whd->blhd", x, w) + b[None, None] for w, b in zip(weights[:3], weights[4:], strict=True))
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q / WIDTH**0.5, k))
    mixed = jnp.einsum("bhqk,bkhd->bqhd", scores, v)
    return jnp.mean(jnp.einsum("bqhd,hdw->bqw", mixed, weights[3]) ** 2)


@pytest.fixture(scope="module")
def plan_and_args():
    draw = np.random.default_rng(0)
    shapes = [(HEADS * WIDTH, HEADS, WIDTH)] * 3 + [(HEADS, WIDTH, HEADS * WIDTH)] + [(HEADS, WIDTH)] * 3
    args = [draw.normal(size=s).astype(np.float32) for s in shapes], draw.normal(size=(2, LENGTH, 32)).astype(np.float32)
    return rl.plan(attention, *args, check="planned"), args


def slow_dots(compiled):
    """Products that contract another dimension of their left operand than the last, which only the slow kernel does."""
    found = re.findall(r"= \w+\[([\d,]+)\]\S* dot\(.*?lhs_contracting_dims={(\d+)}", compiled.executable.as_text())
    return [dims for dims, contracted in found if dims.count(",") == 3 and int(contracted) < 3]


def without_key_bias(results):
    """Softmax does not see a key's bias: in exact arithmetic its gradient is zero, and what is left of it is rounding."""
    value, gradients = results
    assert float(jnp.max(jnp.abs(gradients[KEY_BIAS]))) < 1e-6 * float(value)
    return value, [g for i, g in enumerate(gradients) if i != KEY_BIAS]


def test_the_cpu_transposes_behind_the_barrier(plan_and_args, monkeypatch):
    plan, args = plan_and_args
    plain = rl.measure.compile_program(jax.value_and_grad(attention), *args)
    fast = rl.measure.compile_program(plan.value_and_grad(), *args, compiler_options=plan.compiler_options)
    monkeypatch.setattr(turned, "_turn", lambda program, value: None)
    slow = rl.measure.compile_program(plan.value_and_grad(), *args, compiler_options=plan.compiler_options)
    assert len(slow_dots(slow)) > len(slow_dots(fast)) == len(slow_dots(plain))
    assert fast.temp_bytes <= slow.temp_bytes
    assert fast.traffic.bytes < slow.traffic.bytes
    expected = without_key_bias(plain.call(*args))
    for compiled in (fast, slow):
        assert largest_difference(expected, without_key_bias(compiled.call(*args))).relative < 1e-5


def test_what_is_also_summed_for_a_bias_is_not_written_transposed_first(plan_and_args, monkeypatch):
    plan, args = plan_and_args
    fast = rl.measure.compile_program(plan.value_and_grad(), *args, compiler_options=plan.compiler_options)
    monkeypatch.setattr(turned, "REDUCTIONS", frozenset())
    slow = rl.measure.compile_program(plan.value_and_grad(), *args, compiler_options=plan.compiler_options)
    assert fast.traffic.kernels < slow.traffic.kernels
    assert fast.traffic.bytes < slow.traffic.bytes
    assert fast.temp_bytes <= slow.temp_bytes


def test_what_was_scaled_after_its_transpose_waits_untransposed(plan_and_args):
    plan, _ = plan_and_args
    program = plan.fused.program
    scaled = [q.outs[0] for q in program.equations if q.name == "div" and program.avals[q.outs[0]].ndim == 4]
    turns = [turn for v in scaled if (turn := turned._turn(program, v)) is not None]
    assert turns == [(0, 2, 1, 3)]  # the gradient of the queries; not the queries, or the softmax


def test_other_platforms_transpose_where_the_program_does(plan_and_args):
    plan, args = plan_and_args
    traced = jax.jit(plan.value_and_grad()).trace(*args)
    count = {p: traced.lower(lowering_platforms=(p,)).as_text().count("stablehlo.transpose") for p in ("cpu", "cuda", "tpu")}
    assert count["cuda"] == count["tpu"] < count["cpu"]
