"""MobileNets of depthwise separable convolutions, the first version.

Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications", 2017. The defaults are that
paper's Table 1: the network of width 1 at 224 x 224.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax

from experiments.models.arguments import positive
from experiments.models.images import classifier
from experiments.models.model import Model

# Of each separable block: channels that it writes, in multiples of the stem's, and its stride.
TABLE_1 = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *[(16, 1)] * 5, (32, 2), (32, 1))

Conv = partial(nn.Conv, use_bias=False)
Norm = partial(nn.BatchNorm, use_running_average=False)


class Separable(nn.Module):
    """A 3x3 convolution of each channel alone, then one of 1x1 across channels; each with batch norm and ReLU."""

    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, height, width, any] to [batch, height / stride, width / stride, channels]."""
        before = x.shape[-1]
        x = Conv(before, (3, 3), self.stride, feature_group_count=before, name="depthwise")(x)
        x = nn.relu(Norm(name="norm1")(x))
        return nn.relu(Norm(name="norm2")(Conv(self.channels, (1, 1), name="pointwise")(x)))


class MobileNet(nn.Module):
    """Images [batch, height, width, 3] to logits [batch, classes]."""

    blocks: tuple[tuple[int, int], ...]
    width: int
    classes: int
    block: Any = Separable

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """A stem that halves the image, separable blocks, and the mean over the image."""
        x = nn.relu(Norm(name="stem_norm")(Conv(self.width, (3, 3), 2, name="stem")(x)))
        for i, (multiple, stride) in enumerate(self.blocks):
            x = self.block(self.width * multiple, stride, name=f"block{i}")(x)
        return nn.Dense(self.classes, name="head")(x.mean((1, 2)))


def loss(
    *,
    blocks: Sequence[tuple[int, int]] = TABLE_1,
    batch: int = 32,
    image: int = 224,
    width: int = 32,
    classes: int = 1000,
) -> Model:
    """Cross-entropy in training mode: `loss(params, batch_stats, x, labels)` returns `(value, new batch_stats)`.

    Args:
        blocks: of each separable block the channels, in multiples of `width`, and the stride.
        batch: number of images.
        image: pixels along a side.
        width: channels of the stem.
        classes: number of labels.

    Raises:
        ValueError: if a number is not positive, or a block is not a pair of positive numbers.
    """
    positive(batch=batch, image=image, width=width, classes=classes)
    if not blocks or any(len(pair) != 2 or min(pair) < 1 for pair in blocks):
        raise ValueError(f"blocks={blocks!r}: for each block its channels, in multiples of width, and its stride")
    pairs = tuple((multiple, stride) for multiple, stride in blocks)

    def network(block: Any) -> MobileNet:
        return MobileNet(pairs, width, classes, block)

    return classifier(network, Separable, (batch, image, image, 3), (batch,), classes)
