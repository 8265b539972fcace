"""The refined time line: its program is a relaxation at every stage, and ends at the optimum of the given order."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, orders, training_graphs

from solvers import events
from solvers.brute_force import brute_force, minimum_budget
from solvers.errors import InfeasibleBudget
from solvers.event_model import EventModel
from solvers.graph import Graph, Node, training_chain
from solvers.linear import Program
from solvers.orders import runs_in_stages
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Progress, Solution, Status
from solvers.timeline import Timeline

LIMIT = Options(time_limit=30)


def keep_all_peak(graph: Graph) -> int:
    return simulate(graph, Schedule.from_order(graph, graph.steps)).peak


@settings(max_examples=120)
@given(graph=st.one_of(graphs(max_nodes=7), training_graphs(max_layers=4)), data=st.data())
def test_equals_brute_force(graph: Graph, data: st.DataObject) -> None:
    budget = data.draw(st.integers(max(1, minimum_budget(graph).budget - 1), keep_all_peak(graph) + 1))
    found = attempt(graph, budget)
    try:
        expected = brute_force(graph, budget).cost
    except InfeasibleBudget:
        expected = math.inf
    if isinstance(found, InfeasibleBudget):
        assert expected == math.inf
        assert found.proven
        assert found.relative_to == "the given order"
        return
    assert found.peak <= budget
    assert found.status is Status.OPTIMAL
    # Repairing an order on the way may leave the oracle's space, for something no dearer than all of it.
    assert found.cost <= expected * (1 + 1e-9)
    assert found.cost == pytest.approx(expected) or not runs_in_stages(graph, found.schedule.order)


def attempt(graph: Graph, budget: int) -> Solution | InfeasibleBudget:
    try:
        return events.solve(graph, budget, LIMIT)
    except InfeasibleBudget as error:
        return error


@settings(max_examples=150)
@given(graph=st.one_of(graphs(max_nodes=8), training_graphs(max_layers=5)), data=st.data())
def test_every_order_is_a_point_of_at_most_its_cost(graph: Graph, data: st.DataObject) -> None:
    """This is the proof that the program is a relaxation, for any order within the budget and any events."""
    order = data.draw(orders(graph))
    result = simulate(graph, Schedule.from_order(graph, order))
    chosen = data.draw(st.sets(st.integers(0, len(graph.steps) - 1)))
    model = EventModel(Timeline(graph), max(1, result.peak), chosen)
    point = model.point(order)
    assert point.keys() == set(range(len(model.program.costs)))
    for terms, rhs in model.program.rows:
        assert sum(a * point[j] for j, a in terms) >= rhs - 1e-9
    extra = sum(c * point[j] for j, c in enumerate(model.program.costs))
    assert extra <= result.cost - graph.keep_all_cost + 1e-9


@settings(max_examples=100)
@given(graph=training_graphs(max_layers=5), data=st.data())
def test_the_order_of_a_point_costs_no_more_than_the_point(graph: Graph, data: st.DataObject) -> None:
    order = data.draw(orders(graph))
    chosen = data.draw(st.sets(st.integers(0, len(graph.steps) - 1)))
    model = EventModel(Timeline(graph), 10**6, chosen)
    point = model.point(order)
    values = [point[j] for j in range(len(model.program.costs))]
    found = simulate(graph, Schedule.from_order(graph, model.order(values)))
    assert found.cost <= graph.keep_all_cost + sum(c * x for c, x in zip(model.program.costs, values, strict=True)) + 1e-9


def test_bounds_rise_and_costs_fall_until_they_meet() -> None:
    graph = training_chain(24)
    reports: list[Progress] = []
    found = events.solve(graph, 9, Options(time_limit=30, progress=reports.append))
    assert found.status is Status.OPTIMAL
    bounds, costs = [r.lower_bound for r in reports], [r.cost for r in reports]
    assert bounds == sorted(bounds)
    assert costs == sorted(costs, reverse=True)
    assert bounds[-1] <= found.cost == costs[-1]


def test_no_time_returns_the_best_start() -> None:
    graph = training_chain(12)
    start = events.solve(graph, 6, LIMIT).schedule.order
    budget = simulate(graph, Schedule.from_order(graph, start)).peak
    found = events.solve(graph, budget, Options(time_limit=0.0, starts=[start]))
    assert found.status is Status.TIME_LIMIT
    assert found.schedule.order == start


def test_an_interrupt_returns_the_best_start(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(12)
    start = events.solve(graph, 6, LIMIT).schedule.order

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(events, "solve_whole", interrupted)
    monkeypatch.setattr(events, "_BOUND_SHARE", 0.0)
    found = events.solve(graph, 6, Options(time_limit=30, starts=[start]))
    assert found.status is Status.INTERRUPTED
    assert found.schedule.order == start
    rounded = events.solve(graph, 6, LIMIT)
    assert rounded.status is Status.INTERRUPTED
    assert rounded.peak <= 6


@pytest.mark.parametrize("backend", ["HIGHS", "SCIP"])
@pytest.mark.parametrize(
    ("name", "fraction", "overhead"),
    [("vgg16_b256", 0.9, 0.01968), ("segnet_b32", 0.5, 0.4066), ("vgg_unet_b32", 0.9, 0.01129)],
)
def test_known_optima_of_public_graphs(shared: Path, name: str, fraction: float, overhead: float, backend: str) -> None:
    graph = Graph.load(shared / "graphs" / f"{name}.json")
    found = events.solve(graph, int(fraction * keep_all_peak(graph)), LIMIT, backend=backend)
    assert found.status is Status.OPTIMAL
    assert found.overhead == pytest.approx(overhead, rel=1e-3)


def test_a_start_in_another_order_is_judged_among_all_schedules() -> None:
    """Two branches: finishing one before starting the other needs less than the given order, which interleaves them."""
    nodes = [Node("a0", 1, 4), Node("b0", 1, 4), Node("a1", 1, 1, (0,)), Node("b1", 1, 1, (1,)), Node("sum", 1, 1, (2, 3))]
    graph = Graph(tuple(nodes), (4,))
    found = events.solve(graph, 6, Options(time_limit=30, starts=[[0, 2, 1, 3, 4]]))
    assert found.cost == graph.keep_all_cost
    assert (found.status, found.scope) == (Status.OPTIMAL, "any schedule")


def test_fixing_by_reduced_cost_keeps_every_cheaper_point() -> None:
    """Of the points that cost at most the limit, each agrees with what was settled."""
    program = Program()
    xs = [program.variable(cost) for cost in (1.0, 2.0, 3.0, 10.0)]
    program.at_least([(j, 1.0) for j in xs], 2.0)
    program.at_least([(xs[0], 1.0), (xs[3], 1.0)], 1.0)
    settled = program.settled([2.0, 0.0], 4.0)
    assert settled == {xs[3]: 0.0}
    for point in itertools.product((0.0, 1.0), repeat=4):
        feasible = all(sum(a * point[j] for j, a in terms) >= rhs for terms, rhs in program.rows)
        if feasible and sum(c * x for c, x in zip(program.costs, point, strict=True)) <= 4.0:
            assert all(point[j] == value for j, value in settled.items())
