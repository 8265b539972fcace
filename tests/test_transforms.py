"""`Plan.apply` under every transformation of JAX: what it computes is what the loss does."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from applied_cases import program_of
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_says import compilations

import remat_lab as rl

X = jnp.linspace(-0.5, 1.0, 8)
BUDGET = 0.95 if os.environ.get("JAX_REMAT3") else 0.9  # its regions compute all that they hold at once
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
WEIGHTS = jnp.stack([jnp.eye(8) + 0.1 * jnp.cos(jnp.arange(64.0).reshape(8, 8) + i) for i in range(6)])


def loss(x, weights):
    for i in range(6):
        x = jnp.sin(jnp.tanh(x @ weights[i])) + 0.1 * jax.nn.relu(x - 0.2)
    return jnp.sum(x * jax.nn.relu(x - 0.2) ** 2) + jax.nn.logsumexp(x)


@functools.cache
def applied():
    # As planned: what is transformed is two kilobytes, and what compiles to how much is for other tests.
    plan = rl.plan(loss, X, WEIGHTS, budget=BUDGET, argnums=(0, 1), solver="greedy", check="planned")
    assert len(plan.policy_plan.layout.root.children) > 1, "the budget must need recomputation"
    return plan.apply()


def same(one, other, *args):
    expected, found = one(*args), other(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), found, expected)


BATCH = jnp.stack([X, X * 0.5, -X])

TRANSFORMS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "grad of both": lambda f: jax.grad(f, argnums=(0, 1)),
    "jit of value and grad": lambda f: jax.jit(jax.value_and_grad(f)),
    "jvp": lambda f: lambda x, w: jax.jvp(f, (x, w), (jnp.cos(x), w)),
    "linearize": lambda f: lambda x, w: jax.linearize(f, x, w)[1](x, w),
    "vjp": lambda f: lambda x, w: jax.vjp(f, x, w)[1](jnp.float32(2.0)),
    "hessian": jax.hessian,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "grad of grad": lambda f: jax.grad(lambda x, w: jnp.sum(jnp.sin(jax.grad(f)(x, w)))),
    "Hessian-vector product": lambda f: lambda x, w: jax.jvp(lambda x: jax.grad(f)(x, w), (x,), (jnp.sin(x),)),
    "checkpoint around": lambda f: jax.grad(jax.checkpoint(f)),
    "checkpoint around, keeping dots": lambda f: jax.grad(
        jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable), argnums=(0, 1)
    ),
    "in a scan": lambda f: jax.grad(lambda x, w: jnp.sum(lax.scan(lambda c, _: (c * 0.5, f(c, w)), x, None, length=3)[1])),
    "in a branch": lambda f: jax.grad(lambda x, w: lax.cond(x[0] < 0, f, lambda x, w: jnp.sum(x), x, w)),
    "on half its result": lambda f: jax.grad(lambda x, w: f(x, w) * f(jnp.sin(x), w)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transformed_plan_is_the_transformed_loss(name):
    same(TRANSFORMS[name](loss), TRANSFORMS[name](applied()), X, WEIGHTS)


@pytest.mark.parametrize(
    ("in_axes", "args"),
    [
        (0, (BATCH, jnp.stack([WEIGHTS] * 3))),
        ((0, None), (BATCH, WEIGHTS)),
        ((None, 0), (X, jnp.stack([WEIGHTS, WEIGHTS * 0.5]))),
        ((1, None), (BATCH.T, WEIGHTS)),
        ((-1, 1), (BATCH.T, jnp.stack([WEIGHTS] * 3, axis=1))),
    ],
    ids=["0", "(0, None)", "(None, 0)", "(1, None)", "(-1, 1)"],
)
@pytest.mark.parametrize(
    "order",
    [
        "vmap",
        "vmap of grad",
        "grad of vmap",
        "jit of vmap of grad",
        pytest.param("vmap of hessian vector product", marks=pytest.mark.slow),
    ],
)
def test_every_axis_may_be_the_batch(in_axes, args, order):
    orders = {
        "vmap": lambda f: jax.vmap(f, in_axes),
        "vmap of grad": lambda f: jax.vmap(jax.grad(f, argnums=(0, 1)), in_axes),
        "grad of vmap": lambda f: jax.grad(lambda *a: jnp.sum(jax.vmap(f, in_axes)(*a)), argnums=(0, 1)),
        "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f), in_axes)),
        "vmap of hessian vector product": lambda f: jax.vmap(
            lambda x, w: jax.jvp(lambda x: jax.grad(f)(x, w), (x,), (jnp.sin(x),)), in_axes
        ),
    }
    same(orders[order](loss), orders[order](applied()), *args)


def test_batches_may_be_nested_and_named():
    def mapped(f):
        def centred(x, w):
            return f(x, w) - lax.pmean(f(x * 0.5, w), "rows")

        return jax.vmap(jax.vmap(jax.grad(centred), (0, None), axis_name="rows"), (0, None))

    same(mapped(loss), mapped(applied()), jnp.stack([BATCH, BATCH * 0.3]), WEIGHTS)


@pytest.mark.parametrize("setting", [jax.disable_jit, jax.checking_leaks], ids=["disable_jit", "checking_leaks"])
def test_debugging_modes_keep_working(setting):
    expected = jax.grad(loss)(X, WEIGHTS)
    with setting():
        np.testing.assert_allclose(jax.grad(applied())(X, WEIGHTS), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.skipif(bool(os.environ.get("JAX_REMAT3")), reason="under JAX_REMAT3 debug_nans does not look into jax.checkpoint")
def test_debug_nans_finds_a_nan_inside():
    def of_logarithms(x):
        return jnp.sum(jnp.sin(jnp.sin(jnp.log(x))))

    fun = rl.plan(of_logarithms, X, budget=10**6).apply()
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        jax.grad(fun)(-jnp.ones(8))


def test_eager_calls_and_a_second_application_compile_nothing_again():
    plan = rl.plan(loss, X, WEIGHTS, budget=BUDGET, argnums=(0, 1), solver="greedy", check="planned")
    first = plan.apply()
    jax.grad(first)(X, WEIGHTS)
    first(X, WEIGHTS)
    with compilations() as compiled:
        for fun in (first, plan.apply()):
            for _ in range(2):
                fun(X, WEIGHTS)
                jax.grad(fun)(X, WEIGHTS)
    assert not compiled


def test_regions_do_not_repeat_collectives_on_several_devices():
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    rows, ws = jnp.cos(jnp.arange(64.0 * jax.device_count())).reshape(-1, 8), [jnp.eye(8) * 0.9] * 6

    def centred(x):
        return x - lax.pmean(jnp.mean(x, axis=0, keepdims=True), "d")

    def total(rows, ws):
        for w in ws:
            rows = jnp.sin(jnp.sin(rows @ w))
            rows = jax.shard_map(centred, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(rows)
        return jnp.sum(rows**2)

    def reductions(f):
        sharded = NamedSharding(mesh, P("d")), [NamedSharding(mesh, P())] * 6
        step = jax.jit(jax.value_and_grad(f, argnums=(0, 1)), in_shardings=sharded)
        text = step.lower(rows, ws).compile().as_text()
        # Arrays, not instructions: XLA reduces the gradients of all weights in one, at the end. Regions compute each of them
        # before the backward pass goes on, so it is reduced there. All devices run this one program, in its order.
        shapes = re.findall(r"= (.*) all-reduce\(", text)
        return Counter(array for shape in shapes for array in re.findall(r"\w+\[[\d,]*\]", shape))

    plan = rl.plan(total, rows, ws, budget=BUDGET, argnums=(0, 1), solver="greedy", check="planned")  # of arrays, not of bytes
    assert len(plan.policy_plan.layout.root.children) > 1
    same(jax.grad(total, (0, 1)), jax.grad(plan.apply(), (0, 1)), rows, ws)
    expected = reductions(total)
    assert reductions(plan.apply()) == expected
    assert expected.total() >= 2 * len(ws)  # each layer's mean, forward and backward; on several devices gradients too


def test_a_function_with_a_budget_runs_inside_shard_map_on_several_devices():
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    rows = jnp.cos(jnp.arange(8.0 * jax.device_count())).reshape(-1, 8)

    def total(f):
        def of_row(x, w):
            return lax.psum(f(x[0], w), "d")

        return jax.shard_map(of_row, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())

    decorated = rl.remat(loss, budget=BUDGET)
    same(jax.jit(jax.grad(total(loss), (0, 1))), jax.jit(jax.grad(total(decorated), (0, 1))), rows, WEIGHTS)
    assert all(plan.layout.root.children for plan in decorated.plans)
    assert decorated.plans


def test_constraints_of_sharding_survive_on_several_devices():
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    wanted = NamedSharding(mesh, P("d"))
    rows = jnp.cos(jnp.arange(64.0 * jax.device_count())).reshape(-1, 8)

    def total(rows, ws):
        for w in ws:
            rows = lax.with_sharding_constraint(jnp.sin(jnp.sin(rows @ w)), wanted)
        return jnp.sum(rows**2)

    def constraints(f):
        found = [q.eqn for q in program_of(jax.grad(f, (0, 1)), rows, WEIGHTS).equations if q.name == "sharding_constraint"]
        assert all(eqn.params["sharding"].spec == wanted.spec for eqn in found)
        return len(found)

    plan = rl.plan(total, rows, WEIGHTS, budget=BUDGET, argnums=(0, 1), solver="greedy", check="planned")
    assert plan.policy_plan.layout.root.children
    assert constraints(plan.apply()) >= constraints(total) >= len(WEIGHTS)
    same(jax.jit(jax.grad(total, (0, 1))), jax.jit(jax.grad(plan.apply(), (0, 1))), rows, WEIGHTS)


def test_inside_shard_map_a_plan_made_outside_says_what_to_do():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))

    def total(f):
        return jax.shard_map(lambda x, w: lax.psum(f(x, w), "d"), mesh=mesh, in_specs=(P("d"), P()), out_specs=P())

    with pytest.raises(rl.PlanMismatch, match="Plan the function that calls shard_map"):
        total(applied())(X, WEIGHTS)
    same(jax.grad(total(loss), (0, 1)), jax.grad(total(rl.remat(loss, budget=1.0)), (0, 1)), X, WEIGHTS)


@pytest.mark.parametrize(
    ("chosen", "environment"),
    [
        ("hessian or scan or half or collectives", {"JAX_REMAT3": "1"}),
        pytest.param("transformed or debug or compile", {"JAX_REMAT3": "1"}, marks=pytest.mark.slow),
        ("devices and not environment", FOUR_DEVICES),
        pytest.param("devices and not environment", {**FOUR_DEVICES, "JAX_REMAT3": "1"}, marks=pytest.mark.slow),
    ],
    ids=["jax_remat3", "all on jax_remat3", "four devices", "four devices on jax_remat3"],
)
def test_all_of_it_holds_in_another_environment(chosen, environment):
    if set(environment) & set(os.environ) and "JAX_REMAT3" in environment:
        pytest.skip("this is that environment")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-k", chosen, __file__]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
