"""Graphs of tiny functions by hand, and laws that hold for the graph of any program."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback

from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from remat_lab.primitives import forbids_replay
from solvers import Schedule, simulate

S = jax.ShapeDtypeStruct
SQUARE = S((64, 64), jnp.float32)
BYTES = 64 * 64 * 4


def graph_of(fun, *args, primal_outputs=0):
    return fuse(flatten(jax.make_jaxpr(fun)(*args)), primal_outputs=primal_outputs)


def written(fused):
    """The primitive of each step that writes."""
    return [fused.root(v).name for v in fused.graph.steps]


def test_elementwise_work_is_part_of_what_reads_it():
    fused = graph_of(lambda x: jnp.sum(jnp.sin(x) * 2.0 + 1.0), SQUARE)
    assert written(fused) == ["reduce_sum"]
    (node,) = fused.graph.nodes
    assert (node.size, node.deps, node.external) == (4, (), True)
    assert "reduce_sum float32[]" in node.name
    assert "test_fuse.py" in node.name


def test_dots_are_written_and_so_is_what_they_read():
    fused = graph_of(lambda x, w: jnp.sum(jnp.sin(jnp.sin(x @ w) @ w)), SQUARE, SQUARE)
    # The first dot is written in the buffer of its sine, the second because a sum reads it.
    assert written(fused) == ["sin", "dot_general", "reduce_sum"]
    assert [n.deps for n in fused.graph.nodes] == [(), (0,), (1,)]
    assert [n.size for n in fused.graph.nodes] == [BYTES, BYTES, 4]
    assert [n.external for n in fused.graph.nodes] == [False, False, True]
    assert fused.groups[0].flops == 2 * 64**3 + 64**2


def test_a_dot_with_two_later_readers_is_a_node_of_its_own():
    fused = graph_of(lambda x, w: (jnp.sin(x @ w), jnp.cos(x @ w)), SQUARE, SQUARE)
    assert written(fused) == ["dot_general", "sin", "cos"]
    assert fused.graph.outputs == (1, 2)


def test_views_share_the_node_of_what_they_rename():
    def fun(x, w):
        y = x @ w
        return y.reshape(32, 128) @ jnp.ones((128, 2)), y.reshape(1, 64, 64) @ w, lax.stop_gradient(y)

    fused = graph_of(fun, SQUARE, SQUARE)
    dots = [v for v in fused.graph.steps if fused.root(v).name == "dot_general"]
    first = dots[0]
    assert fused.graph.nodes[first].external, "a view of it leaves the program"
    assert all(first in fused.graph.nodes[v].deps for v in dots[1:])
    assert sum(n.size == BYTES for n in fused.graph.nodes) == 2  # y, and the batched product


def test_a_result_with_several_parts_has_a_node_for_each():
    fused = graph_of(lambda x: lax.scan(lambda c, _: (jnp.sin(c), c[0]), x, None, length=3), SQUARE)
    lead, part = fused.graph.nodes
    assert (lead.size, part.size) == (BYTES, 3 * 64 * 4)
    assert (lead.part_of, part.part_of) == (None, 0)
    assert part.cost == 0
    assert part.deps == ()
    assert fused.graph.outputs == (0, 1)


def test_what_follows_the_loss_is_backward():
    step = jax.value_and_grad(lambda w, x: jnp.sum(jnp.sin(jnp.sin(x @ w) @ w)))
    fused = graph_of(step, SQUARE, SQUARE, primal_outputs=1)
    flags = [n.backward for n in fused.graph.nodes]
    assert flags == sorted(flags)
    assert fused.forward_nodes == flags.index(True)
    assert fused.root(fused.forward_nodes - 1).name == "reduce_sum"
    assert not any(n.backward for n in graph_of(step, SQUARE, SQUARE).graph.nodes)


def test_a_value_read_often_is_written_once():
    big = S((256, 256), jnp.float32)

    def fun(a, b):
        shared = jnp.sin(a @ a) + jnp.sin(b @ b) + jnp.sin(a @ b)
        return [jnp.sum(shared * k) for k in range(1, 9)]

    assert "add" in written(graph_of(fun, big, big))


UNSAFE = {
    "sort": lambda x: jnp.sort(x),
    "top_k": lambda x: lax.top_k(x, 2)[0],
    "argmax": lambda x: jnp.argmax(x),
    "argmin": lambda x: jnp.argmin(x),
    "pure_callback": lambda x: jax.pure_callback(lambda x: x, x, x),
    "io_callback": lambda x: io_callback(lambda x: x, x, x),
    "debug": lambda x: (jax.debug.print("{}", x[0]), x * 2)[1],
    "rbg": lambda x: jax.random.normal(jax.random.key(0, impl="rbg"), x.shape),
    "rng_uniform": lambda x: lax.rng_uniform(0.0, 1.0, x.shape),
    "sort in a loop": lambda x: lax.scan(lambda c, _: (jnp.sort(c), None), x, None, length=2)[0],
    "callback in a branch": lambda x: lax.cond(jnp.sum(x) > 0, lambda x: jax.pure_callback(lambda x: x, x, x), lambda x: x, x),
    "sort in a loop in a branch": lambda x: lax.cond(
        jnp.sum(x) > 0, lambda x: lax.fori_loop(0, 2, lambda i, c: jnp.sort(c), x), lambda x: x, x
    ),
}
SAFE = {
    "sine": jnp.sin,
    "dot": lambda x: jnp.outer(x, x) @ x,
    "threefry": lambda x: jax.random.normal(jax.random.key(0), x.shape),
    "loop": lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0],
    "gather": lambda x: x[jnp.array([1, 0])],
    "cumulative": jnp.cumsum,
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_must_run_once_is_never_recomputed(name):
    fused = graph_of(UNSAFE[name], S((8,), jnp.float32))
    reasons = [forbids_replay(q.eqn) for q in fused.program.equations]
    assert any(reasons)
    for k, reason in enumerate(reasons):
        inside = [lead for lead, group in fused.groups.items() if k in group.equations]
        if reason:
            assert len(inside) == 1
            assert not fused.graph.may_recompute(inside[0])


@pytest.mark.parametrize("name", SAFE)
def test_what_may_run_again_is_not_held_back(name):
    fused = graph_of(SAFE[name], S((8,), jnp.float32))
    assert all(n.recomputable for n in fused.graph.nodes)


def test_a_gradient_read_from_a_ref_runs_once():
    ref = jax.new_ref(jnp.zeros(8))

    def fun(x):
        ref[...] += x
        return jnp.sum(jnp.sin(ref[...]))

    fused = graph_of(fun, S((8,), jnp.float32))
    touching = [v for v in fused.graph.steps if fused.root(v).eqn.effects]
    assert len(touching) >= 2
    assert not any(fused.graph.may_recompute(v) for v in touching)
    for before, after in pairwise(touching):
        assert before in fused.graph.nodes[after].deps, "reads and writes keep their order"


def test_a_loop_is_charged_for_what_its_body_holds():
    def body(c, _):
        return jnp.sin(jnp.sin(c @ c) @ c) @ c, None

    fused = graph_of(lambda x: lax.scan(body, x, None, length=3)[0], SQUARE)
    (node,) = fused.graph.nodes
    assert node.workspace >= BYTES


OPERATIONS = [
    lambda a, b: jnp.sin(a),
    lambda a, b: a + b,
    lambda a, b: a @ b,
    lambda a, b: a.reshape(16, 4).T.reshape(8, 8),
    lambda a, b: jnp.sum(a, 0, keepdims=True) * b,
    lambda a, b: jnp.sort(a),
    lambda a, b: jnp.max(a) - b,
    lambda a, b: a.at[0].add(b[1]),
    lambda a, b: lax.scan(lambda c, r: (c + r[:, None] * b, None), a, b)[0],
    lambda a, b: jnp.concatenate([a[4:], b[:4]]),
    lambda a, b: lax.stop_gradient(a) * b,
]


@st.composite
def programs(draw):
    """A step of a random small loss: value, some values on the way, and gradients."""
    picks = draw(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7))
    probes = draw(st.sets(st.integers(0, 9), max_size=2))

    def loss(x):
        values = [x, x * 2.0]
        for operation, i, j in picks:
            values.append(operation(values[i % len(values)], values[j % len(values)]))
        return jnp.sum(values[-1] ** 2), [values[p % len(values)] for p in sorted(probes)]

    jaxpr = jax.make_jaxpr(jax.value_and_grad(loss, has_aux=True))(S((8, 8), jnp.float32))
    return flatten(jaxpr), 1 + len(probes)


@settings(max_examples=60)
@given(programs())
def test_every_equation_has_its_step_and_every_read_its_value(drawn):
    program, primal_outputs = drawn
    fused = fuse(program, primal_outputs=primal_outputs)
    given_values = {*program.inputs, *program.constants}
    known, covered = set(given_values), set()
    for node in fused.graph.steps:
        group = fused.groups[node]
        local = set()
        for k in group.equations:
            assert all(v in local or v in group.reads for v in program.equations[k].reads)
            local.update(program.equations[k].outs)
        assert set(group.reads) <= known, "nothing is read before it is written"
        assert {fused.node_of[v] for v in group.reads if v not in given_values} <= set(fused.graph.nodes[node].deps)
        assert set(program.equations[group.root].outs) <= set(group.values) <= local
        known.update(group.values)
        covered.update(group.equations)
    for k in set(range(len(program.equations))) - covered:
        assert program.equations[k].name in ("reshape", "squeeze", "expand_dims", "stop_gradient"), "only views have no step"
    graph = fused.graph
    assert simulate(graph, Schedule.from_order(graph, graph.steps)).peak >= 0
    for v in program.outputs:
        while isinstance(v, int) and v not in known:
            v = program.equations[program.producer[v]].ins[0]
        assert not isinstance(v, int) or v in given_values or fused.node_of[v] in graph.outputs
