"""A recurrent recogniser trained with connectionist temporal classification: a scan over frames, and one over alignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from experiments.models.arguments import floats, integers
from experiments.models.model import Loss, Model, Transform

_IMPOSSIBLE = -1e5  # logarithm of the probability of an alignment that cannot be; finite, so that gradients are


class Frame(nn.Module):
    """One frame: h and x, each [batch, width], to the new h and the log probabilities of the labels; label 0 is the blank."""

    @nn.compact
    def __call__(self, params: dict[str, jax.Array], h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step."""
        h = jnp.tanh(jnp.concatenate([x, h], axis=1) @ params["kernel"] + params["bias"][None])
        return h, jax.nn.log_softmax(h @ params["head_kernel"])


def loss(
    *,
    hidden: int = 64,
    batch: int = 8,
    inputs: int = 32,
    classes: int = 30,
    length: int = 64,
    labels: int = 12,
    scan: Callable[..., Any] = lax.scan,
) -> Model:
    """Mean negative log-likelihood of label sequences: `loss(params, x, targets)`, x [length, batch, inputs].

    The forward recursion of Graves et al., "Connectionist temporal classification", ICML 2006, over the targets with blanks
    between them; targets [batch, labels] that are 0 are blanks, too.

    Args:
        hidden: width of the recurrent state.
        batch: number of sequences.
        inputs: width of x.
        classes: labels with the blank, at least 2.
        length: frames.
        labels: labels in each target; at most half the frames.
        scan: what runs both loops, such as `jax.lax.scan`.

    Raises:
        ValueError: if a number is out of range.
    """
    numbers = {"hidden": hidden, "batch": batch, "inputs": inputs, "classes": classes, "length": length, "labels": labels}
    if min(numbers.values()) < 1 or classes < 2 or 2 * labels > length:
        raise ValueError(
            ", ".join(f"{name}={n}" for name, n in numbers.items())
            + ": each must be at least 1, classes at least 2, and labels at most half of length"
        )

    def build(frame: Any) -> Loss:
        def ctc_loss(params: dict[str, jax.Array], x: jax.Array, targets: jax.Array) -> jax.Array:
            def recur(h: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
                return frame(params, h, row)

            _, log_probs = scan(recur, jnp.zeros((batch, hidden), x.dtype), x)
            states = jnp.zeros((batch, 2 * labels + 1), targets.dtype).at[:, 1::2].set(targets)
            skips = jnp.zeros(states.shape, bool).at[:, 3::2].set(targets[:, 1:] != targets[:, :-1])
            reachable = jnp.arange(2 * labels + 1) < 2

            def align(alpha: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
                one = jnp.pad(alpha, ((0, 0), (1, 0)), constant_values=_IMPOSSIBLE)[:, :-1]
                two = jnp.pad(alpha, ((0, 0), (2, 0)), constant_values=_IMPOSSIBLE)[:, :-2]
                two = jnp.where(skips, two, _IMPOSSIBLE)
                emitted = jnp.take_along_axis(row, states, axis=1)
                return jax.nn.logsumexp(jnp.stack([alpha, one, two]), axis=0) + emitted, None

            first = jnp.where(reachable[None], jnp.take_along_axis(log_probs[0], states, axis=1), _IMPOSSIBLE)
            alpha, _ = scan(align, first, log_probs[1:])
            return -jnp.logaddexp(alpha[:, -1], alpha[:, -2]).mean()

        return ctc_loss

    def blocks(transform: Transform) -> Loss:
        module = transform(Frame)
        return build(lambda params, h, x: module().apply({}, params, h, x))

    params = {
        "kernel": floats(inputs + hidden, hidden),
        "bias": floats(hidden),
        "head_kernel": floats(hidden, classes),
    }
    args = (params, floats(length, batch, inputs), integers(batch, labels))
    return Model(build(lambda params, h, x: Frame().apply({}, params, h, x)), args, blocks, classes=classes)
