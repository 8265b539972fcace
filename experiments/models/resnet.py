"""Residual networks with batch norm (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016).

The defaults are that paper's section 4.2: the CIFAR-10 networks of 6n + 2 layers with three stages of n basic blocks. With
`stem="imagenet"`, `bottleneck=True` and block counts per stage they are those of its Table 1, such as ResNet-50:

    loss(**RESNET50)

Shortcuts that change shape are 1x1 convolutions with batch norm (its option B).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax

from experiments.models.arguments import positive
from experiments.models.images import classifier
from experiments.models.model import Model

RESNET50: dict[str, Any] = {
    "stages": (3, 4, 6, 3),
    "bottleneck": True,
    "stem": "imagenet",
    "image": 224,
    "width": 64,
    "classes": 1000,
}

Conv = partial(nn.Conv, use_bias=False)
Norm = partial(nn.BatchNorm, use_running_average=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; writes `channels` channels."""

    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, height, width, any] to [batch, height / stride, width / stride, channels]."""
        y = nn.relu(Norm(name="norm1")(Conv(self.channels, (3, 3), self.stride, name="conv1")(x)))
        y = Norm(name="norm2")(Conv(self.channels, (3, 3), name="conv2")(y))
        return nn.relu(_shortcut(x, y, self.stride) + y)


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, beside a shortcut; writes four times `channels` channels."""

    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, height, width, any] to [batch, height / stride, width / stride, 4 * channels]."""
        y = nn.relu(Norm(name="norm1")(Conv(self.channels, (1, 1), name="conv1")(x)))
        y = nn.relu(Norm(name="norm2")(Conv(self.channels, (3, 3), self.stride, name="conv2")(y)))
        y = Norm(name="norm3")(Conv(4 * self.channels, (1, 1), name="conv3")(y))
        return nn.relu(_shortcut(x, y, self.stride) + y)


def _shortcut(x: jax.Array, y: jax.Array, stride: int) -> jax.Array:
    if x.shape == y.shape:
        return x
    return Norm(name="shortcut_norm")(Conv(y.shape[-1], (1, 1), stride, name="shortcut")(x))


class ResNet(nn.Module):
    """Images [batch, height, width, 3] to logits [batch, classes]."""

    stages: tuple[int, ...]
    width: int
    classes: int
    imagenet: bool
    block: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Each stage after the first halves the image and doubles the channels."""
        kernel, stride = ((7, 7), 2) if self.imagenet else ((3, 3), 1)
        x = nn.relu(Norm(name="stem_norm")(Conv(self.width, kernel, stride, name="stem")(x)))
        if self.imagenet:
            x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, count in enumerate(self.stages):
            for i in range(count):
                stride = 2 if stage and not i else 1
                x = self.block(self.width * 2**stage, stride, name=f"stage{stage}_block{i}")(x)
        return nn.Dense(self.classes, name="head")(x.mean((1, 2)))


def loss(
    *,
    depth: int = 20,
    batch: int = 32,
    image: int = 32,
    width: int = 16,
    classes: int = 10,
    stages: Sequence[int] | None = None,
    bottleneck: bool = False,
    stem: Literal["cifar", "imagenet"] = "cifar",
) -> Model:
    """Cross-entropy in training mode: `loss(params, batch_stats, x, labels)` returns `(value, new batch_stats)`.

    Args:
        depth: number of layers of a network with three equal stages: 6n + 2, or 9n + 2 with bottleneck blocks. Not read when
            `stages` is given.
        batch: number of images.
        image: pixels along a side.
        width: channels of the first stage.
        classes: number of labels.
        stages: blocks in each stage.
        bottleneck: whether blocks are `Bottleneck` rather than `BasicBlock`.
        stem: "cifar" for one 3x3 convolution, "imagenet" for a 7x7 convolution and a pooling, each of which halves the image.

    Raises:
        ValueError: if the depth is not of that form, a number is not positive, or the stem is unknown.
    """
    positive(batch=batch, image=image, width=width, classes=classes)
    if stem not in ("cifar", "imagenet"):
        raise ValueError(f'stem={stem!r}: "cifar" or "imagenet"')
    counts = _equal_stages(depth, bottleneck) if stages is None else tuple(stages)
    if not counts or min(counts) < 1:
        raise ValueError(f"stages={stages!r}: one positive number of blocks for each stage")
    base = Bottleneck if bottleneck else BasicBlock

    def network(block: Any) -> ResNet:
        return ResNet(counts, width, classes, stem == "imagenet", block)

    return classifier(network, base, (batch, image, image, 3), (batch,), classes)


def _equal_stages(depth: int, bottleneck: bool) -> tuple[int, int, int]:
    layers = 9 if bottleneck else 6
    n, rest = divmod(depth - 2, layers)
    if rest or n < 1:
        near = max(1, round((depth - 2) / layers))
        raise ValueError(
            f"depth={depth} is not {layers}n + 2: three equal stages need 2 layers and {layers} for each n >= 1. "
            f"The nearest is {layers * near + 2}."
        )
    return (n, n, n)
