"""What depends on what in a step of a loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from remat_lab import _jax
from remat_lab.flatten import Program
from remat_lab.loop import Loop

Moving = tuple[bool, ...]
"""For each of some values whether tangents flow through it."""


def spread(loop: Loop, moving: Moving) -> tuple[Moving, Moving]:
    """Which operands and ys tangents reach, carries over any number of steps."""
    moving = tuple(m and smooth(aval) for m, aval in zip(moving, loop.in_avals, strict=True))
    while True:
        found = {var for var, m in zip(loop.body.invars, moving, strict=True) if m}
        for eqn in loop.body.eqns:
            if any(not isinstance(v, _jax.Literal) and v in found for v in eqn.invars):
                found.update(v for v in eqn.outvars if smooth(v.aval))
        out = [not isinstance(v, _jax.Literal) and v in found for v in loop.body.outvars]
        consts, carries, xs = loop.split(moving)
        grown = [
            old or (new and smooth(aval)) for old, new, aval in zip(carries, out, loop.split(loop.in_avals)[1], strict=False)
        ]
        if grown == carries:
            return moving, tuple(out[loop.carries :])
        moving = (*consts, *grown, *xs)


def smooth(aval: Any) -> bool:
    """Whether a value of this type can have a tangent."""
    return bool(jax.dtypes.issubdtype(aval.dtype, jnp.inexact))


def reached(program: Program, start: Iterable[int]) -> frozenset[int]:
    """Values that depend on others, and those."""
    found = set(start)
    for q in program.equations:
        if not found.isdisjoint(q.reads):
            found.update(q.outs)
    return frozenset(found)


def needed(program: Program, atoms: Iterable[Any], available: Any) -> list[int]:
    """Equations that compute values from those available, in order."""
    stack = [v for v in atoms if isinstance(v, int) and v not in available]
    found = set[int]()
    while stack:
        value = stack.pop()
        k = program.producer.get(value)
        if k is not None and k not in found:
            found.add(k)
            stack += [v for v in program.equations[k].reads if v not in available]
    return sorted(found)
