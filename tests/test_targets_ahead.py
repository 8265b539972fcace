"""Compiling for a GPU that is not here: a plan keeps its promise there, and its order costs no fusion."""

import os

import jax
import jax.numpy as jnp
import pytest

import remat_lab as rl
from experiments.models import resnet
from remat_lab.measure import compile_program
from remat_lab.targets import Target

pytestmark = pytest.mark.ahead


@pytest.fixture(scope="module")
def h200():
    target = Target.named("h200")
    problem = target.problem()
    if problem is not None and not os.environ.get("REMAT_LAB_TARGETS"):
        pytest.skip(problem)
    assert problem is None
    return target


@pytest.fixture(scope="module")
def model():
    return resnet.loss(depth=8, batch=32)


def test_steps_are_kernels_and_keeping_everything_moves_what_plain_jax_does(h200):
    model = resnet.loss(depth=20, batch=32)
    plain = compile_program(jax.value_and_grad(model.loss, has_aux=True), *model.args, target=h200)
    plan = rl.plan(model.loss, *model.args, has_aux=True, target=h200)
    (kept,) = plan.measure().values()
    assert kept.traffic.bytes <= 1.03 * plain.traffic.bytes
    assert kept.temp_bytes == pytest.approx(plan.predicted.peak_bytes, rel=0.05)


def test_a_plan_compiles_within_its_budget(h200, model):
    plan = rl.plan(model.loss, *model.args, has_aux=True, budget=0.6, target="h200", time_limit=5)
    assert plan.compiled_bytes <= plan.budget_bytes
    assert plan.compiler_options == {}
    with pytest.raises(rl.RematLabError, match="h200, which is not here"):
        plan.jit()


def test_values_and_static_arguments_of_any_kind_are_placed(h200):
    def fun(x, scale, key, mode, *, bias):
        return {"y": x * scale + bias, "noise": jax.random.normal(key, x.shape), "mode": jnp.float32(len(mode))}

    x = jnp.ones((4, 8))
    compiled = compile_program(fun, x, 2.0, jax.random.key(0), "abc", target=h200, static_argnums=(3,), bias=jnp.ones((4, 8)))
    assert compiled.output_bytes >= 2 * x.nbytes
    assert compiled.traffic.kernels > 0
