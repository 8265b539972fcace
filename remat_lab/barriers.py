"""Optimization barriers over arrays and random keys, after what must be in memory, and between the two passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.custom_derivatives import SymbolicZero


def barrier(tied: Sequence[Any], pending: Sequence[Any] = ()) -> list[Any]:
    """The values `tied`, available only once all of them and `pending` are. Keys pass as the words that they are made of."""
    kinds = [jax.random.key_impl(x) if _is_key(x) else None for x in tied]
    held, _ = lax.optimization_barrier((_words(tied), _words(pending)))
    return [x if kind is None else jax.random.wrap_key_data(x, impl=kind) for x, kind in zip(held, kinds, strict=True)]


@jax.custom_jvp
def written(x: Any) -> Any:
    """The same value, in memory: whatever is computed from it reads it there. Its gradient passes as it is."""
    return barrier([x])[0]


@written.defjvp
def _written_jvp(primals: Any, tangents: Any) -> Any:
    return written(*primals), tangents[0]


@jax.custom_jvp
def before_backward(losses: list[Any], others: list[Any]) -> tuple[list[Any], list[Any]]:
    """The same values; the gradients of losses can only be computed when all of them are known.

    Nothing in a backward pass reads the loss or what is returned beside it, so XLA would compute them last, and hold what they
    are computed from until then. The ones that the gradients of losses are multiplied with come out of a barrier that all
    results go into. Gradients of the others pass as they are: those that are zero stay no arrays at all.
    """
    return _with_ones(losses, others)[1:]


def _with_ones(losses: list[Any], others: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    ones = [jax.numpy.ones_like(x) for x in losses]
    return lax.optimization_barrier((ones, losses, others))  # what leaves it unread would not be tied


def _before_backward_jvp(primals: Any, tangents: Any) -> Any:
    ones, losses, others = _with_ones(*primals)
    moved = [t if isinstance(t, SymbolicZero) else t * lax.stop_gradient(one) for t, one in zip(tangents[0], ones, strict=True)]
    return (losses, others), (moved, tangents[1])


before_backward.defjvp(_before_backward_jvp, symbolic_zeros=True)


def _words(values: Sequence[Any]) -> list[Any]:
    return [jax.random.key_data(x) if _is_key(x) else x for x in values]


def _is_key(value: Any) -> bool:
    return bool(jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key))
