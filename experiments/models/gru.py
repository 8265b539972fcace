"""A gated recurrent unit over a sequence, with a classifier on its last state: backpropagation through time as one scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from experiments.models.arguments import floats, integers, positive
from experiments.models.model import Loss, Model, Transform


class Cell(nn.Module):
    """One step: h and x, each [batch, width], to the new h (Cho et al. 2014)."""

    @nn.compact
    def __call__(self, params: dict[str, Any], h: jax.Array, x: jax.Array) -> jax.Array:
        """One step."""
        r, z = jnp.split(jax.nn.sigmoid(_dense(params["gates"], jnp.concatenate([x, h], axis=1))), 2, axis=1)
        new = jnp.tanh(_dense(params["candidate"], jnp.concatenate([x, r * h], axis=1)))
        return (1 - z) * new + z * h


def _dense(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"][None]


def loss(
    *,
    hidden: int = 128,
    batch: int = 16,
    inputs: int = 32,
    classes: int = 10,
    length: int = 128,
    scan: Callable[..., Any] = lax.scan,
) -> Model:
    """Cross-entropy after the last step: `loss(params, x, labels)`, with x [length, batch, inputs] and labels [batch].

    Args:
        hidden: width of the state.
        batch: number of sequences.
        inputs: width of x.
        classes: number of labels.
        length: steps.
        scan: what runs the loop over the steps, such as `jax.lax.scan`.

    Raises:
        ValueError: if a number is not positive.
    """
    positive(hidden=hidden, batch=batch, inputs=inputs, classes=classes, length=length)

    def build(cell: Any) -> Loss:
        def gru_loss(params: dict[str, Any], x: jax.Array, labels: jax.Array) -> jax.Array:
            h, _ = scan(lambda h, row: (cell(params, h, row), None), jnp.zeros((batch, hidden), x.dtype), x)
            return optax.softmax_cross_entropy_with_integer_labels(_dense(params["head"], h), labels).mean()

        return gru_loss

    def blocks(transform: Transform) -> Loss:
        module = transform(Cell)
        return build(lambda params, h, x: module().apply({}, params, h, x))

    params = {
        "gates": {"kernel": floats(inputs + hidden, 2 * hidden), "bias": floats(2 * hidden)},
        "candidate": {"kernel": floats(inputs + hidden, hidden), "bias": floats(hidden)},
        "head": {"kernel": floats(hidden, classes), "bias": floats(classes)},
    }
    args = (params, floats(length, batch, inputs), integers(batch))
    return Model(build(lambda params, h, x: Cell().apply({}, params, h, x)), args, blocks, classes=classes)
