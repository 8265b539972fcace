"""VGG networks (Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015).

The defaults are that paper's configuration E, of 19 layers; configuration D, of 16, is `convolutions=(2, 2, 3, 3, 3)`. No layer
is normalised. Dropout is left out, as it is where others measure the memory of these networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax

from experiments.models.arguments import positive
from experiments.models.images import classifier
from experiments.models.model import Model

_MOST = 8  # times the first stage's channels


class Stage(nn.Module):
    """Convolutions of 3x3, each with ReLU, and a pooling that halves the image."""

    channels: int
    convolutions: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, height, width, any] to [batch, height / 2, width / 2, channels]."""
        for i in range(self.convolutions):
            x = nn.relu(nn.Conv(self.channels, (3, 3), name=f"conv{i}")(x))
        return halved(x)


def halved(x: jax.Array) -> jax.Array:
    """The largest of every 2 x 2 pixels: [batch, height, width, channels] to half the height and width.

    As a maximum over an axis, whose gradient is elementwise. That of `nn.max_pool` is an operation that XLA writes out into
    several arrays of the size of its input, on GPUs too: more scratch than anything else here needs. Of equal pixels all share
    the gradient, where pooling gives it to the first; after a ReLU these are zeros, whose gradient ends there.
    """
    batch, height, width, channels = x.shape
    return x.reshape(batch, height // 2, 2, width // 2, 2, channels).max((2, 4))


class VGG(nn.Module):
    """Images [batch, height, width, 3] to logits [batch, classes]."""

    convolutions: tuple[int, ...]
    width: int
    hidden: int
    classes: int
    stage: Any = Stage

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Stages of more and more channels, then three dense layers."""
        for i, count in enumerate(self.convolutions):
            x = self.stage(self.width * min(2**i, _MOST), count, name=f"stage{i}")(x)
        x = x.reshape(x.shape[0], -1)
        for i in range(2):
            x = nn.relu(nn.Dense(self.hidden, name=f"dense{i}")(x))
        return nn.Dense(self.classes, name="head")(x)


def loss(
    *,
    convolutions: Sequence[int] = (2, 2, 4, 4, 4),
    batch: int = 8,
    image: int = 224,
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
) -> Model:
    """Cross-entropy: `loss(params, x, labels)`.

    Args:
        convolutions: how many in each stage.
        batch: number of images.
        image: pixels along a side; divisible by 2 for each stage.
        width: channels of the first stage, doubled in each up to eight times as many.
        hidden: units of the two dense layers before the last.
        classes: number of labels.

    Raises:
        ValueError: if a number is not positive, or the image cannot be halved that often.
    """
    counts = tuple(convolutions)
    positive(batch=batch, image=image, width=width, hidden=hidden, classes=classes)
    if not counts or min(counts) < 1:
        raise ValueError(f"convolutions={convolutions!r}: one positive number for each stage")
    if image % 2 ** len(counts):
        raise ValueError(
            f"image={image} cannot be halved {len(counts)} times: use a multiple of {2 ** len(counts)}, or fewer stages"
        )

    def network(stage: Any) -> VGG:
        return VGG(counts, width, hidden, classes, stage)

    return classifier(network, Stage, (batch, image, image, 3), (batch,), classes)
