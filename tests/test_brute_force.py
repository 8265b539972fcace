"""The oracle, held against optima worked out by hand, against plain enumeration, and against its own laws."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from cases import CASES, Case
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs

from solvers.brute_force import brute_force, minimum_budget
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, chain, training_chain
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Status


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hand_computed_optima(case: Case) -> None:
    for budget, cost in case.optima.items():
        solution = brute_force(case.graph, budget)
        assert (solution.cost, solution.status, solution.gap) == (cost, Status.OPTIMAL, 0)
    with pytest.raises(InfeasibleBudget) as caught:
        brute_force(case.graph, case.smallest - 1)
    assert caught.value.proven
    assert caught.value.minimum == caught.value.lower_bound == case.smallest


def staged_orders(graph: Graph, copies: int) -> Iterator[list[int]]:
    """All orders of the given-order space, by listing every subset of earlier steps in every stage."""
    stages = []
    for j, v in enumerate(graph.steps):
        earlier = [u for u in graph.steps[:j] if graph.may_recompute(u)]
        subsets = itertools.chain.from_iterable(itertools.combinations(earlier, k) for k in range(len(earlier) + 1))
        stages.append([(*subset, v) for subset in subsets])
    for choice in itertools.product(*stages):
        order = list(itertools.chain.from_iterable(choice))
        if max(map(order.count, order)) <= copies:
            yield order


@given(graphs(max_nodes=5), st.integers(1, 3))
@settings(max_examples=60)
def test_equals_plain_enumeration_in_the_given_order(graph: Graph, copies: int) -> None:
    results = [simulate(graph, Schedule.from_order(graph, order)) for order in staged_orders(graph, copies)]
    lowest = min(result.peak for result in results)
    assert minimum_budget(graph, copies=copies).budget == lowest
    for budget in sorted({result.peak for result in results} - {0})[:4]:
        best = min(result.cost for result in results if result.peak <= budget)
        assert brute_force(graph, budget, copies=copies).cost == best


def free_orders(graph: Graph, copies: int) -> Iterator[list[int]]:
    """All orders with at most so many computations of each step."""
    pool = [v for v in graph.steps for _ in range(copies if graph.may_recompute(v) else 1)]
    for length in range(len(graph.steps), len(pool) + 1):
        for order in set(itertools.permutations(pool, length)):
            done: set[int] = set()
            valid = True
            for v in order:
                valid = valid and all(u in done for u in graph.nodes[v].deps)
                done.update(graph.written(v))
            if valid and len(done) == len(graph):
                yield list(order)


@given(graphs(min_nodes=2, max_nodes=3), st.integers(1, 2))
@settings(max_examples=40)
def test_equals_plain_enumeration_in_any_order(graph: Graph, copies: int) -> None:
    results = [simulate(graph, Schedule.from_order(graph, order)) for order in free_orders(graph, copies)]
    lowest = min(result.peak for result in results)
    assert minimum_budget(graph, order="any", copies=copies).budget == lowest
    for budget in sorted({result.peak for result in results} - {0}):
        best = min(result.cost for result in results if result.peak <= budget)
        assert brute_force(graph, budget, order="any", copies=copies).cost == best


@given(graphs(max_nodes=8), st.data())
@settings(max_examples=60)
def test_more_freedom_never_costs_more(graph: Graph, data: st.DataObject) -> None:
    smallest = {c: minimum_budget(graph, copies=c).budget for c in (1, 2, None)}
    anywhere = minimum_budget(graph, order="any").budget
    assert anywhere <= smallest[None] <= smallest[2] <= smallest[1]
    keep_all = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
    assert smallest[1] == keep_all
    budget = data.draw(st.integers(smallest[2], keep_all))
    assert (
        brute_force(graph, budget, order="any").cost
        <= brute_force(graph, budget).cost
        <= brute_force(graph, budget, copies=2).cost
    )
    assert brute_force(graph, budget + 1).cost <= brute_force(graph, budget).cost


@given(graphs(max_nodes=7), st.sampled_from(["given", "any"]), st.sampled_from([None, 2]))
@settings(max_examples=60)
def test_the_smallest_budget_is_exact(graph: Graph, order: Literal["given", "any"], copies: int | None) -> None:
    smallest = minimum_budget(graph, order=order, copies=copies)
    assert simulate(graph, Schedule.from_order(graph, smallest.order)).peak == smallest.budget
    assert brute_force(graph, smallest.budget, order=order, copies=copies).peak <= smallest.budget
    if smallest.budget > 1:
        with pytest.raises(InfeasibleBudget) as caught:
            brute_force(graph, smallest.budget - 1, order=order, copies=copies)
        assert caught.value.proven
        assert caught.value.minimum == smallest.budget


def test_any_order_may_recompute_in_any_order() -> None:
    (graph,) = (case.graph for case in CASES if case.name == "recomputed in increasing position")
    assert minimum_budget(graph, order="any").budget == 15


@given(graphs(min_nodes=5, max_nodes=8), st.sampled_from(["given", "any"]), st.data())
@settings(max_examples=40)
def test_guidance_does_not_change_the_optimum(graph: Graph, order: Literal["given", "any"], data: st.DataObject) -> None:
    """A* with its estimate, against the same search without one."""
    keep_all = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
    budget = data.draw(st.integers(minimum_budget(graph, order=order).budget, keep_all))
    guided = brute_force(graph, budget, order=order).cost
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solvers.state_space.StateSpace.debt", lambda space, state: 0.0)
        assert brute_force(graph, budget, order=order).cost == guided


@given(graphs(min_nodes=5, max_nodes=8), st.sampled_from(["given", "any"]), st.sampled_from([None, 2]), st.floats(0, 1))
@settings(max_examples=60)
def test_the_estimate_is_never_above_what_is_left_to_pay(
    graph: Graph, order: Literal["given", "any"], copies: int | None, fraction: float
) -> None:
    """Along the optimal path the estimate must stay at or below the remaining cost, or A* could miss it."""
    smallest = minimum_budget(graph, order=order, copies=copies).budget
    keep_all = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
    traced: list[tuple[float, float]] = []

    def follow(space: Any, parent: dict[Any, tuple[Any, int]], state: Any) -> list[int]:
        left, path = 0.0, []
        while state in parent:
            traced.append((space.debt(state), left))
            state, k = parent[state]
            left += space.cost[k]
            path.append(space.steps[k])
        return path[::-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solvers.brute_force._trace", follow)
        brute_force(graph, smallest + int(fraction * (keep_all - smallest)), order=order, copies=copies)
    assert traced
    assert all(debt <= left + 1e-9 for debt, left in traced)


def test_a_second_copy_can_be_too_few() -> None:
    graph = training_chain(5)
    assert brute_force(graph, 4).cost == 13
    with pytest.raises(InfeasibleBudget, match="the given order, at most 2 computations of each node"):
        brute_force(graph, 4, copies=2)
    assert brute_force(graph, 4, copies=3).cost == 13


def test_too_many_steps_are_refused() -> None:
    with pytest.raises(UnsupportedGraph, match="at most 14 steps and the graph has 15"):
        brute_force(chain([1] * 15, [1] * 15), 10)


def test_options_out_of_range() -> None:
    graph = chain([1], [1])
    with pytest.raises(ValueError, match="copies is 0"):
        brute_force(graph, 1, copies=0)
    with pytest.raises(ValueError, match="order is 'random'"):
        brute_force(graph, 1, order="random")  # type: ignore[arg-type]
