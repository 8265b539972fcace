"""A neural ordinary differential equation, integrated with the classical Runge-Kutta method in steps of fixed size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax import lax

from experiments.models.arguments import floats, positive
from experiments.models.model import Loss, Model, Transform


class Field(nn.Module):
    """The time derivative of states [batch, width]: a network of one hidden layer."""

    @nn.compact
    def __call__(self, params: dict[str, jax.Array], t: jax.Array, x: jax.Array) -> jax.Array:
        """The derivative at time t."""
        hidden = jnp.tanh(x @ params["in_kernel"] + params["in_bias"][None] + t)
        return hidden @ params["out_kernel"]


def loss(
    *, steps: int = 100, batch: int = 256, width: int = 16, hidden: int = 128, scan: Callable[..., Any] = lax.scan
) -> Model:
    """Mean squared distance of the final states from targets: `loss(params, x, y)`.

    Args:
        steps: number of steps over the unit interval, each of four evaluations.
        batch: number of states.
        width: size of a state.
        hidden: width of the network.
        scan: what runs the loop over the steps, such as `jax.lax.scan`.

    Raises:
        ValueError: if a number is not positive.
    """
    positive(steps=steps, batch=batch, width=width, hidden=hidden)
    dt = 1.0 / steps

    def build(field: Any) -> Loss:
        def integrator_loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
            def step(x: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
                k1 = field(params, t, x)
                k2 = field(params, t + dt / 2, x + dt / 2 * k1)
                k3 = field(params, t + dt / 2, x + dt / 2 * k2)
                k4 = field(params, t + dt, x + dt * k3)
                return x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

            x, _ = scan(step, x, jnp.arange(steps, dtype=x.dtype) * dt)
            return optax.l2_loss(x, y).mean()

        return integrator_loss

    def blocks(transform: Transform) -> Loss:
        module = transform(Field)
        return build(lambda params, t, x: module().apply({}, params, t, x))

    params = {"in_kernel": floats(width, hidden), "in_bias": floats(hidden), "out_kernel": floats(hidden, width)}
    args = (params, floats(batch, width), floats(batch, width))
    return Model(build(lambda params, t, x: Field().apply({}, params, t, x)), args, blocks)
