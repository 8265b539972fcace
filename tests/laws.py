"""The laws that every solver of the registry keeps, held against the exhaustive oracle, and what each solver promises.

No schedule exceeds the budget in the simulator, no bound exceeds the optimum of the class of schedules that it speaks of, an
error's floor is at most the true minimum and its `minimum` works, and claims of optimality and impossibility hold in scope.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from solvers.bounds import Order
from solvers.brute_force import brute_force, minimum_budget
from solvers.chain_view import view_chain
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, training_chain
from solvers.orders import runs_in_stages
from solvers.renumber import Renumbered
from solvers.segments import Forward
from solvers.simulate import simulate
from solvers.solution import ANY_SCHEDULE, Solution, Status
from solvers.solve import solve


def any_graph(graph: Graph) -> None:
    """Accepts every graph."""


def uniform(graph: Graph) -> None:
    """Accepts uniform training chains."""
    n = max(1, len(graph) // 2)
    if training_chain(n, graph.nodes[0].size, graph.nodes[0].cost).structural_hash != graph.structural_hash:
        raise UnsupportedGraph("no uniform chain")


@dataclass(frozen=True)
class Facts:
    """What a solver promises.

    Attributes:
        accepts: raises UnsupportedGraph for graphs that the solver must refuse.
        exact: the space of the oracle in which its answers are optimal; None for a heuristic.
        share: fraction of the graphs that it is run on, for those that take long.
        floating: whether it computes in floating point, so that what less than a millionth of the budget decides stays open.
        quick: options that make it end soon on a small graph.
    """

    accepts: Callable[[Graph], object] = any_graph
    exact: Order | None = None
    floating: bool = False
    share: float = 1.0
    quick: tuple[tuple[str, float], ...] = ()


_CERTAIN_BYTES = 10**5  # below it a byte is more than solvers in floating point may lose


FACTS: dict[str, Facts] = {
    "auto": Facts(share=1 / 3, quick=(("workers", 1),)),
    "keep_all": Facts(),
    "sqrt": Facts(accepts=Forward.of),
    "chen": Facts(accepts=Forward.of),
    "recursive": Facts(accepts=Forward.of),
    "greedy": Facts(quick=(("work_limit", 1.0),)),
    "knapsack": Facts(accepts=Forward.of, quick=(("work_limit", 1.0),)),
    "revolve": Facts(accepts=uniform, exact="given"),
    "chain": Facts(accepts=view_chain),
    "intervals": Facts(exact="given", quick=(("workers", 1),)),
    "events": Facts(exact="given", floating=True),
    "frontier": Facts(exact="given", floating=True),
    "checkmate": Facts(exact="given", floating=True),
    "rounding": Facts(),
    "improve": Facts(),
    "hierarchical": Facts(share=1 / 4, quick=(("work_limit", 0.2),)),
    "brute_force": Facts(exact="given"),
}


@cache
def floor(graph: Graph, order: Order, copies: int | None) -> int:
    return minimum_budget(graph, order=order, copies=copies).budget


@cache
def optimum(graph: Graph, budget: int, order: Order, copies: int | None) -> float:
    """The least cost; infinite if nothing fits."""
    try:
        return brute_force(graph, budget, order=order, copies=copies).cost
    except InfeasibleBudget:
        return math.inf


def space_of(scope: str, graph: Graph, schedule: tuple[int, ...] = ()) -> tuple[Graph, Order, int | None] | None:
    """The graph, order and copies of the oracle that a scope in words speaks of; None if the oracle knows no such space."""
    first, _, rest = scope.partition(", ")
    words = rest.split()
    if rest and words[:2] != ["at", "most"]:
        return None
    copies = int(words[2]) if rest else None
    if first in (ANY_SCHEDULE, "any order"):
        return graph, "any", copies
    if first == "the given order":
        return graph, "given", copies
    if first == "the order of the returned schedule" and schedule:
        return Renumbered.of(graph, schedule).graph, "given", copies
    return None


def run(name: str, graph: Graph, budget: int) -> Solution | InfeasibleBudget | UnsupportedGraph:
    try:
        return solve(graph, budget, name, time_limit=60, **dict(FACTS[name].quick))  # type: ignore[arg-type]
    except (InfeasibleBudget, UnsupportedGraph) as error:
        return error


def check(name: str, graph: Graph, budget: int) -> float:
    """All laws for one run; returns the cost, infinite if there is no schedule."""
    facts, answer = FACTS[name], run(name, graph, budget)
    certain = not facts.floating or budget < _CERTAIN_BYTES
    try:
        facts.accepts(graph)
    except UnsupportedGraph:
        assert isinstance(answer, UnsupportedGraph)
        return math.nan
    assert not isinstance(answer, UnsupportedGraph)
    if isinstance(answer, InfeasibleBudget):
        check_error(name, graph, answer)
        if facts.exact is not None and (answer.proven or certain):
            assert answer.proven
            assert optimum(graph, budget, facts.exact, None) == math.inf
        return math.inf
    result = simulate(graph, answer.schedule)
    assert (result.peak, result.peak_total, result.cost) == (answer.peak, answer.peak_total, answer.cost)
    assert result.peak <= budget
    assert set(answer.schedule.order) == set(graph.steps)
    assert graph.keep_all_cost <= answer.lower_bound <= answer.cost
    assert optimum(graph, budget, "any", None) <= answer.cost * (1 + 1e-9)
    space = space_of(answer.scope, graph, answer.schedule.order)
    if space is not None:
        where, order, copies = space
        best = optimum(where, budget, order, copies)
        assert answer.lower_bound <= best * (1 + 1e-9)
        if answer.status is Status.OPTIMAL:
            assert answer.cost <= best * (1 + 1e-9)
    if facts.exact is not None and (answer.status is Status.OPTIMAL or certain):
        # A schedule that was found on the way may lie outside the space, and be cheaper than all of it.
        assert space is not None
        assert answer.status is Status.OPTIMAL
        best = optimum(graph, budget, facts.exact, space[2])
        assert answer.cost <= best * (1 + 1e-9)
        assert answer.cost == pytest.approx(best, rel=1e-9) or not runs_in_stages(graph, answer.schedule.order)
    return answer.cost


def check_error(name: str, graph: Graph, error: InfeasibleBudget) -> None:
    """What an error says is true, and asking for its minimum works."""
    assert error.lower_bound <= error.minimum
    assert error.refuted == 0
    space = space_of(error.relative_to, graph)
    assert space is not None
    where, order, copies = space
    assert error.lower_bound <= floor(where, order, copies)
    assert max(error.budget + 1, floor(graph, "any", None)) <= error.minimum
    again = run(name, graph, error.minimum)
    assert isinstance(again, Solution)
    assert again.peak <= error.minimum
