"""A loop written out: the same signature as `jax.lax.scan`, with a copy of the body for each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def loop(body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any) -> tuple[Any, Any]:
    """Applies a body to the rows of `xs`, carrying its first result; the second results are stacked.

    Args:
        body: (carry, row) to (carry, result).
        init: the first carry.
        xs: a pytree of arrays with a common leading axis of at least 1.
    """
    carry, results = init, []
    for i in range(jax.tree.leaves(xs)[0].shape[0]):
        carry, result = body(carry, jax.tree.map(lambda x, i=i: x[i], xs))
        results.append(result)
    return carry, jax.tree.map(lambda *rows: jnp.stack(rows), *results)
