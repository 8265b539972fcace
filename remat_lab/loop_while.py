"""Loops whose number of steps depends on the data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from remat_lab import _jax
from remat_lab.errors import InvalidArgument

irreversible_p = _jax.primitive("irreversible_loop")


def bounded_step[Carry](
    cond: Callable[[Carry], Any], body: Callable[[Carry], Carry]
) -> Callable[[Carry, None], tuple[Carry, None]]:
    """A step of a scan that does nothing once the condition is false."""

    def step(carry: Carry, x: None) -> tuple[Carry, None]:
        del x
        return lax.cond(cond(carry), body, lambda same: same, carry), None

    return step


def unbounded[Carry](cond: Callable[[Carry], Any], body: Callable[[Carry], Carry], init: Carry) -> Carry:
    """`jax.lax.while_loop`, which says what to do when it is differentiated in reverse."""
    out = lax.while_loop(cond, body, init)
    leaves, tree = jax.tree.flatten(out)
    _jax.require(irreversible_p)
    return jax.tree.unflatten(tree, irreversible_p.bind(*leaves, where=_where(body)))


def _where(body: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(body), "__code__", None)
    name = getattr(body, "__name__", type(body).__name__)
    return name if code is None else f"{code.co_filename}:{code.co_firstlineno} ({name})"


def _same(*values: Any, where: str) -> list[Any]:
    del where
    return list(values)


def _jvp(primals: Any, tangents: Any, *, where: str) -> Any:
    out = irreversible_p.bind(*primals, where=where)
    moving = [i for i, t in enumerate(tangents) if not _jax.is_symbolic_zero(t)]
    pushed = dict(zip(moving, irreversible_p.bind(*(tangents[i] for i in moving), where=where), strict=True)) if moving else {}
    return out, [pushed.get(i, t) for i, t in enumerate(tangents)]


def _transpose(cotangents: Any, *values: Any, where: str) -> Any:
    raise InvalidArgument(
        f"the while loop with the body {where} has no bound, so what its backward pass must keep has none either: it cannot "
        "be differentiated in reverse. Give max_steps=, the most steps that it can take; or put jax.lax.stop_gradient around "
        "what it starts from if no gradient should flow through it; or use forward mode (jax.jvp, jax.jacfwd)."
    )


def _batch(values: Any, dims: Any, *, where: str) -> Any:
    return irreversible_p.bind(*values, where=where), dims


_jax.register(
    irreversible_p,
    _same,
    abstract=lambda *avals, where: (_same(*avals, where=where), set()),
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    static=("where",),
)
