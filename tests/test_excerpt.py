"""Parts of schedules as problems of their own: whatever is decided there means the same for the whole."""

from __future__ import annotations

from collections import Counter

import pytest
from deep_graphs import residual_network
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, orders

from solvers.excerpt import Excerpt
from solvers.orders import cost_of, peak_of
from solvers.repair import repair
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.trim import trim


def means_the_same(graph, excerpt, order):
    """Whether an order of a part has cost and peak of the whole order that it stands for."""
    back = excerpt.back(order)
    part = simulate(excerpt.graph, Schedule.from_order(excerpt.graph, order))
    whole = simulate(graph, Schedule.from_order(graph, back))
    assert part.peak == whole.peak
    assert part.cost == pytest.approx(whole.cost)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_peak_and_cost_are_those_of_the_whole_whatever_is_done_with_free_steps(data):
    graph = data.draw(graphs(min_nodes=3, max_nodes=12))
    order = data.draw(orders(graph))
    wanted = data.draw(st.sets(st.sampled_from(graph.steps)))
    excerpt = Excerpt.of(graph, order, wanted)
    assert excerpt.back(excerpt.order) == list(order)
    means_the_same(graph, excerpt, excerpt.order)
    means_the_same(graph, excerpt, trim(excerpt.graph, excerpt.order, 10**9))
    free = [v for v, run in excerpt.runs.items() if excerpt.graph.may_recompute(v)]
    assert {excerpt.runs[v][0] for v in free} <= wanted
    for share in (0.6, 0.8):
        found = repair(excerpt.graph, excerpt.order, int(share * peak_of(graph, order)))
        if found is not None:
            means_the_same(graph, excerpt, found)


def test_a_part_is_as_small_as_what_it_is_about():
    graph = residual_network(60)
    wanted = {v for v, node in enumerate(graph.nodes) if node.name in {"a30", "b30", "c30", "sum30", "a31", "b31"}}
    excerpt = Excerpt.of(graph, graph.steps, wanted)
    assert {excerpt.runs[v][0] for v in excerpt.order if excerpt.graph.may_recompute(v)} == wanted
    assert len(excerpt.order) < 40
    assert len(excerpt.graph) < 80
    assert Counter(excerpt.back(excerpt.order)) == Counter(graph.steps)
    assert cost_of(excerpt.graph, excerpt.order) == pytest.approx(graph.keep_all_cost)
