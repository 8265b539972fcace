"""Plans of deep networks, emitted: the same gradients, and a program that grows in proportion to its steps."""

from __future__ import annotations

import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from remat_lab.api import planner_for
from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from remat_lab.trace import Loss


def network(layers: int):
    """A residual network of two narrow layers a block, and its arguments."""
    key = jax.random.key(0)
    weights = [jax.random.normal(jax.random.fold_in(key, k), (64, 64)) * 0.1 for k in range(2 * layers)]

    def loss(weights, x):
        for a, b in zip(weights[::2], weights[1::2], strict=True):
            x = x + jnp.sin(jnp.tanh(x @ a) @ b)
        return jnp.mean(x**2)

    return loss, weights, jax.random.normal(key, (256, 64))


def planned(layers: int):
    loss, weights, x = network(layers)
    return quick(loss, weights, x), loss, weights, x


def quick(fun, *args):
    """A plan for half the memory, without much polishing."""
    loss = Loss(fun)
    planner = planner_for(loss, loss.call(args, {}))
    return planner.plan(planner.bytes_of(0.5), solver="hierarchical", check="planned", work_limit=0.01)


def test_the_same_gradients():
    plan, loss, weights, x = planned(6)
    assert plan.solution.overhead > 0
    value, gradients = jax.jit(plan.value_and_grad())(weights, x)
    expected, wanted = jax.jit(jax.value_and_grad(loss))(weights, x)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    for found, right in zip(gradients, wanted, strict=True):
        assert jnp.allclose(found, right, rtol=1e-4, atol=1e-6)


def calls(work: Callable[..., object], *args, **options) -> int:
    """How many functions, of Python and built in, a piece of work calls: its time, but for the machine."""
    count = 0

    def see(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        work(*args, **options)
    finally:
        sys.setprofile(None)
    return count


def test_grouping_takes_work_in_proportion_to_equations():
    ratios = {}
    for layers in (25, 100):
        loss, weights, x = network(layers)
        program = flatten(jax.make_jaxpr(jax.value_and_grad(loss))(weights, x))
        ratios[layers] = calls(fuse, program, primal_outputs=1) / len(program.equations)
    assert ratios[100] <= 1.1 * ratios[25]


def test_equations_and_the_work_of_lowering_are_in_proportion_to_steps():
    equations, work = {}, {}
    for layers in (3, 8, 32):  # the first fills JAX's caches
        plan, _, weights, x = planned(layers)
        steps = len(plan.solution.schedule.order)
        traced = jax.jit(plan.value_and_grad()).trace(weights, x)
        equations[layers] = len(traced.jaxpr.eqns) / steps
        work[layers] = calls(jax.jit(plan.value_and_grad()).lower, weights, x) / steps
    assert equations[32] <= 1.1 * equations[8]
    assert work[32] <= 1.1 * work[8]


def test_what_runs_again_is_taken_from_the_one_trace():
    traced = []

    def loss(weights, x):
        for w in weights:
            traced.append(w)
            x = x + jnp.sin(jnp.tanh(x @ w))
        return jnp.mean(x**2)

    _, weights, x = network(6)
    plan = quick(loss, weights, x)
    assert plan.solution.schedule.recomputed
    traced.clear()
    jax.jit(plan.value_and_grad()).lower(weights, x)
    assert len(traced) == len(weights)
