"""What a name keeps: the value that the derivative reads, once, whatever its rule or its type."""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remat_lab.flatten import flatten
from remat_lab.keep import SaveNamed
from remat_lab.naming import bind_named
from remat_lab.primitives import PLAIN_CALLS

X = jnp.linspace(0.2, 0.9, 6)

FUNCTIONS = {
    "reads its result": jnp.exp,
    "reads its result, twice": lambda x: jnp.tanh(x),
    "reads its operand": jnp.sin,
    "reads both": lambda x: jax.lax.rsqrt(x),
    "reduces": jnp.max,
    "custom_jvp": jax.nn.relu,
    "two operands": lambda x: x / jnp.cos(x),
    "several results": lambda x: (lambda pair: pair[0] * (pair[1] + 1).astype(x.dtype))(jax.lax.top_k(x * x[::-1], 3)),
    "complex": lambda x: jnp.exp(jax.lax.complex(x, 2 * x)),
}


def named(fun, x, keep=True):
    """The function with every equation's results named, under a policy that keeps these names, or none of them."""
    program = flatten(jax.make_jaxpr(fun)(x), calls=PLAIN_CALLS, merge=False)

    def run(*args):
        env = dict(zip(program.inputs, args, strict=True))
        for q in program.equations:
            values = [env[v] if isinstance(v, int) else v.val for v in q.ins]
            env.update(zip(q.outs, bind_named(q, values, [f"n{o}" for o in q.outs]), strict=True))
        return env[program.outputs[0]]

    names = frozenset(f"n{o}" for q in program.equations for o in q.outs) if keep else frozenset()
    return jax.checkpoint(run, policy=SaveNamed(names)), program


def real(fun):
    return lambda x: jnp.sum(jnp.abs(fun(x)) ** 2)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("keep", [True, False])
def test_names_change_no_value_and_no_derivative(name, keep):
    fun = FUNCTIONS[name]
    mine, _ = named(fun, X, keep)
    assert jax.typeof(mine(X)) == jax.typeof(fun(X))
    np.testing.assert_allclose(mine(X), fun(X), rtol=1e-6)
    for derivative in (jax.grad, jax.jacfwd, jax.hessian):
        np.testing.assert_allclose(derivative(real(mine))(X), derivative(real(fun))(X), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        jax.vmap(jax.grad(real(mine)))(jnp.stack([X, X / 2])), jax.vmap(jax.grad(real(fun)))(jnp.stack([X, X / 2])), rtol=1e-5
    )


@pytest.mark.skipif(bool(os.environ.get("JAX_REMAT3")), reason="counts equations as the default implementation writes them")
@pytest.mark.parametrize("name", ["reads its result", "reads its result, twice", "reads both"])
def test_a_kept_value_is_not_computed_again(name):
    def count(keep):
        fun, program = named(FUNCTIONS[name], X, keep)
        jaxpr = jax.make_jaxpr(lambda x: jax.vjp(lambda x: jnp.sin(fun(x)), x)[1](X))(X)
        step = flatten(jaxpr, merge=False)
        return sum(q.name == program.equations[0].name for q in step.equations)

    assert count(keep=True) == 1
    assert count(keep=False) == 2


def test_a_constant_operand_keeps_its_zero_tangent():
    mine, _ = named(lambda x: jnp.exp(jax.lax.stop_gradient(x)) * x, X)
    np.testing.assert_allclose(jax.grad(real(mine))(X), jax.grad(real(lambda x: jnp.exp(jax.lax.stop_gradient(x)) * x))(X))
