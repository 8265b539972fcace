"""Greedy eviction as a first schedule: by several rules, and from orders that need less memory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from solvers.graph import Graph
from solvers.greedy import RULES, greedy_order
from solvers.reorder import lean_orders

_REORDERINGS = 20
_LEANER = 2  # of these orders are tried


def by_each_rule(graph: Graph, budget: int, deadline: float, *, most: int | None = None) -> Iterator[tuple[list[int], str]]:
    """Orders within the budget that greedy eviction gives by its rules, the first `most` of them, and the rules' names."""
    for rule in RULES[:most]:
        order = greedy_order(graph, budget, rule, deadline=deadline)
        if order is not None:
            yield order, f"greedy, {rule.name}"


def on_leaner_order(graph: Graph, budget: int, seed: int, deadline: float) -> tuple[Sequence[int], str] | None:
    """The first order within the budget from an order of first computations that needs less memory than the given one."""
    for base in lean_orders(graph, rng=random.Random(seed), tries=_REORDERINGS, deadline=deadline)[:_LEANER]:
        order = greedy_order(graph, budget, base=base, deadline=deadline)
        if order is not None:
            return order, "greedy on a leaner order"
    return None
