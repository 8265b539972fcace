"""The bound for any order never exceeds the optimum, and priced cuts are the cheapest choices."""

from __future__ import annotations

import itertools
import random

import pytest
from deep_graphs import residual_network
from strategies import random_training_graph

from solvers.brute_force import brute_force, minimum_budget
from solvers.graph import Graph, training_chain
from solvers.orders import peak_of
from solvers.priced_cut import priced_cut
from solvers.revolve import solve as revolve
from solvers.solution import Options
from solvers.turn_bound import turn_bound


def cheapest(costs, sizes, reads, needed, price):
    """Every subset of steps that run again: what they and the needed ones read must run again or be kept."""
    best = float("inf")
    for again in itertools.chain.from_iterable(itertools.combinations(range(len(costs)), k) for k in range(len(costs) + 1)):
        wanted = {*needed, *(u for v in again for u in reads[v])}
        kept = wanted.difference(again)
        best = min(best, sum(costs[v] for v in again) + price * sum(sizes[v] for v in kept))
    return best


@pytest.mark.parametrize("seed", range(25))
def test_a_priced_cut_is_the_cheapest_choice(seed):
    rng = random.Random(seed)
    n = rng.randint(1, 8)
    costs, sizes = [rng.randint(0, 9) for _ in range(n)], [rng.randint(0, 9) for _ in range(n)]
    reads = [rng.sample(range(v), rng.randint(0, min(v, 3))) for v in range(n)]
    needed = rng.sample(range(n), rng.randint(0, n))
    for price in (0.0, 0.3, 1.0, 4.0, 100.0):
        cut = priced_cut(costs, sizes, reads, needed, price)
        best = cheapest(costs, sizes, reads, needed, price)
        assert cut.floor <= best * (1 + 1e-12)
        assert cut.floor == pytest.approx(best, rel=1e-9, abs=1e-9)
        assert sum(costs[v] for v in cut.again) + price * sum(sizes[v] for v in cut.kept) == pytest.approx(best, abs=1e-9)
        assert {*needed, *(u for v in cut.again for u in reads[v])} <= cut.kept | cut.again


def test_never_above_the_optimum():
    raised = 0
    for seed in range(300):
        graph = random_training_graph(random.Random(seed))
        least = minimum_budget(graph, order="any").budget
        for budget in {least, (least + peak_of(graph, graph.steps)) // 2}:
            bound = turn_bound(graph, budget)
            assert graph.keep_all_cost <= bound <= brute_force(graph, budget, order="any").cost * (1 + 1e-9), (seed, budget)
            raised += bound > graph.keep_all_cost
    assert raised > 50  # it says something


@pytest.mark.parametrize("budget", [6, 8, 12])
def test_a_chain_must_run_again_what_cannot_be_kept(budget):
    graph = training_chain(16)
    bound = turn_bound(graph, budget) - graph.keep_all_cost
    # The last backward steps need all 16 values, of which the turn leaves room for `budget`.
    assert 16 - budget <= bound * (1 + 1e-6)
    assert bound <= revolve(graph, budget, Options()).cost - graph.keep_all_cost


@pytest.mark.parametrize("graph", [Graph(training_chain(4).nodes[:4], (3,)), training_chain(4)], ids=["forward", "fits"])
def test_trivial_where_there_is_nothing_to_prove(graph):
    assert turn_bound(graph, 100) == graph.keep_all_cost
    assert turn_bound(graph, None) == graph.keep_all_cost


def test_it_grows_with_the_network_and_falls_with_the_budget():
    for blocks in (8, 16):
        graph = residual_network(blocks)
        peak = peak_of(graph, graph.steps)
        bounds = [turn_bound(graph, int(share * peak)) for share in (0.3, 0.5, 0.7, 0.9)]
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[0] > graph.keep_all_cost
