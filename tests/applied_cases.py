"""Losses of every kind that `Plan.apply` must leave as they are, each with a budget that makes it recompute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp

import remat_lab as rl
from remat_lab.flatten import Program, flatten
from remat_lab.measure import SCHEDULERS, Compiled, compile_program

MODELS = {
    "mlp": {"layers": 8},
    "dropout_mlp": {"layers": 4},
    "transformer": {},
    "unet": {"levels": 2, "batch": 2},
    "resnet": {},
}


@dataclass(frozen=True)
class Case:
    """A loss, its arguments, and how to plan it."""

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    budget: float
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def has_aux(self) -> bool:
        """Whether the loss returns more than its value."""
        return self.options.get("has_aux", False)

    def grad(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """The value and gradient of a function like the loss."""
        return jax.value_and_grad(fun, argnums=self.options.get("argnums", 0), has_aux=self.has_aux)


def _layers(count: int, width: int = 32) -> list[jax.Array]:
    return [jax.random.normal(jax.random.key(i), (width, width)) / width**0.5 for i in range(count)]


X = jax.random.normal(jax.random.key(99), (128, 32))


def _tied(table, ids):
    h = table[ids]
    for _ in range(6):
        h = jnp.sin(jnp.sin(h @ (table.T @ table) * 0.01))
    logits = h @ table.T
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, None], axis=1))


@jax.custom_vjp
def halved(x):
    """The identity with half its gradient."""
    return x


halved.defvjp(lambda x: (x, None), lambda _, g: (g / 2,))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def straight_through(x, n):
    """Rounds to a grid; its gradient takes no notice."""
    return jnp.round(x * n) / n


straight_through.defvjp(lambda x, n: (straight_through(x, n), None), lambda n, _, g: (g,))


@jax.custom_vjp
def fat(x, w):
    """A product whose rule keeps more than it needs to."""
    return jnp.sin(x @ w)


def _fat_forward(x, w):
    u = x @ w
    return jnp.sin(u), (x, w, u, jnp.cos(u))


def _fat_backward(kept, g):
    x, w, _, c = kept
    return (g * c) @ w.T, x.T @ (g * c)


fat.defvjp(_fat_forward, _fat_backward)


def _custom_vjp(ws, x):
    for w in ws:
        x = straight_through(halved(fat(x, w)), 64)
    return jnp.sum(x**2)


def _custom_jvp(ws, x):
    for w in ws:
        x = jax.nn.relu(jax.nn.softplus(x @ w) - 0.7) + jax.nn.silu(x)
    return jnp.sum(jax.nn.logsumexp(x, axis=-1))


def _aux(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2), {"last": x[:4], "mean": jnp.mean(x), "none": None}


def _complex(ws, x):
    for w in ws:
        x = jnp.sin(x @ w.astype(jnp.complex64)) * 1j
    return jnp.sum(jnp.abs(x) ** 2)


def _integers(ws, table, ids, step):
    x = table[ids]
    for i, w in enumerate(ws):
        x = jnp.sin(jnp.sin(x @ w)) * jnp.where(step > i, 1.0, 0.5)
    return jnp.sum(x * (ids[:, None] % 3 - 1).astype(x.dtype))


def _dropout(ws, x, key):
    for w in ws:
        key, own = jax.random.split(key)
        x = jnp.where(jax.random.bernoulli(own, 0.5, x.shape), jnp.sin(x @ w) * 2, 0.0)
    return jnp.sum(x**2)


_IDS = jnp.arange(256) % 64

SMALL = {
    "tied embeddings": Case(_tied, (jax.random.normal(jax.random.key(5), (64, 32)), _IDS), 0.7),
    "custom_vjp": Case(_custom_vjp, (_layers(8), X), 0.6),
    "custom_jvp": Case(_custom_jvp, (_layers(8), X), 0.6),
    "aux": Case(_aux, (_layers(8), X), 0.6, {"has_aux": True}),
    "complex": Case(_complex, (_layers(8), X.astype(jnp.complex64)), 0.6, {"argnums": (0, 1)}),
    "integers": Case(_integers, (_layers(8), jax.random.normal(jax.random.key(6), (64, 32)), _IDS, jnp.int32(3)), 0.6),
    "dropout": Case(_dropout, (_layers(6), X, jax.random.key(7)), 0.7),
}
BUDGETS = {"mlp": 0.6, "dropout_mlp": 0.7, "transformer": 0.6, "unet": 0.7, "resnet": 0.5}
NAMES = (*BUDGETS, *SMALL)


@cache
def case(name: str) -> Case:
    """A case by name, with real arguments."""
    if name in SMALL:
        return SMALL[name]
    made = import_module(f"experiments.models.{name}").loss(**MODELS[name])
    return Case(made.loss, made.materialise(), BUDGETS[name], {"has_aux": made.has_aux})


@cache
def planned(name: str, budget: float | None = None) -> rl.Plan:
    """A plan of a case under its own budget or another."""
    made = case(name)
    return rl.plan(made.loss, *made.args, budget=budget or made.budget, solver="greedy", check="planned", **made.options)


@cache
def compiled(name: str, budget: float | None = None) -> Compiled:
    """The applied plan's value and gradient under the memory scheduler."""
    made = case(name)
    return compile_program(made.grad(planned(name, budget).apply()), *made.args, compiler_options=SCHEDULERS["memory"])


@cache
def plain(name: str) -> Compiled:
    """The loss's own value and gradient under the same options."""
    return compile_program(case(name).grad(case(name).loss), *case(name).args, compiler_options=SCHEDULERS["memory"])


def program_of(fun: Callable[..., Any], *args: Any) -> Program:
    """A traced function, flat, with all recomputation as written."""
    return flatten(jax.make_jaxpr(fun)(*args), merge=False)


def one_by_one(fun: Callable[..., Any], *args: Any) -> list[Any]:
    """Results of a function whose operations run one by one: no compiler fuses them or adds in another order."""
    jaxpr = jax.make_jaxpr(fun)(*args)
    with jax.disable_jit():
        return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *jax.tree.leaves(args))
