"""Real arguments for a loss that was described by shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

SCALE = 0.1  # standard deviation of made-up floats: small enough that deep networks stay finite


def is_concrete(args: Any) -> bool:
    """Whether no leaf is only a shape."""
    return not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))


def materialise(args: Any, seed: int = 0) -> Any:
    """Replaces each `jax.ShapeDtypeStruct` by an array; everything else stays as it is.

    Floats and complex numbers are drawn from a normal distribution with standard deviation `SCALE`, typed keys are made from
    the seed, and integers and booleans are zero, which is valid as a label, an index or a mask.

    Args:
        args: a pytree.
        seed: equal seeds give equal arrays.
    """
    leaves, tree = jax.tree.flatten(args)
    key = jax.random.key(seed)

    def make(position: int, leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        own = jax.random.fold_in(key, position)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(own, leaf.shape) if leaf.shape else own
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            drawn_as = (
                leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.complexfloating) else jnp.float32
            )  # small floats have no sampler
            return (SCALE * jax.random.normal(own, leaf.shape, drawn_as)).astype(leaf.dtype)
        return jnp.zeros(leaf.shape, leaf.dtype)

    return jax.tree.unflatten(tree, [make(position, leaf) for position, leaf in enumerate(leaves)])
