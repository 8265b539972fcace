"""Shapes of arguments, and real arguments of those shapes."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def floats(*shape: int) -> jax.ShapeDtypeStruct:
    """Shape of a float32 array."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def integers(*shape: int) -> jax.ShapeDtypeStruct:
    """Shape of an int32 array."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def key() -> jax.ShapeDtypeStruct:
    """Shape of a random key."""
    shape: jax.ShapeDtypeStruct = jax.eval_shape(lambda: jax.random.key(0))
    return shape


def positive(**numbers: int) -> None:
    """Checks sizes of a model.

    Raises:
        ValueError: if one is not positive; it names each.
    """
    wrong = ", ".join(f"{name}={number}" for name, number in numbers.items() if number < 1)
    if wrong:
        raise ValueError(f"{wrong}: must be at least 1")


def materialise(args: Any, seed: int = 0, *, classes: int = 2) -> Any:
    """Random arrays in place of shapes, at the scale of a freshly initialised model.

    Kernels and embeddings are normal with variance 1 / fan-in, scales and variances lie around 1, biases and means around 0,
    so that no gradient vanishes by symmetry. Arrays that are not named parameters are standard normal. Integers lie in
    [0, classes), booleans are fair, random keys are fresh.

    Args:
        args: a pytree of shapes.
        seed: equal seeds give equal arrays, whatever the machine.
        classes: bound on integers.
    """
    leaves, structure = jax.tree.flatten_with_path(args)
    streams = np.random.SeedSequence(seed).spawn(len(leaves))
    made = [
        _array(_name(path), leaf, np.random.default_rng(s), classes) for (path, leaf), s in zip(leaves, streams, strict=True)
    ]
    return jax.tree.unflatten(structure, made)


def _name(path: tuple[Any, ...]) -> str:
    last = path[-1] if path else None
    return str(last.key) if isinstance(last, jax.tree_util.DictKey) else ""


def _array(name: str, leaf: Any, rng: np.random.Generator, classes: int) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(int(rng.integers(2**31))), leaf.shape)
    if leaf.dtype == jnp.bool_:
        return jnp.asarray(rng.integers(2, size=leaf.shape), leaf.dtype)
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return jnp.asarray(rng.integers(classes, size=leaf.shape), leaf.dtype)
    normal = rng.standard_normal(leaf.shape, np.float32)
    if name in ("scale", "var"):
        normal = np.exp(0.1 * normal)
    elif name in ("bias", "mean"):
        normal = 0.1 * normal
    elif name:
        normal = normal / math.sqrt(max(1, math.prod(leaf.shape[:-1])))
    return jnp.asarray(normal, leaf.dtype)
