"""What a step of a loop may compute again, and at what price."""

from __future__ import annotations

from typing import Any

from remat_lab import _jax, costs
from remat_lab.flatten import Equation, Program
from remat_lab.primitives import DISCRETE, FUSIBLE, MOVEMENT, PLAIN_CALLS, REDUCTIONS, UNREPEATABLE, VIEWS

MOVES_ONLY = -1.0
"""The tier of equations that only rearrange or repeat bytes."""

_INDEXING = frozenset({"gather", "dynamic_slice", "iota"})


def heaviness(program: Program, q: Equation) -> float:
    """FLOPs per byte written, as a tier: `MOVES_ONLY` for what only moves bytes, 0 for what fuses or reads everything once."""
    if q.name in VIEWS or q.name in MOVEMENT:
        return MOVES_ONLY
    if is_light(q):
        return 0.0
    return costs.flops(q.eqn) / max(1, sum(program.bytes[o] for o in q.outs))


def is_light(q: Equation) -> bool:
    """Whether an equation costs about what reading its operands and writing its results does."""
    if q.name in ("custom_jvp_call", "custom_vjp_call", "custom_lin"):
        return all(_is_light_primitive(inner) for body in _jax.sub_jaxprs(q.eqn) for inner in body.eqns)
    return _is_light_primitive(q.eqn)


def _is_light_primitive(eqn: Any) -> bool:
    name = eqn.primitive.name
    if name in PLAIN_CALLS or name in ("custom_jvp_call", "custom_vjp_call"):
        return all(_is_light_primitive(inner) for body in _jax.sub_jaxprs(eqn) for inner in body.eqns)
    return name in FUSIBLE or name in MOVEMENT or name in REDUCTIONS or name in _INDEXING


def must_not_repeat(eqn: Any) -> bool:
    """Whether an equation's results are kept whatever that costs, because another run could give others.

    Collectives give the same again and are not among them.
    """
    name = eqn.primitive.name
    if name in DISCRETE or name in UNREPEATABLE:
        return True
    if name == "random_bits" and "fry" not in str(getattr(eqn.invars[0].aval, "dtype", "")):
        return True
    return any(must_not_repeat(inner) for body in _jax.sub_jaxprs(eqn) for inner in body.eqns)


def has_custom_vjp(jaxpr: Any) -> bool:
    """Whether a program contains a `jax.custom_vjp` function."""
    return any("custom_vjp" in eqn.primitive.name or any(map(has_custom_vjp, _jax.bodies(eqn))) for eqn in jaxpr.eqns)
