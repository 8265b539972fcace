"""Buffers by liveness: what shares one never lives at the same time, and all is exact."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import graphs

from solvers.chen import sqrt_order
from solvers.errors import InvalidSchedule
from solvers.graph import Graph, Node, chain, training_chain
from solvers.liveness import Assignment, Lifetime, assign, overlapping, unshared
from solvers.schedule import Schedule
from solvers.simulate import keep_all_peak, simulate


def always(step: int, operand: int) -> bool:
    return True


RULES = {"never": None, "always": always, "even steps": lambda step, operand: step % 2 == 0}


@pytest.mark.parametrize("share", [True, False], ids=["shared", "apart"])
@pytest.mark.parametrize("rule", RULES)
@given(data=st.data())
def test_no_two_overlapping_lifetimes_share_a_buffer(rule, share, data):
    graph = data.draw(graphs(max_nodes=14))
    found = assign(graph, share=share, in_place=RULES[rule])
    assert overlapping(found) == []
    assert _all_pairs_that_overlap(found) == []
    for one in found.lifetimes:
        assert found.buffers[one.buffer] >= one.size
    # Each buffer is exactly as large as what is largest in it.
    assert list(found.buffers) == [
        max(one.size for one in found.lifetimes if one.buffer == k) for k in range(len(found.buffers))
    ]
    values = sorted(one.node for one in found.lifetimes if not one.workspace)
    assert values == [v for v, node in enumerate(graph.nodes) if node.charge]
    assert _most_live(found) == found.live_peak <= found.total <= unshared(graph)
    if RULES[rule] is None:
        assert found.live_peak == keep_all_peak(graph)
        assert share or found.total == unshared(graph)
    else:
        assert found.live_peak <= keep_all_peak(graph)


@given(graphs(max_nodes=14))
@example(training_chain(16))
def test_every_lifetime_ends_at_the_last_read(graph):
    place = {v: p for p, v in enumerate(graph.steps)}
    for one in assign(graph, in_place=always).lifetimes:
        if one.workspace:
            assert one.start == one.stop == place[one.node]
            continue
        assert one.start == place[graph.step_of(one.node)]
        end = len(graph.steps) if one.node in graph.outputs else max([one.start, *map(place.get, graph.readers[one.node])])
        assert one.stop == end


@given(graphs(max_nodes=14, unit=True, workspace=False))
def test_sharing_is_optimal_where_all_values_are_equally_large(graph):
    found = assign(graph)
    assert found.total == found.live_peak == keep_all_peak(graph)


@given(st.integers(2, 24))
def test_plans_that_recompute_are_assigned_too(layers):
    graph = training_chain(layers)
    order = sqrt_order(graph)
    found = assign(graph, order)
    assert overlapping(found) == []
    assert found.total == found.live_peak == simulate(graph, Schedule.from_order(graph, order)).peak
    assert len(found.lifetimes) == sum(graph.nodes[v].charge > 0 for v in order)


def test_by_hand():
    # sizes 4, 4, 4, 4: each value dies at the next step, so a chain lives in two buffers, and in one if written in place.
    graph = chain([1] * 4, [4] * 4)
    assert unshared(graph) == 16
    assert assign(graph).buffers == (4, 4)
    assert assign(graph, in_place=always).buffers == (4,)
    assert assign(graph, share=False, in_place=always).buffers == (4,)
    assert assign(graph, share=False).buffers == (4, 4, 4, 4)


def test_in_place_takes_the_smallest_operand_that_is_large_enough_and_dies():
    nodes = (Node("a", 1, 8), Node("b", 1, 5), Node("c", 1, 3), Node("d", 1, 4, (0, 1, 2)), Node("e", 1, 1, (0, 3)))
    found = assign(Graph(nodes, (4,)), in_place=always)
    by_node = {one.node: one for one in found.lifetimes}
    assert by_node[3].buffer == by_node[1].buffer  # a is read again, c is too small
    assert by_node[3].inherits
    assert by_node[4].buffer == by_node[3].buffer  # d, not the larger a
    assert found.total == 16
    assert found.live_peak == 16


def test_a_smaller_buffer_grows_rather_than_a_new_one_being_made():
    found = assign(chain([1] * 3, [2, 3, 7]))
    assert found.buffers == (7, 3)
    assert found.live_peak == 10


def test_a_rule_is_asked_once_for_each_operand_that_dies():
    """So the work is linear in the reads, of which a chain has about four a layer."""
    for layers in (10, 1000):
        asked: list[tuple[int, int]] = []

        def note(step: int, operand: int, into: list[tuple[int, int]] = asked) -> bool:
            into.append((step, operand))
            return True

        assign(training_chain(layers), in_place=note)
        assert len(asked) == len(set(asked)) == 2 * layers - 3


def test_an_order_that_is_not_valid_is_refused():
    with pytest.raises(InvalidSchedule, match="before that is computed"):
        assign(chain([1, 1], [1, 1]), [1, 0])


def test_overlaps_are_found():
    """The checker that the other tests rely on can fail."""
    a, b = Lifetime(0, 4, 0, 2, 0), Lifetime(1, 4, 2, 3, 0)
    assert overlapping(Assignment((4,), (a, b), 8)) == [(a, b)]
    heir = Lifetime(1, 4, 2, 3, 0, inherits=True)
    assert overlapping(Assignment((4,), (a, heir), 4)) == []
    long, short, later = Lifetime(0, 1, 0, 9, 0), Lifetime(1, 1, 1, 2, 0), Lifetime(2, 1, 5, 6, 0)
    assert len(overlapping(Assignment((1,), (long, short, later), 3))) == 2


def _all_pairs_that_overlap(found: Assignment) -> list[tuple[Lifetime, Lifetime]]:
    """The definition itself, in quadratic time: two lifetimes share a position, unless one was written over the other there."""
    return [
        (a, b)
        for k, a in enumerate(found.lifetimes)
        for b in found.lifetimes[k + 1 :]
        if a.buffer == b.buffer
        and max(a.start, b.start) <= min(a.stop, b.stop)
        and not (a.stop == b.start and b.inherits and a.start < b.start)
    ]


def _most_live(found: Assignment) -> int:
    """Bytes of the fullest position, from the lifetimes alone; what is written over is not counted where it ends."""
    heirs = {(one.buffer, one.start) for one in found.lifetimes if one.inherits}
    end = max((one.stop for one in found.lifetimes), default=0)
    return max(
        sum(
            one.size
            for one in found.lifetimes
            if one.start <= p <= one.stop and not (one.stop == p and (one.buffer, p) in heirs and one.start < p)
        )
        for p in range(end + 1)
    )
