"""Mutable references around and inside a forward pass: read once before it, written once after it, and values in between.

A region of `jax.checkpoint` runs its equations again, reads and writes of a `jax.Ref` too: a counter would count twice, and
what was overwritten after its first read would be read anew. So a program that is to be cut into regions has no references:
their contents are values that flow through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from remat_lab import _jax
from remat_lab.flatten import Program, flatten
from remat_lab.primitives import PLAIN_CALLS


@dataclass(frozen=True)
class Forward:
    """A function's program without references.

    Attributes:
        program: what regions are made of; its outputs are the function's, then the final contents of `written`.
        outputs: number of the function's own outputs.
        written: the references around the function that it writes.
    """

    program: Program
    outputs: int
    written: tuple[Any, ...] = ()

    def finish(self, results: Sequence[Any]) -> list[Any]:
        """The function's outputs, after its references got their final contents."""
        for ref, final in zip(self.written, results[self.outputs :], strict=True):
            ref[...] = final
        return list(results[: self.outputs])


def forward_program(run: Callable[..., Sequence[Any]], values: Sequence[Any]) -> Forward:
    """Traces a function as a program that may be cut into regions: calls inlined, rules and checkpoints as written.

    Args:
        run: from arrays to a sequence of arrays.
        values: its arguments; shapes are enough.
    """
    jaxpr = jax.make_jaxpr(run)(*values)
    outputs = len(jaxpr.outvars)
    written: tuple[Any, ...] = ()
    if _has_refs(jaxpr):
        pure, positions, changed = _jax.refs_to_values(jaxpr)
        held = list(jaxpr.consts)
        if any(i >= len(held) for i in positions):
            raise TypeError("a Ref is among the traced arguments")  # `Loss.split` leaves them to Python
        written = tuple(held[i] for i, was in zip(positions, changed, strict=True) if was)
        contents = [x[...] if i in positions else x for i, x in enumerate(held)]
        wanted = [*range(outputs), *(outputs + n for n, was in enumerate(changed) if was)]

        def discharged(*values: Any) -> list[Any]:
            results = jax.core.eval_jaxpr(pure, pure.consts, *contents, *values)
            return [results[i] for i in wanted]

        jaxpr = jax.make_jaxpr(discharged)(*values)
    return Forward(flatten(jaxpr, calls=PLAIN_CALLS, merge=False, barriers=True), outputs, written)


def _has_refs(jaxpr: Any) -> bool:
    return any(map(_jax.is_ref_type, (v.aval for v in jaxpr.constvars))) or any(
        any(_jax.is_ref_type(v.aval) for v in eqn.outvars)
        or (eqn.primitive.name in PLAIN_CALLS and any(map(_has_refs, _jax.sub_jaxprs(eqn))))
        for eqn in jaxpr.eqns
    )
