"""Eviction, exchanges, trimming and reordering: never above the budget, never below the optimum, never more than needed."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, orders, training_graphs

from solvers.brute_force import brute_force
from solvers.errors import InfeasibleBudget, InvalidSchedule
from solvers.eviction import Eviction, Neighbourhood, Rule
from solvers.graph import Graph, Node, training_chain
from solvers.greedy import RULES, greedy_order, solve
from solvers.reorder import lean_orders
from solvers.repair import improve, repair
from solvers.schedule import Schedule
from solvers.simulate import Simulation, simulate
from solvers.solution import Options, Solution, Status
from solvers.trim import trim

GRAPHS = Path(__file__).parents[1] / ".." / "shared" / "graphs"
QUICK = Options(time_limit=5)


def replayed(graph: Graph, order: list[int] | tuple[int, ...]) -> Simulation:
    return simulate(graph, Schedule.from_order(graph, order))


def shared_graph(name: str) -> Graph:
    path = GRAPHS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the public benchmark graphs are not beside this checkout: {path.name}")
    return Graph.load(path)


def attempt(graph: Graph, budget: int) -> Solution | InfeasibleBudget:
    try:
        return solve(graph, budget, QUICK)
    except InfeasibleBudget as error:
        return error


@settings(max_examples=150)
@given(graph=graphs() | training_graphs(max_layers=4), share=st.floats(0.3, 1.0))
def test_between_the_optimum_and_the_budget(graph: Graph, share: float) -> None:
    budget = int(replayed(graph, graph.steps).peak * share)
    solution = attempt(graph, budget)
    if isinstance(solution, InfeasibleBudget):
        assert solution.minimum > budget
        if solution.proven:
            with pytest.raises(InfeasibleBudget):
                brute_force(graph, budget, order="any")
        return
    assert solution.peak <= budget
    assert solution.cost >= brute_force(graph, budget, order="any").cost


@settings(max_examples=200)
@given(graph=graphs(max_nodes=12), rule=st.sampled_from(RULES), share=st.floats(0.3, 1.0), seed=st.integers(0, 3))
def test_each_rule_keeps_to_the_budget(graph: Graph, rule: Rule, share: float, seed: int) -> None:
    budget = int(replayed(graph, graph.steps).peak * share)
    order = greedy_order(graph, budget, rule, seed=seed)
    if order is not None:
        assert replayed(graph, order).peak <= budget
        first = list(dict.fromkeys(order))
        assert first == list(graph.steps)


@settings(max_examples=200)
@given(data=st.data(), graph=graphs(max_nodes=10))
def test_trimming_leaves_nothing_that_could_go(data: st.DataObject, graph: Graph) -> None:
    order = data.draw(orders(graph))
    before = replayed(graph, order)
    after = trim(graph, order, before.peak)
    result = replayed(graph, after)
    assert result.peak <= before.peak
    assert result.cost <= before.cost
    seen: set[int] = set()
    for p, v in enumerate(after):
        if v in seen:
            try:
                assert replayed(graph, after[:p] + after[p + 1 :]).peak > before.peak
            except InvalidSchedule:
                pytest.fail(f"taking out a recomputation at {p} made the order invalid")
        seen.add(v)


@settings(max_examples=150)
@given(graph=graphs(max_nodes=12), share=st.floats(0.3, 1.0), seed=st.integers(0, 3))
def test_exchanges_keep_to_the_budget(graph: Graph, share: float, seed: int) -> None:
    budget = int(replayed(graph, graph.steps).peak * share)
    order = repair(graph, graph.steps, budget, rng=random.Random(seed), noise=0.3)
    if order is not None:
        result = replayed(graph, order)
        assert result.peak <= budget
        better = improve(graph, order, budget, rng=random.Random(seed), rounds=5)
        assert replayed(graph, better).peak <= budget
        assert replayed(graph, better).cost <= result.cost


@settings(max_examples=150)
@given(graph=graphs(max_nodes=12))
def test_lean_orders_are_topological_and_no_worse_than_given(graph: Graph) -> None:
    lean = lean_orders(graph, rng=random.Random(0), tries=8, deadline=math.inf)
    peaks = [replayed(graph, order).peak for order in lean]
    assert peaks == sorted(peaks)
    assert peaks[0] <= replayed(graph, graph.steps).peak
    assert all(sorted(order) == sorted(graph.steps) for order in lean)


def test_a_union_of_evicted_neighbours_costs_what_they_cost() -> None:
    """f0 -> f1 -> f2: with f1 evicted, bringing back f0 or f2 is charged for f1 too; the ancestors rule charges only f2."""
    nodes = (Node("f0", 1, 1), Node("f1", 10, 1, (0,)), Node("f2", 100, 1, (1,)), Node("end", 1, 1, (0, 1, 2)))
    costs = {}
    for neighbourhood in Neighbourhood:
        rule = Rule("test", size=0, distance=0, neighbourhood=neighbourhood)
        run = Eviction(Graph(nodes, (3,)), 100, (0, 1, 2, 3), rule, random.Random(0))
        for v in (0, 1, 2):
            run.compute(v)
        run.drop(1)
        costs[neighbourhood] = (run.score(0, 1), run.score(2, 1))
    assert costs[Neighbourhood.NONE] == pytest.approx((1, 100))
    assert costs[Neighbourhood.ANCESTORS] == pytest.approx((1, 110))
    assert costs[Neighbourhood.UNION] == pytest.approx((11, 110))


def test_reordering_alone_can_be_enough() -> None:
    """Two independent pairs: computing both large values first is needless."""
    nodes = (Node("a", 1, 9), Node("b", 1, 9), Node("a1", 1, 1, (0,)), Node("b1", 1, 1, (1,)), Node("end", 1, 1, (2, 3)))
    graph = Graph(nodes, (4,))
    assert replayed(graph, graph.steps).peak == 19
    solution = solve(graph, 12, QUICK)
    assert solution.status is Status.OPTIMAL
    assert solution.cost == 5


def test_same_seed_same_answer() -> None:
    graph = training_chain(12)
    options = Options(time_limit=60, seed=3)
    first, second = (solve(graph, 8, options).schedule.order for _ in range(2))
    assert first == second


def test_too_small_a_budget_is_proven() -> None:
    with pytest.raises(InfeasibleBudget, match="proven impossible") as caught:
        solve(training_chain(6), 3, QUICK)
    assert caught.value.lower_bound == 4
    assert caught.value.minimum >= 4


def test_starts_are_used() -> None:
    graph = training_chain(5)
    best = brute_force(graph, 4).schedule.order
    solution = solve(graph, 4, Options(time_limit=5, starts=(best,)))
    assert solution.cost == 13


def test_a_line_of_ten_thousand_nodes_does_not_recurse() -> None:
    n = 10_000
    nodes = [Node("f0", 1, 1)] + [Node(f"f{i}", 1, 1, (i - 1,)) for i in range(1, n)]
    graph = Graph((*nodes, Node("skip", 1, 1, (0, n - 1))), (n,))
    with pytest.raises(InfeasibleBudget):
        solve(graph, 2, Options(time_limit=5))
    order = greedy_order(graph, 3, RULES[0])
    assert order is not None
    assert replayed(graph, order).peak <= 3


@pytest.mark.parametrize(("name", "share"), [("vgg_unet_b32", 0.5), ("random_layered_100", 0.8), ("resnet50_b256", 0.5)])
def test_public_graphs(name: str, share: float) -> None:
    graph = shared_graph(name)
    budget = int(replayed(graph, graph.steps).peak * share)
    solution = solve(graph, budget, Options(time_limit=4))
    assert solution.peak <= budget
    assert solution.overhead < 0.1


def test_a_time_limit_still_gives_a_schedule() -> None:
    graph = training_chain(60)
    began = time.monotonic()
    solution = solve(graph, 20, Options(time_limit=0.01))
    assert solution.peak <= 20
    assert solution.seconds <= time.monotonic() - began
