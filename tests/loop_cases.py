"""Small loops in all the forms that `jax.lax.scan` has, for tests: each is a loss as a function of the scan that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

Scan = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A loss with a loop.

    Attributes:
        loss: from a scan to a function of `*args`.
        args: differentiated arguments.
        lengths: lengths that it can have.
    """

    loss: Callable[[Scan, int], Callable[..., jax.Array]]
    args: Callable[[int], tuple[jax.Array, ...]]
    options: dict[str, Any] = field(default_factory=dict)


def _normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def _rnn(scan: Scan, length: int, **options: Any) -> Callable[..., jax.Array]:
    def loss(w: jax.Array, b: jax.Array, h: jax.Array, xs: jax.Array) -> jax.Array:
        def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h @ w + x * jnp.cos(b)[None])
            return h, jnp.sum(h**2)

        h, ys = scan(step, h, xs, **options)
        return jnp.sum(h) + jnp.sum(ys * jnp.arange(1.0, length + 1))

    return loss


def _rnn_args(length: int) -> tuple[jax.Array, ...]:
    return 0.5 * _normal(0, 4, 4), _normal(1, 4), _normal(2, 3, 4), _normal(3, length, 3, 4)


def _mixed(scan: Scan, length: int) -> Callable[..., jax.Array]:
    """A counter and a key in the carry, integer slices, dropout, a dictionary, an unused result."""

    def loss(w: jax.Array, h: jax.Array) -> jax.Array:
        def step(carry: Any, x: Any) -> Any:
            key, sub = jax.random.split(carry["key"])
            keep = jax.random.bernoulli(sub, 0.7, carry["h"].shape)
            h = jnp.where(keep, jax.nn.relu(carry["h"] * w[x]), 0.1)
            return {"key": key, "h": h, "n": carry["n"] + 1}, (h.sum() * carry["n"].astype(h.dtype), carry["n"], h)

        init = {"key": jax.random.key(7), "h": h, "n": jnp.int32(1)}
        out, (ys, counts, _) = scan(step, init, jnp.arange(length) % 3)
        return jnp.sum(out["h"]) * out["n"].astype(h.dtype) + jnp.sum(ys) + jnp.sum(counts).astype(h.dtype)

    return loss


def _no_xs(scan: Scan, length: int) -> Callable[..., jax.Array]:
    def loss(a: jax.Array, x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            k1 = jnp.sin(carry * a)
            k2 = jnp.sin((carry + 0.05 * k1) * a)
            return carry + 0.1 * k2, None

        return jnp.sum(scan(step, x, None, length)[0] ** 2)

    return loss


def _inner(scan: Scan, length: int) -> Callable[..., jax.Array]:
    """A scan in a scan, both planned, the inner one over slices of the outer."""

    def loss(w: jax.Array, h: jax.Array, xs: jax.Array) -> jax.Array:
        def outer(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            def step(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
                h = jnp.tanh(h * w + row)
                return h, h[0]

            return scan(step, h, x)

        h, ys = scan(outer, h, xs)
        return jnp.sum(h) + jnp.sum(ys**2)

    return loss


def _choices(scan: Scan, length: int) -> Callable[..., jax.Array]:
    """Sorting and a custom derivative in the body."""

    @jax.custom_vjp
    def halved(x: jax.Array) -> jax.Array:
        return x

    halved.defvjp(lambda x: (x, None), lambda _, ct: (0.5 * ct,))

    def loss(w: jax.Array, xs: jax.Array) -> jax.Array:
        def step(c: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            top, index = jax.lax.top_k(jax.nn.softplus(c * w + x), 2)
            return halved(c * 0.5).at[index].add(top), jax.nn.relu(c).sum()

        c, ys = scan(step, jnp.zeros_like(w), xs)
        return jnp.sum(jnp.sort(c) ** 2) + jnp.sum(ys)

    return loss


def _hoisted(scan: Scan, length: int) -> Callable[..., jax.Array]:
    """Something heavy that is the same in all steps, a result that is a slice, and one that is a constant."""

    def loss(a: jax.Array, xs: jax.Array) -> jax.Array:
        def step(c: jax.Array, x: jax.Array) -> Any:
            gram = a @ a.T
            return jnp.sin(gram @ c + x), (x, a[0], 2.0)

        c, (first, second, third) = scan(step, jnp.ones(a.shape[0]), xs)
        return jnp.sum(c) + jnp.sum(first**3) + jnp.sum(jnp.cos(second)) + jnp.sum(third)

    return loss


CASES = {
    "rnn": Case(_rnn, _rnn_args),
    "reverse": Case(lambda scan, n: _rnn(scan, n, reverse=True), _rnn_args),
    "unroll": Case(lambda scan, n: _rnn(scan, n, unroll=2), _rnn_args),
    "mixed": Case(_mixed, lambda n: (1 + 0.1 * _normal(0, 3, 2, 4), _normal(1, 2, 4))),
    "no_xs": Case(_no_xs, lambda n: (_normal(0, 5), _normal(1, 5))),
    "inner": Case(_inner, lambda n: (_normal(0, 4), _normal(1, 4), _normal(2, n, 3, 4))),
    "choices": Case(_choices, lambda n: (_normal(0, 5), _normal(1, n, 5))),
    "hoisted": Case(_hoisted, lambda n: (0.5 * _normal(0, 3, 3), _normal(1, n, 3))),
}
