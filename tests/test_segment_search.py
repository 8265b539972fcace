"""Plans of segments and kept values: within their budget, honest about their cost, better with more search."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, Node, training_chain
from solvers.segment_search import FORMS, search
from solvers.simulate import keep_all_peak, simulate
from solvers.solution import Options, Status

OPTIONS = Options(time_limit=2.0, seed=0)


def forward_nodes(graph: Graph) -> frozenset[int]:
    return frozenset(v for v in graph.steps if not graph.nodes[v].backward)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layers", [4, 16, 64])
def test_the_smallest_peak_of_each_form_on_a_chain(form: str, layers: int) -> None:
    graph = training_chain(layers)
    plan = search(graph, None, OPTIONS, keepable=frozenset(), form=form)
    result = simulate(graph, plan.solution.schedule)
    assert (result.peak, result.cost) == (plan.solution.peak, plan.solution.cost)
    bound = {"sqrt": 2 * layers**0.5 + 3, "recursive": 2 * layers.bit_length() + 3, "auto": 2 * layers**0.5 + 3}
    assert result.peak <= bound[form]


@pytest.mark.parametrize("fraction", [0.9, 0.7, 0.5])
def test_a_plan_keeps_to_its_budget_and_search_does_not_make_it_dearer(fraction: float) -> None:
    graph = training_chain(24)
    budget = int(fraction * keep_all_peak(graph))
    plans = {form: search(graph, budget, OPTIONS, keepable=forward_nodes(graph), form=form) for form in ("auto", "recursive")}
    for plan in plans.values():
        assert plan.solution.peak <= budget
        assert plan.solution.status is Status.FEASIBLE
    assert plans["auto"].solution.cost <= plans["recursive"].solution.cost


@given(
    costs=st.lists(st.integers(1, 9), min_size=4, max_size=10),
    sizes=st.lists(st.integers(1, 9), min_size=10, max_size=10),
    fraction=st.floats(0.3, 1.0),
)
@settings(max_examples=25)
def test_any_chain_is_planned_within_its_budget_or_refused_with_one_that_works(
    costs: list[int], sizes: list[int], fraction: float
) -> None:
    graph = training_chain(len(costs))
    nodes = tuple(
        dataclasses.replace(node, size=sizes[v], cost=costs[v]) if v < len(costs) else node
        for v, node in enumerate(graph.nodes)
    )
    graph = Graph(nodes, graph.outputs)
    budget = int(fraction * keep_all_peak(graph))
    options = Options(time_limit=0.2, seed=0)
    try:
        plan = search(graph, budget, options, keepable=forward_nodes(graph))
    except InfeasibleBudget as error:
        budget = error.minimum or 0
        plan = search(graph, budget, options, keepable=forward_nodes(graph))
    assert simulate(graph, plan.solution.schedule).peak <= budget


def test_what_must_be_kept_is_kept_and_what_may_not_be_is_not() -> None:
    graph = training_chain(12)
    wanted, keepable = frozenset({3, 4}), frozenset({3, 4, 8})
    plan = search(graph, int(0.7 * keep_all_peak(graph)), OPTIONS, keepable=keepable, always=wanted)
    assert wanted <= plan.keep <= keepable
    assert not wanted & set(plan.solution.schedule.recomputed)


def test_steps_that_may_not_run_twice_run_once() -> None:
    graph = training_chain(12)
    nodes = [dataclasses.replace(node, recomputable=v != 5 and node.recomputable) for v, node in enumerate(graph.nodes)]
    graph = Graph(tuple(nodes), graph.outputs)
    plan = search(graph, None, OPTIONS, keepable=forward_nodes(graph))
    assert 5 not in plan.solution.schedule.recomputed


def test_equal_seeds_give_equal_plans() -> None:
    graph = training_chain(10)
    one, other = (search(graph, 7, Options(time_limit=60, seed=3), keepable=forward_nodes(graph)) for _ in range(2))
    assert one.solution.schedule == other.solution.schedule


def test_a_graph_without_a_backward_pass_is_refused() -> None:
    graph = Graph((Node("a", 1, 1), Node("b", 1, 1, (0,))), (1,))
    with pytest.raises(UnsupportedGraph, match="backward"):
        search(graph, 1, OPTIONS, keepable=frozenset())
