"""Addresses of temporaries: never two in one place at once, holes where they must be, and what is written over what."""

from __future__ import annotations

from itertools import combinations

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import orders, training_graphs

from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from remat_lab.overwrites import overwrites
from solvers.graph import Graph, Node
from solvers.lending import lend
from solvers.placement import place
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.spans import Span, spans

UNIT = 64
ONE = Graph((Node("only", 1, 1),), (0,))


def addresses(given_spans: list[Span]) -> tuple[int, dict[int, int]]:
    """Size and addresses by node, in units."""
    found = place(ONE, given_spans)
    return found.total // UNIT, {span.node: at // UNIT for span, at in found.places}


def test_a_hole_too_small_for_what_comes() -> None:
    """At most nine units are live at once. The three lie behind both larger ones and leave a unit that the two cannot use."""
    sizes_and_times = ((5, 0, 1), (4, 2, 3), (3, 1, 2), (2, 2, 2))
    total, at = addresses([Span(v, start, end, size * UNIT) for v, (size, start, end) in enumerate(sizes_and_times)])
    assert at == {0: 0, 1: 0, 2: 5, 3: 8}
    assert total == 10


def test_of_one_size_the_lasting_ones_first_and_in_the_smallest_gap() -> None:
    lasting, brief = Span(1, 0, 9, 2 * UNIT), Span(0, 4, 4, 2 * UNIT)
    small = Span(2, 4, 5, UNIT)
    assert addresses([brief, lasting, small])[1] == {1: 0, 0: 2, 2: 4}
    # Beside 8, 3, 8 and 2 units of the same moments: what comes and goes leaves gaps of 3 and 2, of which 2 is enough.
    walls = [Span(0, 0, 9, 8 * UNIT), Span(1, 0, 0, 3 * UNIT), Span(2, 0, 2, 2 * UNIT)]
    late = [Span(3, 1, 2, 3 * UNIT), Span(4, 3, 9, 2 * UNIT)]
    assert addresses([*walls, *late])[1] == {0: 0, 3: 8, 1: 8, 2: 11, 4: 8}


def test_a_workspace_lies_in_pieces_as_large_as_what_its_step_reads_and_writes() -> None:
    graph = Graph((Node("x", 1, 2 * UNIT), Node("y", 1, UNIT, (0,), workspace=5 * UNIT)), (1,))
    schedule = Schedule.from_order(graph, graph.steps)
    found = place(graph, lend(graph, schedule).left)
    assert sorted(span.size // UNIT for span, _ in found.places if span.workspace) == [1, 2, 2]
    assert found.total == simulate(graph, schedule).peak == 8 * UNIT
    for arrays in ((4 * UNIT, UNIT), (UNIT, UNIT, 3 * UNIT)):
        known = place(graph, lend(graph, schedule).left, scratch={1: arrays})
        assert sorted(span.size for span, _ in known.places if span.workspace) == sorted(arrays)
    unknown = place(graph, lend(graph, schedule).left, scratch={1: (4 * UNIT,)})  # of another measurement
    assert unknown == found


def test_a_chain_of_values_written_over_each_other_takes_one_place() -> None:
    graph = Graph(tuple(Node(f"v{k}", 1, UNIT, (k - 1,) if k else ()) for k in range(5)), (4,))
    left = lend(graph, Schedule.from_order(graph, graph.steps)).left
    assert place(graph, left).total == 2 * UNIT
    assert place(graph, left, {k: (k - 1,) for k in range(1, 5)}).total == UNIT
    assert place(graph, left, {1: (0,), 3: (0, 1)}).total == 2 * UNIT  # neither 0 nor 1 ends where 3 is written


@given(st.data())
def test_nothing_lies_where_something_else_is_live(data: st.DataObject) -> None:
    graph = data.draw(training_graphs())
    schedule = Schedule.from_order(graph, data.draw(orders(graph)))
    able = data.draw(st.sets(st.sampled_from(range(len(graph)))))
    over = {v: graph.nodes[v].deps for v in able}
    temporaries = [span for span in spans(graph, schedule) if not span.external]
    found = place(graph, temporaries, over)
    assert sum(span.size for span, _ in found.places) == sum(span.size for span in temporaries)
    assert found.total == max((at + span.size for span, at in found.places), default=0)
    for (one, low), (other, high) in combinations(found.places, 2):
        if one.start > other.end or other.start > one.end or low + one.size <= high or high + other.size <= low:
            continue
        before, after = sorted((one, other), key=lambda span: span.end)
        assert (before.end, before.size, low) == (after.start, after.size, high)
        assert before.node in over[after.node]
    if not over:
        assert found.total >= simulate(graph, schedule).peak


def written_over(fun, *shapes):
    """The primitives of steps that may be written over something, each with those of what that is."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    fused = fuse(flatten(jax.make_jaxpr(fun)(*arguments)))
    return {fused.root(v).name: {fused.root(u).name for u in able} for v, able in overwrites(fused).items()}


@pytest.mark.parametrize(
    ("fun", "wanted"),
    [
        (lambda h, w: jnp.exp(h) @ w + jnp.sin(h), {"exp": {"dot_general"}}),
        (lambda h, w: jnp.exp(h - h.sum(0, keepdims=True)) @ w, {"exp": {"dot_general"}}),
        (lambda h, w: jnp.exp(h + jnp.flip(h, 0)) @ w, {}),  # what is read elsewhere too must stay
        (lambda h, w: jnp.exp(h.T) @ w, {}),
        (lambda h, w: jnp.exp(h[:1] + w) @ w, {}),  # of another shape
        (lambda h, w: (h @ w) @ w, {}),
    ],
)
def test_results_of_elementwise_steps_take_the_place_of_what_they_read(fun, wanted) -> None:
    assert written_over(lambda x, w: fun(x @ w, w), (256, 256), (256, 256)) == wanted
