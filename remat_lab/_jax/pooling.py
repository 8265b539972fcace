"""The gradient of a max-pool, summed onto zeros that are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from remat_lab._jax import names
from remat_lab._jax.equations import Equation, bind, equation_context


def scatter_selected(eqn: Equation, values: Sequence[Any], zero: Any) -> list[Any]:
    """Runs a `select_and_scatter_add` of floats on a given zero, rather than on a constant of its own.

    It is what JAX lowers the equation to for GPUs; the primitive itself has no such operand. Where this JAX has no primitive
    that takes one, the equation runs as it is.
    """
    if not names.has(names.SCATTER):
        return bind(eqn, values)
    source, operand = values
    select, padding = eqn.params["select_prim"], eqn.params["padding"]
    last = jnp.array(-jnp.inf if select is lax.ge_p else jnp.inf, operand.dtype)
    with equation_context(eqn):
        result = names.find(names.SCATTER).bind(
            lax.pad(operand, last, [(low, high, 0) for low, high in padding]),
            source,
            zero,
            select_jaxpr=_of_two(select.bind, zero),
            select_consts=(),
            scatter_jaxpr=_of_two(lax.add, zero),
            scatter_consts=(),
            window_dimensions=tuple(eqn.params["window_dimensions"]),
            window_strides=tuple(eqn.params["window_strides"]),
            padding=((0, 0),) * operand.ndim,
        )
        starts = [low for low, _ in padding]
        return [lax.slice(result, starts, [a + n for a, n in zip(starts, operand.shape, strict=True)])]


def _of_two(fun: Any, like: Any) -> Any:
    """The jaxpr of a function of two scalars."""
    scalar = jax.ShapeDtypeStruct((), like.dtype)
    return jax.make_jaxpr(fun)(scalar, scalar)
