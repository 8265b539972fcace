"""rl.scan and its kin: values and gradients of `jax.lax.scan`, whatever the nest, the form of the loop and the transformation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat_lab as rl
from solvers import nest as nests
from loop_cases import CASES

NESTS: dict[str, Callable[[int], nests.Nest]] = {
    "one block": nests.keep_all,
    "direct": lambda n: nests.keep_all(n, direct=True),
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


def step_of(loss: Any, args: Any) -> Any:
    return jax.jit(jax.value_and_grad(loss, tuple(range(len(args)))))(*args)


def assert_same(got: Any, wanted: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", CASES)
def test_every_nest_gives_the_gradients_of_the_plain_scan(name: str):
    case, length = CASES[name], 7
    args = case.args(length)
    wanted = step_of(case.loss(lax.scan, length), args)
    for i, nest in enumerate(NESTS.values()):
        scan = functools.partial(rl.scan, nest=nest, keep=KEEPS[i % len(KEEPS)])
        # The same operations in the same order: differences can only come from how XLA fuses them.
        assert_same(step_of(case.loss(scan, length), args), wanted, rtol=2e-6, atol=2e-6)


def test_most_nests_are_bitwise_the_plain_scan():
    case, length = CASES["rnn"], 7
    args = case.args(length)
    wanted = step_of(case.loss(lax.scan, length), args)
    for nest in NESTS.values():
        for keep in KEEPS:
            assert_same(step_of(case.loss(functools.partial(rl.scan, nest=nest, keep=keep), length), args), wanted)
