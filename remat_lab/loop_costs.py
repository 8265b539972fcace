"""What planned loops cost: FLOPs by step and trip, and the program that each of their passes is written out as."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import Any

import jax

from remat_lab import _compat, costs
from remat_lab.loop_body import Body, body_of
from remat_lab.loop_primitives import backward_p, loop_p, tangent_p

PASSES = frozenset({loop_p.name, backward_p.name, tangent_p.name})
"""Names of the primitives that are written out as loops when they are compiled."""


def written_out(eqn: _compat.Equation) -> Any:
    """The program that a planned loop's pass becomes, from its operands to its results."""
    shapes = tuple(_compat.shape_of(v.aval) for v in eqn.invars)
    return _written_out(eqn.primitive, tuple(eqn.params.items()), shapes)


@lru_cache(maxsize=256)
def _written_out(primitive: Any, params: tuple[tuple[str, Any], ...], shapes: tuple[Any, ...]) -> Any:
    return jax.make_jaxpr(lambda *operands: primitive.impl(*operands, **dict(params)))(*shapes)


def step_flops(body: Body) -> float:
    """FLOPs of one step forward, with what all steps share computed before."""
    return body.flops(_given(body), [*body.outputs[0], *body.outputs[1]])


def recomputation_flops(body: Body, tier: float) -> float:
    """FLOPs per step of computing what the backward pass reads from what a tier keeps."""
    return body.flops((*body.kept(tier), *body.inputs[2], *body.pinned, *body.constant), body.frontier)


def _given(body: Body) -> tuple[int, ...]:
    return (*body.inputs[1], *body.inputs[2], *body.constant)


def _loop_flops(eqn: _compat.Equation) -> float:
    planned, moving = eqn.params["planned"], eqn.params["moving"]
    if moving is None:
        return planned.loop.length * sum(costs.flops(inner) for inner in planned.loop.body.eqns)
    body = body_of(planned.loop, moving)
    shared = body.flops(body.inputs[0], body.hoisted)
    atoms = [*body.outputs[0], *body.outputs[1], *body.pinned]
    kept = planned.nest.blocks[-1] if planned.nest.direct else 0
    plain = (planned.loop.length - kept) * body.flops(_given(body), atoms)
    return _mapped(eqn) * (shared + plain + (kept and kept * body.flops(_given(body), [*atoms, *_kept(planned, body)])))


def _backward_flops(eqn: _compat.Equation) -> float:
    planned = eqn.params["planned"]
    body, nest = body_of(planned.loop, eqn.params["moving"]), planned.nest
    starts = [0, *accumulate(nest.blocks)]
    advanced = sum(starts[replay.block] - starts[replay.start] for replay in nest.backward)
    replayed = sum(nest.blocks[replay.block] for replay in nest.backward)
    kept = _kept(planned, body)
    given = (*_given(body), *body.pinned)
    total = body.flops(body.inputs[0], body.hoisted)
    total += advanced * body.flops(given, body.outputs[0])
    total += replayed * body.flops(given, [*body.outputs[0], *kept])
    known = (*kept, *body.inputs[2], *body.inputs[3], *body.inputs[4], *body.pinned, *body.constant)
    return _mapped(eqn) * (total + nest.length * body.flops(known, [atom for part in body.outputs[2:] for atom in part]))


def _tangent_flops(eqn: _compat.Equation) -> float:
    return 3 * _loop_flops(eqn)  # written out by jax.jvp: the step, and about twice its operations for the tangents


def _kept(planned: Any, body: Body) -> tuple[int, ...]:
    return body.kept(planned.tier if planned.nest.keeps else math.inf)


def _mapped(eqn: _compat.Equation) -> int:
    return math.prod(axis.size for axis in eqn.params.get("axes", ()))


costs.add_rule(loop_p.name, _loop_flops)
costs.add_rule(backward_p.name, _backward_flops)
costs.add_rule(tangent_p.name, _tangent_flops)
