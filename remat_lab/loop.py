"""A loop as `jax.lax.scan` has it, and how it is to be differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from remat_lab import _jax
from solvers.nest import Nest


@dataclass(frozen=True)
class Loop:
    """A scan over flat lists of arrays. Equal and hashable by the identity of the body's jaxpr.

    Attributes:
        body: jaxpr from constants, carries and one slice of each xs to carries and one slice of each ys.
        consts: number of constants, the first operands.
        carries: number of carries, which follow; the other operands are xs.
        length: steps.
        reverse: whether the steps take the slices from the last to the first.
        unroll: steps per trip, where the number of trips is fixed.
    """

    body: Any
    consts: int
    carries: int
    length: int
    reverse: bool = False
    unroll: int | bool = 1

    @classmethod
    def from_equation(cls, eqn: _jax.Equation) -> Loop:
        """The loop of a `scan` equation."""
        consts, carries = _jax.scan_operands(eqn)
        params = eqn.params
        return cls(params["jaxpr"], consts, carries, params["length"], params["reverse"], params["unroll"])

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Operands, or anything that goes with them, as constants, carries and xs."""
        first = self.consts + self.carries
        return list(operands[: self.consts]), list(operands[self.consts : first]), list(operands[first:])

    @property
    def in_avals(self) -> list[Any]:
        """Types of the body's inputs: constants, carries, slices of xs."""
        return [var.aval for var in self.body.invars]

    @property
    def out_avals(self) -> list[Any]:
        """Types of the body's outputs: carries, slices of ys."""
        return [var.aval for var in self.body.outvars]

    def run(self, consts: Sequence[Any], carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """One step."""
        out = jax.core.eval_jaxpr(self.body, getattr(self.body, "consts", ()), *consts, *carry, *x)
        return out[: self.carries], out[self.carries :]

    def scan(self, operands: Sequence[Any]) -> list[Any]:
        """The plain scan: final carries and ys."""
        consts, init, xs = self.split(operands)
        carry, ys = lax.scan(
            lambda carry, x: self.run(consts, carry, x), init, xs, self.length, reverse=self.reverse, unroll=self.unroll
        )
        return [*carry, *ys]


@dataclass(frozen=True)
class PlannedLoop:
    """A loop and how its backward pass gets at what it needs.

    Attributes:
        loop: the loop.
        nest: which carries are kept, and how the others are restored.
        tier: which residuals of a step are computed again rather than stacked; see `loop_body`.
    """

    loop: Loop
    nest: Nest
    tier: float = 0.0
