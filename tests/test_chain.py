"""The dynamic program for chains against the oracle, and its view of chains."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_chain

from solvers.brute_force import brute_force, minimum_budget
from solvers.chain import ChainTable, chain_order, solve
from solvers.chain_view import view_chain
from solvers.errors import InfeasibleBudget, InvalidSchedule, UnsupportedGraph
from solvers.graph import Graph, Node, chain, training_chain
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Solution, Status


@st.composite
def training_chains(draw: st.DrawFn, *, max_layers: int = 5, most: int = 6) -> Graph:
    """Heterogeneous chains: each backward step reads its layer's input, its output or both; perhaps a mask and a loss."""
    n = draw(st.integers(2, max_layers))
    amount = st.integers(1, most)
    nodes: list[Node] = []
    layers: list[int] = []
    masks: list[int | None] = []
    for i in range(n):
        reads = (layers[-1],) if layers else ()
        layers.append(len(nodes))
        nodes.append(Node(f"f{i}", draw(amount), draw(amount), reads, workspace=draw(st.sampled_from([0, 0, 3]))))
        # A second result, for backward only: an internal of its stage.
        masked = draw(st.integers(0, 3)) == 0
        masks.append(len(nodes) if masked else None)
        if masked:
            nodes.append(Node(f"m{i}", 0, draw(amount), part_of=layers[-1]))
    for i in reversed(range(n)):
        reads_input, reads_output = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
        wanted = {layers[i]} if reads_output or i in (0, n - 1) else set[int]()
        if reads_input and i:
            wanted.add(layers[i - 1])
        mask = masks[i]
        if mask is not None:
            wanted.add(mask)
        if i < n - 1:
            wanted.add(len(nodes) - 1)
        nodes.append(Node(f"b{i}", draw(amount), draw(amount), tuple(sorted(wanted)), backward=True, external=i == 0))
    return Graph(tuple(nodes), (len(nodes) - 1,))


def peak(graph: Graph, order: list[int] | tuple[int, ...]) -> int:
    return simulate(graph, Schedule.from_order(graph, order)).peak


def attempt(graph: Graph, budget: int) -> Solution | InfeasibleBudget:
    try:
        return solve(graph, budget, Options())
    except InfeasibleBudget as error:
        return error


@settings(max_examples=150)
@given(graph=training_chains(), share=st.floats(0.4, 1.0))
def test_never_better_than_the_optimum_and_never_above_the_budget(graph: Graph, share: float) -> None:
    budget = int(peak(graph, graph.steps) * share)
    solution = attempt(graph, budget)
    if isinstance(solution, InfeasibleBudget):
        assert solution.minimum > budget
        assert solve(graph, solution.minimum, Options()).peak <= solution.minimum
        if solution.proven:
            with pytest.raises(InfeasibleBudget):
                brute_force(graph, budget, order="given")
        return
    assert solution.peak <= budget
    assert solution.cost >= brute_force(graph, budget, order="given").cost


@settings(max_examples=60)
@given(n=st.integers(1, 5), size=st.integers(1, 4), cost=st.integers(1, 4), budget=st.integers(1, 32))
def test_optimal_among_all_schedules_on_uniform_chains(n: int, size: int, cost: int, budget: int) -> None:
    graph = training_chain(n, size, cost)
    try:
        best = brute_force(graph, budget, order="given")
    except InfeasibleBudget:
        with pytest.raises(InfeasibleBudget):
            solve(graph, budget, Options())
        return
    solution = solve(graph, budget, Options())
    assert solution.cost == best.cost
    assert solution.status is Status.OPTIMAL


def persistent_optimum(graph: Graph, budget: int) -> float | None:
    """The cheapest of all orders that keep sets of checkpoints by recursion, enumerated without any dynamic program.

    Written for `training_chain`-shaped graphs: f0..f(n-1), then b(n-1)..b0, each backward step reading both sides.
    """
    n = len(graph) // 2
    best: float | None = None

    def orders(low: int, high: int) -> list[tuple[int, ...]]:
        """All ways to run backward steps high..low+1 (by stage) when layer value `low` is live; layers count from 1."""
        if high == low:
            return [()]
        found = []
        top = high == n
        for k in range(low, high):  # the next value kept beyond the sweep; low for none
            sweep = tuple(range(low, k))
            if k == low:
                if high - low == 1:
                    found.append((high - 1, 2 * n - high))
                    if not top:
                        found.append((2 * n - high,))
                continue
            for right in orders(k, high):
                found.extend(sweep + right + left for left in orders(low, k))
        return found

    for order in orders(0, n):
        try:
            result = simulate(graph, Schedule.from_order(graph, order))
        except InvalidSchedule:  # it reads what it did not keep
            continue
        if result.peak <= budget and (best is None or result.cost < best):
            best = result.cost
    return best


@settings(max_examples=60)
@given(data=st.data(), n=st.integers(2, 5))
def test_equals_enumeration_of_persistent_schedules(data: st.DataObject, n: int) -> None:
    amount = st.integers(1, 6)
    model = training_chain(n)
    graph = Graph(tuple(replace(v, cost=data.draw(amount), size=data.draw(amount)) for v in model.nodes), model.outputs)
    budget = data.draw(st.integers(1, peak(graph, graph.steps)))
    expected = persistent_optimum(graph, budget)
    order = chain_order(graph, budget)
    if order is None:
        assert expected is None
    else:
        assert simulate(graph, Schedule.from_order(graph, order)).cost == expected


@settings(max_examples=60)
@given(graph=training_chains())
def test_cost_never_rises_with_the_budget(graph: Graph) -> None:
    full = peak(graph, graph.steps)
    costs = []
    for budget in range(full // 2, full + 1):
        order = chain_order(graph, budget)
        costs.append(float("inf") if order is None else simulate(graph, Schedule.from_order(graph, order)).cost)
    assert costs == sorted(costs, reverse=True)


def test_rounding_never_exceeds_the_budget_and_is_reported() -> None:
    primes = [1_000_003, 2_000_003, 3_000_017, 1_500_007, 2_500_009, 700_001]
    model = training_chain(6)
    nodes = tuple(replace(v, size=primes[v_index % 6], cost=1 + v_index % 3) for v_index, v in enumerate(model.nodes))
    graph = Graph(nodes, model.outputs)
    budget = int(peak(graph, graph.steps) * 0.9)
    solution = solve(graph, budget, Options())
    assert solution.peak <= budget
    assert "rounded up" in solution.notes["memory"]
    assert solution.status is Status.FEASIBLE


def test_small_sizes_are_exact() -> None:
    graph = training_chain(8)
    table = ChainTable(graph, view_chain(graph), 6)
    assert table.unit_exact
    assert solve(graph, 6, Options()).notes["memory"] == "exact"


def test_a_value_that_may_run_once_is_never_run_twice() -> None:
    model = training_chain(6)
    nodes = list(model.nodes)
    nodes[1] = replace(nodes[1], recomputable=False)
    graph = Graph(tuple(nodes), model.outputs)
    for budget in range(1, 9):
        order = chain_order(graph, budget)
        if order is not None:
            assert order.count(1) == 1
            assert peak(graph, order) <= budget
    assert chain_order(graph, 5) is not None


def test_stages_with_internals() -> None:
    """Each layer has an inner value that only its backward step reads: keeping internals differs from keeping inputs."""
    nodes = [
        Node("in0", 1, 4),
        Node("out0", 1, 1, (0,)),
        Node("in1", 1, 4, (1,)),
        Node("out1", 1, 1, (2,)),
        Node("loss", 1, 1, (3,)),
    ]
    nodes += [Node("g1", 1, 1, (4,), backward=True), Node("b1", 1, 1, (1, 2, 5), backward=True)]
    nodes += [Node("b0", 1, 1, (0, 6), backward=True, external=True)]
    graph = Graph(tuple(nodes), (7,))
    assert view_chain(graph)[0].advance == (0,)
    best = {budget: brute_force(graph, budget, order="given").cost for budget in (8, 10, 11)}
    for budget, cost in best.items():
        solution = solve(graph, budget, Options())
        assert solution.cost >= cost
    assert solve(graph, 10, Options()).cost == best[10]


def test_refuses_graphs_that_are_no_chain() -> None:
    with pytest.raises(UnsupportedGraph, match="backward"):
        solve(chain([1, 1], [1, 1]), 2, Options())
    # f0 is read by f3 across two stages' worth of cuts, and by the last backward step together with f2.
    model = training_chain(4)
    nodes = list(model.nodes)
    nodes[7] = replace(nodes[7], deps=(0, 2, 6))
    with pytest.raises(UnsupportedGraph, match=r"\('b0'\) breaks the chain.*auto"):
        view_chain(Graph(tuple(nodes), model.outputs))
    with pytest.raises(UnsupportedGraph, match=r"node 1 \('f1'\) breaks the chain.*auto"):
        view_chain(Graph(model.nodes, (1, 7)))


def test_a_long_chain_needs_no_recursion() -> None:
    graph = training_chain(1200)
    assert len(view_chain(graph)) == 1200
    with pytest.raises(InfeasibleBudget):
        solve(training_chain(40), 3, Options())


def test_persistent_schedules_are_nearly_always_the_best() -> None:
    """The oracle finds something cheaper that is not persistent for 13 of the 794 budgets of 400 chains of up to 5 layers."""
    problems = better = 0
    for seed in range(400):
        graph = random_chain(random.Random(seed), max_layers=5)
        for budget in range(minimum_budget(graph).budget, peak(graph, graph.steps)):
            order = chain_order(graph, budget)
            cost = math.inf if order is None else simulate(graph, Schedule.from_order(graph, order)).cost
            best = brute_force(graph, budget).cost
            assert cost >= best
            problems += 1
            better += cost > best
    assert (better, problems) == (13, 794)
