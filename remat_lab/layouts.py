"""Results of a program in the layout that they leave it in, as soon as they are computed.

Backends choose layouts freely inside of a program, and bring each result into the default layout where it leaves. XLA does
that at the very end: until then a weight's gradient, say, lies among the temporaries in the layout that its convolution wrote.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint


def in_default_layout(x: jax.Array) -> jax.Array:
    """The same array, written row by row from here on, so that it can lie in the caller's buffer.

    Left alone are arrays that have one layout only, random keys, and everything on a TPU, whose layouts depend on shapes.
    """
    if x.ndim < 2 or not jnp.issubdtype(x.dtype, jnp.number):
        return x
    return lax.platform_dependent(x, tpu=_as_it_is, default=_row_major)


def _row_major(x: Any) -> Any:
    return with_layout_constraint(x, Layout(major_to_minor=tuple(range(x.ndim))))


def _as_it_is(x: Any) -> Any:
    return x
