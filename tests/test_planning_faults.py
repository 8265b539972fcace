"""Faults of planners as a whole: what they count, how large a program they make, and what changes at the ends of the budget."""

from __future__ import annotations

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_faults import compiled, same

import remat_lab as rl
from remat_lab.flatten import Equation
from remat_lab.measure import SCHEDULERS, compile_program

W = [jnp.eye(32) * 0.5 + 0.01 for _ in range(24)]
X = jnp.linspace(-1.0, 1.0, 64 * 32).reshape(64, 32)
KEY = jax.random.key(5)


def sines(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2)


def test_what_fusion_never_writes_is_not_counted():
    def loss(ws, x):
        for w in ws:
            x = jax.nn.gelu(x @ w)
        return jnp.sum(x)

    plan = rl.plan(loss, W[:8], X, check="planned")
    assert plan.planned_bytes == pytest.approx(plan.compiled_bytes, rel=0.1)
    assert plan.planned_bytes <= 1.1 * compiled(loss, W[:8], X).temp_bytes


def test_values_of_every_type_have_their_size_and_their_gradients():
    def loss(ws, x, key):
        mask = jax.random.bernoulli(jax.random.split(key)[1], 0.5, x.shape)
        whole, short = (x * 4).astype(jnp.int8), jnp.sin(x).astype(jnp.float8_e4m3fn)
        jax.debug.print("first {}", x[0, 0])
        return sines(ws, jnp.where(mask, x, 0.0) * whole.astype(x.dtype) + short.astype(x.dtype))

    plan = rl.plan(loss, W[:6], X, KEY, budget=0.8, solver="greedy", check="planned")
    same(loss, plan.apply(), W[:6], X, KEY)
    sizes = {str(row.dtype): row.bytes / max(np.prod(row.shape), 1) for row in plan.explain()}
    assert {size for dtype, size in sizes.items() if dtype in ("bool", "int8", "float8_e4m3fn")} <= {1.0}


def test_masks_are_drawn_again_from_their_key_where_memory_is_short():
    def loss(v, key):
        for i in range(3):
            mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.9, (64, v.size))
            v = jnp.sin(jnp.mean(jnp.where(mask, v[None], 0.0), axis=0))  # its gradient needs the mask, and little else
        return jnp.sum(v)

    plan = rl.plan(loss, X[0], KEY, budget=0.9, solver="greedy", check="planned")
    assert any(row.dtype == "bool" and row.decision == "recomputed" for row in plan.explain())
    assert plan.verify(X[0], KEY).relative < 1e-5


def test_a_chain_of_more_operations_than_python_recurses():
    def loss(x):
        for _ in range(sys.getrecursionlimit() + 200):
            x = jnp.sin(x)
        return jnp.sum(x)

    plan = rl.plan(loss, jnp.ones(64), budget=1.0, solver="sqrt", check="planned")
    sines = [eqn for eqn in jax.make_jaxpr(plan.value_and_grad())(jnp.ones(64)).eqns if eqn.primitive.name in ("sin", "cos")]
    assert len(sines) >= 2 * sys.getrecursionlimit()


def test_the_ends_of_the_budget_follow_the_same_rules():
    def loss(ws, x, key):
        for i, w in enumerate(ws):
            mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, x.shape)
            x = jnp.where(mask, jnp.sin(jnp.sin(x @ w)), 0.0)
        return jnp.sum(x)

    key = jax.random.key(5, impl="rbg")  # bits that must not be drawn twice, at any budget
    with pytest.raises(rl.InfeasibleBudget) as caught:
        rl.plan(loss, W[:3], X, key, budget=1, solver="greedy", check="planned")
    for budget in (caught.value.minimum, 10**9):
        plan = rl.plan(loss, W[:3], X, key, budget=budget, solver="greedy", check="planned")
        drawn = [v for v in plan.graph.steps if plan.fused.root(v).name == "random_bits"]
        assert all(v not in plan.schedule.recomputed for v in drawn)
        assert plan.verify(W[:3], X, key).relative < 1e-5
    assert not plan.schedule.recomputed
    options = SCHEDULERS["memory"]
    flops = [compile_program(f, W[:3], X, key, compiler_options=options).flops for f in (loss, plan.apply())]
    assert flops[0] == flops[1]


def test_an_error_names_a_line_of_the_users_or_no_place(monkeypatch):
    def refused():
        with pytest.raises(rl.InfeasibleBudget) as caught:
            rl.plan(sines, W[:3], X, budget=1, solver="greedy", check="planned")
        return caught.value

    step, where, _ = refused().name.partition(" at ")
    assert where
    known, primitive = Equation.known_line.fget, step.partition(" ")[0].partition(".")[0]
    monkeypatch.setattr(Equation, "known_line", property(lambda q: None if q.name == primitive else known(q)))
    assert "test_planning_faults.py:" in refused().name, "a line near it is better than none"
    monkeypatch.setattr(Equation, "known_line", None)
    assert " at " not in refused().name
    assert "unknown source line" not in str(refused())


@pytest.mark.parametrize("solver", ["sqrt", "recursive"])
def test_the_program_grows_with_what_is_recomputed_and_no_faster(solver):
    keep_all = rl.plan(sines, W, X, check="planned")
    plan = rl.plan(sines, W, X, budget=0.4, solver=solver, check="planned")
    assert plan.schedule.recomputed

    def equations(fun):
        return sum(eqn.primitive.name != "optimization_barrier" for eqn in jax.make_jaxpr(fun)(W, X).eqns)

    steps = len(plan.schedule.order) / len(keep_all.schedule.order)
    assert equations(plan.value_and_grad()) <= 1.1 * steps * equations(keep_all.value_and_grad())
    text = [
        compile_program(f, W, X).executable.as_text().count("\n") for f in (jax.value_and_grad(sines), plan.value_and_grad())
    ]
    assert text[1] < 4 * text[0]


def test_an_instance_of_a_module_may_be_decorated_where_it_is_made():
    class Net(nn.Module):
        wrap: object = staticmethod(lambda module: module)

        @nn.compact
        def __call__(self, x):
            return jnp.sum(self.wrap(nn.Dense(8))(jnp.sin(x)) ** 2)

    plain, decorated = Net(), Net(wrap=rl.remat)
    variables = plain.init(KEY, X)
    assert jax.tree.structure(decorated.init(KEY, X)) == jax.tree.structure(variables)
    found, expected = (jax.grad(net.apply)(variables, X) for net in (decorated, plain))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
