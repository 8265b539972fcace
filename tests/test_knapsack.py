"""The save-set by cut and knapsack: each piece against exhaustive search, the plans against the oracle."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import training_graphs

from solvers.brute_force import brute_force
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, chain, training_chain
from solvers.knapsack import KNAPSACKS, by_dynamic_program, by_ratio, exactly, recompute_order, save_set, solve
from solvers.min_cut import min_cut, saved_bytes
from solvers.schedule import Schedule
from solvers.segments import Forward
from solvers.simulate import Simulation, simulate
from solvers.solution import Options

items = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=9)


def replayed(graph: Graph, order: list[int] | tuple[int, ...]) -> Simulation:
    return simulate(graph, Schedule.from_order(graph, order))


@settings(max_examples=200)
@given(items=items, capacity=st.integers(0, 60))
def test_knapsacks_against_all_subsets(items: list[tuple[int, int]], capacity: int) -> None:
    values, weights = [v for v, _ in items], [w for _, w in items]
    subsets = itertools.chain.from_iterable(itertools.combinations(range(len(items)), k) for k in range(len(items) + 1))
    best = max(sum(values[i] for i in s) for s in subsets if sum(weights[i] for i in s) <= capacity)
    for solver in (by_ratio, by_dynamic_program, exactly):
        taken = solver(values, weights, capacity)
        assert len(set(taken)) == len(taken)
        assert sum(weights[i] for i in taken) <= capacity
        value = sum(values[i] for i in taken)
        assert value <= best if solver is by_ratio else value == best


def test_large_weights_never_exceed_the_capacity() -> None:
    rng = random.Random(0)
    weights = [rng.randrange(1 << 70) for _ in range(30)]
    values = [rng.random() for _ in weights]
    for solver in KNAPSACKS.values():
        taken = solver(values, weights, 5 << 70)
        assert taken
        assert sum(weights[i] for i in taken) <= 5 << 70


@settings(max_examples=100)
@given(graph=training_graphs(max_layers=4), data=st.data())
def test_the_cut_is_the_smallest_that_spares_the_banned(graph: Graph, data: st.DataObject) -> None:
    forward = Forward.of(graph)
    free = [v for v in forward.steps if v not in forward.kept]
    banned = data.draw(st.sets(st.sampled_from(free))) if free else set[int]()

    def spares(saved: set[int]) -> bool:
        order = recompute_order(forward, saved, keep=True)
        again = {v for v in order if order.count(v) > 1}
        return not again & banned

    found = min_cut(forward, banned)
    assert spares(set(found))
    size = sum(saved_bytes(graph, v) for v in found)
    for k in range(len(free) + 1):
        for saved in itertools.combinations(free, k):
            if sum(saved_bytes(graph, v) for v in saved) < size:
                assert not spares(set(saved))


@settings(max_examples=100)
@given(graph=training_graphs(max_layers=5), share=st.floats(0.0, 1.0), keep=st.booleans(), level=st.sampled_from([0.0, 0.5]))
def test_orders_charge_chains_of_recomputation(graph: Graph, share: float, keep: bool, level: float) -> None:
    forward = Forward.of(graph)
    capacity = int(sum(saved_bytes(graph, v) for v in forward.steps) * share)
    saved = save_set(forward, capacity, by_ratio, level=level)
    order = recompute_order(forward, saved, keep=keep)
    assert not {v for v in order if order.count(v) > 1} & (saved | forward.kept)
    assert list(dict.fromkeys(order)) == list(graph.steps)
    assert replayed(graph, order).cost >= graph.keep_all_cost  # and replaying raises if anything is missing


@settings(max_examples=100)
@given(graph=training_graphs(max_layers=4), share=st.floats(0.4, 1.0))
def test_between_the_optimum_and_the_budget(graph: Graph, share: float) -> None:
    budget = int(replayed(graph, graph.steps).peak * share)
    try:
        solution = solve(graph, budget, Options())
    except InfeasibleBudget as error:
        if error.proven:
            with pytest.raises(InfeasibleBudget):
                brute_force(graph, budget, order="any")
        return
    assert solution.peak <= budget
    assert solution.cost >= brute_force(graph, budget, order="given").cost


def test_a_unit_chain_by_hand() -> None:
    """Nothing saved and nothing kept: all layers up to i run again before b(i)."""
    graph = training_chain(4)
    forward = Forward.of(graph)
    assert len(recompute_order(forward, (), keep=False)) == 8 + (4 + 3 + 2 + 1)
    assert len(recompute_order(forward, range(4), keep=False)) == 8


def test_graphs_without_a_backward_pass_are_refused() -> None:
    with pytest.raises(UnsupportedGraph, match="backward"):
        solve(chain([1, 1], [1, 1]), 2, Options())
