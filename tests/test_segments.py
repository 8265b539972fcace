"""Regions: where they are cut, what they read and return, and that the same plan is the same function."""

from __future__ import annotations

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_lab as rl
from remat_lab._jax import is_new_checkpoint
from remat_lab.cuts import settled_cuts
from remat_lab.flatten import flatten
from remat_lab.primitives import PLAIN_CALLS
from remat_lab.segments import Emitter, Layout, Region

W = [jnp.eye(8) * 0.9 + 0.01 * i for i in range(6)]
X = jnp.linspace(-1.0, 1.0, 32).reshape(4, 8)


def loss(ws, x):
    for w in ws:
        x = jax.nn.relu(jnp.sin(x @ w))
    return jnp.sum(x**2)


def program(fun=loss):
    def run(*values):
        return [fun(list(values[:-1]), values[-1])]

    return flatten(jax.make_jaxpr(run)(*W, X), calls=PLAIN_CALLS, merge=False, barriers=True)


def parted(cuts, stop, start=0):
    edges = [start, *cuts, stop]
    return Region(start, stop, tuple(Region(a, b) for a, b in pairwise(edges)))


FORWARD = program()
COUNT = len(FORWARD.equations)
LAYOUTS = {
    "whole": Region(0, COUNT),
    "two": parted([COUNT // 2], COUNT),
    "each equation": parted(range(1, COUNT), COUNT),
    "nested": Region(0, COUNT, (parted([3, 6], 9), parted([12], COUNT, 9))),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_every_layout_is_the_same_function(name, named, ordered):
    names = {o: f"v{o}" for q in FORWARD.equations for o in q.outs} if named else {}
    emitter = Emitter(FORWARD, Layout(LAYOUTS[name], names, ordered))

    def run(ws, x):
        return emitter.run(FORWARD.constants, [*ws, x])[0]

    expected, found = (jax.jit(jax.value_and_grad(f))(W, X) for f in (loss, run))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)
    regions = str(jax.make_jaxpr(run)(W, X)).count("prevent_cse")
    # What is between two products is a region inside of each leaf, unless nothing is computed again; not under JAX_REMAT3.
    layers = 0 if is_new_checkpoint() else len(W)
    assert regions == {"whole": 0, "two": 1 + layers, "each equation": COUNT - 1, "nested": 4 + layers}[name]


def test_regions_are_the_same_objects_on_every_call():
    emitter = Emitter(FORWARD, Layout(LAYOUTS["two"]))
    one, other = (emitter._region(LAYOUTS["two"].children[0]) for _ in range(2))
    assert one[0] is other[0]


def test_policies_are_equal_by_content():
    one, other = (Layout(LAYOUTS["two"], {3: "a", 5: "b"}).policy for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert Layout(LAYOUTS["two"]).policy is None


def test_cuts_move_past_what_fuses_but_never_past_a_product():
    settled = settled_cuts(FORWARD)
    assert len(settled) == COUNT + 1
    products = [k for k, q in enumerate(FORWARD.equations) if q.name == "dot_general"]
    for cut, moved in enumerate(settled):
        assert moved >= cut
        assert not any(cut <= k < moved for k in products)
    relu = next(k for k, q in enumerate(FORWARD.equations) if q.name == "custom_jvp_call")
    assert settled[relu] > relu, "a region would end between an activation function and what it reads"


def test_source_lines_survive():
    plan = rl.plan(loss, W, X, budget=0.7, solver="greedy")
    jaxpr = jax.make_jaxpr(jax.value_and_grad(plan.apply()))(W, X)
    products = [q for q in flatten(jaxpr, merge=False).equations if q.name == "dot_general"]
    assert products
    assert all("test_segments.py" in q.source_line for q in products)
