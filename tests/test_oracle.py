"""Every solver of the registry against the exhaustive oracle, on the same 500 random graphs.

One table says what each solver accepts and what it is exact within. Everything else is one set of laws: no schedule exceeds the
budget in the simulator, no bound exceeds the optimum of the class of schedules that it speaks of, an error's floor is below
the true minimum and its `minimum` works, and a claim of optimality or impossibility holds in its scope.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import pytest
from strategies import random_chain, random_graph, random_training_graph

from solvers.brute_force import brute_force, minimum_budget
from solvers.chain_view import view_chain
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, training_chain
from solvers.orders import peak_of
from solvers.renumber import Renumbered
from solvers.segments import Forward
from solvers.simulate import simulate
from solvers.solution import ANY_SCHEDULE, Solution, Status
from solvers.solve import available, solve

GRAPHS = 500
MORE_GRAPHS = 3000
Order = Literal["given", "any"]


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
        quick: options that make it end soon on a small graph.
    """

    accepts: Callable[[Graph], object] = any_graph
    exact: Order | None = None
    share: float = 1.0
    quick: tuple[tuple[str, float], ...] = ()


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
    "events": Facts(exact="given"),
    "checkmate": Facts(exact="given"),
    "rounding": Facts(),
    "brute_force": Facts(exact="given"),
}


@dataclass(frozen=True)
class Problem:
    """A graph, and two budgets around the range in which recomputation is needed."""

    graph: Graph
    low: int
    high: int


@cache
def problem(seed: int) -> Problem:
    """The same for every solver: any graphs, training graphs, chains, uniform chains; unit sizes and others."""
    rng = random.Random(seed)
    make = (random_graph, random_graph, random_training_graph, random_chain)[seed % 4]
    graph = make(rng)
    most = peak_of(graph, graph.steps)
    least = floor(graph, "given", None)
    low, high = sorted(rng.randint(max(1, least - 2), max(1, most)) for _ in range(2))
    return Problem(graph, low, high)


@lru_cache(maxsize=None)
def floor(graph: Graph, order: Order, copies: int | None) -> int:
    return minimum_budget(graph, order=order, copies=copies).budget


@lru_cache(maxsize=None)
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
    try:
        facts.accepts(graph)
    except UnsupportedGraph:
        assert isinstance(answer, UnsupportedGraph)
        return math.nan
    assert not isinstance(answer, UnsupportedGraph)
    if isinstance(answer, InfeasibleBudget):
        check_error(name, graph, answer)
        if facts.exact is not None:
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
    if facts.exact is not None:
        assert space is not None
        assert answer.status is Status.OPTIMAL
        assert answer.cost == pytest.approx(optimum(graph, budget, facts.exact, space[2]), rel=1e-9)
    return answer.cost


def check_error(name: str, graph: Graph, error: InfeasibleBudget) -> None:
    """What an error says is true, and asking for its minimum works."""
    space = space_of(error.relative_to, graph)
    assert space is not None
    where, order, copies = space
    assert error.lower_bound <= floor(where, order, copies)
    assert max(error.budget + 1, floor(graph, "any", None)) <= error.minimum
    again = run(name, graph, error.minimum)
    assert isinstance(again, Solution)
    assert again.peak <= error.minimum


def check_problems(name: str, seeds: Iterator[int]) -> None:
    for seed in seeds:
        found = problem(seed)
        try:
            tight, loose = (check(name, found.graph, budget) for budget in (found.low, found.high))
            if FACTS[name].exact is not None:
                assert not tight < loose * (1 - 1e-9)
        except Exception as error:
            error.add_note(f"{name}, problem({seed}): budgets {found.low} and {found.high}")
            raise


@pytest.mark.parametrize("name", available())
def test_against_the_oracle(name: str) -> None:
    stride = round(1 / FACTS[name].share)
    check_problems(name, iter(range(0, GRAPHS, stride)))


@pytest.mark.slow
@pytest.mark.parametrize("name", available())
def test_against_the_oracle_on_more_graphs(name: str) -> None:
    stride = round(1 / FACTS[name].share)
    check_problems(name, iter(range(GRAPHS, GRAPHS + MORE_GRAPHS, stride)))
