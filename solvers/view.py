"""The problem as a part of a portfolio sees it: in another order, perhaps with fewer decisions, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from solvers.errors import InfeasibleBudget
from solvers.essentials import Essentials
from solvers.graph import Graph
from solvers.pool import Found, Pool
from solvers.renumber import Renumbered, first_computations
from solvers.replay import in_given_order
from solvers.schedule import Schedule
from solvers.simulate import simulate

Small = Literal["decided", "kept", "free"]
"""What is done about small values: decided like all others, kept in any case, or taken to be of no size (see `essentials`)."""

_MOST_STARTS = 4


@dataclass(frozen=True)
class View:
    """A graph made from another one.

    Attributes:
        original: the graph it was made from.
        graph: what the part works on.
        firsts: first computations in the order that the part keeps to.
        renumbered: the original in that order.
        essentials: small values of the renumbered graph.
        small: what is done about them.
    """

    original: Graph
    graph: Graph
    firsts: tuple[int, ...]
    renumbered: Renumbered
    essentials: Essentials
    small: Small

    @classmethod
    def of(cls, graph: Graph, budget: int, firsts: tuple[int, ...], small: Small = "decided") -> View:
        """The view in an order of first computations."""
        renumbered = Renumbered.of(graph, firsts)
        essentials = Essentials.of(renumbered.graph, budget)
        seen = {"decided": renumbered.graph, "kept": essentials.kept, "free": essentials.free}[small]
        return cls(graph, seen, firsts, renumbered, essentials, small)

    def starts(self, pool: Pool, *, confined: bool = True) -> tuple[tuple[int, ...], ...]:
        """The best few schedules of the pool that are schedules of this view, cheapest first.

        Args:
            pool: where they are.
            confined: whether the part keeps to the order of this view; schedules in other orders are then put into it.
        """
        found: dict[tuple[int, ...], float] = {}
        for known in pool.found:
            order = self.renumbered.there(known.order)
            if confined and first_computations(order) != self.graph.steps:
                order = tuple(in_given_order(self.graph, order))
            if self.small == "kept":
                order = self.essentials.keeping(order)
            result = simulate(self.graph, Schedule.from_order(self.graph, order))
            if result.peak <= pool.budget:
                found[order] = result.cost
        return tuple(sorted(found, key=lambda order: found[order])[:_MOST_STARTS])

    def back(self, order: tuple[int, ...]) -> tuple[int, ...]:
        """An order of this view in the numbers of the original."""
        return self.renumbered.back(order)

    def scope(self, text: str) -> str:
        """A scope of this view in terms of the original."""
        if self.firsts != self.original.steps:
            text = text.replace("the given order", "the order of the returned schedule")
        if self.small == "kept" and self.essentials.small:
            text += f", values of at most {self.essentials.largest:,} bytes kept"
        return text

    def error(self, error: InfeasibleBudget) -> InfeasibleBudget:
        """An error about this view in terms of the original."""
        scope = self.scope(error.relative_to)
        if error.bottleneck is None:
            return error.changed(relative_to=scope)
        node = self.renumbered.old[error.bottleneck]
        return error.changed(relative_to=scope, bottleneck=node, name=self.original.nodes[node].name)


def best_order(pool: Pool) -> tuple[int, ...]:
    """The order of first computations for exact solvers: that of the best schedule; the given one if that is as good."""
    graph, best = pool.graph, pool.best
    if best is None or _in_given_order(graph, best):
        return graph.steps
    for found in list(pool.found):
        if not _in_given_order(graph, found):
            pool.offer(in_given_order(graph, found.order), f"{found.source}, in the given order")
    if any(_in_given_order(graph, f) for f in pool.found if f.cost <= best.cost * (1 + 1e-9)):
        return graph.steps
    return first_computations(best.order)


def _in_given_order(graph: Graph, found: Found) -> bool:
    return first_computations(found.order) == graph.steps
