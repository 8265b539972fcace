"""Every solver of the registry against the exhaustive oracle, on the same 500 random graphs: one table, the laws of `laws`."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import pytest
from laws import FACTS, check, floor
from strategies import random_chain, random_graph, random_training_graph

from solvers.graph import Graph
from solvers.orders import peak_of
from solvers.solve import available

GRAPHS = 500
MORE_GRAPHS = 3000


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


def check_problems(name: str, seeds: Iterable[int]) -> None:
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
    check_problems(name, range(0, GRAPHS, stride))


@pytest.mark.slow
@pytest.mark.parametrize("name", available())
def test_against_the_oracle_on_more_graphs(name: str) -> None:
    stride = round(1 / FACTS[name].share)
    check_problems(name, range(GRAPHS, GRAPHS + MORE_GRAPHS, stride))
