"""The memory accounting: peaks worked out by hand, a second naive accounting, and every way a schedule can be invalid."""

from __future__ import annotations

import math

import pytest
from cases import CASES, Case
from hypothesis import given
from hypothesis import strategies as st
from strategies import graphs, orders, training_graphs

from solvers.errors import InvalidSchedule
from solvers.graph import Graph, Node, chain, training_chain
from solvers.lending import lend
from solvers.schedule import Compute, Free, Schedule
from solvers.simulate import simulate


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hand_computed_timelines(case: Case) -> None:
    result = simulate(case.graph, Schedule.from_order(case.graph, case.graph.steps))
    assert result.live == case.live
    assert result.peak == case.peak
    assert result.peak_at == case.live.index(case.peak)
    assert result.cost == case.graph.keep_all_cost


def test_hand_computed_recomputation() -> None:
    (skip,) = (case.graph for case in CASES if case.name == "skip")
    result = simulate(skip, Schedule.from_order(skip, [0, 1, 2, 3, 0, 4]))
    assert result.live == (10, 12, 4, 4, 12, 12)
    assert (result.peak, result.cost) == (12, 18)


def test_values_of_the_caller_count_for_the_whole_program_only() -> None:
    (graph,) = (case.graph for case in CASES if case.name == "workspace and external")
    result = simulate(graph, Schedule.from_order(graph, graph.steps))
    assert (result.peak, result.peak_total) == (8, 108)


def naive(graph: Graph, schedule: Schedule) -> tuple[int, int, float, list[int]]:
    """Peak, total peak, cost and timeline, where a value is live if the last step that touched it was not its `Free`."""
    timeline, totals, cost = [], [], []
    for p, step in enumerate(schedule.steps):
        if not isinstance(step, Compute):
            continue
        live = []
        for w in range(len(graph)):
            touches = [
                s
                for s in schedule.steps[: p + 1]
                if (isinstance(s, Free) and s.node == w) or (isinstance(s, Compute) and s.node == graph.step_of(w))
            ]
            if touches and isinstance(touches[-1], Compute):
                live.append(w)
        workspace = graph.nodes[step.node].workspace
        timeline.append(workspace + sum(graph.nodes[w].size for w in live if not graph.nodes[w].external))
        totals.append(workspace + sum(graph.nodes[w].size for w in live))
        cost.append(graph.nodes[step.node].cost)
    return max(timeline), max(totals), math.fsum(cost), timeline


def lifetimes(graph: Graph, order: list[int]) -> list[int]:
    """Bytes live during each computation, by asking of every value whether it is read before it is written again."""
    timeline = []
    for p, v in enumerate(order):
        held = graph.nodes[v].workspace
        for w in range(len(graph)):
            writes = [q for q, u in enumerate(order) if u == graph.step_of(w)]
            if not any(q <= p for q in writes):
                continue
            following = min((q for q in writes if q > p), default=len(order) + 1)
            reads = [q for q, u in enumerate(order) if w in graph.nodes[u].deps]
            # a read at the moment of the next writing still reads the instance before it; an output is read at the end
            needed = any(p <= q <= following for q in reads) or (w in graph.outputs and following > len(order))
            if p in writes or needed:
                held += graph.nodes[w].charge
        timeline.append(held)
    return timeline


@given(st.data())
def test_naive_accounting_agrees_on_every_schedule(data: st.DataObject) -> None:
    graph = data.draw(st.one_of(graphs(), training_graphs(max_layers=4)))
    order = data.draw(orders(graph))
    schedule = Schedule.from_order(graph, order)
    again = Schedule.from_json(schedule.to_json())
    assert again == schedule
    assert schedule.order == tuple(order)
    result = simulate(graph, schedule)
    assert (result.peak, result.peak_total, result.cost, list(result.live)) == naive(graph, schedule)
    assert list(result.live) == lifetimes(graph, order)


@given(st.data())
def test_naive_accounting_agrees_when_values_are_freed_late_or_never(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    steps = list(Schedule.from_order(graph, data.draw(orders(graph))).steps)
    frees = [p for p, step in enumerate(steps) if isinstance(step, Free)]
    for p in sorted(data.draw(st.sets(st.sampled_from(frees))) if frees else (), reverse=True):
        step = steps.pop(p)
        writer = Compute(graph.step_of(step.node))
        end = next((q for q in range(p, len(steps)) if steps[q] == writer), len(steps))
        if end < len(steps) or data.draw(st.booleans()):
            steps.insert(data.draw(st.integers(p, end)), step)
    schedule = Schedule(tuple(steps))
    result = simulate(graph, schedule)
    assert (result.peak, result.peak_total, result.cost, list(result.live)) == naive(graph, schedule)


@given(st.data())
def test_freeing_early_never_hurts(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = Schedule.from_order(graph, data.draw(orders(graph)))
    written = {w for v in graph.steps for w in graph.written(v)}
    final = {step.node for step in schedule.steps if isinstance(step, Free)}
    assert written - final <= set(graph.outputs)


GRAPH = Graph(
    (Node("a", 1, 1), Node("p", 0, 1, part_of=0), Node("b", 1, 1, (0,)), Node("c", 1, 1, (1, 2), recomputable=False)), (3,)
)
ALL = [Compute(0), Compute(2), Compute(3)]


@pytest.mark.parametrize(
    ("steps", "step", "node", "message"),
    [
        ([Compute(0), Compute(9)], 1, 9, "step 1 names node 9"),
        ([Compute(0), Free(-1)], 1, -1, "step 1 names node -1"),
        ([Compute(2)], 0, 0, r"step 0 computes node 2 \('b'\), which reads node 0 \('a'\): not live"),
        ([Compute(0), Free(0), Compute(2)], 2, 0, "reads node 0"),
        ([Compute(1)], 0, 1, "written by the step of node 0"),
        ([Compute(0), Compute(0)], 1, 0, r"step 1 computes node 0 \('a'\) while node 0 is still live"),
        ([Compute(0), Free(0), Compute(0)], 2, 1, "while node 1 is still live"),
        ([Compute(0), Free(0), Free(0)], 2, 0, r"step 2 frees node 0 \('a'\), which is not live"),
        ([*ALL, Free(3), Compute(3)], 4, 3, r"step 4 computes node 3 \('c'\) again, which is not allowed"),
        ([*ALL, Free(3)], 4, 3, r"output 3 \('c'\) is not live at the end"),
        ([], 0, 3, "not live at the end"),
    ],
)
def test_invalid_schedules_name_step_and_node(steps: list[Compute | Free], step: int, node: int, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message) as caught:
        simulate(GRAPH, Schedule(tuple(steps)))
    assert (caught.value.step, caught.value.node) == (step, node)


@pytest.mark.parametrize(
    ("order", "step", "node", "message"),
    [
        ([2], 0, 0, r"position 0 computes node 2 \('b'\), which reads node 0 \('a'\) before that is computed"),
        ([0, 1], 1, 1, "position 1 computes node 1, which has no step of its own"),
        ([0, 5], 1, 5, "position 1 computes node 5"),
        ([0, 2], 2, 3, r"output 3 \('c'\) is never computed"),
    ],
)
def test_invalid_orders_name_position_and_node(order: list[int], step: int, node: int, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message) as caught:
        Schedule.from_order(GRAPH, order)
    assert (caught.value.step, caught.value.node) == (step, node)


@pytest.mark.parametrize("row", [["drop", 1], ["free"], ["free", "1"], 3])
def test_unknown_steps_are_refused(row: object) -> None:
    with pytest.raises(InvalidSchedule, match="step 1 is "):
        Schedule.from_json([["compute", 0], row])


def test_backward_nodes_run_once() -> None:
    graph = training_chain(2)
    with pytest.raises(InvalidSchedule, match=r"'b1'\) again"):
        simulate(graph, Schedule.from_order(graph, [0, 1, 2, 2, 3]))


def test_text_form() -> None:
    graph = chain([1, 1, 1], [1, 1, 1])
    schedule = Schedule.from_order(graph, [0, 1, 0, 1, 2])
    assert schedule.describe(["a", "b", "c"]).splitlines() == [
        "compute   a",
        "compute   b; free a, b",
        "recompute a",
        "recompute b; free a",
        "compute   c; free b",
    ]
    assert schedule.recomputed == {0: 1, 1: 1}


def test_temporaries_lie_in_buffers_of_results_that_are_not_yet_written() -> None:
    """Two of them one after the other in the small buffer, none while its result is there or read where it is written."""
    nodes = (
        Node("a", 1, 4),
        Node("b", 1, 4, (0,)),
        Node("c", 1, 4, (1,)),
        Node("d", 1, 3, (2,), workspace=2),
        Node("small", 1, 4, (3,), external=True),
        Node("e", 1, 5, (3,)),
        Node("large", 1, 6, (5,), external=True),
    )
    graph = Graph(nodes, (4, 6))
    found = lend(graph, Schedule.from_order(graph, graph.steps))
    # By size: e is read where the large result is written; a and c fill the small buffer, b and d the large one, and no room
    # is left for d's workspace.
    assert found.lent == (4, 8, 8, 7, 3, 3, 0)
    assert found.live == (0, 0, 0, 2, 0, 5, 5)
    assert found.peak == 5


@given(st.data())
def test_lending_moves_bytes_and_keeps_their_sum(data: st.DataObject) -> None:
    graph = data.draw(training_graphs())
    schedule = Schedule.from_order(graph, data.draw(orders(graph)))
    result, found = simulate(graph, schedule), lend(graph, schedule)
    assert tuple(map(int.__add__, found.live, found.lent)) == result.live
    assert found.peak == max(found.live) <= result.peak
    room = sum(node.size for node in graph.nodes if node.external)
    assert max(found.lent) <= room
