"""The quick judge of segments against the simulator, on any training graph, cuts, trees and kept values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import training_graphs

from solvers.errors import UnsupportedGraph
from solvers.graph import Graph, training_chain
from solvers.replay import replay
from solvers.schedule import Schedule
from solvers.segment_cost import SegmentCost
from solvers.segments import Forward, Segment, flat, nested
from solvers.simulate import simulate


def agree(base: Forward, judge: SegmentCost, keep: frozenset[int], tree: Segment) -> None:
    forward = Forward(base.graph, base.steps, base.late, base.kept | keep)
    result = simulate(base.graph, Schedule.from_order(base.graph, replay(forward, tree)))
    judged = judge.judge(keep, tree)
    assert (judged.peak, judged.cost) == (result.peak, pytest.approx(result.cost))
    assert judged.excess(result.peak) == 0
    assert judged.excess(result.peak - 1) >= 1
    assert set(result.live) <= set(judged.live.tolist())


@given(graph=training_graphs(), data=st.data())
def test_plans_are_judged_as_the_simulator_judges_them(graph: Graph, data: st.DataObject) -> None:
    try:
        base = Forward.of(graph)
    except UnsupportedGraph:
        return
    keep = frozenset(data.draw(st.sets(st.sampled_from(base.steps)), label="keep"))
    forward = Forward(graph, base.steps, base.late, base.kept | keep)
    cuts = data.draw(st.sets(st.integers(0, len(base))), label="cuts")
    inner = sorted(data.draw(st.sets(st.integers(0, len(base))), label="inner cuts"))
    judge = SegmentCost(base)
    agree(base, judge, keep, flat(forward, sorted(cuts)))
    edges = [sorted(c for c in cuts if 0 < c < len(base)), inner, range(1, len(base))]
    tree = nested(base, lambda a, b, depth: [c for c in edges[depth] if a < c < b] if depth < 3 else [])
    agree(base, judge, keep, tree)


def test_halves_of_halves_of_a_chain_are_judged_as_the_simulator_judges_them() -> None:
    base = Forward.of(training_chain(64))
    tree = nested(base, lambda a, b, depth: [(a + b) // 2] if b - a > 1 else [])
    agree(base, SegmentCost(base), frozenset(), tree)
