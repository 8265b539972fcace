"""Checkmate's program against the oracle of the same space."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, orders, training_graphs

from solvers import checkmate, events, intervals, rounding
from solvers.brute_force import brute_force, minimum_budget
from solvers.checkmate_model import CheckmateModel
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, Node, training_chain
from solvers.linear import solve_whole
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Status
from solvers.timeline import Timeline

LIMIT = Options(time_limit=30)


def tight_budgets(graph: Graph) -> st.SearchStrategy[int]:
    """From just below what the given order can do to just above what it needs to keep everything."""
    keep_all = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
    return st.integers(max(0, minimum_budget(graph).budget - 1), keep_all + 1)


@settings(max_examples=120)
@given(graph=st.one_of(graphs(max_nodes=7), training_graphs(max_layers=4)), data=st.data())
def test_equals_brute_force(graph: Graph, data: st.DataObject) -> None:
    budget = data.draw(tight_budgets(graph))
    try:
        expected = brute_force(graph, budget)
    except InfeasibleBudget:
        with pytest.raises(InfeasibleBudget, match="given order") as caught:
            checkmate.solve(graph, budget, LIMIT)
        assert caught.value.proven
        return
    found = checkmate.solve(graph, budget, LIMIT)
    assert found.status is Status.OPTIMAL
    assert found.cost == pytest.approx(expected.cost)
    assert found.peak <= budget


def test_proves_the_optimum_of_a_training_chain() -> None:
    graph = training_chain(8)
    found = checkmate.solve(graph, 6, LIMIT)
    assert found.status is Status.OPTIMAL
    assert found.lower_bound == found.cost
    assert found.peak <= 6 < simulate(graph, Schedule.from_order(graph, graph.steps)).peak


@given(graph=graphs(max_nodes=7), data=st.data())
@settings(max_examples=60)
def test_a_hint_is_a_point_of_the_program(graph: Graph, data: st.DataObject) -> None:
    """The hint of an order, completed by the solver, costs what the order costs when nothing else is allowed."""
    order = data.draw(orders(graph, max_again=3))
    result = simulate(graph, Schedule.from_order(graph, order))
    model = CheckmateModel(Timeline(graph), max(1, result.peak))
    for j, value in model.hint(order).items():
        model.program.at_least([(j, 1.0 if value else -1.0)], 1.0 if value else 0.0)
    outcome = solve_whole(model.program, seconds=30)
    assert outcome.optimal
    assert simulate(graph, Schedule.from_order(graph, model.order(outcome.values))).cost <= result.cost + 1e-6


def test_falls_back_on_the_best_start_when_time_runs_out() -> None:
    graph = training_chain(20)
    cheap = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
    start = list(graph.steps[:20])
    for v in graph.steps[20:]:
        start.extend(u for u in range(39 - v) if v > 20 and u > 0)
        start.append(v)
    budget = simulate(graph, Schedule.from_order(graph, start)).peak
    assert budget < cheap
    found = checkmate.solve(graph, budget, Options(time_limit=0.0, starts=[start]))
    assert found.status is Status.TIME_LIMIT
    assert found.schedule.order == tuple(start)
    assert graph.keep_all_cost <= found.lower_bound <= found.cost


def test_an_interrupt_returns_the_best_start(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(6)
    start = [*range(6), 6, *(u for v in range(7, 12) for u in (*range(1, 12 - v), v))]
    budget = simulate(graph, Schedule.from_order(graph, start)).peak

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkmate, "solve_whole", interrupted)
    found = checkmate.solve(graph, budget, Options(starts=[start]))
    assert found.status is Status.INTERRUPTED
    assert found.schedule.order == tuple(start)


def test_refuses_what_is_too_large() -> None:
    graph = training_chain(1000)
    with pytest.raises(UnsupportedGraph, match="variables"):
        checkmate.solve(graph, 100, Options(time_limit=1))


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match="GUESS"):
        checkmate.solve(training_chain(6), 5, LIMIT, backend="GUESS")


@pytest.mark.parametrize("solver", [checkmate, events, rounding, intervals], ids=lambda module: module.NAME)
def test_a_cheaper_start_in_another_order_is_feasible_among_all_schedules(solver: Any) -> None:
    """In the given order `b` must make room for `c`, and be made again for `d`; `d` right after `b` costs one step less."""
    nodes = (Node("a", 1, 1), Node("b", 1, 1, (0,)), Node("c", 1, 1, (0,)), Node("d", 1, 1, (1,)), Node("e", 1, 1, (2,)))
    graph = Graph(nodes, (4,))
    assert brute_force(graph, 2).cost == 8
    found = solver.solve(graph, 2, Options(time_limit=30, workers=1, starts=[(0, 1, 3, 0, 2, 4)]))
    assert found.cost == 6
    if solver is intervals:  # it searches the order of the start
        assert found.status is Status.OPTIMAL
        assert found.scope.startswith("the order of the best start")
    else:
        assert (found.status, found.scope, found.lower_bound) == (Status.FEASIBLE, "any schedule", graph.keep_all_cost)
