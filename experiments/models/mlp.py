"""A tanh network of equal layers in plain JAX: the uniform chain of the checkpointing literature, as a real program."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments.models.arguments import floats, positive
from experiments.models.model import Loss, Model, Transform


def layer(kernel: jax.Array, x: jax.Array) -> jax.Array:
    """One layer: [batch, width] to [batch, width]."""
    return jnp.tanh(x @ kernel)


class Layer(nn.Module):
    """`layer` as a Module without variables, for transforms that take a Module class."""

    @nn.compact
    def __call__(self, kernel: jax.Array, x: jax.Array) -> jax.Array:
        """See `layer`."""
        return layer(kernel, x)


def loss(*, layers: int = 16, batch: int = 4096, width: int = 128) -> Model:
    """Mean squared error of the network: `loss(params, x, y)`.

    Args:
        layers: number of layers, each keeping one activation of batch x width floats.
        batch: rows of x.
        width: columns of x and of every layer.

    Raises:
        ValueError: if a number is not positive.
    """
    positive(layers=layers, batch=batch, width=width)

    def build(apply: Loss) -> Loss:
        def mlp_loss(params: list[dict[str, jax.Array]], x: jax.Array, y: jax.Array) -> jax.Array:
            for row in params:
                x = apply(row["kernel"], x)
            return optax.l2_loss(x, y).mean()

        return mlp_loss

    def blocks(transform: Transform) -> Loss:
        block = transform(Layer)
        return build(lambda kernel, x: block().apply({}, kernel, x))

    params = [{"kernel": floats(width, width)} for _ in range(layers)]
    return Model(build(layer), (params, floats(batch, width), floats(batch, width)), blocks)
