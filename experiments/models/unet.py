"""A U-Net: values of the way down are read again, late, on the way up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.models.arguments import positive
from experiments.models.images import classifier
from experiments.models.model import Model


class Block(nn.Module):
    """[batch, height, width, any] to [batch, height, width, channels]."""

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Two convolutions, each followed by group norm and ReLU."""
        for i in range(2):
            x = nn.Conv(self.channels, (3, 3), use_bias=False, name=f"conv{i}")(x)
            x = nn.relu(nn.GroupNorm(math.gcd(8, self.channels), name=f"norm{i}")(x))
        return x


class UNet(nn.Module):
    """Images [batch, height, width, 3] to logits [batch, height, width, classes]."""

    levels: int
    width: int
    classes: int
    block: Any = Block

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Halves the image `levels` times and doubles it again, joining what each level left behind."""
        skips = []
        for i in range(self.levels):
            x = self.block(self.width * 2**i, name=f"down{i}")(x)
            skips.append(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = self.block(self.width * 2**self.levels, name="bottom")(x)
        for i in reversed(range(self.levels)):
            x = nn.ConvTranspose(self.width * 2**i, (2, 2), (2, 2), name=f"enlarge{i}")(x)
            x = self.block(self.width * 2**i, name=f"up{i}")(jnp.concatenate([skips[i], x], axis=-1))
        return nn.Conv(self.classes, (1, 1), name="head")(x)


def loss(*, levels: int = 3, batch: int = 8, image: int | Sequence[int] = 64, width: int = 16, classes: int = 4) -> Model:
    """Cross-entropy of each pixel's class: `loss(params, x, labels)`.

    Args:
        levels: how often the image is halved.
        batch: number of images.
        image: pixels along a side, or height and width; divisible by 2**levels.
        width: channels at full size, doubled at each level.
        classes: number of labels.

    Raises:
        ValueError: if a number is not positive, or the image cannot be halved that often.
    """
    sides = (image, image) if isinstance(image, int) else tuple(image)
    if len(sides) != 2:
        raise ValueError(f"image={image}: one number, or height and width")
    positive(levels=levels, batch=batch, image=min(sides), width=width, classes=classes)
    if any(side % 2**levels for side in sides):
        raise ValueError(f"image={image} cannot be halved {levels} times: use a multiple of {2**levels}, or fewer levels")

    def network(block: Any) -> UNet:
        return UNet(levels, width, classes, block)

    return classifier(network, Block, (batch, *sides, 3), (batch, *sides), classes)
