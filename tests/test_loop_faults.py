"""Faults that planners of loops are known for: each test is named for one, and would show it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat_lab as rl
from remat_lab.measure import SCHEDULERS
from solvers.errors import InfeasibleBudget

FAST = {"xla_backend_optimization_level": "0"}


def compiled_temp(fun: Callable[..., Any], *args: Any) -> int:
    memory: Any = jax.jit(fun).lower(*args).compile(compiler_options=SCHEDULERS["memory"]).memory_analysis()
    return memory.temp_size_in_bytes


def assert_same_step(fun: Callable[..., Any], wanted: Callable[..., Any], *args: Any) -> None:
    got, plain = (jax.jit(jax.value_and_grad(f), compiler_options=FAST)(*args) for f in (fun, wanted))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * float(np.max(np.abs(b))))


def smallest_plan(loss: Callable[..., Any], *args: Any, **options: Any) -> rl.Plan:
    """The plan for the smallest budget that is known to work."""
    with pytest.raises(InfeasibleBudget) as caught:
        rl.plan(loss, *args, budget=1, check="planned", time_limit=1, **options)
    return rl.plan(loss, *args, budget=caught.value.minimum, check="planned", time_limit=1, **options)


def test_backpropagation_through_time_in_more_than_a_constant_factor_less():
    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(jnp.cos(h @ w) * x + h), None

        return jnp.sum(lax.scan(cell, jnp.zeros((16, 32)), xs)[0])

    args = 0.3 * jnp.eye(32), jnp.cos(jnp.arange(149.0 * 512)).reshape(149, 16, 32)  # a prime number of steps
    plain = compiled_temp(jax.grad(loss), *args)
    plan = rl.plan(loss, *args, budget=plain // 6, check="planned", time_limit=1)
    assert compiled_temp(jax.grad(plan.apply()), *args) < plain // 4
    assert_same_step(plan.apply(), loss, *args)


@pytest.mark.parametrize("length", [1, 2, 3, pytest.param(251, marks=pytest.mark.slow)])
def test_lengths_that_do_not_factor_and_results_out_of_order(length: int):
    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.sin(c * w + x), jnp.cos(c)

        c, ys = lax.scan(step, jnp.zeros(8), xs)
        return jnp.sum(c) + jnp.sum(ys * jnp.arange(1.0, length + 1)[:, None])

    args = jnp.float32(0.7), jnp.linspace(0.1, 1.0, length * 8).reshape(length, 8)
    plan = smallest_plan(loss, *args)
    assert_same_step(plan.apply(), loss, *args)
    assert plan.verify(*args).relative < 2e-6


def test_a_loop_and_the_same_written_out_are_both_predicted():
    layers, x = jnp.stack([0.5 * jnp.eye(64)] * 8), jnp.ones((128, 64))

    def looped(layers: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, layers)[0] ** 2)

    def written_out(layers: jax.Array, x: jax.Array) -> jax.Array:
        for i in range(8):
            x = jnp.tanh(x @ layers[i])
        return jnp.sum(x**2)

    for loss in (looped, written_out):
        plan = rl.plan(loss, layers, x, check="planned")
        assert plan.planned_bytes == pytest.approx(plan.compiled_bytes, rel=0.1)


def test_results_that_nobody_reads_are_neither_counted_nor_kept():
    layers, x = jnp.stack([jnp.eye(64)] * 8), jnp.ones((16, 64))

    def loss(result: Any, layers: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(lambda c, w: (jnp.tanh(c @ w), result(c, w)), x, layers)[0])

    weights_too, alone = functools.partial(loss, lambda c, w: w), functools.partial(loss, lambda c, w: None)
    assert rl.plan(weights_too, layers, x, check="planned").planned_bytes == (
        rl.plan(alone, layers, x, check="planned").planned_bytes
    )
    plan = smallest_plan(weights_too, layers, x)
    assert plan.loops
    assert plan.planned_bytes == smallest_plan(alone, layers, x).planned_bytes
    assert_same_step(plan.apply(), weights_too, layers, x)
    assert compiled_temp(jax.grad(plan.apply()), layers, x) <= 1.05 * compiled_temp(jax.grad(weights_too), layers, x)


def test_loops_without_a_gradient_stay_and_unbounded_ones_say_that_they_have_none():
    def loss(x: jax.Array) -> jax.Array:
        count = lax.while_loop(lambda c: c[1] < 10.0, lambda c: (c[0] + 1, c[1] + 3.0), (0, 0.0))[0]
        return jnp.sum(jnp.sin(lax.fori_loop(0, 7, lambda i, c: jnp.sin(c) + i, x))) * count

    x = jnp.linspace(0.1, 1.0, 64)
    plan = smallest_plan(loss, x)
    assert len(plan.loops) == 1
    assert_same_step(plan.apply(), loss, x)
    with pytest.raises(ValueError, match=r"[Rr]everse-mode.*while_loop"):
        rl.plan(lambda x: jnp.sum(lax.while_loop(lambda c: jnp.sum(c) < 50.0, lambda c: c * 2.0, x)), x, budget=10**6)


FORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "no steps": (jnp.ones(0), {}),
    "reverse": (jnp.linspace(0.5, 1.0, 6), {"reverse": True}),
    "nothing to scan over": (None, {"length": 3}),
    "unroll that leaves a rest": (jnp.ones(5), {"unroll": 2}),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_counter_in_the_carry_in_every_form_of_scan(form: str):
    xs, options = FORMS[form]

    def loss(x: jax.Array) -> jax.Array:
        def body(c: Any, w: Any) -> Any:
            count = c[0].astype(x.dtype)
            return (c[0] + 1, jnp.sin(c[1] * (1.0 if w is None else w) + count)), jnp.sum(c[1])

        (n, c), ys = lax.scan(body, (jnp.int32(0), x), xs, **options)
        return jnp.sum(c) * (n + 1).astype(x.dtype) + jnp.sum(ys * jnp.arange(1.0, ys.shape[0] + 1))

    x = jnp.linspace(0.1, 1.0, 8)
    plan = smallest_plan(loss, x)
    assert_same_step(plan.apply(), loss, x)
    assert plan.verify(x).relative < 2e-6


def test_a_planned_loop_under_transformations():
    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(lax.scan(lambda c, _: (jnp.sin(c * w), None), x, None, 5)[0])

    rows = jnp.ones((3, 8)) * jnp.linspace(0.1, 1.0, 3)[:, None]
    w = jnp.float32(0.7)
    applied = smallest_plan(loss, w, rows[0], argnums=(0, 1)).apply()
    transforms = {
        "vmap of grad": lambda f: jax.vmap(jax.grad(f, 1), (None, 0)),
        "grad of vmap": lambda f: jax.grad(lambda w, rows: jnp.sum(jax.vmap(f, (None, 0))(w, rows))),
        "hessian": lambda f: lambda w, rows: jax.hessian(f, 1)(w, rows[0]),
        "linearize": lambda f: lambda w, rows: jax.linearize(lambda x: f(w, x), rows[0])[1](rows[1]),
    }
    for name, transform in transforms.items():
        got, wanted = (jax.jit(transform(f), compiler_options=FAST)(w, rows) for f in (applied, loss))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
    with jax.checking_leaks():
        jax.grad(applied)(w, rows[0])
