"""The classes of equations by what running one again would mean."""

from __future__ import annotations

from enum import Enum

from remat_lab import _jax
from remat_lab.primitives import COLLECTIVES, DISCRETE, RANDOM, UNREPEATABLE, forbids_replay


class Replay(Enum):
    """What computing an equation again would do; the value says it in words."""

    PURE = "pure: the same result each time"
    RANDOM = "random, from a key: the same bits each time"
    DISCRETE = "a discrete choice: kept, as rounding could flip it"
    UNREPEATABLE = "random or opaque: kept, as it may differ from run to run"
    COLLECTIVE = "a collective: kept, in the same order on every device"
    REFERENCE = "reads or writes a mutable reference: once, in the order written"
    EFFECT = "a side effect: exactly once"

    @property
    def may_repeat(self) -> bool:
        """Whether a plan may run it twice."""
        return self in (Replay.PURE, Replay.RANDOM)


def classify(eqn: _jax.Equation) -> Replay:
    """The class of an equation; of one that holds others, the strictest among them."""
    name = eqn.primitive.name
    if eqn.effects:
        return Replay.REFERENCE if _touches_reference(eqn) else Replay.EFFECT
    if name in DISCRETE:
        return Replay.DISCRETE
    if name in COLLECTIVES:
        return Replay.COLLECTIVE
    if name in UNREPEATABLE:
        return Replay.UNREPEATABLE
    if name in RANDOM:
        return Replay.RANDOM if forbids_replay(eqn) is None else Replay.UNREPEATABLE
    order = list(Replay)
    inner = [classify(e) for body in _jax.sub_jaxprs(eqn) for e in body.eqns]
    return max(inner, key=order.index, default=Replay.PURE)


def _touches_reference(eqn: _jax.Equation) -> bool:
    return any(_jax.is_ref_type(v.aval) for v in (*eqn.invars, *eqn.outvars))
