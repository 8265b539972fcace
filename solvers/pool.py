"""What several solvers have found together: schedules, bounds that each hold for some class of schedules, and failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from solvers.bounds import infeasible
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph
from solvers.renumber import first_computations
from solvers.schedule import Schedule
from solvers.simulate import keep_all_peak, simulate

_MOST_SCHEDULES = 8
_TOLERANCE = 1e-9  # relative; costs that differ by less are equal
_RESOLUTION = 1e-6  # of the keep-all cost; solvers in whole numbers round costs that are not whole by less than this


@dataclass(frozen=True, slots=True)
class Claim:
    """No schedule of a class costs less than a bound.

    Attributes:
        bound: total cost.
        scope: the class, in words.
        firsts: the order of first computations that the class is confined to; None for schedules in any order.
        source: which part of the portfolio proved it.
    """

    bound: float
    scope: str
    firsts: tuple[int, ...] | None
    source: str


@dataclass(frozen=True, slots=True)
class Found:
    """A simulated schedule within the budget."""

    cost: float
    order: tuple[int, ...]
    source: str


@dataclass
class Pool:
    """Schedules and claims about one graph and budget.

    Attributes:
        graph: the graph.
        budget: bytes.
        found: distinct schedules that fit, cheapest first; of equal ones the first offered.
        claims: one per source and class.
        peaks: of all orders simulated, those that did not fit included.
        failures: errors of solvers that found nothing.
    """

    graph: Graph
    budget: int
    found: list[Found] = field(default_factory=list[Found])
    claims: dict[tuple[object, ...], Claim] = field(default_factory=dict[tuple[object, ...], Claim])
    peaks: list[int] = field(default_factory=list[int])
    failures: list[InfeasibleBudget] = field(default_factory=list[InfeasibleBudget])

    def __post_init__(self) -> None:
        self.claim(Claim(self.graph.keep_all_cost, "any schedule", None, "computing each node once"))

    @property
    def best(self) -> Found | None:
        """The cheapest schedule."""
        return self.found[0] if self.found else None

    @property
    def cost(self) -> float:
        """Its cost; infinite if there is none."""
        return self.found[0].cost if self.found else math.inf

    @property
    def closed(self) -> bool:
        """Whether the cheapest schedule costs what some applicable claim says it must."""
        return self.best is not None and self.cost - self.strongest.bound <= _RESOLUTION * self.graph.keep_all_cost

    def offer(self, order: Sequence[int], source: str) -> bool:
        """Simulates an order and takes it if it fits; returns whether it is now the best one.

        Raises:
            InvalidSchedule: if the order is not valid.
        """
        result = simulate(self.graph, Schedule.from_order(self.graph, order))
        self.peaks.append(result.peak)
        new = Found(result.cost, tuple(order), source)
        if result.peak > self.budget or any(new.order == old.order for old in self.found):
            return False
        self.found = sorted((*self.found, new), key=lambda f: f.cost)[:_MOST_SCHEDULES]
        return self.found[0] is new

    def claim(self, claim: Claim) -> None:
        """Takes over a bound; of the same source and class the highest counts."""
        key = claim.source, claim.scope, claim.firsts
        if key not in self.claims or claim.bound > self.claims[key].bound:
            self.claims[key] = claim

    @property
    def strongest(self) -> Claim:
        """The highest bound that says something about the best schedule.

        A claim about one order says nothing about a schedule in another order that is cheaper. Among equals the one for
        the largest class counts, which is the one with the shortest description.
        """
        mine = first_computations(self.best.order) if self.best is not None else None
        applicable = [c for c in self.claims.values() if self._applies(c, mine)]
        return max(applicable, key=lambda c: (c.bound, c.firsts is None, -len(c.scope)))

    def _applies(self, claim: Claim, firsts: tuple[int, ...] | None) -> bool:
        if claim.bound > self.cost * (1 + _TOLERANCE):
            return False
        return claim.firsts is None or claim.firsts in (firsts, self.graph.steps)

    def fail(self, error: InfeasibleBudget, *, known: bool = True) -> None:
        """Takes over what an error knows.

        Args:
            error: about this graph and budget.
            known: whether its `minimum` is the peak of a schedule for this graph, and not for one that asks for less.
        """
        if known:
            self.peaks.append(error.minimum)
        self.failures.append(error)

    def error(self) -> InfeasibleBudget:
        """When nothing fits: the smallest peak of all parts, and the highest floor that does not contradict it."""
        minimum = min(self.peaks, default=keep_all_peak(self.graph))
        strongest = infeasible(self.graph, self.budget, known_peaks=[minimum])
        for failure in self.failures:
            if strongest.lower_bound < failure.lower_bound <= minimum:
                strongest = failure
        return strongest.changed(minimum=minimum)


def whole_bound(costs: Iterable[float], once: float, bound: float) -> float:
    """The least possible cost that is not below a bound, where all costs are whole numbers; else the bound.

    Args:
        costs: of the steps that may run again.
        once: cost of running every step once.
        bound: a proven bound on the total.
    """
    costs = list(costs)
    if math.isinf(bound) or any(c != int(c) or c >= 2**53 for c in costs) or not any(costs):
        return bound
    unit = math.gcd(*map(int, costs))
    return once + math.ceil((bound - once) / unit - 1e-6) * unit
