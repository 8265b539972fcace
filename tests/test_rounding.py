"""Rounded schedules: valid, within the budget, never below the optimum or the bound."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, training_graphs

from solvers import rounding
from solvers.brute_force import brute_force, minimum_budget
from solvers.errors import InfeasibleBudget
from solvers.event_model import EventModel
from solvers.graph import Graph, training_chain
from solvers.linear import solve_relaxation
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Status
from solvers.timeline import Timeline

LIMIT = Options(time_limit=30)


def keep_all_peak(graph: Graph) -> int:
    return simulate(graph, Schedule.from_order(graph, graph.steps)).peak


@settings(max_examples=120)
@given(graph=st.one_of(graphs(max_nodes=8), training_graphs(max_layers=4)), data=st.data())
def test_between_the_bound_and_the_budget(graph: Graph, data: st.DataObject) -> None:
    budget = data.draw(st.integers(max(1, minimum_budget(graph).budget - 1), keep_all_peak(graph) + 1))
    try:
        found = rounding.solve(graph, budget, LIMIT)
    except InfeasibleBudget as error:
        if error.proven:
            with pytest.raises(InfeasibleBudget):
                brute_force(graph, budget)
        return
    assert found.peak <= budget
    assert brute_force(graph, budget).cost <= found.cost * (1 + 1e-9)
    assert found.lower_bound <= brute_force(graph, budget).cost * (1 + 1e-9)


@settings(max_examples=60)
@given(graph=graphs(max_nodes=8), threshold=st.sampled_from(rounding.THRESHOLDS), data=st.data())
def test_every_threshold_gives_a_valid_order(graph: Graph, threshold: float, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, keep_all_peak(graph) + 1))
    model = EventModel(Timeline(graph), budget, range(len(graph.steps)))
    outcome = solve_relaxation(model.program, seconds=30)
    if outcome.infeasible:
        return
    order = model.order(rounding.round_keeping(model, outcome.values, threshold))
    result = simulate(graph, Schedule.from_order(graph, order))
    assert result.cost == math.fsum(graph.nodes[v].cost for v in order)
    assert tuple(dict.fromkeys(order)) == graph.steps


def test_the_best_start_is_kept_if_rounding_is_worse() -> None:
    graph = training_chain(16)
    first = rounding.solve(graph, 9, LIMIT)
    again = rounding.solve(graph, 9, Options(time_limit=30, starts=[first.schedule.order]))
    assert again.cost <= first.cost
    assert again.lower_bound <= again.cost


def test_an_interrupt_returns_the_best_start(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(16)
    start = rounding.solve(graph, 9, LIMIT).schedule.order

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rounding, "prove", interrupted)
    found = rounding.solve(graph, 9, Options(time_limit=30, starts=[start]))
    assert found.status is Status.INTERRUPTED
    assert found.schedule.order == start


def test_without_a_budget_everything_is_kept() -> None:
    graph = training_chain(5)
    assert rounding.solve(graph, None, LIMIT).schedule.order == graph.steps


def test_an_impossible_budget_is_proven() -> None:
    with pytest.raises(InfeasibleBudget, match="proven impossible") as caught:
        rounding.solve(training_chain(8), 2, LIMIT)
    assert caught.value.minimum > 2


def test_public_graph(shared: Path) -> None:
    """Rounding finds a schedule within two percent of the linear bound on a graph of 353 nodes."""
    graph = Graph.load(shared / "graphs" / "resnet50_b256.json")
    found = rounding.solve(graph, keep_all_peak(graph) // 2, LIMIT)
    assert found.gap < 0.02
