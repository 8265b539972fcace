"""Binomial checkpointing against its recurrence, the general chain solver, and the simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from solvers.brute_force import brute_force
from solvers.chain import chain_order
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, Node, chain, training_chain
from solvers.revolve import cost, revolve_order, solve, split
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Status


@cache
def recurrence(n: int, s: int) -> int:
    if n == 1:
        return 0
    if s == 1:
        return n * (n - 1) // 2
    return min(k + recurrence(n - k, s - 1) + recurrence(k, s) for k in range(1, n))


def test_closed_form_is_the_recurrence() -> None:
    for n in range(1, 65):
        for s in range(1, 11):
            assert cost(n, s) == recurrence(n, s), (n, s)


def test_figures_worked_out_by_hand() -> None:
    # One slot: every state is reached from the start again, 9 + 8 + ... + 1 advances. A slot per step: one sweep. Three steps,
    # two slots: a checkpoint after one step leaves two steps with one slot (1 advance), and one step.
    assert cost(10, 1) == 45
    assert cost(10, 10) == 9
    assert cost(3, 2) == 2
    assert split(3, 2) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16, 33, 64])
@pytest.mark.parametrize("s", [1, 2, 3, 5, 10])
def test_the_order_costs_and_peaks_as_the_theory_says(n: int, s: int) -> None:
    graph = training_chain(n)
    result = simulate(graph, Schedule.from_order(graph, revolve_order(n, s)))
    extra = cost(n - 1, s) - (n - 2) if n > 1 else 0
    assert result.cost == 2 * n + extra
    assert result.peak <= s + 3


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 24])
def test_equals_chain_on_uniform_chains(n: int) -> None:
    graph = training_chain(n, size=7, cost=3)
    for s in range(1, 11):
        budget = 7 * (s + 3)
        solution = solve(graph, budget, Options())
        order = chain_order(graph, budget)
        assert order is not None
        assert solution.status is Status.OPTIMAL
        assert solution.cost == 3 * len(order)
        assert solution.peak <= budget


@pytest.mark.slow
@pytest.mark.parametrize("s", range(1, 11))
def test_equals_chain_on_a_long_uniform_chain(s: int) -> None:
    order = chain_order(training_chain(64), s + 3)
    assert order is not None
    assert len(order) == len(revolve_order(64, s))


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_is_optimal_among_all_schedules(n: int) -> None:
    graph = training_chain(n)
    for budget in range(1, n + 3):
        try:
            best = brute_force(graph, budget, order="given")
        except InfeasibleBudget:
            with pytest.raises(InfeasibleBudget):
                solve(graph, budget, Options())
            continue
        assert solve(graph, budget, Options()).cost == best.cost


def test_refuses_other_graphs_and_says_where() -> None:
    with pytest.raises(UnsupportedGraph, match='"chain"'):
        solve(chain([1, 1], [1, 1]), 2, Options())
    graph = training_chain(4)
    nodes = list(graph.nodes)
    nodes[2] = replace(nodes[2], size=5)
    with pytest.raises(UnsupportedGraph, match=r"node 2 \('f2'\).*chain"):
        solve(Graph(tuple(nodes), graph.outputs), 9, Options())
    with pytest.raises(UnsupportedGraph):
        solve(Graph((Node("a", 1, 1),), (0,)), None, Options())


def test_bad_arguments() -> None:
    for bad in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match="at least one"):
            cost(*bad)
        with pytest.raises(ValueError, match="at least one"):
            revolve_order(*bad)
    with pytest.raises(ValueError, match="no split"):
        split(1, 3)
