"""A U-Net whose way down is that of a VGG network: the segmentation network of the rematerialization literature.

The defaults are what Jain et al. ("Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys 2020) call
U-Net: images of 416 x 608, the first four stages of VGG-16, and a way up that joins what the pooling of each stage wrote, to
classes of pixels at half the image's size. Ronneberger's network is in `experiments.models.unet`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from experiments.models.images import classifier
from experiments.models.model import Model
from experiments.models.vgg import Stage

Norm = partial(nn.BatchNorm, use_running_average=False)


class VGGUNet(nn.Module):
    """Images [batch, height, width, 3] to logits [batch, height / 2, width / 2, classes]."""

    convolutions: tuple[int, ...]
    width: int
    classes: int
    stage: Any = Stage

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Down by the stages, then up by one convolution and batch norm for each."""
        channels = [self.width * 2**i for i in range(len(self.convolutions))]
        pooled = []
        for i, count in enumerate(self.convolutions):
            x = self.stage(channels[i], count, name=f"stage{i}")(x)
            pooled.append(x)
        x = Norm(name="bottom_norm")(nn.Conv(channels[-1], (3, 3), name="bottom")(x))
        for i in reversed(range(len(pooled) - 1)):
            x = jnp.concatenate([_enlarged(x), pooled[i]], axis=-1)
            x = Norm(name=f"up{i}_norm")(nn.Conv(channels[i], (3, 3), name=f"up{i}")(x))
        return nn.Conv(self.classes, (3, 3), name="head")(x)


def _enlarged(x: jax.Array) -> jax.Array:
    """Every pixel four times."""
    return x.repeat(2, axis=1).repeat(2, axis=2)


def loss(
    *,
    convolutions: Sequence[int] = (2, 2, 3, 3),
    batch: int = 4,
    image: Sequence[int] = (416, 608),
    width: int = 64,
    classes: int = 19,
) -> Model:
    """Cross-entropy of each pixel's class: `loss(params, batch_stats, x, labels)` returns `(value, new batch_stats)`.

    Args:
        convolutions: how many in each stage of the way down.
        batch: number of images.
        image: height and width; each divisible by 2 for each stage.
        width: channels of the first stage, doubled in each.
        classes: number of labels.

    Raises:
        ValueError: if a number is not positive, or the image cannot be halved that often.
    """
    counts, sides = tuple(convolutions), tuple(image)
    if len(sides) != 2 or not counts or min(*counts, *sides, batch, width, classes) < 1:
        raise ValueError(
            f"convolutions={convolutions!r}, batch={batch}, image={image!r}, width={width}, classes={classes}: each number "
            "must be at least 1, and an image has a height and a width"
        )
    if any(side % 2 ** len(counts) for side in sides):
        raise ValueError(f"image={image!r} cannot be halved {len(counts)} times: use multiples of {2 ** len(counts)}")
    labels = (batch, sides[0] // 2, sides[1] // 2)

    def network(stage: Any) -> VGGUNet:
        return VGGUNet(counts, width, classes, stage)

    return classifier(network, Stage, (batch, *sides, 3), labels, classes)
