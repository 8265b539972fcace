"""`rl.remat` on plain functions, methods and callables: arguments, policies and names, effects, transformations."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify, io_callback
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jax_says import compilations

import remat_lab as rl
from remat_lab import checkpointing
from remat_lab.measure import SCHEDULERS, compile_program
from remat_lab.policy_plan import plan_policy
from remat_lab.segment_promise import Segmented, hold_segments
from remat_lab.targets import as_target

X = jnp.linspace(0.1, 1.0, 8)
REMAT3 = bool(getattr(jax.config, "jax_remat3", False))
MODES = {
    "recompute all": {},
    "budget": {"budget": 1.0},
    "policy": {"policy": jax.checkpoint_policies.dots_saveable},
    "save": {"save": ("h",)},
    "dont_save": {"dont_save": ("h",)},
}


def same(f, g, *args, rtol=1e-6, **options):
    """Values and gradients of `g` are those of `f`, jitted or not, with the same structure, shapes and dtypes."""
    for transform in (lambda fun: fun, jax.jit):
        expected, actual = (transform(jax.value_and_grad(fun, **options))(*args) for fun in (f, g))
        assert jax.tree.structure(expected) == jax.tree.structure(actual)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=rtol, atol=1e-6)


def chain(x):
    h = checkpoint_name(jnp.sin(x), "h")
    return jnp.sum(jnp.sin(jnp.sin(h)))


@pytest.fixture(params=MODES, ids=str)
def mode(request):
    return MODES[request.param]


# Arguments


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnums": (-1,)}, {"static_argnames": "power"}])
def test_static_arguments_work_by_position_by_keyword_and_left_out(options):
    def f(x, power=1):
        return jnp.sum(jnp.sin(x) if power > 1 else x)

    g = rl.remat(f, **options)
    for call in (lambda h, x: h(x, 2), lambda h, x: h(x, power=2), lambda h, x: h(x), lambda h, x: h(power=2, x=x)):
        same(functools.partial(call, f), functools.partial(call, g), X)


def test_a_keyword_only_string_is_static_without_being_declared():
    @rl.remat
    def f(x, *, mode):
        return jnp.sum(jnp.sin(x) if mode == "sin" else jnp.cos(x))

    np.testing.assert_allclose(jax.grad(functools.partial(f, mode="cos"))(X), -jnp.sin(X), rtol=1e-6)


def test_python_booleans_none_and_functions_are_static_anywhere_in_the_arguments():
    def f(params, batch, train):
        h = params["act"](batch["x"] @ params["w"])
        h = h if batch["mask"] is None else h * batch["mask"]
        return jnp.sum(h) * (2.0 if train else 1.0)

    params = {"w": jnp.eye(8), "act": jnp.tanh, "b": None, "extra": ()}
    batch = {"x": jnp.ones((4, 8)), "mask": None}

    def loss(fun, w):
        return fun({**params, "w": w}, batch, True)

    same(functools.partial(loss, f), functools.partial(loss, rl.remat(f)), params["w"])


def test_a_traced_argument_used_as_a_bool_is_named_with_the_ways_to_make_it_static():
    @rl.remat
    def f(x, train):
        return jnp.sum(x) if train else jnp.zeros(())

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"(?s)argument train.*static_argnames.*train is index 1"):
        f(X, jnp.bool_(True))
    with pytest.raises(jax.errors.TracerIntegerConversionError, match=r"(?s)rl.remat traces n of"):
        rl.remat(lambda x, n: sum(x for _ in range(n)))(X, 3)


def test_an_error_about_a_leaf_names_its_path():
    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"config\['deep'\]"):
        rl.remat(lambda x, config: x if config["deep"] else -x)(X, {"deep": jnp.bool_(True)})


def test_an_array_declared_static_is_refused_with_the_positions_of_the_arguments():
    with pytest.raises(rl.InvalidArgument, match=r"names x, but that is an array.*x is index 0, flag is index 1"):
        rl.remat(lambda x, flag: x, static_argnums=0)(X, True)
    with pytest.raises(rl.InvalidArgument, match="is traced by a transformation around it"):
        jax.jit(rl.remat(lambda x, flag: x, static_argnums=1))(X, 1.0)


@pytest.mark.parametrize("options", [{"static_argnums": 5}, {"static_argnames": "flug"}])
def test_static_arguments_that_do_not_exist_are_refused(options):
    with pytest.raises(rl.InvalidArgument, match=r"5|flug"):
        rl.remat(lambda x, flag: x, **options)(X, True)


@jax.tree_util.register_pytree_node_class
class Layer:
    """A pytree with a function among its leaves, and decorated methods."""

    def __init__(self, w, act):
        self.w, self.act = w, act

    def tree_flatten(self):
        return (self.w, self.act), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    @rl.remat
    def heavy(self, x):
        """Heavy."""
        return self.act(jnp.sin(x @ self.w))

    @rl.remat(static_argnums=2)
    def scaled(self, x, n):
        return self.heavy(x) * sum(1.0 for _ in range(n))

    @staticmethod
    @rl.remat
    def fixed(x):
        return jnp.sin(x)

    @rl.remat
    @classmethod
    def made(cls, x):
        return cls(x, jnp.tanh).w

    def __call__(self, x):
        return jnp.sum(self.scaled(x, 2))


def test_methods_keep_binding_counting_self_and_their_documentation():
    x = jnp.ones((4, 8))
    grad = jax.grad(lambda w: Layer(w, jnp.tanh)(x))(jnp.eye(8))
    expected = jax.grad(lambda w: 2.0 * jnp.sum(jnp.tanh(jnp.sin(x @ w))))(jnp.eye(8))
    np.testing.assert_allclose(grad, expected, rtol=1e-5)
    assert (Layer.heavy.__name__, Layer.heavy.__doc__, Layer.heavy.__qualname__) == ("heavy", "Heavy.", "Layer.heavy")
    assert Layer.fixed(x).shape == Layer.made(x).shape == (4, 8)


def test_self_may_be_any_object_that_holds_arrays():
    class Plain:
        def __init__(self, w):
            self.w = w

        @rl.remat
        def __call__(self, x):
            return jnp.sum(jnp.sin(jnp.sin(x * self.w)))

    same(lambda w: jnp.sum(jnp.sin(jnp.sin(X * w))), lambda w: Plain(w)(X), X)


def test_callables_and_partials_are_decorated_without_looking_into_them():
    def loss(w):
        return jnp.sum(Layer(w, jnp.tanh)(jnp.ones((4, 8))))

    same(loss, lambda w: rl.remat(Layer(w, jnp.tanh))(jnp.ones((4, 8))), jnp.eye(8))
    same(lambda x: jnp.sum(x**2), rl.remat(functools.partial(lambda p, x: jnp.sum(x**p), 2)), X)
    bound = rl.remat(Layer(jnp.eye(8), jnp.tanh).heavy)
    assert bound(jnp.ones((4, 8))).shape == (4, 8)


def test_what_cannot_be_decorated_says_what_can():
    with pytest.raises(rl.InvalidArgument, match=r"Did you mean rl.remat\(budget="):
        rl.remat(0.5)
    with pytest.raises(rl.InvalidArgument, match="decorate the method"):
        rl.remat(Layer)


def test_outputs_that_are_not_arrays_come_back_unchanged():
    value, (name, none, count, act) = rl.remat(lambda x: (jnp.sin(x), ("name", None, 3, jnp.tanh)))(X)
    assert (name, none, count, act) == ("name", None, 3, jnp.tanh)
    assert value.shape == X.shape


def test_integers_and_keys_pass_with_float0_gradients(mode):
    def f(table, ids, key):
        h = checkpoint_name(jnp.sin(table[ids]), "h")
        return jnp.sum(jnp.where(jax.random.bernoulli(key, 0.5, h.shape), h, 0.0))

    table, ids = jnp.ones((16, 8)), jnp.arange(4)
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        same(f, rl.remat(f, **mode), table, ids, key)
    grads = jax.grad(rl.remat(f, **mode), argnums=(0, 1), allow_int=True)(table, ids, jax.random.key(0))
    assert grads[1].dtype == jax.dtypes.float0


def test_dtypes_and_weak_types_are_kept(mode):
    def f(x, s):
        return jnp.sum(checkpoint_name(jnp.sin(x * s), "h"))

    x = jnp.ones(8, jnp.bfloat16)
    decorated = rl.remat(f, **mode)
    assert decorated(x, 2.0).dtype == f(x, 2.0).dtype == jnp.bfloat16
    assert jax.typeof(rl.remat(lambda s: s * 2)(1.0)).weak_type
    total, _ = jax.lax.scan(lambda c, _: (c + decorated(x, 2.0), None), jnp.bfloat16(0), None, length=2)
    assert total.dtype == jnp.bfloat16


def test_other_shapes_and_other_static_values_are_not_served_from_an_old_plan(mode):
    def f(x, scale="mean"):
        h = checkpoint_name(jnp.sin(x), "h")
        return jnp.sum(jnp.sin(h)) / (x.shape[0] if scale == "mean" else 1)

    g = rl.remat(f, **mode)
    for x in (X, X[:4], X):
        for scale in ("mean", "sum"):
            same(functools.partial(f, scale=scale), functools.partial(g, scale=scale), x)


def test_arrays_and_tracers_around_the_function_are_read_anew_on_each_call(mode):
    box = {"w": jnp.ones(8)}
    f = rl.remat(lambda x: jnp.sum(checkpoint_name(jnp.sin(x * box["w"]), "h")), **mode)
    assert f(X) > 0
    box["w"] = jnp.zeros(8)
    assert f(X) == 0

    def around(wrap, w):
        return wrap(lambda x: jnp.sum(jnp.sin(checkpoint_name(jnp.sin(x * w), "h"))))(X)

    same(functools.partial(around, lambda fun: fun), functools.partial(around, rl.remat(**mode)), 2.0)


# Random numbers


def test_dropout_masks_are_those_of_the_plain_function(mode):
    def f(x, key):
        for _ in range(3):
            key, own = jax.random.split(key)
            x = checkpoint_name(jnp.where(jax.random.bernoulli(own, 0.5, x.shape), jnp.sin(x) * 2, 0.0), "h")
        return jnp.sum(x**2)

    x = jnp.linspace(0.1, 1.0, 64)
    expected, actual = (jax.jit(jax.grad(g))(x, jax.random.key(7)) for g in (f, rl.remat(f, **mode)))
    assert 0 < np.count_nonzero(expected) < 64
    np.testing.assert_array_equal(expected == 0, actual == 0)
    np.testing.assert_allclose(expected, actual, rtol=1e-5)


# Policies and names


def kept(fun, *args):
    """Names or primitives of what is kept beside the arguments, sorted."""
    return sorted(v.name or v.primitive for v in rl.saved(fun, *args) if v.primitive != "argument")


def two(x):
    a = checkpoint_name(jnp.sin(x), "a")
    b = checkpoint_name(jnp.sin(a), "b")
    return jnp.sum(b * b)


def test_only_the_named_values_are_saved():
    assert kept(rl.remat(two), X) == []
    assert kept(rl.remat(two, save="b"), X) == ["b"]
    assert kept(rl.remat(two, save=("a", "b")), X) == ["a", "b"]
    same(two, rl.remat(two, save="b"), X)


def test_excluded_names_are_excluded_and_so_are_their_aliases():
    decorated = rl.remat(two, dont_save=("a", "b"))
    assert kept(decorated, X) == []
    assert decorated.saved(X).bytes == X.nbytes
    same(two, decorated, X)
    assert len(kept(rl.remat(two, dont_save="a"), X)) == 1  # b


def test_reshaped_transposed_and_converted_copies_count_as_aliases():
    @jax.jit
    def inner(x):
        return checkpoint_name(x, "h").reshape(2, 4)

    def f(x):
        h = inner(jnp.exp(x)).T.astype(jnp.float32)
        return jnp.sum(h**2)

    assert kept(f, X)  # plain JAX keeps something
    assert kept(rl.remat(f, dont_save="h"), X) == []
    same(f, rl.remat(f, dont_save="h"), X)


def test_one_body_called_twice_excludes_only_the_call_whose_value_is_named():
    sine = jax.jit(jnp.sin)

    def f(x):
        h = checkpoint_name(sine(x), "h")
        return jnp.sum(sine(sine(h) * 2.0) ** 2)

    found = kept(rl.remat(f, dont_save="h"), X)
    assert len(found) == 2  # what the second and the third sine are taken of or give, but not h


def loop(x, ws):
    def body(c, w):
        h = checkpoint_name(jnp.sin(c * w), "h")
        return jnp.sin(jnp.sin(h)), None

    return jnp.sum(jax.lax.scan(body, x, ws)[0])


def test_names_inside_a_loop_are_saved_once_per_step():
    ws = jnp.linspace(0.5, 1.0, 6)
    (value,) = (v for v in rl.saved(rl.remat(loop, save="h"), X, ws) if v.name == "h")
    assert (value.shape, value.bytes, value.primitive) == ((6, 8), 6 * 8 * 4, "sin")
    same(loop, rl.remat(loop, save="h"), X, ws)


def test_names_inside_a_loop_are_excluded_there():
    ws = jnp.linspace(0.5, 1.0, 6)
    decorated = rl.remat(loop, dont_save="h")
    same(loop, decorated, X, ws)
    stacked = [v for v in rl.saved(decorated, X, ws) if v.shape == (6, 8)]
    lines = Path(__file__).read_text().splitlines()
    named = next(n for n, line in enumerate(lines, 1) if "jnp.sin(c * w)" in line)
    assert any(v.primitive == "sin" for v in stacked)
    assert not any(v.primitive == "sin" and f":{named} " in v.source for v in stacked)


def test_names_inside_a_branch_are_excluded_there():
    def f(x, i):
        return jnp.sum(jnp.sin(jax.lax.cond(i > 0, lambda x: checkpoint_name(jnp.sin(x), "h"), jnp.cos, x)))

    decorated = rl.remat(f, dont_save="h")
    same(f, decorated, X, 1)
    assert any(v.shape == X.shape and v.primitive != "argument" for v in rl.saved(f, X, 1))
    assert not any(v.shape == X.shape and v.primitive != "argument" for v in rl.saved(decorated, X, 1))


@pytest.mark.parametrize("option", ["save", "dont_save", "must_save"])
def test_a_misspelt_name_lists_the_names_that_exist(option):
    budget = {"budget": 1.0} if option == "must_save" else {}
    with pytest.raises(rl.InvalidArgument, match=r"'attn-out' \(in \w+=\).*'a', 'b'"):
        jax.grad(rl.remat(two, **{option: ("attn-out", "a")}, **budget))(X)


def test_names_given_by_derivative_rules_are_found():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), checkpoint_name(jnp.cos(x), "slope")), lambda c, g: (g * c,))
    decorated = rl.remat(lambda x: jnp.sum(f(x)), save="slope")
    same(lambda x: jnp.sum(f(x)), decorated, X)


def test_the_same_name_in_two_lists_is_refused_when_decorating():
    with pytest.raises(rl.InvalidArgument, match="'h' is in both save= and dont_save="):
        rl.remat(save=("h",), dont_save=("h",))
    with pytest.raises(rl.InvalidArgument, match="'h' is in both must_save= and must_recompute="):
        rl.remat(budget=1.0, must_save=("h",), must_recompute=("h",))


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 1.0, "policy": jax.checkpoint_policies.dots_saveable},
        {"budget": 1.0, "save": "h"},
        {"save": "a", "dont_save": "b"},
        {"must_save": "a"},
        {"policy": "dots"},
    ],
)
def test_options_that_exclude_each_other_are_refused_when_decorating(options):
    with pytest.raises(rl.InvalidArgument, match=r"exclude each other|need budget=|policy= is a function"):
        rl.remat(**options)


@pytest.mark.parametrize("answer", [None, np.bool_(True), 1, "save"])
def test_a_policy_that_answers_anything_but_a_bool_is_refused_before_differentiation(answer):
    with pytest.raises(rl.InvalidArgument, match=rf"(?s)policy.*returned {answer!r}.*for sin.*bool"):
        rl.remat(lambda x: jnp.sum(jnp.sin(x)), policy=lambda *_, **__: answer)(X)


def test_a_users_policy_decides_what_is_saved():
    def f(x, w):
        return jnp.sum(jnp.sin(jnp.sin(x @ w)))

    args = (jnp.ones((4, 8)), jnp.eye(8))
    assert kept(rl.remat(f, policy=jax.checkpoint_policies.dots_saveable), *args) == ["dot_general"]
    assert kept(rl.remat(f, policy=jax.checkpoint_policies.everything_saveable), *args)
    assert kept(rl.remat(f, policy=jax.checkpoint_policies.nothing_saveable), *args) == []


def test_what_is_saved_is_listed_with_size_and_source_line():
    table = str(rl.remat(two, save="a").saved(X))
    assert "test_remat.py" in table
    assert "float32[8]" in table
    value = next(v for v in rl.remat(two, save="a").saved(X) if v.name == "a")
    assert (value.primitive, value.shape, value.dtype, value.bytes) == ("sin", (8,), "float32", 32)


def test_saved_takes_shapes_and_allocates_nothing():
    huge = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)
    assert rl.saved(rl.remat(two, save="a"), huge).bytes == 2 << 42


# State and side effects


def test_python_side_effects_happen_once_and_leak_nothing_usable():
    seen = []

    def f(x):
        h = jnp.sin(x)
        seen.append(h)
        return jnp.sum(jnp.sin(h))

    jax.grad(rl.remat(f, budget=1.0))(X)
    assert len(seen) == 1
    with pytest.raises(jax.errors.UnexpectedTracerError):
        seen[0] + 1


@pytest.mark.parametrize("ordered", [True, False])
def test_an_io_callback_is_refused_with_its_line(ordered):
    def f(x):
        io_callback(lambda v: None, None, jax.lax.stop_gradient(x)[0], ordered=ordered)
        return jnp.sum(jnp.sin(x))

    with pytest.raises(rl.UnsupportedEffect, match=r"contains io_callback at .*test_remat.py:\d+ .*side effect"):
        rl.remat(f)(X)


def test_an_effect_inside_a_loop_is_found_there():
    def f(x):
        def body(c, _):
            jax.debug.print("{}", c[0], ordered=True)
            return jnp.sin(c), None

        return jnp.sum(jax.lax.scan(body, x, None, length=2)[0])

    with pytest.raises(rl.UnsupportedEffect, match=r"contains debug_\w+ at .*test_remat.py:\d+ \(.*body\)"):
        rl.remat(f)(X)


def test_unordered_debug_callbacks_run_at_most_once_more():
    seen = []

    def f(x):
        h = jnp.sin(x)
        jax.debug.callback(lambda v: seen.append(float(v)), h[0])
        return jnp.sum(jnp.sin(h))

    jax.block_until_ready(jax.jit(jax.grad(rl.remat(f)))(X))
    jax.effects_barrier()
    assert 1 <= len(seen) <= 2


def test_a_failed_check_is_still_reported():
    def f(x):
        checkify.check(jnp.all(x > 0), "negative")
        return jnp.sum(jnp.sin(jnp.sin(x)))

    error, _ = checkify.checkify(jax.jit(jax.grad(rl.remat(f))))(-X)
    assert "negative" in error.get()


def _closed_over(wrap, ref):
    def f(x):
        ref[...] += 1.0
        return jnp.sum(jnp.sin(jnp.sin(x)))

    return wrap(f)


def _passed(wrap, ref):
    def f(x, ref):
        ref[...] += 1.0
        return jnp.sum(jnp.sin(jnp.sin(x)))

    decorated = wrap(f)
    return lambda x: decorated(x, ref)


def _in_a_loop(wrap, ref):
    def body(c, _):
        ref[...] += 1.0
        return jnp.sin(jnp.sin(c)), None

    decorated = wrap(body)
    return lambda x: jnp.sum(jax.lax.scan(decorated, x, None, length=3)[0])


def _in_a_call(wrap, ref):
    @jax.jit
    def inner(x):
        ref[...] += 1.0
        return jnp.sin(x)

    return wrap(lambda x: jnp.sum(jnp.sin(inner(jnp.sin(x)))))


def _statistic(wrap, ref):
    def f(x):
        h = jnp.sin(x)
        ref[...] = 0.9 * ref[...] + jax.lax.stop_gradient(jnp.mean(h))
        return jnp.sum(jnp.sin(h))

    return wrap(f)


@pytest.mark.parametrize("make", [_closed_over, _passed, _in_a_loop, _in_a_call, _statistic])
@pytest.mark.parametrize("options", [{}, {"budget": 1.0}], ids=str)
def test_a_mutable_reference_is_written_once(make, options):
    def final(wrap):
        ref = jax.new_ref(jnp.zeros(()))
        _, grad = jax.jit(jax.value_and_grad(make(wrap, ref)))(X)
        return float(ref[...]), grad

    (expected, grad), (actual, own) = final(lambda fun: fun), final(rl.remat(**options))
    assert expected > 0
    assert actual == expected
    np.testing.assert_allclose(own, grad, rtol=1e-6)


def test_a_reference_overwritten_later_is_not_read_again_in_the_backward_pass():
    def grad(wrap):
        ref = jax.new_ref(jnp.full((8,), 2.0))

        def f(x):
            y = wrap(lambda x: jnp.sin(jnp.sin(x * ref[...])))(x)
            ref[...] = jnp.full((8,), -50.0)
            return jnp.sum(y)

        return jax.jit(jax.grad(f))(X)

    np.testing.assert_allclose(grad(rl.remat), grad(lambda fun: fun), rtol=1e-5)


def test_a_reference_made_inside_is_nobodys_business():
    def f(x):
        ref = jax.new_ref(x)
        ref[...] *= 2.0
        return jnp.sum(jnp.sin(ref[...]))

    same(f, rl.remat(f), X)


# Transformations


def smooth(x):
    h = checkpoint_name(jnp.sin(x), "h")
    return jnp.sum(jnp.sin(h) * x + jax.nn.relu(x) ** 2)


TRANSFORMS = {
    "hessian": lambda f: jax.hessian(f),
    "jacfwd": lambda f: jax.jacfwd(f),
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x))),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "jit of vmap of grad": lambda f: lambda x: jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([x, 2 * x])),
    "grad of vmap": lambda f: jax.grad(lambda x: jnp.sum(jax.vmap(f)(jnp.stack([x, 2 * x])))),
    "checkpoint around": lambda f: jax.grad(jax.checkpoint(f)),
    "decorated twice": lambda f: jax.grad(rl.remat(f)),
    "in a loop": lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (c * 0.5, f(c)), x, None, length=3)[1].sum()),
}


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
def test_every_transformation_agrees_with_the_plain_function(transform, mode):
    x = jnp.linspace(-0.5, 1.0, 6)
    expected, actual = (TRANSFORMS[transform](f)(x) for f in (smooth, rl.remat(smooth, **mode)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), actual, expected)


def test_custom_derivative_rules_survive_bit_for_bit(mode):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def rounded(x, n):
        return jnp.round(x * n) / n

    rounded.defvjp(lambda x, n: (rounded(x, n), None), lambda n, _, g: (g,))

    def f(x):
        h = checkpoint_name(jax.nn.relu(x), "h")
        return jnp.sum(h * 3.0) + jnp.sum(rounded(x, 8) ** 2) + jax.nn.logsumexp(jnp.where(x < 0, -jnp.inf, x))

    x = jnp.array([-1.0, 0.0, 0.0, 2.0])
    np.testing.assert_array_equal(jax.grad(rl.remat(f, **mode))(x), jax.grad(f)(x))


def test_loops_that_cannot_be_reversed_keep_jax_s_own_error(mode):
    def off_the_path(x):
        n = jax.lax.while_loop(lambda c: c[1] < 10.0, lambda c: (c[0] + 1, c[1] + 3.0), (0, 0.0))[0]
        h = checkpoint_name(jax.lax.fori_loop(0, 4, lambda _, c: jnp.sin(c), x), "h")
        return jnp.sum(jnp.sin(h)) * n.astype(jnp.float32)

    same(off_the_path, rl.remat(off_the_path, **mode), X)
    if "budget" not in mode:
        bad = rl.remat(lambda x: jnp.sum(jax.lax.while_loop(lambda c: jnp.sum(c) < 50.0, lambda c: c * 2.0, x)))
        with pytest.raises(ValueError, match=r"[Rr]everse-mode"):
            jax.grad(bad)(X)


def test_works_inside_shard_map():
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))

    def f(wrap, x, w):
        body = wrap(lambda x, w: jax.lax.psum(two(x * w), "d"))
        return jax.shard_map(body, mesh=mesh, in_specs=(P("d"), P()), out_specs=P())(x, w)

    x = jnp.linspace(0.1, 1.0, 8 * jax.device_count())
    for options in ({}, {"save": "a"}, {"dont_save": "a"}):
        decorate = rl.remat(**options)
        same(functools.partial(f, lambda fun: fun), functools.partial(f, decorate), x, jnp.float32(0.5), argnums=(0, 1))


@pytest.mark.parametrize("options", [{}, {"budget": 1.0}, {"dont_save": "h"}], ids=str)
def test_debugging_modes_of_jax_keep_working(options):
    decorated = rl.remat(smooth, **options)
    expected = jax.grad(smooth)(X)
    with jax.disable_jit():
        np.testing.assert_allclose(jax.grad(decorated)(X), expected, rtol=1e-5)
    with jax.checking_leaks():
        np.testing.assert_allclose(jax.grad(decorated)(X), expected, rtol=1e-5)


@pytest.mark.skipif(REMAT3, reason="under JAX_REMAT3 debug_nans does not look into jax.checkpoint")
def test_debug_nans_finds_a_nan_inside():
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match="nan"):
        jax.grad(rl.remat(lambda x: jnp.sum(jnp.log(x))))(-X)


# Compilation


def test_calls_in_a_loop_compile_once(mode):
    decorated = rl.remat(chain, **mode)
    step = jax.jit(jax.grad(decorated))
    step(X)
    jax.grad(decorated)(X)
    with compilations() as compiled:
        for _ in range(3):
            step(X)
            jax.grad(decorated)(X)
    assert not compiled


def test_a_new_decorator_with_equal_options_makes_an_equal_policy():
    from remat_lab.keep import CheckedPolicy, SaveNamed

    for make in (lambda: SaveNamed(frozenset({"a", "b"})), lambda: CheckedPolicy(jax.checkpoint_policies.dots_saveable)):
        assert make() == make()
        assert hash(make()) == hash(make())


def test_the_users_code_is_traced_once_per_call_and_planned_once_per_shape():
    calls = []

    @rl.remat(budget=1.0)
    def f(x):
        calls.append(x.shape)
        return jnp.sum(jnp.sin(jnp.sin(x)))

    for _ in range(3):
        jax.grad(f)(X)
    assert calls == [(8,)] * 3


def test_threads_may_share_a_decorated_function():
    decorated, results = rl.remat(chain), []
    threads = [threading.Thread(target=lambda: results.append(jax.grad(decorated)(X))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_threads_that_need_the_same_plan_make_it_once(monkeypatch):
    planned, ready, plan = [], threading.Barrier(4), checkpointing.plan_policy_with_loops

    def count(*args, **kwargs):
        planned.append(threading.get_ident())
        return plan(*args, **kwargs)

    monkeypatch.setattr(checkpointing, "plan_policy_with_loops", count)
    decorated, results = rl.remat(chain, budget=0.8), []

    def work():
        ready.wait()
        results.append(jax.grad(decorated)(X))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(planned) == 1


def _layers(x, *ws):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return [jnp.sum(x**2)]


def test_a_planner_that_is_too_hopeful_is_asked_again_until_the_compiled_program_holds_the_budget():
    shapes, limit = [jax.ShapeDtypeStruct((64, 16), jnp.float32), *[jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 6], 36_000

    def hopeful(budget):
        more = 1.3 if budget == limit else 1.0
        return replace(plan_policy(_layers, shapes, budget=int(more * budget)), budget_bytes=budget)

    def compiled(plan):
        return Segmented(plan, _layers, shapes, as_target(None).compiler_options).compiled_bytes

    assert compiled(hopeful(limit)) > limit
    assert compiled(hold_segments(hopeful, limit, _layers, shapes)) <= limit


def test_a_decorated_budget_may_be_held_as_compiled():
    args = [jnp.ones((64, 16)), *[jnp.eye(16)] * 6]
    step = jax.value_and_grad(rl.remat(lambda *a: _layers(*a)[0], budget=36_000, check="compiled"))
    assert compile_program(step, *args, compiler_options=SCHEDULERS["memory"]).temp_bytes <= 36_000
    with pytest.raises(rl.InvalidArgument, match="check='maybe' is unknown"):
        rl.remat(_layers, budget=0.5, check="maybe")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "environment"),
    [
        ("test_remat.py test_linen.py test_nnx.py test_frameworks.py", {"JAX_REMAT3": "1"}),
        ("test_remat.py::test_works_inside_shard_map", {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}),
    ],
    ids=["jax_remat3", "four devices"],
)
def test_all_of_it_holds_in_another_environment(tests, environment):
    folder = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", *(str(folder / test) for test in tests.split())]
    done = subprocess.run(
        command, cwd=folder.parent, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:]
