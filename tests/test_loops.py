"""rl.scan and its kin: values and gradients of `jax.lax.scan`, whatever the nest, the loop's form and the transformation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from loop_cases import CASES

import remat_lab as rl
from solvers import nest as nests

NESTS: dict[str, Callable[[int], nests.Nest]] = {
    "one block": nests.keep_all,
    "as it is": lambda n: nests.keep_all(n, direct=True),
    "two level": nests.two_level,
    "two level, last block kept": lambda n: nests.two_level(n, direct=True),
    "halving": nests.halving,
    "binomial": lambda n: nests.binomial(n, 2, block=2),
    "three levels": lambda n: nests.levels(n, 3),
    "one slot": lambda n: nests.binomial(n, 1),
    "carries only": lambda n: nests.two_level(n, keeps=False),
    "uneven": lambda n: nests.uneven([1, *([n - 1] if n > 1 else [])]),
}
KEEPS = (-1.0, 0.0, math.inf)
CLOSE = 2e-6  # of an array's largest element: the same operations in the same order, but XLA may fuse them otherwise
# The same in double precision, for sums over steps and rows: XLA may add their terms in another order, `unroll` above all, and
# where terms cancel the largest element is some hundred times smaller than they are. A wrong term shows either way.
EXACT = 1e-12


BITWISE = {("two level", -1.0), ("three levels", 0.0), ("uneven", math.inf)}
FAST = {"xla_backend_optimization_level": "0"}  # compiles in half the time


def step_of(loss: Any, args: Any, options: dict[str, str] | None = FAST) -> Any:
    return jax.jit(jax.value_and_grad(loss, tuple(range(len(args)))), compiler_options=options)(*args)


def assert_same(got: Any, wanted: Any, tolerance: float = 0.0) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * float(np.max(np.abs(b), initial=1e-30)))


@pytest.fixture
def double() -> Iterator[None]:
    """Everything made in the test is in double precision."""
    with jax.enable_x64(True):
        yield


@functools.cache
def plain(name: str, length: int, fast: bool = True, bits: int = 32) -> tuple[Any, Any]:
    assert jax.dtypes.canonicalize_dtype(float).itemsize * 8 == bits
    case = CASES[name]
    args = case.args(length)
    return args, step_of(case.loss(lax.scan, length), args, FAST if fast else None)


@pytest.mark.parametrize(
    ("nest", "keep"),
    [
        pytest.param(name, keep, marks=() if (name, keep) in BITWISE else pytest.mark.slow)
        for i, name in enumerate(NESTS)
        for keep in KEEPS[i % 3 :: 3]
    ],
)
def test_recurrent_networks_have_bitwise_the_gradients_of_the_plain_scan(nest: str, keep: float):
    args, wanted = plain("rnn", 7, fast=False)
    scan = functools.partial(rl.scan, nest=NESTS[nest], keep=keep)
    assert_same(step_of(CASES["rnn"].loss(scan, 7), args, None), wanted)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", [name for name in CASES if name != "rnn"])
def test_every_form_of_loop_has_the_gradients_of_the_plain_scan(name: str):
    args, wanted = plain(name, 7, bits=64)
    position = 3 * list(CASES).index(name)  # so that all nests take their turn
    scan = functools.partial(rl.scan, nest=list(NESTS.values())[position % len(NESTS)], keep=KEEPS[position // 3 % 3])
    assert_same(step_of(CASES[name].loss(scan, 7), args), wanted, EXACT)


@pytest.mark.slow
@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("nest", NESTS)
def test_every_nest_and_every_form_of_loop(name: str, nest: str):
    for i, length in enumerate((1, 2, 7, 13)):
        args, wanted = plain(name, length, bits=64)
        keep = KEEPS[(list(NESTS).index(nest) + i) % 3]
        scan = functools.partial(rl.scan, nest=NESTS[nest], keep=keep)
        assert_same(step_of(CASES[name].loss(scan, length), args), wanted, EXACT)


@pytest.mark.parametrize(("name", "form"), [("no_xs", "backward"), ("reverse", "checkpoint")])
def test_nested_checkpoints_and_tiny_loops(name: str, form: Any):
    for length in (1, 2) if form == "backward" else (11,):
        args, wanted = plain(name, length)
        scan = functools.partial(rl.scan, nest="two_level", form=form)
        assert_same(step_of(CASES[name].loss(scan, length), args), wanted, CLOSE)


def test_a_loop_of_no_steps():
    def step(c: Any, x: Any) -> Any:
        return c * x, c

    for options in ({}, {"budget": 0.5}, {"nest": "halving"}):
        c, ys = rl.scan(step, jnp.ones(3), jnp.ones((0, 3)), **options)
        assert (c.shape, ys.shape) == ((3,), (0, 3))


TRANSFORMS: dict[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "not differentiated": lambda loss, args: loss(*args),
    "grad of vmap": lambda loss, args: jax.grad(
        lambda *a: jax.vmap(loss, (*(None,) * (len(a) - 1), 0))(*a[:-1], jnp.stack([a[-1], 0.5 * a[-1]])).sum(), (0, 1)
    )(*args),
    "vmap of grad": lambda loss, args: jax.vmap(jax.grad(loss, (0, 1)))(*(jnp.stack([a, 0.5 * a]) for a in args)),
    "jvp": lambda loss, args: jax.jvp(loss, args, tuple(map(jnp.cos, args))),
    "linearize": lambda loss, args: jax.linearize(loss, *args)[1](*map(jnp.cos, args)),
    "jacfwd": lambda loss, args: jax.jacfwd(loss, 1)(*args),
    "hessian": lambda loss, args: jax.hessian(loss, 1)(*args),
    "reverse over reverse": lambda loss, args: jax.grad(lambda a: jnp.sum(jax.grad(loss, 1)(args[0], a, *args[2:]) ** 2))(
        args[1]
    ),
    "reverse over forward": lambda loss, args: jax.grad(
        lambda a: jax.jvp(lambda b: loss(args[0], b, *args[2:]), (a,), (a,))[1]
    )(args[1]),
    "grad of vmap of grad": lambda loss, args: jax.grad(
        lambda a: jnp.sum(jax.vmap(lambda s: jax.grad(loss, 1)(args[0], s * a, *args[2:]))(jnp.arange(1.0, 3.0)) ** 2)
    )(args[1]),
    "checkpoint around": lambda loss, args: jax.grad(jax.checkpoint(loss), (0, 1))(*args),
    "scan around": lambda loss, args: jax.grad(
        lambda a: lax.scan(lambda c, s: (c + loss(args[0], s * a, *args[2:]), None), 0.0, jnp.arange(1.0, 3.0))[0]
    )(args[1]),
}
ONLY_REVERSE = {"choices"}  # a jax.custom_vjp has no forward mode


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_every_transformation(transform: str):
    first_order = transform in ("not differentiated", "grad of vmap", "vmap of grad", "jvp", "linearize", "jacfwd")
    case = CASES["mixed" if first_order else "no_xs"]
    args = case.args(4)
    loops = [case.loss(scan, 4) for scan in (functools.partial(rl.scan, nest="two_level"), lax.scan)]
    got, wanted = (jax.jit(functools.partial(TRANSFORMS[transform], loss), compiler_options=FAST)(args) for loss in loops)
    assert_same(got, wanted, CLOSE)


def test_custom_rules_mean_in_second_derivatives_what_they_mean_in_a_plain_scan():
    case = CASES["choices"]
    args = case.args(3)

    def second(scan: Any) -> Any:
        loss = case.loss(scan, 3)
        twice = jax.grad(lambda a: jnp.sum(jax.grad(loss)(a, args[1]) ** 2))
        return jax.jit(twice, compiler_options=FAST)(args[0])

    assert_same(second(functools.partial(rl.scan, nest="two_level")), second(lax.scan), CLOSE)


def test_debug_modes():
    case = CASES["no_xs"]
    args, wanted = plain("no_xs", 2)
    loss = case.loss(functools.partial(rl.scan, nest="two_level"), 2)
    with jax.disable_jit():
        assert_same(jax.grad(loss)(*args), wanted[1][0], CLOSE)
    with jax.checking_leaks():
        assert_same(jax.grad(loss)(*args), wanted[1][0], CLOSE)

    def roots(x: jax.Array) -> jax.Array:
        return jnp.sum(rl.scan(lambda c, _: (jnp.log(c), None), x, None, 3, nest="two_level")[0])

    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.grad(roots)(-jnp.ones(2))


def test_collectives_over_a_mapped_axis():
    def loss(scan: Any, w: jax.Array, x: jax.Array) -> jax.Array:
        def step(c: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.sin(c * w + lax.psum(c, "batch")), None

        return jnp.sum(scan(step, x, None, 5)[0])

    def gradient(scan: Any) -> Any:
        total = jax.vmap(functools.partial(loss, scan), (None, 0), axis_name="batch")
        gradient = jax.grad(lambda w: total(w, jnp.arange(6.0).reshape(2, 3)).sum())
        return jax.jit(gradient, compiler_options=FAST)(jnp.ones(3))

    assert_same(gradient(functools.partial(rl.scan, nest="halving")), gradient(lax.scan), CLOSE)


def test_inside_shard_map():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def loss(scan: Any, w: jax.Array, x: jax.Array) -> jax.Array:
        def body(w: jax.Array, x: jax.Array) -> jax.Array:
            def step(c: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
                return jnp.sin(c * w + lax.pmean(c, "d")), jnp.sum(c)

            c, ys = scan(step, x, None, 6)
            return lax.psum(jnp.sum(c) + jnp.sum(ys), "d")

        whole, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("d")
        return jax.shard_map(body, mesh=mesh, in_specs=(whole, split), out_specs=whole)(w, x)

    args = (jnp.float32(0.7), jnp.linspace(0.1, 1.0, 8))
    scan = functools.partial(rl.scan, nest="halving")
    assert_same(step_of(functools.partial(loss, scan), args), step_of(functools.partial(loss, lax.scan), args), CLOSE)


def test_fori_loop_and_bounded_while_loop():
    def by_for(loop: Any, x: jax.Array) -> jax.Array:
        return jnp.sum(loop(2, 9, lambda i, c: jnp.sin(c) + 0.1 * i.astype(c.dtype), x))

    def newton(loop: Any, a: jax.Array) -> jax.Array:
        start = (jnp.float32(1.0), jnp.int32(0))
        x, n = loop(lambda s: jnp.abs(s[0] ** 2 - a) > 1e-4, lambda s: ((s[0] + a / s[0]) / 2, s[1] + 1), start)
        return x * (n > 2).astype(x.dtype)

    x = jnp.linspace(0.1, 1.0, 5)
    wanted = jax.grad(functools.partial(by_for, lax.fori_loop))(x)
    assert_same(jax.grad(functools.partial(by_for, functools.partial(rl.fori_loop, nest="halving")))(x), wanted, CLOSE)
    bounded = functools.partial(rl.while_loop, max_steps=20, nest="two_level")
    value, (gradient,) = step_of(functools.partial(newton, bounded), (jnp.float32(7.0),))
    assert float(value) == pytest.approx(math.sqrt(7.0), rel=1e-5)
    assert float(gradient) == pytest.approx(0.5 / math.sqrt(7.0), rel=1e-3)
    _, forward = jax.jvp(functools.partial(newton, rl.while_loop), (jnp.float32(7.0),), (jnp.float32(1.0),))
    assert float(forward) == pytest.approx(float(gradient), rel=1e-5)
    assert jax.vmap(functools.partial(newton, rl.while_loop))(jnp.array([4.0, 9.0])).tolist() == pytest.approx([2.0, 3.0])


def test_indices_are_weakly_typed_and_steps_may_have_nothing_to_reverse():
    for start in (jnp.int8(0), jnp.bfloat16(1), jnp.float32(1)):
        got, wanted = (loop(1, 4, lambda i, c: c + i, start) for loop in (rl.fori_loop, lax.fori_loop))
        assert (got, got.dtype) == (wanted, wanted.dtype)
    assert jax.grad(lambda x: rl.fori_loop(0, 3, lambda i, c: c + i, x))(1.0) == 1.0
    assert rl.fori_loop(5, 3, lambda i, c: c + 1, 1.0) == 1.0


def test_errors():
    def grow(c: Any, x: Any) -> Any:
        return jnp.stack([c, c]), None

    def same(c: Any, x: Any) -> Any:
        return c, None

    messages = []
    for scan in (lax.scan, rl.scan):
        with pytest.raises(TypeError, match="carry") as error:
            scan(grow, jnp.ones(3), jnp.ones(4))
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    for options, match in (
        ({"budget": 0.5, "nest": "halving"}, "exclude each other"),
        ({"keep": 0.0}, "nest="),
        ({"form": "reverse"}, "neither"),
        ({"nest": "sqrt"}, "choose one of keep_all, two_level"),
        ({"nest": nests.halving(5)}, "a loop of 5 steps, but this one has 4"),
    ):
        with pytest.raises(rl.InvalidArgument, match=match):
            rl.scan(same, jnp.ones(3), jnp.ones(4), **options)
    with pytest.raises(rl.InfeasibleBudget, match="steps"):
        rl.scan(lambda c, x: (jnp.sin(c), None), jnp.ones(100), jnp.ones(4), budget=50)
    with pytest.raises(rl.InvalidArgument, match="bounds that are known"):
        jax.jit(lambda n: rl.fori_loop(0, n, lambda i, c: c, 1.0))(3)
    with pytest.raises(rl.InvalidArgument, match="max_steps"):
        rl.while_loop(lambda c: c < 3, lambda c: c * 2, 1.0, budget=0.5)
    for most in (2.5, -1):
        with pytest.raises(rl.InvalidArgument, match=f"max_steps={most}"):
            rl.while_loop(lambda c: c < 3, lambda c: c * 2, 1.0, max_steps=most)
    with pytest.raises(rl.InvalidArgument, match="known when the loop is traced"):
        jax.jit(lambda n: rl.while_loop(lambda c: c < 3, lambda c: c * 2, 1.0, max_steps=n))(3)
    with pytest.raises(rl.InvalidArgument, match=r"no bound.*max_steps"):
        jax.grad(lambda x: rl.while_loop(lambda c: c < 50.0, lambda c: c * 2.0, x))(1.0)
    with pytest.raises(rl.UnsupportedEffect, match=r"test_loops.py:\d+"):
        jax.grad(_counted_once)(1.0)


def _counted_once(x: Any) -> Any:
    def step(c: Any, _: None) -> Any:
        jax.experimental.io_callback(lambda: None, None, ordered=True)
        return jnp.sin(c), None

    return rl.scan(step, x, None, 4, nest="halving")[0]
