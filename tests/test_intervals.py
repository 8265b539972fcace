"""Retention intervals: equal to the exhaustive oracle, honest about what is proved, and never worse than their start."""

from __future__ import annotations


import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, training_graphs

from solvers import intervals
from solvers.brute_force import brute_force, minimum_budget
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Status

QUICK = Options(time_limit=60, workers=1)


def keep_all_peak(graph: Graph) -> int:
    return simulate(graph, Schedule.from_order(graph, graph.steps)).peak


def check_against_oracle(graph: Graph, budget: int, copies: int) -> None:
    try:
        expected = brute_force(graph, budget, order="given", copies=copies)
    except InfeasibleBudget:
        with pytest.raises(InfeasibleBudget) as caught:
            intervals.solve(graph, budget, QUICK, copies=copies)
        assert caught.value.proven
        return
    found = intervals.solve(graph, budget, QUICK, copies=copies)
    assert found.status is Status.OPTIMAL
    assert found.cost == pytest.approx(expected.cost, rel=1e-12)
    assert found.lower_bound == pytest.approx(expected.cost, rel=1e-9)
    assert found.peak <= budget


@st.composite
def problems(draw: st.DrawFn, strategy: st.SearchStrategy[Graph]) -> tuple[Graph, int, int]:
    """A graph, a number of copies, and a budget around the range in which recomputation is needed."""
    graph = draw(strategy)
    copies = draw(st.integers(1, 3))
    smallest = minimum_budget(graph, order="given", copies=copies).budget
    return graph, draw(st.integers(max(0, smallest - 1), keep_all_peak(graph))), copies


@settings(max_examples=300)
@given(problems(graphs(max_nodes=9)))
def test_equals_oracle_on_any_graph(problem: tuple[Graph, int, int]) -> None:
    check_against_oracle(*problem)


@settings(max_examples=60)
@given(problems(training_graphs(max_layers=4)))
def test_equals_oracle_on_training_graphs(problem: tuple[Graph, int, int]) -> None:
    check_against_oracle(*problem)
