"""Bounds are proven: never above what the oracle finds. And the error says the useful things."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import run
from strategies import graphs, training_graphs

from solvers import bounds, brute_force
from solvers.errors import Counted, InfeasibleBudget
from solvers.graph import Graph, Node, chain, training_chain
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Solution
from solvers.solve import available

GRAPHS = st.one_of(graphs(max_nodes=8), training_graphs(max_layers=3))


@given(GRAPHS)
@settings(max_examples=150)
def test_no_schedule_is_below_the_budget_floor(graph: Graph) -> None:
    anywhere = bounds.minimum_budget(graph).bytes
    given_order = bounds.minimum_budget(graph, order="given").bytes
    assert anywhere <= given_order
    assert anywhere <= brute_force.minimum_budget(graph, order="any").budget
    assert given_order <= brute_force.minimum_budget(graph, order="given").budget


@given(GRAPHS, st.floats(0, 1))
@settings(max_examples=150)
def test_no_schedule_is_below_the_cost_floor(graph: Graph, fraction: float) -> None:
    smallest = brute_force.minimum_budget(graph).budget
    keep_all = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
    budget = smallest + int(fraction * (keep_all - smallest))
    optimum = brute_force.brute_force(graph, budget).cost
    assert bounds.cost_floor(graph, budget) <= optimum + 1e-9
    assert bounds.cost_floor(graph, None) == graph.keep_all_cost


def test_the_cost_floor_is_infinite_only_if_nothing_helps() -> None:
    graph = chain([1, 1, 1], [4, 4, 4])
    assert bounds.cost_floor(graph, 7) == math.inf
    assert bounds.cost_floor(graph, 8) == 3


def test_the_cost_floor_sees_what_must_be_dropped() -> None:
    """The skip of 10 bytes over two steps must go, at a cost of 7, whichever step is looked at."""
    nodes = (Node("a", 7, 10), Node("b", 1, 2, (0,)), Node("c", 1, 2, (1,)), Node("d", 1, 2, (2,)), Node("e", 1, 0, (0, 3)))
    assert bounds.cost_floor(Graph(nodes, (4,)), 4) >= 11 + 7


def test_the_cost_floor_drops_in_fractions() -> None:
    """10 bytes must go: the large value, for 20. Taking the small one (1 byte for 1) first, whole, would make 21."""
    nodes = (Node("small", 1, 1), Node("large", 20, 10), Node("wide", 1, 1, workspace=20), Node("end", 1, 0, (0, 1, 2)))
    graph = Graph(nodes, (3,))
    assert bounds.cost_floor(graph, 22) == pytest.approx(23 + 1 + 20 * 9 / 10)
    assert brute_force.brute_force(graph, 22).cost == 23 + 20


def test_the_bottleneck_counts_values_that_exist_once() -> None:
    """`once` cannot be recomputed and is read at the end, so it is live during `wide`, which does not touch it."""
    nodes = (
        Node("once", 1, 50, recomputable=False),
        Node("narrow", 1, 1, (0,)),
        Node("wide", 1, 10, (1,)),
        Node("end", 1, 1, (0, 2)),
    )
    graph = Graph(nodes, (3,))
    floor = bounds.minimum_budget(graph)
    assert (floor.bytes, floor.node) == (61, 2)


def test_values_of_the_caller_are_not_counted() -> None:
    graph = Graph((Node("a", 1, 2), Node("b", 1, 100, (0,), workspace=3, external=True)), (1,))
    assert bounds.minimum_budget(graph).bytes == 5


@pytest.mark.parametrize("name", available())
@given(GRAPHS, st.floats(0, 1))
@settings(max_examples=15)
def test_no_refusal_contradicts_itself_and_what_it_names_can_be_had(name: str, graph: Graph, fraction: float) -> None:
    budget = max(1, int(fraction * simulate(graph, Schedule.from_order(graph, graph.steps)).peak))
    error = run(name, graph, budget)
    if not isinstance(error, InfeasibleBudget):
        return
    assert error.refuted == 0
    assert error.lower_bound <= error.minimum
    assert budget < error.minimum
    found = run(name, graph, error.minimum)
    assert isinstance(found, Solution)
    assert found.peak <= error.minimum


@pytest.mark.parametrize("counted", ["simulated", "compiled"])
@given(st.integers(1, 99), st.integers(1, 99), st.integers(0, 99))
def test_a_bound_is_never_above_what_is_known_to_work(
    init_unchecked: Callable[..., None], counted: Counted, budget: int, minimum: int, bound: int
) -> None:
    facts: dict[str, Any] = {"bottleneck": 3, "name": "conv at net.py:7", "minimum_of": counted, "fullest": "sin at net.py:9"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InfeasibleBudget, "__init__", init_unchecked)
        error = InfeasibleBudget(budget=budget, minimum=minimum, lower_bound=bound, relative_to="any order", **facts)
        copies = error, pickle.loads(pickle.dumps(error)), InfeasibleBudget(**json.loads(json.dumps(error.facts)))
    stands = 0 < bound <= minimum
    for copied in copies:
        assert str(copied) == str(error)
        assert copied.lower_bound == (bound if stands else 0)
        assert (copied.bottleneck, copied.name) == ((3, "conv at net.py:7") if stands else (None, ""))
        assert copied.proven == (stands and counted == "simulated" and budget < bound)
    assert error.refuted == pickle.loads(pickle.dumps(error)).refuted == (bound if bound > minimum else 0)
    assert ("conv at net.py:7" in str(error)) == stands
    assert ("sin at net.py:9" in str(error)) != stands
    assert ("proven" in str(error)) == error.proven


def test_what_is_passed_on_keeps_its_notes_and_a_refuted_bound_stays_away() -> None:
    error = InfeasibleBudget(budget=3, minimum=9, lower_bound=7, relative_to="any order", minimum_of="compiled")
    error.add_note("chain: nothing found")
    lower = error.changed(minimum=6)
    assert (lower.lower_bound, lower.refuted, lower.__notes__) == (0, 7, ["chain: nothing found"])
    assert lower.changed(minimum=9).lower_bound == 0


def test_the_error_has_both_sides_and_the_node() -> None:
    graph = training_chain(16)
    error = bounds.infeasible(graph, 3)
    assert isinstance(error, InfeasibleBudget)
    assert (error.budget, error.lower_bound, error.minimum) == (3, 4, 6)
    assert error.proven
    assert error.name == graph.nodes[error.bottleneck].name
    assert error.name in str(error)
    assert "6 bytes" in str(error)
    assert not bounds.infeasible(graph, 5).proven


def test_a_schedule_outside_the_given_order_withdraws_claims_about_it() -> None:
    """The given order needs `once` and `wide` together, 61 bytes; with `once` computed after `wide`, 52 do."""
    nodes = (Node("once", 1, 50, recomputable=False), Node("wide", 1, 10), Node("thin", 1, 1, (1,)), Node("end", 1, 1, (0, 2)))
    graph = Graph(nodes, (3,))
    assert bounds.infeasible(graph, 9, order="given").lower_bound == 61
    error = bounds.infeasible(graph, 9, known_peaks=[52], order="given")
    assert (error.lower_bound, error.minimum, error.relative_to) == (52, 52, "any order")


def test_smallest_known_peak_works_without_a_backward_pass() -> None:
    assert bounds.smallest_known_peak(chain([1, 1, 1], [4, 5, 6])) == 11


def test_scopes_in_words() -> None:
    assert bounds.describe_scope("given") == "the given order"
    assert bounds.describe_scope("any", 1) == "any order, at most 1 computation of each node"


@pytest.mark.parametrize("order", ["given", "any"])
def test_a_line_of_10000_nodes(order: str) -> None:
    graph = training_chain(5_000)
    assert bounds.minimum_budget(graph, order=order).bytes == 4
    assert graph.keep_all_cost + 1 <= bounds.cost_floor(graph, 4_999) < math.inf


def test_the_linear_bound_goes_by_the_name_of_bounds_lp() -> None:
    from solvers.lp_bound import lp_bound

    assert bounds.lp is lp_bound
    with pytest.raises(AttributeError, match="no attribute 'ilp'"):
        _ = bounds.ilp


def test_a_proof_for_the_given_order_is_not_called_one_for_any() -> None:
    """The given order needs 61 bytes, another one 52; a program has shown that 60 do not suffice in the given order."""
    nodes = (Node("once", 1, 50, recomputable=False), Node("wide", 1, 10), Node("thin", 1, 1, (1,)), Node("end", 1, 1, (0, 2)))
    error = bounds.impossible(Graph(nodes, (3,)), 60)
    assert (error.lower_bound, error.relative_to, error.minimum) == (61, "the given order", 61)
