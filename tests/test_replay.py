"""What may be computed again and what must not: each class of equation in both forms of a plan, counted when it runs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback
from jax.sharding import PartitionSpec

import remat_lab as rl
from remat_lab import _jax
from remat_lab.flatten import flatten

W = [jax.random.normal(jax.random.key(i), (32, 32)) / 6 for i in range(6)]
X = jax.random.normal(jax.random.key(9), (64, 32))
FORMS = ("exact", "applied")
seen: list[Any] = []


def record(*values: Any) -> None:
    seen.append([np.asarray(v).copy() for v in values])


def layers(ws, x, between: Callable[[Any, int], Any] = lambda x, i: x):
    """A network that is worth recomputing, with something between its layers."""
    for i, w in enumerate(ws):
        x = between(jnp.sin(jnp.sin(x @ w)), i)
    return jnp.sum(x**2)


def step_of(form: str, loss: Any, *args: Any, budget: float = 0.7, **options: Any) -> tuple[rl.Plan, Any]:
    """A plan that recomputes, and its step."""
    plan = rl.plan(loss, *args, budget=budget, solver="greedy", check="planned", **options)
    if form == "exact":
        assert plan.schedule.recomputed
        return plan, plan.value_and_grad()
    assert plan.policy_plan.extra_flops_ratio > 0
    return plan, jax.value_and_grad(plan.apply(), has_aux=options.get("has_aux", False))


def run(step: Any, *args: Any) -> Any:
    seen.clear()
    result = jax.block_until_ready(jax.jit(step)(*args))
    jax.effects_barrier()
    return result


def close(found: Any, expected: Any, rtol: float = 1e-4) -> None:
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * float(np.max(np.abs(b))))


@pytest.mark.parametrize("form", FORMS)
def test_a_counter_counts_once(form):
    counter = jax.new_ref(jnp.float32(0))

    def loss(ws, x):
        def count(x, i):
            if i == 3:
                counter[...] += 1
            return x * counter[...] if i == 5 else x

        return layers(ws, x, count)

    _, step = step_of(form, loss, W, X)
    assert counter[...] == 0  # planning runs nothing
    found = run(step, W, X)
    assert counter[...] == 1
    counter[...] = jnp.float32(0)
    close(found, jax.jit(jax.value_and_grad(loss))(W, X))
    assert counter[...] == 1


@pytest.mark.parametrize("where", ["inside", "around"])
@pytest.mark.parametrize("form", FORMS)
def test_what_was_read_before_a_reference_is_overwritten_stays_what_it_was(form, where):
    around = jax.new_ref(jnp.ones_like(X) / 2)

    def loss(ws, x):
        ref = jax.new_ref(jnp.cos(x)) if where == "inside" else around

        def overwrite(x, i):
            if i == 2:
                x = jnp.sin(x * ref[...])
                ref[...] = jnp.full_like(x, 7.0)
            return x + 0.1 * ref[...] if i == 4 else x

        return layers(ws, x, overwrite)

    expected = jax.jit(jax.value_and_grad(loss))(W, X)
    around[...] = jnp.ones_like(X) / 2
    _, step = step_of(form, loss, W, X)
    close(run(step, W, X), expected)
    np.testing.assert_array_equal(around[...], 7.0 if where == "around" else 0.5)


@jax.custom_vjp
def halved(x):
    return x


halved.defvjp(lambda x: (x, None), lambda _, g: (g / 2,))


@pytest.mark.parametrize("where", ["beside", "in a jit", "in a loop"])
def test_derivative_rules_beside_a_reference_are_kept(where):
    """Found by the fuzzer: when references became values, functions ran without their rules, and gradients were doubled."""

    def with_ref(x):
        ref = jax.new_ref(jnp.sin(x))
        ref[...] = halved(ref[...] * x)
        return jax.nn.relu(halved(ref[...]))

    def loss(x):
        if where == "in a loop":
            return jnp.sum(lax.scan(lambda c, _: (with_ref(c), None), x, None, 2)[0])
        return jnp.sum((with_ref if where == "beside" else jax.jit(with_ref))(x))

    x = jnp.linspace(-1.0, 1.0, 9)
    expected = jax.grad(loss)(x)
    plan = rl.plan(loss, x, check="planned")
    for gradient in (jax.grad(plan.apply()), jax.grad(rl.remat(loss)), jax.grad(rl.remat(loss, budget=1.0))):
        np.testing.assert_array_equal(gradient(x), expected)
    np.testing.assert_allclose(jax.jit(plan.value_and_grad())(x)[1], expected, rtol=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_debug_callback_runs_once_and_sees_the_value(form, ordered):
    def loss(ws, x):
        def show(x, i):
            if i in (2, 4):
                jax.debug.callback(record, i, jnp.sum(x), ordered=ordered)
            return x

        return layers(ws, x, show)

    expected = run(jax.value_and_grad(loss), W, X)
    plain = sorted(map(repr, seen))
    _, step = step_of(form, loss, W, X)
    close(run(step, W, X), expected)
    assert len(seen) == 2
    assert [int(i) for i, _ in seen] == [2, 4] or not ordered
    assert sorted(int(i) for i, _ in seen) == [2, 4]
    assert len(plain) == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_pure_callback_runs_once(form):
    @jax.custom_jvp
    def host(x):
        return jax.pure_callback(lambda x: (record(0), np.asarray(x) * 2)[1], jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    host.defjvp(lambda primals, tangents: (host(*primals), 2 * tangents[0]))

    def loss(ws, x):
        return layers(ws, x, lambda x, i: jnp.sin(host(x)) if i == 3 else x)

    plan, step = step_of(form, loss, W, X)
    found = run(step, W, X)
    assert len(seen) == 1
    close(found, jax.jit(jax.value_and_grad(loss))(W, X))
    assert any(row.forbidden for row in plan.explain("exact" if form == "exact" else "policy"))


def test_an_io_callback_runs_once_in_an_exact_schedule_and_is_refused_in_a_region():
    def loss(ws, x, n):
        def fetch(x, i):
            if i == 3:
                x = x * io_callback(
                    lambda n: (record(n), np.float32(0.5))[1], jax.ShapeDtypeStruct((), x.dtype), n, ordered=True
                )
            return x

        return layers(ws, x, fetch)

    _, step = step_of("exact", loss, W, X, jnp.int32(4))
    found = run(step, W, X, jnp.int32(4))
    assert [int(n) for (n,) in seen] == [4]
    close(found, jax.jit(jax.value_and_grad(loss))(W, X, jnp.int32(4)))
    with pytest.raises(rl.UnsupportedEffect, match=r"io_callback at .*test_replay\.py.*value_and_grad"):
        step_of("applied", loss, W, X, jnp.int32(4))


@pytest.mark.parametrize("form", FORMS)
def test_checks_report_once_what_they_find(form):
    def loss(ws, x):
        def check(x, i):
            if i == 3:
                checkify.check(jnp.all(x < 0.5), "too large: {m}", m=jnp.max(x))
            return x

        return layers(ws, x, check)

    _, step = step_of(form, loss, W, X)
    error, found = jax.jit(checkify.checkify(step))(W, X)
    assert "too large" in error.get()
    close(found, jax.jit(checkify.checkify(jax.value_and_grad(loss)))(W, X)[1])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("form", FORMS)
def test_dropout_is_equal_bit_for_bit(form, impl):
    def loss(ws, x, key):
        kept = []

        def drop(x, i):
            mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, x.shape)
            kept.append(mask)
            return jnp.where(mask, x * 2, 0)

        return layers(ws, x, drop), kept

    key = jax.random.key(3, impl=impl)
    _, step = step_of(form, loss, W, X, key, budget=0.6, has_aux=True)
    (_, masks), grads = run(step, W, X, key)
    (_, expected), plain = jax.jit(jax.value_and_grad(loss, has_aux=True))(W, X, key)
    np.testing.assert_array_equal(masks, expected)
    close(grads, plain)


def routed(x, i):
    """Experts chosen by index, by threshold and by maximum."""
    if i % 3 == 0:
        best, where = lax.top_k(x, 4)
        return x.at[jnp.arange(x.shape[0])[:, None], where].add(best)
    if i % 3 == 1:
        return jnp.where(x >= lax.top_k(x, 4)[0][:, -1:], x * 2, x / 2)
    return x + jnp.max(x, axis=1, keepdims=True) * jax.nn.one_hot(jnp.argmax(x, axis=1), x.shape[1], dtype=x.dtype)


@pytest.mark.parametrize("form", FORMS)
def test_routing_is_that_of_plain_jax(form):
    def loss(ws, x):
        return layers(ws, x, routed)

    plan, step = step_of(form, loss, W[:6], X, budget=0.9)
    close(run(step, W[:6], X), jax.jit(jax.value_and_grad(loss))(W[:6], X))
    assert any(row.forbidden for row in plan.explain("exact" if form == "exact" else "policy"))


def test_an_order_of_experts_is_chosen_once():
    def loss(ws, x):
        return layers(ws, x, routed)

    plan, _ = step_of("exact", loss, W[:6], X, budget=0.9)
    chosen = [v for v in plan.graph.steps if plan.fused.root(v).name in ("top_k", "argmax", "sort")]
    assert chosen
    assert all(plan.schedule.recomputed.get(v, 0) == 0 for v in chosen)


def collectives(fun: Any, *args: Any) -> list[str]:
    """The collectives of a program, in order. All devices run this one program, so they meet in each of them."""
    program = flatten(jax.make_jaxpr(fun)(*args), merge=False)
    bodies = [body for q in program.equations if q.name == "shard_map" for body in _jax.sub_jaxprs(q.eqn)]
    return [
        eqn.primitive.name
        for body in bodies
        for eqn in body.eqns
        if "psum" in eqn.primitive.name or eqn.primitive.name == "ppermute"
    ]


@pytest.mark.parametrize("form", FORMS)
def test_collectives_run_as_often_as_written(form):
    devices = jax.device_count()
    mesh = jax.make_mesh((devices,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    shared = functools.partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
    centred = shared(lambda x: x - lax.pmean(jnp.mean(x, axis=0, keepdims=True), "d"))
    turned = shared(lambda x: lax.ppermute(x, "d", [(i, (i + 1) % devices) for i in range(devices)]))

    def loss(ws, x):
        return layers(ws, x, lambda x, i: centred(x) if i in (1, 3) else turned(x) if i == 4 else x)

    _, step = step_of(form, loss, W, X)
    plain = jax.value_and_grad(loss)
    assert sorted(collectives(step, W, X)) == sorted(collectives(plain, W, X))
    assert "ppermute" in collectives(step, W, X)
    close(run(step, W, X), jax.jit(plain)(W, X))


def test_collectives_run_as_often_as_written_on_four_devices():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    chosen = "collectives_run and not four"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, __file__]
    done = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("form", FORMS)
def test_donated_arguments_are_read_before_they_are_written_over(form):
    def loss(ws, x):
        return layers(ws, x)

    _, step = step_of(form, loss, W, X)
    expected = jax.jit(jax.value_and_grad(loss))(W, X)

    def update(ws, x):
        value, grads = step(ws, x)
        return value, [w - 0.1 * g for w, g in zip(ws, grads, strict=True)]

    value, updated = jax.jit(update, donate_argnums=0)([w + 0 for w in W], X)
    close((value, updated), (expected[0], [w - 0.1 * g for w, g in zip(W, expected[1], strict=True)]))


def test_the_maximum_of_something_computed_twice_has_a_gradient():
    """Found by the fuzzer: the kernel of the comparison computed x anew, no element equalled the maximum, gradients were 0."""

    def loss(w, x, flag):
        h = lax.cond(flag, lambda x: jnp.tanh(x @ w) + x, lambda x: x, x)
        top = jnp.tanh(jnp.max(jnp.tanh(h), axis=1, keepdims=True))
        return jnp.mean(h - top + jnp.maximum(jnp.tanh(h), 0.1) @ w)

    w, x = W[0][:4, :4], X[:16, :4]
    flag = jnp.bool_(True)
    plan = rl.plan(loss, w, x, flag, budget=1.0, solver="greedy", check="planned")
    options = plan.compiler_options
    steps = (plan.value_and_grad(), jax.value_and_grad(loss))
    found, expected = (jax.jit(f, compiler_options=options)(w, x, flag) for f in steps)
    close(found, expected, rtol=1e-5)
