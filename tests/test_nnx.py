"""`rl.remat` on `flax.nnx`: state is updated exactly once, and training is that without it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import remat_lab as rl

X = jax.random.normal(jax.random.key(1), (16, 8))


class Block(nnx.Module):
    """Statistics, random streams, a counter and a function among its attributes."""

    def __init__(self, features, rngs):
        self.dense = nnx.Linear(features, features, rngs=rngs)
        self.norm = nnx.BatchNorm(features, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros(()))
        self.act = jnp.tanh

    def __call__(self, x, scale=1.0):
        self.calls[...] += 1.0
        return self.dropout(self.act(self.norm(self.dense(x)))) * scale


class DecoratedMethod(Block):
    """Decorated in the class body."""

    __call__ = rl.remat(Block.__call__)


VARIANTS = {
    "class": rl.remat(Block),
    "method": DecoratedMethod,
    "instance": lambda *args: rl.remat(Block(*args)),
    "budget": rl.remat(Block, budget=1.0),
}


class Net(nnx.Module):
    """Two blocks, the first of them used twice."""

    def __init__(self, block):
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([block(8, rngs) for _ in range(2)])

    def __call__(self, x):
        for block in (*self.blocks, self.blocks[0]):
            x = x + block(x, scale=0.5)
        return x


class NetOfFunctions(Net):
    """Decorates a function of a Module instead."""

    def __call__(self, x):
        call = rl.remat(lambda block, x: block(x, scale=0.5))
        for block in (*self.blocks, self.blocks[0]):
            x = x + call(block, x)
        return x


def step(model):
    """Gradients of one training step; its loss and the whole state after it."""
    value, grads = nnx.jit(nnx.value_and_grad(lambda model, x: jnp.sum(model(x) ** 2)))(model, X)
    return nnx.to_pure_dict(grads), (value, nnx.to_pure_dict(nnx.state(model)))


def assert_same(actual, expected, rtol=0.0):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.fixture(scope="module")
def expected():
    return step(Net(Block))


@pytest.mark.parametrize("variant", [*VARIANTS, "function"])
def test_statistics_counters_streams_and_gradients_are_those_of_the_plain_module(variant, expected):
    model = NetOfFunctions(Block) if variant == "function" else Net(VARIANTS[variant])
    grads, results = step(model)
    assert_same(results, expected[1], rtol=1e-6 if variant == "budget" else 0.0)
    assert_same(grads, expected[0], rtol=1e-5)  # one block has two uses, whose gradients are added in another order
    assert model.blocks[0].calls[...] == 2.0
    assert model.blocks[1].calls[...] == 1.0


def test_a_decorated_class_keeps_its_name_and_a_decorated_instance_shares_its_variables():
    assert rl.remat(Block).__name__ == "Block"
    block = Block(8, nnx.Rngs(0))
    decorated = rl.remat(block)
    decorated(X)
    assert block.calls[...] == 1.0
    assert type(block) is Block
    assert isinstance(decorated, Block)


def test_bound_methods_count_from_after_self():
    class Model(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.ones(8))

        def heavy(self, x, power):
            self.w[...] *= 2.0
            return sum(jnp.sin(x * self.w[...][None]) for _ in range(power))

    model = Model()
    assert rl.remat(model.heavy, static_argnums=1)(X, 2).shape == X.shape
    assert model.w[...][0] == 2.0


def test_modules_variables_and_new_attributes_come_out_of_a_decorated_function():
    @rl.remat
    def change(block, x):
        block.made = nnx.Variable(x)
        return block, {"made": nnx.Param(jnp.sin(x)), "shape": x.shape, "value": block.dense(x)}

    block = Block(8, nnx.Rngs(0))
    same_block, made = change(block, X)
    assert same_block is block
    np.testing.assert_array_equal(block.made[...], X)
    assert isinstance(made["made"], nnx.Param)
    assert made["shape"] == (16, 8)


def test_random_streams_advance_once():
    rngs, plain = nnx.Rngs(0), nnx.Rngs(0)
    drawn = rl.remat(lambda rngs: jax.random.uniform(rngs(), (3,)))(rngs)
    np.testing.assert_array_equal(drawn, jax.random.uniform(plain(), (3,)))
    assert rngs.default.count[...] == plain.default.count[...] == 1


def test_a_module_that_a_plain_function_closes_over_cannot_be_changed_in_secret():
    block = Block(8, nnx.Rngs(0))
    with pytest.raises(Exception, match=r"(?i)trace level"):
        rl.remat(lambda x: block(x))(X)


def test_a_traced_flag_names_the_parameter():
    class Model(nnx.Module):
        @rl.remat
        def __call__(self, x, train):
            return x if train else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"(?s)argument train.*self is index 0.*train is index 2"):
        Model()(X, jnp.bool_(True))
    np.testing.assert_array_equal(Model()(X, train=False), -X)


class ResNet(nnx.Module):
    """A residual block of convolutions."""

    def __init__(self, wrap):
        rngs = nnx.Rngs(0)

        class Residual(nnx.Module):
            def __init__(self):
                self.first, self.second = (nnx.Conv(4, 4, (3, 3), rngs=rngs) for _ in range(2))
                self.norm, self.dropout = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)

            def __call__(self, x):
                return self.dropout(self.second(nnx.relu(self.norm(self.first(x))))) + x

        self.stem, self.block, self.head = nnx.Conv(3, 4, (3, 3), rngs=rngs), wrap(Residual)(), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.mean(self.block(self.stem(x)), axis=(1, 2)))


class Transformer(nnx.Module):
    """A layer of attention and a feed-forward network with BatchNorm."""

    def __init__(self, wrap):
        rngs = nnx.Rngs(0)

        class Layer(nnx.Module):
            def __init__(self):
                self.attention = nnx.MultiHeadAttention(2, 8, dropout_rate=0.1, decode=False, deterministic=False, rngs=rngs)
                self.norms = nnx.List([nnx.LayerNorm(8, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)])
                self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)

            def __call__(self, x):
                x = x + self.attention(self.norms[0](x))
                return x + self.down(nnx.gelu(self.norms[1](self.up(x))))

        self.layer, self.head = wrap(Layer)(), nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.mean(self.layer(x), axis=1))


def train(model, x, labels, steps=20):
    """Loss curve and final state of a training run with Optax."""
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def update(model, optimizer):
        def loss(model):
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(x), labels))

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to integer powers
        return [float(update(model, optimizer)) for _ in range(steps)], nnx.to_pure_dict(nnx.state(model))


@pytest.mark.parametrize(("make", "shape"), [(ResNet, (4, 8, 8, 3)), (Transformer, (4, 6, 8))], ids=["resnet", "transformer"])
def test_twenty_steps_of_training_are_those_of_the_plain_model(make, shape):
    """Bit for bit for the ResNet; to rounding where XLA fuses what is computed again in another way, see `test_linen`."""
    x, labels = jax.random.normal(jax.random.key(2), shape), jnp.arange(4) % 3
    losses, state = train(make(lambda cls: cls), x, labels)
    assert losses[-1] < losses[0]
    again, final = train(make(rl.remat), x, labels)
    if make is ResNet:
        assert again == losses
        assert_same(final, state)
    else:
        assert jax.tree.structure(final) == jax.tree.structure(state)
        np.testing.assert_allclose(again, losses, rtol=0, atol=2e-6)  # measured: 1.2e-7


class Residual(nnx.Module):
    """A convolution with batch statistics, whose values are counted apart where they are named."""

    def __init__(self, width, rngs):
        self.conv = nnx.Conv(width, width, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)

    def __call__(self, x):
        return x + nnx.relu(self.norm(self.conv(x)))


@pytest.mark.parametrize("check", ["planned", "compiled"])
def test_a_block_that_does_not_fit_is_refused_with_a_budget_that_does(check):
    def run(budget):
        block = rl.remat(Residual, budget=budget, check=check)(8, nnx.Rngs(0))
        return nnx.jit(nnx.grad(lambda block, x: block(x).sum(), argnums=1))(block, jnp.ones((4, 16, 16, 8)))

    with pytest.raises(rl.InfeasibleBudget, match=r"test_nnx.py:\d+ \(Residual.__call__\)") as caught:
        run(0.3)
    assert caught.value.minimum_of == {"planned": "simulated", "compiled": "compiled"}[check]
    assert caught.value.lower_bound == 0, "a floor on schedules of the graph is none on what JAX makes of regions"
    assert run(caught.value.minimum).shape == (4, 16, 16, 8)
