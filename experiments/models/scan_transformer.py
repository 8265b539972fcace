"""A decoder-only language model whose layers are one scan over stacked parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import optax
from jax import lax

from experiments.models.arguments import floats, integers, key, positive
from experiments.models.model import Loss, Model, Transform
from experiments.models.transformer import Block


def loss(
    *,
    layers: int = 4,
    batch: int = 8,
    length: int = 128,
    width: int = 128,
    heads: int = 4,
    vocabulary: int = 1024,
    scan: Callable[..., Any] = lax.scan,
) -> Model:
    """Cross-entropy of the next token: `loss(params, tokens, targets)`; `params["blocks"]` has the layers in front.

    Args:
        layers: number of blocks.
        batch: number of sequences.
        length: tokens in each.
        width: size of a token's representation.
        heads: attention heads; must divide the width.
        vocabulary: number of different tokens.
        scan: what runs the loop over the layers, such as `jax.lax.scan`.

    Raises:
        ValueError: if a number is not positive, or the heads do not divide the width.
    """
    positive(layers=layers, batch=batch, length=length, width=width, heads=heads, vocabulary=vocabulary)
    if width % heads:
        raise ValueError(f"heads={heads} do not divide width={width}")
    embed, norm, head = nn.Embed(vocabulary, width), nn.LayerNorm(), nn.Dense(vocabulary)

    def build(block: Any) -> Loss:
        layer = block(heads)

        def scan_transformer_loss(params: dict[str, Any], tokens: jax.Array, targets: jax.Array) -> jax.Array:
            x = embed.apply({"params": params["embedding"]}, tokens) + params["positions"]
            x, _ = scan(lambda x, row: (layer.apply({"params": row}, x), None), x, params["blocks"])
            logits = head.apply({"params": params["head"]}, norm.apply({"params": params["norm"]}, x))
            return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

        return scan_transformer_loss

    tokens, hidden = integers(batch, length), floats(batch, length, width)

    def init(module: nn.Module, x: jax.ShapeDtypeStruct) -> Any:
        return jax.eval_shape(module.init, key(), x)["params"]

    params = {
        "embedding": init(embed, tokens),
        "positions": floats(1, length, width),
        "blocks": jax.tree.map(lambda p: jax.ShapeDtypeStruct((layers, *p.shape), p.dtype), init(Block(heads), hidden)),
        "norm": init(norm, hidden),
        "head": init(head, hidden),
    }

    def blocks(transform: Transform) -> Loss:
        return build(transform(Block))

    return Model(build(Block), (params, tokens, tokens), blocks, classes=vocabulary)
