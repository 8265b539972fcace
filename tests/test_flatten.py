"""From a nested jaxpr to one flat program: what is inlined, merged, dropped, and what must not be."""

from __future__ import annotations

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import remat_lab as rl
from remat_lab.flatten import flatten

X = jnp.linspace(0.1, 1.0, 8)


def program(fun, *args):
    return flatten(jax.make_jaxpr(fun)(*args))


def names(fun, *args):
    return Counter(q.name for q in program(fun, *args).equations)


def test_calls_are_inlined_however_deep():
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    @jax.jit
    def middle(x):
        return inner(x) + jax.checkpoint(inner)(2 * x)

    assert names(lambda x: middle(x) * 3, X) == {"sin": 2, "mul": 2, "add": 1}


def test_an_inlined_equation_remembers_who_called_it():
    (sin,) = [q for q in program(jax.jit(jax.jit(jnp.sin)), X).equations if q.name == "sin"]
    assert len(sin.calls) >= 2


def test_recomputation_asked_for_by_hand_is_undone():
    def loss(wrap, w, x):
        for _ in range(3):
            x = wrap(lambda x: jnp.sin(jnp.sin(x @ w)))(x)
        return jnp.sum(x)

    args = (jnp.eye(8), X[None])
    plain = names(jax.value_and_grad(partial(loss, lambda f: f)), *args)
    wrapped = names(jax.value_and_grad(partial(loss, jax.checkpoint)), *args)
    assert wrapped["dot_general"] == plain["dot_general"]
    assert wrapped["sin"] == plain["sin"]


def test_only_equal_equations_are_merged():
    def fun(x, y):
        return jnp.sin(x) + jnp.sin(x), jnp.sin(y), x * 2.0, x * 3.0, x * 2.0, jnp.sum(x, 0), jnp.sum(x, 1)

    assert names(fun, jnp.ones((3, 3)), jnp.ones((3, 3))) == {"sin": 2, "add": 1, "mul": 2, "reduce_sum": 2}


def test_zeros_of_either_sign_are_not_merged():
    found = program(lambda x: (x / 0.0, x / -0.0), X)
    assert names(lambda x: (x / 0.0, x / -0.0), X) == {"div": 2}
    assert found.outputs[0] != found.outputs[1]


def test_random_numbers_of_a_hidden_state_are_not_merged():
    def fun(x):
        return x * lax.rng_uniform(0.0, 1.0, (8,)) * lax.rng_uniform(0.0, 1.0, (8,))

    assert names(fun, X)["rng_uniform"] == 2


def test_dead_code_and_dead_results_of_loops_are_gone():
    def fun(x):
        jnp.cos(x)
        carry, ys = lax.scan(lambda c, _: (jnp.sin(c), (c, jnp.exp(c))), x, None, length=5)
        return jnp.sum(carry) + jnp.sum(ys[0])

    found = program(fun, X)
    (scan,) = [q for q in found.equations if q.name == "scan"]
    assert "cos" not in names(fun, X)
    assert [v.aval.shape for v in scan.eqn.outvars] == [(8,), (5, 8)]
    assert "exp" not in {e.primitive.name for e in scan.eqn.params["jaxpr"].eqns}


def test_effects_are_kept_and_never_merged():
    def fun(x):
        jax.debug.print("twice")
        jax.debug.print("twice")
        io_callback(lambda v: None, None, x[0], ordered=True)
        return jnp.sum(x)

    found = [q.name for q in program(fun, X).equations]
    assert sum("debug" in name for name in found) == 2
    assert "io_callback" in found


def test_an_argument_that_nobody_reads_stays_an_input():
    assert len(program(lambda x, y: jnp.sum(x), X, X).inputs) == 2


@pytest.mark.parametrize(
    "fun",
    [
        pytest.param(lambda x: jnp.sum(jax.nn.relu(x) * 3.0), id="relu at zero"),
        pytest.param(lambda x: jnp.sum(jax.nn.softplus(100.0 * x)), id="softplus"),
        pytest.param(lambda x: jax.nn.logsumexp(jnp.where(x < 0, -jnp.inf, x)), id="logsumexp of -inf"),
        pytest.param(lambda x: jnp.sum(jax.nn.silu(x)) + jnp.linalg.norm(x), id="norm"),
    ],
)
def test_custom_jvp_rules_are_respected(fun):
    x = jnp.array([-1.0, 0.0, 0.0, 2.0])
    for got, expected in zip(rl.plan(fun, x).value_and_grad()(x), jax.value_and_grad(fun)(x), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_straight_through_estimator_keeps_its_gradient():
    @partial(jax.custom_vjp, nondiff_argnums=(1,))
    def quantised(x, n):
        return jnp.round(x * n) / n

    quantised.defvjp(lambda x, n: (quantised(x, n), None), lambda n, _, g: (g,))

    def loss(x):
        return jnp.sum(jnp.sin(quantised(jnp.sin(x), 8)) ** 2)

    _, gradient = rl.plan(loss, X).value_and_grad()(X)
    np.testing.assert_allclose(gradient, jax.grad(loss)(X), rtol=1e-6)
    assert jnp.all(gradient != 0), "autodiff would call the derivative of rounding zero"


def deep(x, depth=4, fun=jnp.sin):
    for _ in range(depth):
        x = fun(x)
    return jnp.sum(x)


def test_tracing_again_gives_the_same_fingerprint():
    prints = {program(jax.value_and_grad(deep), x).fingerprint for x in (X, X + 1, jax.ShapeDtypeStruct((8,), jnp.float32))}
    assert len(prints) == 1


def test_other_programs_have_other_fingerprints():
    step = jax.value_and_grad(deep)
    others = [
        program(step, X),
        program(jax.value_and_grad(partial(deep, depth=5)), X),
        program(jax.value_and_grad(partial(deep, fun=jnp.cos)), X),
        program(step, X[:4]),
        program(step, X.astype(jnp.bfloat16)),
        program(lambda x: step(x)[::-1], X),
        program(lambda x: (x + x * 2.0, x), X),
        program(lambda x: (x + x * 2.0, x * 2.0), X),
    ]
    assert len({p.fingerprint for p in others}) == len(others)


def test_source_lines_are_the_users_own():
    def loss(x):
        return jnp.sum(jax.nn.softmax(x))

    for q in program(jax.value_and_grad(loss), X).equations:
        if q.name in ("exp", "reduce_sum", "reduce_max", "div"):
            assert "test_flatten.py" in q.source_line, q.source_line
            assert "loss" in q.source_line


def test_one_array_closed_over_twice_is_one_constant():
    w = jnp.arange(8.0)
    found = program(lambda x: jnp.sum(x * w) + jnp.sum(jax.jit(lambda y: y + w)(x)), X)
    assert len(found.constants) == 1
    assert len(found.abstract().constants) == 0


def test_a_line_of_three_thousand_equations_is_flattened_without_recursion():
    assert len(program(partial(deep, depth=3000), X).equations) == 3001
