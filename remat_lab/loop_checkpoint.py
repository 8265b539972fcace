"""Loops as nested scans under `jax.checkpoint`: differentiable in every mode, to any order.

The form that derivatives beyond one reverse pass take, and that users ask for with `form="checkpoint"`. Each level holds an
accumulator of its own for the gradients of the constants, and recomputes its blocks whole; `loop_passes` hold one for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_policies

from remat_lab.loop import Loop, PlannedLoop
from solvers.nest import Nest

Arrays = list[Any]


def branches_of(nest: Nest) -> tuple[int, ...]:
    """Steps per scan at each level, outermost first, of a tree that keeps about as many carries as a nest."""
    blocks = len(nest.blocks)
    if blocks == 1:
        return (nest.length,)
    levels = 1
    while levels < math.ceil(math.log2(blocks)) and levels * math.ceil(blocks ** (1 / levels)) > nest.slots:
        levels += 1
    branch = math.ceil(round(blocks ** (1 / levels), 9))
    return (*[branch] * levels, nest.longest)


def checkpointed(planned: PlannedLoop) -> Callable[[Sequence[Any]], Arrays]:
    """The loop as nested checkpointed scans of about the nest's shape, from operands to final carries and ys."""
    loop, nest = planned.loop, planned.nest
    branches = branches_of(nest) if loop.length else (1,)
    policy = None if not nest.keeps or math.isinf(planned.tier) else checkpoint_policies.dots_saveable
    step = _step(loop, planned.tier if nest.keeps else math.inf, policy)

    def run(operands: Sequence[Any]) -> Arrays:
        consts, init, xs = loop.split(operands)
        carry, ys = _level(loop, step, branches, consts, init, xs, loop.length)
        return [*carry, *ys]

    return run


def _step(loop: Loop, tier: float, policy: Any) -> Callable[..., tuple[Arrays, Arrays]]:
    if tier < 0:
        return loop.run
    return jax.checkpoint(loop.run, policy=policy, prevent_cse=False)


def _level(
    loop: Loop, step: Any, branches: tuple[int, ...], consts: Arrays, carry: Arrays, xs: Arrays, length: int
) -> tuple[Arrays, Arrays]:
    """`length` steps. The part that fills no block comes last in the order of execution, whatever the loop's direction."""
    size = math.prod(branches[1:])
    whole, rest = divmod(length, size)
    if len(branches) == 1 or whole == 0:
        if len(branches) > 1:
            return _level(loop, step, branches[1:], consts, carry, xs, length)
        return _scan(loop, lambda c, x: step(consts, c, x), carry, xs, length)

    def block(consts: Arrays, carry: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
        return _level(loop, step, branches[1:], consts, carry, x, size)

    inner = jax.checkpoint(block, prevent_cse=False)
    first = [_part(loop, x, 0, whole * size).reshape(whole, size, *x.shape[1:]) for x in xs]
    carry, ys = _scan(loop, lambda c, x: inner(consts, c, x), carry, first, whole)
    ys = [y.reshape(whole * size, *y.shape[2:]) for y in ys]
    if not rest:
        return carry, ys
    last = [_part(loop, x, whole * size, length) for x in xs]

    def remainder(consts: Arrays, carry: Arrays, x: Arrays) -> tuple[Arrays, Arrays]:
        return _level(loop, step, branches[1:], consts, carry, x, rest)

    carry, more = jax.checkpoint(remainder)(consts, carry, last)
    pairs = [(b, a) if loop.reverse else (a, b) for a, b in zip(ys, more, strict=True)]
    return carry, [jnp.concatenate(pair) for pair in pairs]


def _scan(loop: Loop, step: Any, carry: Arrays, xs: Arrays, length: int) -> tuple[Arrays, Arrays]:
    carry, ys = lax.scan(step, carry, xs, length, reverse=loop.reverse, unroll=loop.unroll)
    return list(carry), list(ys)


def _part(loop: Loop, x: Any, begin: int, end: int) -> Any:
    """The slices that steps begin to end take."""
    if begin == 0 and end == x.shape[0]:
        return x
    if loop.reverse:
        begin, end = x.shape[0] - end, x.shape[0] - begin
    return lax.slice_in_dim(x, begin, end)
