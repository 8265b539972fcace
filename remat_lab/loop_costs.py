"""What planned loops cost: FLOPs by step and trip, and the program that each of their passes is written out as."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import jax

from remat_lab import _jax, costs
from remat_lab.loop import PlannedLoop
from remat_lab.loop_body import Moving, body_of
from remat_lab.loop_primitives import backward_p, loop_p, tangent_p

PASSES = frozenset({loop_p.name, backward_p.name, tangent_p.name})
"""Names of the primitives that are written out as loops when they are compiled."""


def written_out(eqn: _jax.Equation) -> Any:
    """The program that a planned loop's pass becomes, from its operands to its results."""
    shapes = tuple(_jax.shape_of(v.aval) for v in eqn.invars)
    return _written_out(eqn.primitive, tuple(eqn.params.items()), shapes)


@lru_cache(maxsize=256)
def _written_out(primitive: Any, params: tuple[tuple[str, Any], ...], shapes: tuple[Any, ...]) -> Any:
    return jax.make_jaxpr(lambda *operands: primitive.impl(*operands, **dict(params)))(*shapes)


Measure = Callable[[_jax.Equation], float]


def pass_costs(planned: PlannedLoop, moving: Moving, of: Measure = costs.flops) -> tuple[float, float]:
    """What the forward and the backward pass of a planned loop cost, each step counted as often as the nest runs it.

    Args:
        planned: the loop and its nest.
        moving: which operands gradients are taken of, or flow through.
        of: the cost of one equation; FLOPs by default.
    """
    body, nest = body_of(planned.loop, moving), planned.nest
    kept = body.kept(planned.tier if nest.keeps else math.inf)
    before = {*body.inputs[1], *body.inputs[2], *body.constant}
    given = {*before, *body.pinned}
    there = {*body.constant, *body.inputs[2], *body.inputs[3], *body.inputs[4], *body.pinned, *kept}
    results = [*body.outputs[0], *body.outputs[1], *body.pinned]
    shared = body.total(body.inputs[0], body.hoisted, of)
    direct = nest.blocks[-1] if nest.direct else 0
    forward = shared + (nest.length - direct) * body.total(before, results, of)
    if direct:
        forward += direct * body.total(before, [*results, *kept], of)
    starts = [0, *accumulate(nest.blocks)]
    advanced = sum(starts[replay.block] - starts[replay.start] for replay in nest.backward)
    replayed = sum(nest.blocks[replay.block] for replay in nest.backward)
    gradients = [atom for part in body.outputs[2:] for atom in part]
    backward = shared + nest.length * body.total(there, gradients, of)
    if replayed:
        backward += replayed * body.total(given, [*body.outputs[0], *kept], of)
    if advanced:
        backward += advanced * body.total(given, body.outputs[0], of)
    return forward, backward


def _rule(of: Measure, part: int) -> Measure:
    """The rule of one of the two passes; mapped passes cost as much for each element."""

    def rule(eqn: _jax.Equation) -> float:
        planned, moving = eqn.params["planned"], eqn.params["moving"]
        if moving is None:
            return planned.loop.length * sum(of(inner) for inner in planned.loop.body.eqns)
        mapped = math.prod(axis.size for axis in eqn.params.get("axes", ()))
        return mapped * pass_costs(planned, moving, of)[part]

    return rule


def _tangent(of: Measure) -> Measure:
    """Written out by `jax.jvp`: the step, and about twice its operations for the tangents."""
    forward = _rule(of, 0)
    return lambda eqn: 3 * forward(eqn)


costs.add_rule(loop_p.name, _rule(costs.flops, 0), _rule(costs.bytes_inside, 0))
costs.add_rule(backward_p.name, _rule(costs.flops, 1), _rule(costs.bytes_inside, 1))
costs.add_rule(tangent_p.name, _tangent(costs.flops), _tangent(costs.bytes_inside))
