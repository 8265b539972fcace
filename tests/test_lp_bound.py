"""The linear bound: never above the optimum, infinite only where nothing fits, and as strong as promised."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, orders, training_graphs

from solvers.brute_force import brute_force, minimum_budget
from solvers.errors import InfeasibleBudget
from solvers.event_model import EventModel
from solvers.graph import Graph, Node, training_chain
from solvers.linear import Program, solve_relaxation, solve_whole
from solvers.lp_bound import lp_bound, prove
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options
from solvers.timeline import Timeline

LIMIT = Options(time_limit=30)


def keep_all_peak(graph: Graph) -> int:
    return simulate(graph, Schedule.from_order(graph, graph.steps)).peak


@settings(max_examples=200)
@given(graph=st.one_of(graphs(max_nodes=8), training_graphs(max_layers=4)), data=st.data())
def test_never_exceeds_the_optimum(graph: Graph, data: st.DataObject) -> None:
    budget = data.draw(st.integers(max(0, minimum_budget(graph).budget - 1), keep_all_peak(graph) + 1))
    negligible = data.draw(st.sampled_from([0, 0, 3]))
    bound = prove(graph, budget, LIMIT, negligible=negligible)
    assert bound.cost >= graph.keep_all_cost
    try:
        best = brute_force(graph, budget)
    except InfeasibleBudget:
        return
    assert bound.cost <= best.cost * (1 + 1e-9)
    with_start = lp_bound(graph, budget, Options(time_limit=30, starts=[best.schedule.order]))
    assert bound.cost * (1 - 1e-6) <= with_start <= best.cost * (1 + 1e-9) or negligible


@settings(max_examples=100)
@given(graph=st.one_of(graphs(max_nodes=9), training_graphs(max_layers=6)), data=st.data())
def test_never_exceeds_the_cost_of_any_schedule_in_the_given_order(graph: Graph, data: st.DataObject) -> None:
    """Also of those outside the oracle's space: several recomputations of a node in a stage, in any order."""
    order = data.draw(orders(graph))
    result = simulate(graph, Schedule.from_order(graph, order))
    assert lp_bound(graph, result.peak, LIMIT) <= result.cost * (1 + 1e-9)


@settings(max_examples=60)
@given(graph=training_graphs(max_layers=5), data=st.data())
def test_rises_as_the_budget_falls(graph: Graph, data: st.DataObject) -> None:
    high = data.draw(st.integers(1, keep_all_peak(graph)))
    low = data.draw(st.integers(1, high))
    every = range(len(graph.steps))
    bounds = []
    for budget in (high, low):
        program = EventModel(Timeline(graph), budget, every).program
        outcome = solve_relaxation(program, seconds=30)
        bounds.append(math.inf if outcome.infeasible else program.certified_bound(outcome.weights))
    assert bounds[0] <= bounds[1] + 1e-6


@settings(max_examples=60)
@given(graph=training_graphs(max_layers=4), data=st.data())
def test_the_relaxation_is_below_its_whole_program(graph: Graph, data: st.DataObject) -> None:
    budget = data.draw(st.integers(1, keep_all_peak(graph)))
    program = EventModel(Timeline(graph), budget, range(len(graph.steps))).program
    relaxed, whole = solve_relaxation(program, seconds=30), solve_whole(program, seconds=30)
    if relaxed.infeasible:
        assert whole.infeasible
    if whole.optimal:
        cost = sum(c * x for c, x in zip(program.costs, whole.values, strict=True))
        assert program.certified_bound(relaxed.weights) <= cost + 1e-6


def test_a_budget_below_the_largest_working_set_is_proven_impossible() -> None:
    assert lp_bound(training_chain(4), 2, LIMIT) == math.inf


def test_no_budget_gives_the_keep_all_cost() -> None:
    graph = training_chain(4)
    assert lp_bound(graph, None, LIMIT) == graph.keep_all_cost
    assert lp_bound(graph, keep_all_peak(graph), LIMIT) == graph.keep_all_cost


def test_no_time_still_gives_a_valid_bound() -> None:
    graph = training_chain(16)
    assert lp_bound(graph, 8, Options(time_limit=0.0)) == graph.keep_all_cost


def test_bad_weights_still_prove_something() -> None:
    program = Program()
    x, y = program.variable(2.0), program.variable(3.0)
    program.at_least([(x, 1.0), (y, 1.0)], 1.0)
    assert program.certified_bound([2.0]) == 2.0
    assert program.certified_bound([0.5]) == 0.5
    assert program.certified_bound([-7.0]) == 0.0
    assert program.certified_bound([5.0]) == 0.0


@pytest.mark.parametrize("backend", ["GLOP", "PDLP"])
def test_certifies_the_32_layer_unit_chain(backend: str) -> None:
    """With a loss node between: 65 nodes, budget 14, optimum 19 more than computing everything once."""
    graph = unit_chain_with_loss(32)
    assert len(graph) == 65
    assert lp_bound(graph, 14, LIMIT, backend=backend) == graph.keep_all_cost + 19


def unit_chain_with_loss(n: int) -> Graph:
    nodes = [Node(f"f{i}", 1, 1, (i - 1,) if i else ()) for i in range(n)]
    nodes.append(Node("loss", 1, 1, (n - 1,), backward=True))
    for i in reversed(range(n)):
        reads = tuple(u for u in (i - 1, len(nodes) - 1) if u >= 0)
        nodes.append(Node(f"b{i}", 1, 1, reads, backward=True))
    return Graph(tuple(nodes), (len(nodes) - 1,))


def test_public_graphs(shared: Path) -> None:
    """Bounds that were measured, as percent above keep-all; optima are known for the first two."""
    for name, fraction, at_least, at_most in [
        ("vgg16_b256", 0.9, 0.96, 1.968),
        ("vgg_unet_b32", 0.5, 6.3, 6.968),
        ("resnet50_b256", 0.5, 1.48, 2.62),
    ]:
        graph = Graph.load(shared / "graphs" / f"{name}.json")
        bound = lp_bound(graph, int(fraction * keep_all_peak(graph)), LIMIT)
        assert at_least < 100 * (bound / graph.keep_all_cost - 1) < at_most
