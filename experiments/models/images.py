"""The loss of a network of images: cross-entropy in training mode, with new batch statistics where the network has any."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax

from experiments.models.arguments import floats, integers, key
from experiments.models.model import Loss, Model

Network = Callable[[Any], nn.Module]  # from a block's Module class


def classifier(network: Network, block: Any, images: tuple[int, ...], labels: tuple[int, ...], classes: int) -> Model:
    """`loss(params, x, labels)`, or `loss(params, batch_stats, x, labels)` that returns `(value, new batch_stats)`.

    Args:
        network: makes the network from the class of its blocks.
        block: that class.
        images: shape of x.
        labels: shape of the labels: that of the logits without their last axis.
        classes: number of labels.
    """
    x = floats(*images)
    variables = jax.eval_shape(network(block).init, key(), x)
    has_statistics = "batch_stats" in variables

    def build(block: Any) -> Loss:
        model = network(block)

        def loss(params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
            return _cross_entropy(model.apply({"params": params}, x), labels)

        def statistics_loss(params: Any, batch_stats: Any, x: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
            logits, new = model.apply({"params": params, "batch_stats": batch_stats}, x, mutable=["batch_stats"])
            return _cross_entropy(logits, labels), new["batch_stats"]

        return statistics_loss if has_statistics else loss

    statistics = (variables["batch_stats"],) if has_statistics else ()
    args = (variables["params"], *statistics, x, integers(*labels))
    return Model(build(block), args, lambda transform: build(transform(block)), has_aux=has_statistics, classes=classes)


def _cross_entropy(logits: Any, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
