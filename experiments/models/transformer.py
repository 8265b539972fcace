"""A decoder-only language model: pre-norm blocks of causal self-attention and a GELU network."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments.models.arguments import integers, key, positive
from experiments.models.model import Loss, Model


class Block(nn.Module):
    """[batch, length, width] to [batch, length, width]."""

    heads: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Attends to earlier positions, then transforms each position by itself."""
        width = x.shape[-1]
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2], jnp.float32))
        y = nn.LayerNorm(name="attention_norm")(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads, name="attention")(y, mask=mask)
        y = nn.LayerNorm(name="mlp_norm")(x)
        y = nn.gelu(nn.Dense(4 * width, name="up")(y))
        return x + nn.Dense(width, name="down")(y)


class Transformer(nn.Module):
    """Tokens [batch, length] to logits [batch, length, vocabulary]."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    block: Any = Block

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Embeds, applies the blocks, and projects to the vocabulary."""
        positions = self.param("positions", nn.initializers.normal(0.02), (1, tokens.shape[1], self.width))
        x = nn.Embed(self.vocabulary, self.width, name="embedding")(tokens) + positions
        for i in range(self.layers):
            x = self.block(self.heads, name=f"block{i}")(x)
        return nn.Dense(self.vocabulary, name="head")(nn.LayerNorm(name="norm")(x))


def loss(
    *, layers: int = 2, batch: int = 8, length: int = 128, width: int = 128, heads: int = 4, vocabulary: int = 1024
) -> Model:
    """Cross-entropy of the next token: `loss(params, tokens, targets)`.

    Args:
        layers: number of blocks.
        batch: number of sequences.
        length: tokens in each.
        width: size of a token's representation.
        heads: attention heads; must divide the width.
        vocabulary: number of different tokens.

    Raises:
        ValueError: if a number is not positive, or the heads do not divide the width.
    """
    positive(layers=layers, batch=batch, length=length, width=width, heads=heads, vocabulary=vocabulary)
    if width % heads:
        raise ValueError(f"heads={heads} do not divide width={width}")

    def build(block: Any) -> Loss:
        network = Transformer(layers, width, heads, vocabulary, block)

        def transformer_loss(params: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
            logits = network.apply({"params": params}, tokens)
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        return transformer_loss

    tokens = integers(batch, length)
    params = jax.eval_shape(Transformer(layers, width, heads, vocabulary).init, key(), tokens)["params"]
    return Model(build(Block), (params, tokens, tokens), lambda transform: build(transform(Block)), classes=vocabulary)
