"""What a planner must know of a loop: bytes and FLOPs of one step for each tier of its body."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax

from remat_lab import _jax
from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from remat_lab.in_place import body_peak
from remat_lab.loop import Loop, PlannedLoop
from remat_lab.loop_body import Body, Moving, body_of
from remat_lab.primitives import nbytes
from solvers import nest as nests
from solvers import nest_search

_CARRIES = 3  # in the loop over a block's steps: the carry or its cotangent, the next one, and a copy


@dataclass(frozen=True, eq=False)
class Measured:
    """A loop and what its nests cost.

    Attributes:
        loop: the loop.
        body: one step, with the operands that gradients flow through.
        tiers: for each option of `search.bodies`, its tier.
        search: what `solvers.nest_search` needs, FLOPs as cost. Gradients are not in its `fixed_bytes`.
        backward_flops: FLOPs of one step's backward pass with everything kept.
        gradient_bytes: the one accumulator of the moving constants' gradients, and the gradients of xs.
    """

    loop: Loop
    body: Body
    tiers: tuple[float, ...]
    search: nest_search.Loop
    backward_flops: float
    gradient_bytes: int

    @property
    def keep_all_bytes(self) -> int:
        """Peak of the loop as it is, without its gradients."""
        option = self.search.bodies[0]
        return self.search.fixed_bytes + option.workspace + option.residual_bytes * self.loop.length

    def planned(self, choice: nest_search.Choice) -> PlannedLoop:
        """The loop with a choice of `nest_search.cheapest` or `frontier`."""
        nest = nests.keep_all(self.loop.length, direct=True) if choice.nest is None else choice.nest
        return PlannedLoop(self.loop, nest, self.tiers[choice.body])

    def peak_bytes(self, planned: PlannedLoop) -> int:
        """Temporaries of the loop's forward and backward pass, without its gradients.

        Blocks of one step need less than `search` says: no inner loop carries anything.
        """
        tier = planned.tier if planned.nest.keeps else math.inf
        kept = set(self.body.kept(tier))
        option = next(o for o, t in zip(self.search.bodies, self.tiers, strict=True) if set(self.body.kept(t)) == kept)
        nest = planned.nest
        rows = nest.blocks[-1] if len(nest.blocks) == 1 and nest.direct else nest.longest
        workspace = option.workspace - (_CARRIES * self.search.carry_bytes if rows == 1 else 0)
        return self.search.fixed_bytes + workspace + nest.slots * self.search.carry_bytes + rows * option.residual_bytes


@lru_cache(maxsize=64)
def measure(loop: Loop, moving: Moving) -> Measured:
    """Measures a loop; nothing is compiled.

    Args:
        loop: the loop.
        moving: which operands gradients are taken of, or flow through.
    """
    body = body_of(loop, moving)
    program = body.program
    given = {*body.constant, *body.inputs[1], *body.inputs[2], *body.pinned}
    tiers = body.tiers
    full = body.flops(given, [*body.outputs[0], *body.kept(tiers[0])])
    gradients = [atom for part in body.outputs[2:] for atom in part]

    def backward_flops(tier: float) -> float:
        there = {*body.constant, *body.inputs[2], *body.inputs[3], *body.inputs[4], *body.pinned, *body.kept(tier)}
        return body.flops(there, gradients)

    least = backward_flops(tiers[0])
    consts, _, xs = loop.split(body.moving)
    carry_bytes = sum(nbytes(aval) for aval in loop.out_avals[: loop.carries])
    bodies = tuple(
        nest_search.Body(
            name=_name(tier),
            residual_bytes=sum(program.bytes[v] for v in body.kept(tier)),
            extra_cost=max(0.0, backward_flops(tier) - least),
            workspace=_workspace(body, tier) + _CARRIES * carry_bytes,
        )
        for tier in tiers
    )
    const_avals, _, x_avals = loop.split(loop.in_avals)
    return Measured(
        loop=loop,
        body=body,
        tiers=tiers,
        search=nest_search.Loop(
            length=loop.length,
            carry_bytes=carry_bytes,
            step_cost=full,
            bodies=bodies,
            fixed_bytes=loop.length * sum(program.bytes[v] for v in body.pinned) + sum(program.bytes[v] for v in body.hoisted),
        ),
        backward_flops=least,
        gradient_bytes=sum(nbytes(aval) for aval, m in zip(const_avals, consts, strict=True) if m)
        + loop.length * sum(nbytes(aval) for aval, m in zip(x_avals, xs, strict=True) if m),
    )


def _name(tier: float) -> str:
    if tier < 0:
        return "keep all"
    if tier == 0:
        return "recompute elementwise"
    return "keep the carry" if math.isinf(tier) else f"recompute up to {tier:g} FLOPs per byte"


def _workspace(body: Body, tier: float) -> int:
    """Bytes of temporaries while one step runs, forward keeping or backward."""
    kept = body.kept(tier)

    def values(numbers: Any) -> list[Any]:
        return [_jax.shape_of(body.program.avals[v]) for v in numbers]

    def peak(fun: Callable[..., Any], *shapes: Any) -> int:
        program = flatten(jax.make_jaxpr(fun)(*shapes))
        return body_peak(fuse(program, owned=True)) if program.equations else 0  # a sum's backward step passes on what it gets

    there = sorted({*body.inputs[0], *body.hoisted})
    forward = [*there, *body.inputs[1], *body.inputs[2], *body.pinned]
    backward = [*there, *body.inputs[2], *body.pinned, *kept, *body.inputs[3], *body.inputs[4]]
    consts = body.loop.split(body.moving)[0]
    totals = [body.inputs[0][i] for i, m in enumerate(consts) if m]

    def run(given: list[Any]) -> list[Any]:
        return body.compute(dict(zip(forward, given, strict=True)), [*body.outputs[0], *kept])

    def reverse(given: list[Any], sums: list[Any]) -> Any:
        return body.reverse(dict(zip(backward, given, strict=True)), sums)

    return max(peak(run, values(forward)), peak(reverse, values(backward), values(totals)))
