"""Residual blocks of layer norm, dense and dropout: a loss whose random key is an argument."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import optax

from experiments.models.arguments import floats, integers, key, positive
from experiments.models.model import Loss, Model


class Block(nn.Module):
    """[batch, width] to [batch, width]."""

    rate: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Adds to x what dense and dropout make of its norm."""
        y = nn.LayerNorm(name="norm")(x)
        y = nn.relu(nn.Dense(4 * x.shape[-1], name="up")(y))
        y = nn.Dropout(self.rate, deterministic=False, name="dropout")(y)
        return x + nn.Dense(x.shape[-1], name="down")(y)


class DropoutMLP(nn.Module):
    """[batch, width] to logits [batch, classes]."""

    layers: int
    classes: int
    rate: float
    block: Any = Block

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the blocks one after the other."""
        for i in range(self.layers):
            x = self.block(self.rate, name=f"block{i}")(x)
        return nn.Dense(self.classes, name="head")(nn.LayerNorm(name="norm")(x))


def loss(*, layers: int = 8, batch: int = 1024, width: int = 128, rate: float = 0.1, classes: int = 10) -> Model:
    """Cross-entropy under dropout: `loss(params, key, x, labels)`.

    Args:
        layers: number of residual blocks.
        batch: rows of x.
        width: columns of x.
        rate: fraction of activations dropped.
        classes: number of labels.

    Raises:
        ValueError: if a number is not positive, or the rate is not in [0, 1).
    """
    positive(layers=layers, batch=batch, width=width, classes=classes)
    if not 0 <= rate < 1:
        raise ValueError(f"rate={rate}: the fraction dropped is at least 0 and below 1")

    def build(block: Any) -> Loss:
        network = DropoutMLP(layers, classes, rate, block)

        def dropout_mlp_loss(params: Any, key: jax.Array, x: jax.Array, labels: jax.Array) -> jax.Array:
            logits = network.apply({"params": params}, x, rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return dropout_mlp_loss

    x = floats(batch, width)
    params = jax.eval_shape(DropoutMLP(layers, classes, rate).init, {"params": key(), "dropout": key()}, x)["params"]
    args = (params, key(), x, integers(batch))
    return Model(build(Block), args, lambda transform: build(transform(Block)), classes=classes)
