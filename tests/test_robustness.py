"""Every solver on graphs that are malformed, odd or huge, and stopped early: a clear error or a right answer, never a crash."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from laws import check

from solvers.errors import InfeasibleBudget, InvalidGraph, UnsupportedGraph
from solvers.graph import Graph, Node, chain, training_chain
from solvers.orders import peak_of
from solvers.schedule import Schedule
from solvers.solution import Progress, Status
from solvers.solve import available, solve

MALFORMED = {
    "a cycle": ([{"cost": 1, "size": 1, "deps": [1]}, {"cost": 1, "size": 1, "deps": [0]}], "no cycles"),
    "an unknown dependency": ([{"cost": 1, "size": 1, "deps": [7]}], "does not exist"),
    "a negative cost": ([{"cost": -1, "size": 1, "deps": []}], "has cost -1"),
    "a negative size": ([{"cost": 1, "size": -1, "deps": []}], "has size -1"),
    "a cost that is no number": ([{"cost": float("nan"), "size": 1, "deps": []}], "has cost nan"),
    "no nodes": ([], "at least one node"),
}


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_graphs_are_refused(name: str, kind: str) -> None:
    nodes, message = MALFORMED[kind]
    with pytest.raises(InvalidGraph, match=message):
        solve(Graph.from_json({"nodes": nodes}), 10, name)


def uneven(n: int, unit: int) -> Graph:
    """A training chain whose sizes, about `unit` bytes each, share no divisor."""
    rng = random.Random(n)
    model = training_chain(n)
    sizes = [unit * rng.randint(1, 9) + rng.randint(0, 99) for _ in model.nodes]
    sizes[0], sizes[1] = unit + 1, unit
    nodes = [
        Node(v.name, 1, s, v.deps, backward=v.backward, external=v.external) for v, s in zip(model.nodes, sizes, strict=True)
    ]
    return Graph(tuple(nodes), model.outputs)


ODD = {
    "one node": Graph((Node("a", 3, 5),), (0,)),
    "one node without size": Graph((Node("a", 3, 0),), (0,)),
    "no size anywhere": training_chain(4, size=0),
    "no cost anywhere": training_chain(4, cost=0),
    "neither size nor cost": training_chain(4, size=0, cost=0),
    "some without size, some without cost": Graph(
        (Node("a", 0, 4), Node("b", 2, 0, (0,)), Node("c", 1, 3, (1,)), Node("d", 0, 0, (0, 2))), (3,)
    ),
    "no backward nodes": chain([1, 2, 3, 1], [4, 5, 6, 2]),
    "no backward nodes and a skip": Graph(
        (Node("a", 7, 10), Node("b", 1, 2, (0,)), Node("c", 1, 2, (1,)), Node("d", 1, 2, (2,)), Node("e", 1, 0, (0, 3))), (4,)
    ),
    "only backward nodes": Graph((Node("a", 1, 4, backward=True), Node("b", 1, 4, (0,), backward=True)), (1,)),
    "sizes beyond 32 bits without a divisor": uneven(4, 10**12),
    "sizes beyond 64 bits": uneven(4, 10**20),
    "costs far apart": Graph(
        tuple(
            Node(v.name, 10.0 ** (3 * k - 9), v.size, v.deps, backward=v.backward, external=v.external)
            for k, v in enumerate(training_chain(4).nodes)
        ),
        (7,),
    ),
    "a dependency named twice": Graph((Node("a", 1, 2), Node("b", 1, 2, (0, 0)), Node("c", 1, 2, (0, 1, 1))), (2,)),
    "nodes that nobody reads": Graph((Node("a", 1, 2), Node("b", 1, 9), Node("c", 1, 2, (0,))), (2,)),
}


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize("kind", ODD)
def test_odd_graphs_are_solved_or_refused(name: str, kind: str) -> None:
    graph = ODD[kind]
    most = peak_of(graph, graph.steps)
    for budget in sorted({1, max(1, most * 2 // 3), max(1, most - 1), max(1, most)}):
        check(name, graph, budget)


def line(n: int) -> Graph:
    return Graph(tuple(Node(f"n{v}", 1, 1, (v - 1,) if v else ()) for v in range(n)), (n - 1,))


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize(
    ("graph", "budget"), [(training_chain(5000), 400), (line(10_000), 1), (line(10_000), 2)], ids=["training", "below", "line"]
)
def test_ten_thousand_nodes_in_a_line(name: str, graph: Graph, budget: int) -> None:
    """No recursion limit, no overflow, no flood of memory: a schedule, or an error that the documentation names."""
    try:
        found = solve(graph, budget, name, time_limit=0.5, workers=1)
    except (InfeasibleBudget, UnsupportedGraph) as error:
        if isinstance(error, InfeasibleBudget):
            assert error.minimum > budget  # noqa: PT017, an error is one of the right answers
        return
    assert budget > 1
    assert found.peak <= budget
    assert found.lower_bound <= found.cost


@dataclass(frozen=True)
class Stop:
    """How a solver is stopped half way.

    Attributes:
        layers: of the chain that it works on.
        budget: a budget for which a cheap strategy has a schedule.
        at: what raises a KeyboardInterrupt, a function's place; None for the progress callback.
    """

    layers: int = 16
    budget: int = 9
    at: str | None = None


STOPS = {
    "auto": Stop(),
    "sqrt": Stop(),
    "chen": Stop(),
    "recursive": Stop(),
    "greedy": Stop(),
    "knapsack": Stop(),
    "chain": Stop(at="solvers.chain.ChainTable._fill"),
    "intervals": Stop(),
    "events": Stop(),
    "frontier": Stop(),
    "hierarchical": Stop(),
    "checkmate": Stop(at="solvers.checkmate.solve_whole"),
    "rounding": Stop(),
    "brute_force": Stop(layers=5, budget=5, at="solvers.brute_force._best_first"),
}


def test_whoever_searches_can_be_stopped() -> None:
    """All but those that know their schedule without a search, and the one that only improves starts."""
    assert set(available()) - set(STOPS) == {"keep_all", "revolve"}


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", STOPS)
def test_an_interrupt_returns_the_best_so_far(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = STOPS[name]
    reports: list[Progress] = []

    def report(progress: Progress) -> None:
        reports.append(progress)
        if progress.cost < float("inf"):
            raise KeyboardInterrupt

    if stop.at is not None:
        monkeypatch.setattr(stop.at, interrupt)
    graph = training_chain(stop.layers)
    found = solve(graph, stop.budget, name, workers=1, progress=report)
    assert found.status is Status.INTERRUPTED
    assert found.peak <= stop.budget
    assert graph.keep_all_cost <= found.lower_bound <= found.cost
    if stop.at is None:
        assert found.cost <= min(p.cost for p in reports)


@pytest.mark.parametrize("name", STOPS)
def test_an_interrupt_before_anything_is_found_passes_through(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever runs several solvers stops too."""
    calls = 0
    original = Schedule.from_order

    def first(graph: Graph, order: Any) -> Schedule:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        return original(graph, order)

    monkeypatch.setattr(Schedule, "from_order", first)
    try:
        found = solve(training_chain(STOPS[name].layers), 5, name, workers=1)
    except KeyboardInterrupt:
        return
    assert found.status is Status.INTERRUPTED  # by then a cheap strategy had found one
    assert found.peak <= 5


@pytest.mark.parametrize("name", STOPS)
def test_no_time_returns_a_schedule_that_is_cheap_to_find(name: str) -> None:
    stop = STOPS[name]
    graph = training_chain(stop.layers)
    if name == "recursive":  # which tries one number of segments after the other
        with pytest.raises(InfeasibleBudget, match="no schedule found") as caught:
            solve(graph, stop.budget, name, time_limit=1e-9, workers=1)
        assert caught.value.minimum > stop.budget
        return
    found = solve(graph, stop.budget, name, time_limit=1e-9, workers=1)
    assert found.status is Status.TIME_LIMIT
    assert found.peak <= stop.budget
    with pytest.raises(InfeasibleBudget) as caught:
        solve(graph, 4, name, time_limit=1e-9, workers=1)
    assert caught.value.minimum > 4


@pytest.mark.parametrize("name", ["greedy", "intervals", "events", "checkmate", "rounding"])
def test_a_start_that_fits_is_never_lost(name: str) -> None:
    stop = STOPS[name]
    graph = training_chain(stop.layers)
    start = solve(graph, stop.budget, "revolve")
    found = solve(graph, stop.budget, name, time_limit=1e-9, workers=1, starts=[start.schedule.order])
    assert found.peak <= stop.budget
    assert found.cost == start.cost


@pytest.mark.parametrize("name", ["auto", "greedy", "knapsack", "intervals"])
def test_equal_seeds_and_work_limits_give_equal_schedules(name: str) -> None:
    graph = uneven(12, 1000)
    budget = peak_of(graph, graph.steps) * 3 // 4
    first, second = (solve(graph, budget, name, work_limit=0.4, seed=7, time_limit=600, workers=1) for _ in range(2))
    assert first.schedule == second.schedule
    assert (first.cost, first.lower_bound) == (second.cost, second.lower_bound)
