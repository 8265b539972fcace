"""Whole numbers for solvers that need them: bytes and costs in units that keep 64-bit arithmetic safe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from solvers.graph import Graph

# Sums of bytes times the horizon stay this far inside 64 bits, because CP-SAT multiplies and adds them.
_LARGEST_PRODUCT = 1 << 59
_COST_RESOLUTION = 10**6


@dataclass(frozen=True, slots=True)
class Units:
    """A graph's sizes, costs and budget as whole numbers.

    Bytes are rounded up and the budget down, so what fits in these units fits. Costs are rounded down, so a bound in
    these units is a bound. For numbers of ordinary size both are exact.

    Attributes:
        charge: per value, multiples of `byte_unit`.
        workspace: per step, multiples of `byte_unit`.
        cost: per step, multiples of `cost_unit`.
        budget: multiples of `byte_unit`.
        byte_unit: bytes.
        cost_unit: in the graph's unit of cost.
        exact_bytes: whether no byte was rounded, so that what does not fit here does not fit.
        exact_cost: whether no cost was rounded.
    """

    charge: tuple[int, ...]
    workspace: tuple[int, ...]
    cost: tuple[int, ...]
    budget: int
    byte_unit: int
    cost_unit: Fraction
    exact_bytes: bool
    exact_cost: bool

    @classmethod
    def of(cls, graph: Graph, budget: int, horizon: int) -> Units:
        """Chooses units for a graph and a time line of `horizon` events."""
        charge, workspace = [n.charge for n in graph.nodes], [n.workspace for n in graph.nodes]
        everything = sum(charge) + max(workspace)
        exact = math.gcd(*charge, *workspace) or 1
        unit = max(exact, -(-everything * horizon // _LARGEST_PRODUCT))
        cost, cost_unit, exact_cost = _whole_costs([n.cost for n in graph.nodes])
        return cls(
            charge=tuple(-(-c // unit) for c in charge),
            workspace=tuple(-(-w // unit) for w in workspace),
            cost=tuple(cost),
            budget=min(budget, everything) // unit,
            byte_unit=unit,
            cost_unit=cost_unit,
            exact_bytes=unit == exact,
            exact_cost=exact_cost,
        )

    def cost_of(self, whole: float) -> float:
        """A number of cost units in the graph's unit."""
        return whole * float(self.cost_unit)


def _whole_costs(costs: Sequence[float]) -> tuple[list[int], Fraction, bool]:
    """Costs as whole multiples of a unit: exact where the numbers allow, else off by less than 1e-6 of the total."""
    fractions = [Fraction(c) for c in costs]
    total = sum(fractions)
    if not total:
        return [0] * len(fractions), Fraction(1), True
    denominator = math.lcm(*(c.denominator for c in fractions))
    exact = Fraction(math.gcd(*(int(c * denominator) for c in fractions)), denominator)
    unit = max(exact, total / (_COST_RESOLUTION * len(fractions)))
    return [int(c / unit) for c in fractions], unit, unit == exact
