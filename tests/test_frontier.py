"""`frontier` and what it rests on, against the oracle and against each other."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from strategies import random_chain, random_graph, random_training_graph

from solvers import frontier
from solvers.bounds import minimum_budget
from solvers.brute_force import brute_force
from solvers.errors import InfeasibleBudget
from solvers.event_model import EventModel
from solvers.frontier_sweep import Sweep
from solvers.graph import Graph, Node, training_chain
from solvers.needs import NeedSpace
from solvers.orders import runs_in_stages
from solvers.potentials import potential
from solvers.schedule import Schedule
from solvers.simulate import keep_all_peak, simulate
from solvers.solution import Options, Status
from solvers.timeline import Timeline

KINDS = {"any": random_graph, "training": random_training_graph, "chain": random_chain}


def cases(kind: str, seeds: range) -> Iterator[tuple[Graph, int]]:
    """Random graphs at budgets from the least to the most that matter."""
    for seed in seeds:
        graph = KINDS[kind](random.Random(seed))
        least, most = minimum_budget(graph, order="given").bytes, keep_all_peak(graph)
        for budget in sorted({least, (least + most) // 2, most - 1}):
            if least <= budget < most:
                yield graph, max(1, budget)


def optimum(graph: Graph, budget: int) -> float:
    """Of the given order; infinite if nothing fits."""
    try:
        return brute_force(graph, budget).cost
    except InfeasibleBudget:
        return math.inf


def check(kind: str, seeds: range) -> None:
    """Equal to the oracle without contraction, and between the bounds of its two models with it."""
    for graph, budget in cases(kind, seeds):
        best = optimum(graph, budget)
        for contract in (False, True):
            try:
                found = frontier.solve(graph, budget, Options(), contract=contract)
            except InfeasibleBudget as error:
                assert (error.proven, best) == (True, math.inf)  # noqa: PT017, an error is one of the right answers
                continue
            assert found.status is Status.OPTIMAL
            assert found.lower_bound <= best * (1 + 1e-9)
            assert found.cost >= brute_force(graph, budget, order="any").cost - 1e-9
            if not contract and runs_in_stages(graph, found.schedule.order):  # a start may lie outside
                assert found.cost == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_is_the_oracle_without_contraction_and_never_worse_with_it(kind: str) -> None:
    check(kind, range(60))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_is_the_oracle_on_many_graphs(kind: str) -> None:
    check(kind, range(1000, 2000))


@pytest.mark.parametrize("width", [1, 2])
def test_a_narrow_sweep_gives_a_schedule_that_fits_and_a_bound_that_holds(width: int) -> None:
    useful = 0
    for graph, budget in cases("training", range(100, 160)):
        timeline = Timeline(graph, closed=True)
        found = Sweep(NeedSpace(timeline, budget), [], math.inf).run(width, math.inf, math.inf)
        best = optimum(graph, budget) - graph.keep_all_cost
        reached = math.inf
        if found.order is not None:
            result = simulate(graph, Schedule.from_order(graph, found.order))
            assert result.peak <= budget
            reached = result.cost - graph.keep_all_cost
        assert min(found.floor, reached) <= best + 1e-9
        useful += not found.complete and found.floor > 0
    assert useful > 5


def test_potentials_never_exceed_what_a_schedule_has_paid_by_then() -> None:
    """Along optimal schedules, for the values that are live and needed after each first computation."""
    raised = 0
    for graph, budget in cases("training", range(200, 260)):
        if math.isinf(optimum(graph, budget)):
            continue
        order = brute_force(graph, budget).schedule.order
        timeline = Timeline(graph, closed=True)
        model = EventModel(timeline, budget, range(timeline.end))
        point = model.point(order)
        values = [point.get(j, 0.0) for j in range(len(model.program.costs))]
        paid, seen = 0.0, 0
        for v in order:
            if v != graph.steps[seen]:
                paid += graph.nodes[v].cost
                continue
            if seen:
                kept = {u for u in range(len(graph)) if model.level(values, (seen + 1, u)) > 0.5}
                likely = dict.fromkeys(kept, 1.0)
                made = potential(timeline, budget, range(seen), seen, likely, seconds=10)
                assert made is not None
                least = made.base + math.fsum(price for u, price in made.price.items() if u in kept)
                assert least <= paid + 1e-6
                raised += least > 1e-6
            seen += 1
    assert raised > 20


def test_contraction_leaves_out_stages_before_steps_that_do_not_matter() -> None:
    """A backward pass with the gradient of a bias beside each layer's: nothing is decided just after those."""
    layers = 4
    nodes = [Node(f"f{i}", 1, 4, (i - 1,) if i else ()) for i in range(layers)]
    for i in reversed(range(layers)):
        above = (len(nodes) - 2,) if i < layers - 1 else ()
        nodes.append(Node(f"b{i}", 1, 4, tuple(u for u in (i - 1, i) if u >= 0) + above, backward=True))
        nodes.append(Node(f"s{i}", 1, 1, (len(nodes) - 1,), backward=True, external=True))
    graph = Graph(tuple(nodes), (*range(layers + 1, 3 * layers, 2), 3 * layers - 2))
    budget = keep_all_peak(graph) - 4
    timeline = Timeline(graph, closed=True)
    before = {stage.first for stage in NeedSpace(timeline, budget).stages}
    assert before < set(range(timeline.end))
    assert not before & set(range(layers + 2, 3 * layers - 1, 2))
    found = [frontier.solve(graph, budget, Options(), contract=contract).cost for contract in (False, True)]
    assert found[0] == found[1] == optimum(graph, budget)


def test_budget_too_small_is_proven() -> None:
    with pytest.raises(InfeasibleBudget) as caught:
        frontier.solve(training_chain(8), 3, Options())
    assert caught.value.proven
