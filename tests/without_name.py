"""Hides one name of JAX's inside from the toolkit, then uses every feature once; for an interpreter of its own.

JAX itself goes on seeing the name, so that only the toolkit can miss it. Prints what became of each feature as JSON: "works",
or the class of the error and its message.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex

FORMS: dict[str, tuple[Any, str]] = {
    "JaxprEqn.ctx": (jex.JaxprEqn, "ctx"),
    "JaxprEqn.source_info": (jex.JaxprEqn, "source_info"),
    "Primitive.get_bind_params": (jex.Primitive, "get_bind_params"),
    "jax.config.values": (type(jax.config), "values"),
    "manual_axis_type": (jax.core.ShapedArray, "manual_axis_type"),
}
"""Rows of the table that are attributes, and which."""


def _asked_by_us() -> bool:
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("remat_lab")


def hide(where: str) -> None:
    """Makes a name unknown to modules of `remat_lab`, and to no others."""
    if where in FORMS:
        owner, attribute = FORMS[where]
        original = owner.__dict__[attribute]

        def get(self: Any) -> Any:
            if _asked_by_us():
                raise AttributeError(attribute)
            return original.__get__(self, owner)

        setattr(owner, attribute, property(get, getattr(original, "__set__", None)))
        return
    path, _, attribute = where.rpartition(".")
    module = importlib.import_module(path)
    getattr(module, attribute)

    class Hiding(type(module)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name == attribute and _asked_by_us():
                raise AttributeError(attribute)
            return super().__getattribute__(name)

    module.__class__ = Hiding


X = jnp.linspace(0.1, 1.0, 64).reshape(8, 8)
WS = [jnp.eye(8) * 0.9] * 4


def loss(ws: Any, x: Any) -> Any:
    """A small multi-layer perceptron."""
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x)


def same(found: Any, expected: Any) -> None:
    """Compares gradients."""
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), found, expected)


def plans() -> None:
    """A plan of a plain function, as exact schedule, policy, decorator and comparison."""
    import remat_lab as rl

    plan = rl.plan(loss, WS, X, budget=0.9, solver="greedy", check="planned")

    def every_form(ws: Any, x: Any) -> Any:
        decorated = rl.remat(loss)
        return jax.grad(loss)(ws, x), plan.value_and_grad()(ws, x)[1], jax.grad(plan.apply())(ws, x), jax.grad(decorated)(ws, x)

    expected, *found = jax.jit(every_form)(WS, X)
    for gradients in found:
        same(gradients, expected)
    rows = rl.compare(loss, WS, X, strategies=["keep_all"], rounds=0).rows
    assert [row.status for row in rows[1:]] == ["optimal"], rows


def scanned(x: Any) -> Any:
    """A loop."""
    return jnp.sum(jax.lax.scan(lambda c, _: (jnp.sin(jnp.sin(c)), None), x, length=8)[0])


def loops() -> None:
    """A planned scan, by itself and inside of a plan, mapped, and a while loop."""
    import remat_lab as rl

    def planned(x: Any) -> Any:
        return jnp.sum(rl.scan(lambda c, _: (jnp.sin(jnp.sin(c)), None), x, None, length=8, budget="4KiB")[0])

    plan = rl.plan(scanned, X, budget=0.9, solver="greedy", check="planned")

    def every_form(x: Any) -> Any:
        doubled = jax.vmap(lambda x: rl.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1])(x)
        return jax.grad(scanned)(x), jax.grad(planned)(x), jax.vmap(jax.grad(planned))(x), plan.value_and_grad()(x)[1], doubled

    expected, *found, doubled = jax.jit(every_form)(X)
    for gradient in found:
        same(gradient, expected)
    same(doubled, 8 * X)


def references() -> None:
    """A decorated function that counts its calls."""
    import remat_lab as rl

    count = jax.ref.new_ref(jnp.zeros(()))

    def fun(ref: Any, x: Any) -> Any:
        ref[...] += 1.0
        return jnp.sum(jnp.sin(jnp.sin(x)))

    jax.jit(jax.grad(lambda x: rl.remat(fun)(count, x)))(X)
    assert count[...] == 1.0


def mapping() -> None:
    """A planned loop inside of shard_map, which starts from a value that does not vary."""
    import remat_lab as rl

    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def body(x: Any) -> Any:
        start = jax.lax.pcast(jnp.zeros(8), "d", to="varying")
        return rl.scan(lambda c, y: (jnp.sin(c + y), None), start, x, budget=160)[0][None]

    rows = jax.sharding.PartitionSpec("d")
    fun = jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows)

    def plain(x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda c, y: (jnp.sin(c + y), None), jnp.zeros(8), x)[0])

    same(*jax.jit(lambda x: (jax.grad(lambda x: jnp.sum(fun(x)))(x), jax.grad(plain)(x)))(X))


def pooling() -> None:
    """A plan with the gradient of a max-pool."""
    import remat_lab as rl

    def fun(x: Any) -> Any:
        pooled = jax.lax.reduce_window(jnp.sin(x), -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID")
        return jnp.sum(jnp.sin(pooled))

    plan = rl.plan(fun, X, check="planned")
    same(*jax.jit(lambda x: (plan.value_and_grad()(x)[1], jax.grad(fun)(x)))(X))


def sources() -> None:
    """The table of what a plan keeps."""
    import remat_lab as rl

    assert str(rl.plan(loss, WS, X, budget=0.9, solver="greedy", check="planned").explain())


FEATURES = {
    "plans": plans,
    "planned loops": loops,
    "functions that read or write a jax.Ref": references,
    "shard_map around what is planned": mapping,
    "max-pool gradients in a plan's own memory on GPUs": pooling,
    "source lines in tables and errors": sources,
}


def outcome(feature: Any) -> str:
    """What became of it."""
    try:
        feature()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "works"


def main(where: str) -> None:
    """Hides a name, if one is given, and prints what becomes of each feature."""
    if where:
        hide(where)
    import remat_lab  # noqa: F401 - whatever is missing, this works

    sys.stdout.write(json.dumps({name: outcome(feature) for name, feature in FEATURES.items()}))
