"""Long sums are added up one by one: what an unrolled loop adds to the gradient of its weights is never live all at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remat_lab.api import as_loss, planner_for
from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from solvers.simulate import keep_all_peak

WEIGHTS = jax.ShapeDtypeStruct((64, 64), jnp.float32)
ROWS = jax.ShapeDtypeStruct((4, 64), jnp.float32)
BYTES = 64 * 64 * 4


def unrolled(steps):
    """A recurrent network written out."""

    def loss(w, x):
        for _ in range(steps):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    return loss


def graph_of(fun, *args):
    return fuse(flatten(jax.make_jaxpr(fun)(*args))).graph


def most_read_at_once(graph, size):
    """The most values of that size that one step reads."""
    return max(sum(graph.nodes[u].size == size for u in node.deps) for node in graph.nodes)


def dots(w, *xs):
    """As many matrices."""
    return [jnp.sin(x) @ w for x in xs]


@pytest.mark.parametrize("steps", [3, 4, 12])
def test_addends_are_live_one_at_a_time(steps):
    graph = graph_of(jax.grad(unrolled(steps)), WEIGHTS, ROWS)
    assert most_read_at_once(graph, BYTES) <= 2
    assert keep_all_peak(graph) <= 3 * BYTES + 4 * steps * ROWS.size * 4  # few sums, and the rows kept for the way back


@pytest.mark.parametrize(
    ("name", "fun", "written"),
    [
        ("four", lambda w, *xs: sum(dots(w, *xs)), 3),
        ("four, transposed", lambda w, *xs: sum(d.T for d in dots(w, *xs)), 3),
        ("a tree", lambda w, a, b, c, d: (a @ w + b @ w) + (c @ w + d @ w), 3),
        ("three", lambda w, a, b, c, _: sum(dots(w, a, b, c)), 1),
        ("read elsewhere too", lambda w, *xs: (sum(found := dots(w, *xs)), jnp.cos(found[0])), 1),
        ("of no heavy results", lambda w, *xs: sum(map(jnp.sin, xs)) + w, 1),
    ],
)
def test_which_sums_are_long(name, fun, written):
    fused = fuse(flatten(jax.make_jaxpr(fun)(*[WEIGHTS] * 5)))
    assert sum(fused.root(v).name == "add" for v in fused.graph.steps) == written


def test_the_compiled_program_adds_likewise():
    """Keeping everything compiles within what is planned, and gives plain JAX's gradients."""
    loss = as_loss(unrolled(24), 0, False, (), ())
    keys = jax.random.split(jax.random.key(0))
    args = (jax.random.normal(keys[0], (64, 64)) / 8, jax.random.normal(keys[1], (4, 64)))
    plan = planner_for(loss, loss.call(args, {})).plan(None, solver="keep_all", check="planned")
    assert plan.predicted.peak_bytes < 8 * BYTES
    assert plan.compiled.temp_bytes <= plan.predicted.peak_bytes
    found, expected = plan.value_and_grad()(*args), jax.value_and_grad(unrolled(24))(*args)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
