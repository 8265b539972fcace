"""`PlanMismatch` says what differs: an argument, an array closed over, an equation. For plans in files see `test_stored.py`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import remat_lab as rl

W = [jnp.eye(32) * 0.5 + 0.01 for _ in range(4)]
X = jnp.linspace(-1.0, 1.0, 64 * 32).reshape(64, 32)


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2)


def repeated(x, times):
    for _ in range(times):
        x = jnp.sin(x)
    return jnp.sum(x)


def picked(x, which):
    made = jnp.sin(x), jnp.cos(x)
    return jnp.sum(made[0] * made[1] * made[which])


BESIDE = {
    "the shape of an array": (
        lambda x, v: jnp.sum(jnp.sin(jnp.sum(x)) * v),
        (jnp.ones(64), jnp.ones(32)),
        r"an array that it closes over, read by mul float32.* at .*test_mismatch.py:\d+ .*, has shape \[32\] instead of \[64\]",
    ),
    "the dtype of an array": (
        lambda x, v: jnp.sum((jnp.sin(x).astype(v.dtype) * v).astype(x.dtype)),
        (jnp.ones((64, 32), jnp.bfloat16), jnp.ones((64, 32), jnp.float16)),
        r"an array that it closes over, read by mul .* has dtype float16 instead of bfloat16",
    ),
    "the weak type of an array": (
        lambda x, v: jnp.sum(jnp.sin(x) * v),
        (jnp.full((64, 32), 2.0), jnp.full((64, 32), 2.0, jnp.float32)),
        r"an array that it closes over, .* has a strong type instead of a weak one",
    ),
    "the type of a result": (
        lambda x, v: jnp.sum(jnp.sin(x).astype(v).astype(jnp.float32)),
        (jnp.bfloat16, jnp.float16),
        r"equation \d+, convert_element_type float16.* at .*test_mismatch.py:\d+ .*, has dtype float16 instead of bfloat16",
    ),
    "one equation more": (
        repeated,
        (2, 3),
        r"there is sin float32\[64,32\] at .*test_mismatch.py:\d+ .*that the plan does not have",
    ),
    "one equation less": (repeated, (3, 2), r"there is no sin float32\[64,32\] at .*test_mismatch.py:\d+ .*that the plan has"),
    "an operand": (
        picked,
        (0, 1),
        r"equation \d+, mul .*, has operand 2 the result of cos float32\[64,32\] .* instead of the result of sin float32",
    ),
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_differs_in_another_program_is_said(what):
    fun, (before, after), message = BESIDE[what]
    box = [before]
    plan = rl.plan(lambda x: fun(x, box[0]), X)
    box[0] = after
    for run in (plan.value_and_grad(), plan.jit()):
        with pytest.raises(rl.PlanMismatch, match=f"another program than the one planned: {message}") as caught:
            run(X)
        assert "Something that it reads beside its arguments has changed; plan again." in str(caught.value)


def test_a_plan_for_regions_says_what_differs_too():
    box = [2]
    fun = rl.plan(lambda x: repeated(x, box[0]), X, budget=10**7, solver="greedy").apply()
    box[0] = 3
    with pytest.raises(rl.PlanMismatch, match=r"there is sin float32\[64,32\] at .*test_mismatch.py"):
        fun(X)


def test_another_weak_type_of_an_argument_is_said_by_name():
    plan = rl.plan(lambda x, scale: jnp.sum(jnp.sin(x) * scale), X, jnp.float32(2))
    with pytest.raises(rl.PlanMismatch, match=r"argument scale has a weak type instead of a strong one. Plan again for such"):
        plan.value_and_grad()(X, 2.0)


def test_another_sharding_of_an_argument_is_said_by_name():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Explicit,))
    first, second = (jax.device_put(X, NamedSharding(mesh, spec)) for spec in (P("rows"), P(None, "rows")))
    with jax.set_mesh(mesh):
        plan = rl.plan(lambda x: jnp.sum(jnp.sin(x)), first, check="planned")
        for run in (plan.value_and_grad(), plan.jit(), plan.apply()):
            with pytest.raises(rl.PlanMismatch, match=r"x is .* sharded P\(None, 'rows'\).* made for .* sharded P\('rows'"):
                run(second)
        assert plan.value_and_grad()(first)[0] == plan.jit()(first)[0]


def scaled(x, settings):
    return jnp.sum(jnp.sin(x) * settings["scale"])


def test_equal_and_other_static_values_that_cannot_be_hashed_are_shown():
    many = {f"setting {k}": k for k in range(100)}
    plan = rl.plan(scaled, X, {**many, "scale": 2.0}, static_argnums=1)
    for run in (plan.value_and_grad(), plan.jit(), plan.apply()):
        with pytest.raises(
            rl.PlanMismatch, match=r"settings is the static value .*'scale': 3.0}, but .*'scale': 2.0}"
        ) as caught:
            run(X, {**many, "scale": 3.0})
        assert len(str(caught.value)) < 400, "shortened around what differs"
        with pytest.raises(rl.PlanMismatch, match=r"settings is .*'setting 0': 0.* another object.* hashed") as caught:
            run(X, {**many, "scale": 2.0})
        assert str(id(many)) not in str(caught.value)
        assert len(str(caught.value)) < 400


def test_arguments_of_another_structure_are_named():
    plan = rl.plan(loss, W, X)
    with pytest.raises(rl.PlanMismatch, match=rf"another structure .*: there is no ws\[{len(W) - 1}\]\. Plan again"):
        plan.value_and_grad()(W[:-1], X)
    with pytest.raises(rl.PlanMismatch, match=rf"another structure .*: there is ws\[{len(W)}\]\. Plan again"):
        plan.value_and_grad()([*W, W[0]], X)
    with pytest.raises(rl.PlanMismatch, match=r"another structure .*\(\*, .* instead of .*\[\*, "):
        plan.value_and_grad()(tuple(W), X)
