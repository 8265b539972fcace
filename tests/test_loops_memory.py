"""What planned loops keep, recompute and take: executed steps, FLOPs, compiled temporaries."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat_lab as rl
from experiments.models import lstm
from remat_lab.loop import Loop, PlannedLoop
from remat_lab.loop_costs import pass_costs
from remat_lab.loop_measure import measure
from remat_lab.loops import choose
from remat_lab.measure import compile_program
from solvers import nest as nests
from solvers import nest_search

SMALL = {"layers": 1, "hidden": 64, "batch": 64, "inputs": 8, "classes": 16}
compile_fast = functools.partial(compile_program, compiler_options={"xla_backend_optimization_level": "0"})  # same buffers


def loop_of(fun: Any, *args: Any) -> Loop:
    jaxpr = jax.make_jaxpr(fun)(*args)
    return next(Loop.from_equation(eqn) for eqn in jaxpr.eqns if eqn.primitive.name == "scan")


def temp(scan: Any, length: int) -> int:
    model = lstm.loss(**SMALL, length=length, scan=scan)
    return compile_fast(jax.value_and_grad(model.loss), *model.args).temp_bytes


@pytest.mark.parametrize(
    "nest", [nests.two_level(12), nests.halving(12), nests.binomial(12, 2, block=2), nests.two_level(12, direct=True)], ids=str
)
def test_steps_run_as_often_as_the_nest_says(nest: nests.Nest):
    seen: list[int] = []

    def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
        jax.debug.callback(lambda x: seen.append(int(x)), x)
        return jnp.sin(c * x), None

    gradient = jax.grad(lambda c: rl.scan(step, c, jnp.arange(12.0), nest=nest)[0])
    jax.block_until_ready(gradient(jnp.float32(0.5)))
    jax.effects_barrier()
    assert len(seen) == 12 + nest.recomputed_steps()
    assert set(seen) == set(range(12))


@pytest.mark.parametrize("nest", [nests.keep_all(9, direct=True), nests.two_level(9), nests.halving(9)], ids=str)
def test_flops_count_every_trip(nest: nests.Nest):
    batch, width = 3, 5

    def fun(w: jax.Array, h: jax.Array) -> jax.Array:
        return lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, 9)[0]

    loop = loop_of(fun, jnp.ones((width, width)), jnp.ones((batch, width)))
    dot, tanh = 2 * batch * width * width, batch * width
    forward, backward = pass_costs(PlannedLoop(loop, nest, 0.0), (True, True))
    assert forward == 9 * (dot + tanh + nest.direct * tanh)  # what a step keeps is ready for the backward pass: 1 - tanh²
    # Each replayed step has its dot and its tanh; each reversed one two dots, and no more than five elementwise operations.
    least = nest.recomputed_steps() * (dot + tanh) + 9 * 2 * dot
    assert least <= backward <= least + 9 * (5 * tanh + width * width)


def test_constants_and_what_is_computed_from_them_are_not_stacked():
    def fun(w: jax.Array, xs: jax.Array) -> jax.Array:
        def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            scaled = jnp.exp(w) @ w
            return jnp.tanh(scaled @ c + x), None

        return lax.scan(step, jnp.zeros(16), xs)[0]

    found = measure(loop_of(fun, jnp.ones((16, 16)), jnp.ones((50, 16))), (True, True, True))
    assert max(option.residual_bytes for option in found.search.bodies) <= 3 * 16 * 4
    assert found.body.hoisted  # the product, once for all steps
    # XLA's program for it: one accumulator, and nothing that is a matrix per step.
    scan = functools.partial(rl.scan, nest=nests.two_level)

    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        return jnp.sum(scan(lambda c, x: (jnp.tanh((jnp.exp(w) @ w) @ c + x), None), jnp.zeros(64), xs)[0])

    compiled = compile_program(jax.grad(loss), jnp.ones((64, 64)), jnp.ones((256, 64)))
    assert compiled.temp_bytes < 16 * 64 * 64 * 4


def test_gradients_that_nobody_wants_are_not_computed():
    def loss(w: jax.Array, h: jax.Array) -> jax.Array:
        return jnp.sum(rl.scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, 8, nest="two_level")[0])

    w, h = jnp.eye(64), jnp.ones((2, 64))
    both, one = (compile_program(jax.grad(loss, argnums), w, h).executable.as_text() for argnums in ((0, 1), 1))
    assert "64,64" in both.split("ENTRY")[1].split("->")[1].splitlines()[0]
    outer = "f32[64,64]{1,0} add("
    assert outer not in one


@pytest.mark.parametrize("nest", ["two_level", "halving", functools.partial(nests.levels, k=3)])
def test_one_accumulator_whatever_the_nest(nest: Any):
    """With weights far larger than anything else; nested checkpoints hold one for each level."""
    width, length = 256, 64

    def loss(scan: Any, w: jax.Array, h: jax.Array) -> jax.Array:
        return jnp.sum(scan(lambda h, _: (jnp.tanh(h @ w), None), h, None, length)[0])

    args = (jax.ShapeDtypeStruct((width, width), jnp.float32), jax.ShapeDtypeStruct((8, width), jnp.float32))
    weights = width * width * 4
    written = compile_fast(jax.grad(functools.partial(loss, functools.partial(rl.scan, nest=nest))), *args)
    nested = compile_fast(jax.grad(functools.partial(loss, functools.partial(rl.scan, nest=nest, form="checkpoint"))), *args)
    # The accumulator is the result's own buffer; in temporaries is the part of the step at hand, before it is added.
    assert written.temp_bytes < 2 * weights
    assert nested.temp_bytes > written.temp_bytes + 0.7 * weights


def test_temporaries_grow_as_planned():
    lengths = (64, 256, 1024)

    def growth(scan: Any) -> float:
        first, second = np.diff([temp(scan, n) for n in lengths])
        return math.log(second / first, 4)

    assert growth(lax.scan) == pytest.approx(1.0, abs=0.02)
    assert growth(functools.partial(rl.scan, nest="two_level")) == pytest.approx(0.5, abs=0.05)
    halving = [temp(functools.partial(rl.scan, nest="halving"), n) for n in lengths]
    assert np.diff(halving)[1] == pytest.approx(np.diff(halving)[0], rel=0.1)


def test_programs_do_not_grow_with_the_loop():
    def size(nest: Any, length: int) -> int:
        model = lstm.loss(**SMALL, length=length, scan=functools.partial(rl.scan, nest=nest))
        text = jax.jit(jax.value_and_grad(model.loss)).lower(*model.args).as_text()
        return sum(" = " in line for line in text.splitlines())

    for nest in ("two_level", "halving", functools.partial(nests.binomial, slots=5, block=3)):
        assert size(nest, 1000) <= 1.02 * size(nest, 50)


def test_predicted_and_compiled_bytes_agree():
    length = 256
    model = lstm.loss(**SMALL, length=length)
    loop = loop_of(model.loss, *model.args)
    moving = (*[True] * (loop.consts + loop.carries), False, False)
    found = measure(loop, moving)
    frontier = nest_search.frontier(found.search, points=12)
    assert len(frontier) >= 8
    for budget in sorted({choice.peak_bytes for choice in frontier})[::3]:
        choice = choose(found, budget)
        planned = found.planned(choice)
        assert found.peak_bytes(planned) <= choice.peak_bytes <= budget
        compiled = temp(functools.partial(rl.scan, nest=planned.nest, keep=planned.tier), length)
        assert compiled <= 1.01 * choice.peak_bytes
        assert compiled == pytest.approx(found.peak_bytes(planned), rel=0.1), str(planned.nest)


def test_budgets():
    length = 256
    plain = temp(lax.scan, length)
    for fraction in (0.5, 0.1):
        assert temp(functools.partial(rl.scan, budget=fraction), length) <= 1.1 * fraction * plain
    assert temp(functools.partial(rl.scan, budget=1.0), length) == plain
    # Without a budget: about twice the square root of the length, at one extra pass.
    assert temp(rl.scan, length) < 0.15 * plain
