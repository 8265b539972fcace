"""The built-in models with loops: with planned loops they are the same losses, in less memory."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import remat_lab as rl
from experiments.models import ctc, gru, integrator, lstm, scan_transformer
from remat_lab.measure import compile_program

FAST = {"xla_backend_optimization_level": "0"}  # compiles in half the time
MODELS = {
    "lstm": (lstm.loss, {"layers": 1, "hidden": 16, "batch": 16, "inputs": 6, "classes": 9, "length": 23}),
    "gru": (gru.loss, {"hidden": 16, "batch": 16, "inputs": 6, "length": 23}),
    "ctc": (ctc.loss, {"hidden": 16, "batch": 16, "inputs": 6, "classes": 7, "length": 30, "labels": 5}),
    "integrator": (integrator.loss, {"steps": 24, "batch": 16, "width": 4, "hidden": 16}),
    "scan_transformer": (
        scan_transformer.loss,
        {"layers": 6, "batch": 4, "length": 8, "width": 16, "heads": 2, "vocabulary": 16},
    ),
}


def gradients(model: Any, args: Any) -> tuple[Any, int]:
    compiled = compile_program(jax.value_and_grad(model.loss), *args, compiler_options=FAST)
    return compiled.call(*args), compiled.temp_bytes


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("gru", "scan_transformer") else n for n in MODELS]
)
def test_planned_loops_give_the_same_gradients_in_less_memory(name: str):
    factory, options = MODELS[name]
    args = factory(**options).materialise(seed=2)
    (value, grads), temp = gradients(factory(**options), args)
    scan = functools.partial(rl.scan, budget=0.4 if name == "scan_transformer" else 0.5)
    (planned_value, planned_grads), planned_temp = gradients(factory(**options, scan=scan), args)
    np.testing.assert_allclose(planned_value, value, rtol=1e-6)
    for path, (a, b) in zip(
        jax.tree.leaves_with_path(grads),
        zip(jax.tree.leaves(planned_grads), jax.tree.leaves(grads), strict=True),
        strict=True,
    ):
        assert float(jnp.max(jnp.abs(b))) > 0, path
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(jnp.max(jnp.abs(b))), err_msg=str(path[0]))
    assert planned_temp < 0.75 * temp


@pytest.mark.parametrize("name", MODELS)
def test_blocks_and_bad_numbers(name: str):
    factory, options = MODELS[name]
    model = factory(**options)
    rebuilt = model.blocks(nn.remat)
    assert jax.eval_shape(rebuilt, *model.args).shape == ()
    assert "checkpoint" in str(jax.make_jaxpr(rebuilt)(*model.args)) or "remat" in str(jax.make_jaxpr(rebuilt)(*model.args))
    with pytest.raises(ValueError, match="at least 1"):
        factory(**{**options, "batch": 0})


def test_the_sum_over_alignments_is_that_of_optax():
    factory, options = MODELS["ctc"]
    model = factory(**options)
    params, x, _ = model.materialise(seed=3)
    targets = jax.random.randint(jax.random.key(0), (16, 5), 1, 7)

    def by_optax(params: Any, x: Any, targets: Any) -> Any:
        _, logits = jax.lax.scan(lambda h, frame: ctc.Frame().apply({}, params, h, frame), jnp.zeros((16, 16)), x)
        padding = jnp.zeros((16, 30)), jnp.zeros((16, 5))
        return optax.ctc_loss(logits.swapaxes(0, 1), padding[0], targets, padding[1], log_epsilon=-1e5).mean()

    found, wanted = (jax.jit(fun, compiler_options=FAST)(params, x, targets) for fun in (model.loss, by_optax))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
