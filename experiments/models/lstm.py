"""A stack of LSTM layers over a sequence, with a softmax at every step: backpropagation through time as one scan."""

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

Scan = Callable[..., Any]  # as `jax.lax.scan`


class Layer(nn.Module):
    """One LSTM layer with forget gates: h, c and x, each [batch, width], to the new h and c."""

    @nn.compact
    def __call__(self, params: dict[str, jax.Array], h: jax.Array, c: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step."""
        gates = jnp.concatenate([x, h], axis=1) @ params["kernel"] + params["bias"][None]
        i, f, g, o = jnp.split(gates, 4, axis=1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(c), c


def loss(
    *,
    layers: int = 2,
    hidden: int = 64,
    batch: int = 8,
    inputs: int = 50,
    classes: int = 100,
    length: int = 64,
    scan: Scan = lax.scan,
) -> Model:
    """Mean cross-entropy over all steps: `loss(params, x, labels)`, with x [length, batch, inputs] and labels [length, batch].

    Args:
        layers: LSTM layers.
        hidden: width of each.
        batch: number of sequences.
        inputs: width of x.
        classes: number of labels.
        length: steps.
        scan: what runs the loop over the steps, such as `jax.lax.scan`.

    Raises:
        ValueError: if a number is not positive.
    """
    positive(layers=layers, hidden=hidden, batch=batch, inputs=inputs, classes=classes, length=length)

    def build(layer: Any) -> Loss:
        def lstm_loss(params: dict[str, Any], x: jax.Array, labels: jax.Array) -> jax.Array:
            def step(carry: Any, xs: Any) -> Any:
                y, label = xs
                new = []
                for row, (h, c) in zip(params["layers"], carry, strict=True):
                    y, c = layer(row, h, c, y)
                    new.append((y, c))
                logits = y @ params["head"]["kernel"] + params["head"]["bias"][None]
                return new, optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

            zeros = jnp.zeros((batch, hidden), x.dtype)
            _, losses = scan(step, [(zeros, zeros)] * layers, (x, labels))
            return losses.mean()

        return lstm_loss

    def blocks(transform: Transform) -> Loss:
        module = transform(Layer)
        return build(lambda params, h, c, x: module().apply({}, params, h, c, x))

    def plain(params: dict[str, jax.Array], h: jax.Array, c: jax.Array, x: jax.Array) -> Any:
        return Layer().apply({}, params, h, c, x)

    params = {
        "layers": [
            {"kernel": floats((inputs if i == 0 else hidden) + hidden, 4 * hidden), "bias": floats(4 * hidden)}
            for i in range(layers)
        ],
        "head": {"kernel": floats(hidden, classes), "bias": floats(classes)},
    }
    args = (params, floats(length, batch, inputs), integers(length, batch))
    return Model(build(plain), args, blocks, classes=classes)
