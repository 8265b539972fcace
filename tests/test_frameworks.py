"""`rl.remat` with Equinox and Haiku, and the examples of the documentation."""

from __future__ import annotations

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_lab as rl

X = jnp.linspace(0.1, 1.0, 8)


@pytest.fixture(autouse=True)
def _promotion_of_the_frameworks():
    """Haiku multiplies booleans by floats, and adds biases of lower rank."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def assert_same(actual, expected, rtol=0.0):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol), actual, expected)


def test_equinox_methods_and_modules_are_plain_functions_of_pytrees():
    eqx = pytest.importorskip("equinox")

    def make(wrap, around=lambda module: module):
        class Layer(eqx.Module):
            linear: eqx.nn.Linear
            dropout: eqx.nn.Dropout
            activation: object

            @wrap
            def __call__(self, x, *, key, inference=False):
                return self.dropout(self.activation(self.linear(x)), key=key, inference=inference)

        layer = Layer(eqx.nn.Linear(8, 8, key=jax.random.key(0)), eqx.nn.Dropout(0.5), jax.nn.tanh)

        @eqx.filter_jit
        @eqx.filter_value_and_grad
        def loss(layer):
            total = jax.vmap(lambda x, key: around(layer)(x, key=key))(jnp.stack([X, -X]), jax.random.split(jax.random.key(1)))
            return jnp.sum(total**2) + jnp.sum(around(layer)(X, key=None, inference=True))

        value, grads = loss(layer)
        return value, eqx.filter(grads, eqx.is_array).linear

    expected = make(lambda f: f)
    assert_same(make(rl.remat), expected, rtol=1e-6)
    assert_same(make(lambda f: f, around=rl.remat), expected, rtol=1e-6)


def test_equinox_state_is_passed_through_and_updated_once():
    eqx = pytest.importorskip("equinox")

    def run(wrap):
        norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(8, "batch", mode="batch")

        def layer(norm, x, state):
            y, state = norm(jnp.sin(x), state)
            return jnp.sum(y**2), state

        def loss(scale, state):
            y, state = jax.vmap(wrap(layer), axis_name="batch", in_axes=(None, 0, None), out_axes=(0, None))(
                norm, scale * jnp.stack([X, -X, 2.0 * X]), state
            )
            return jnp.sum(y), state

        (value, state), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(2.0, state)
        return value, grad, jax.tree.leaves(state)

    assert_same(run(rl.remat), run(lambda f: f), rtol=1e-6)


@pytest.mark.parametrize("options", [{}, {"budget": 1.0}], ids=str)
def test_haiku_parameters_state_and_keys_drawn_inside_are_those_drawn_without(options):
    hk = pytest.importorskip("haiku")

    def run(wrap):
        def net(x, train):
            def segment(x, train):
                count = hk.get_state("count", [], init=jnp.zeros)
                hk.set_state("count", count + 1.0)
                h = jnp.sin(hk.Linear(8)(x))
                return hk.dropout(hk.next_rng_key(), 0.5, h) if train else h

            return jnp.sum(wrap(segment)(x, train) * jax.random.uniform(hk.next_rng_key(), (8,)))

        transformed = hk.transform_with_state(net)
        params, state = transformed.init(jax.random.PRNGKey(0), X, True)

        def loss(params):
            return transformed.apply(params, state, jax.random.PRNGKey(1), X, True)

        (value, state), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        assert state["~"]["count"] == 1.0
        return params, value, state, grads

    expected = run(lambda f: f)
    actual = run(rl.remat(**options))
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(actual))
    assert_same(actual, expected, rtol=1e-6 if options else 0.0)


def test_haiku_outside_a_transform_is_haiku_s_own_error():
    hk = pytest.importorskip("haiku")
    with pytest.raises(ValueError, match=r"hk.transform"):
        rl.remat(lambda x: hk.Linear(8)(x))(X)


def test_the_examples_of_the_documentation_run(checkout):
    pytest.importorskip("equinox")
    pytest.importorskip("haiku")
    failed, tried = doctest.testfile(str(checkout / "docs" / "decorator.md"), module_relative=False)
    assert tried > 10
    assert failed == 0


@pytest.mark.parametrize("module", ["remat", "saved"])
def test_the_examples_in_docstrings_run(module):
    import importlib

    assert doctest.testmod(importlib.import_module(f"remat_lab.{module}")).failed == 0
