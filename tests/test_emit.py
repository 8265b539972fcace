"""Four proofs that an emitted step is the planned one: its results, what it keeps, what it recomputes, its compiled size."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module

import jax
import jax.numpy as jnp
import pytest
from emitted import Emitted, planned_crossing
from flax.linen import pooling

import remat_lab as rl
from experiments.models.model import Model
from remat_lab import _jax
from remat_lab.emit import run_schedule
from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from remat_lab.measure import SCHEDULERS, Compiled, compile_program
from remat_lab.verify import largest_difference
from solvers.schedule import Schedule

ACTIVATION = 4096 * 128 * 4  # bytes of one layer of the MLP

OPTIONS = {
    "mlp": {"layers": 8},
    "dropout_mlp": {"layers": 4},
    "transformer": {},
    "unet": {"levels": 2, "batch": 2},
    "resnet": {},
}

# Model, fraction of the keep-all peak (None keeps all), how far the compiled size may lie from the planned peak.
STEPS = [
    ("mlp", None, 0.05),
    ("mlp", 0.5, 0.05),
    ("dropout_mlp", None, 0.20),
    ("dropout_mlp", 0.5, 0.20),
    ("transformer", None, 0.20),
    ("transformer", 0.5, 0.20),
    ("unet", None, 0.20),
    ("unet", 0.6, 0.20),
    ("resnet", None, 0.03),
    ("resnet", 0.7, 0.10),
    ("resnet", 0.5, 0.10),
    ("resnet", 0.3, 0.20),
]
SLOW = {("resnet", 0.7), ("resnet", 0.3)}
BUDGETED = [step[:2] for step in STEPS if step[1]]

# Largest difference from plain JAX, as a fraction of each leaf's largest element. Fusions other than plain JAX's round
# differently; where none do, the bytes are the same.
LARGEST_DIFFERENCE = {"mlp": 0.0, "resnet": 0.0, "unet": 2e-6, "dropout_mlp": 1e-6, "transformer": 1e-5}


def cases(rows):
    """The rows as parameters of a test; the larger ones are run by `make test-slow`."""
    return [pytest.param(*row, marks=[pytest.mark.slow] if row[:2] in SLOW else []) for row in rows]


@cache
def model(name: str) -> Model:
    return import_module(f"experiments.models.{name}").loss(**OPTIONS[name])


@cache
def make_plan(name: str, budget: float | None) -> rl.Plan:
    """A plan by a solver that takes no notice of the clock; what it compiles to is for the tests to see."""
    made = model(name)
    solver = "keep_all" if budget is None else "knapsack"
    return rl.plan(made.loss, *made.args, budget=budget, solver=solver, has_aux=made.has_aux, check="planned")


@cache
def compiled(name: str, budget: float | None) -> Compiled:
    plan = make_plan(name, budget)
    return compile_program(plan.value_and_grad(), *model(name).args, compiler_options=plan.compiler_options)


@cache
def plain(name: str, scheduler: str) -> Compiled:
    made = model(name)
    step = jax.value_and_grad(made.loss, has_aux=made.has_aux)
    return compile_program(step, *made.args, compiler_options=SCHEDULERS[scheduler])


@cache
def results(name: str, budget: float | None):
    return compiled(name, budget).call(*model(name).materialise())


@cache
def plain_results(name: str):
    return plain(name, "memory").call(*model(name).materialise())


@cache
def emitted(name: str, budget: float | None) -> Emitted:
    return Emitted.of(make_plan(name, budget), *model(name).args)


@pytest.mark.parametrize(("name", "budget"), cases(step[:2] for step in STEPS))
def test_values_and_gradients_are_those_of_plain_jax(name, budget):
    expected, found = _without_key_biases(plain_results(name)), _without_key_biases(results(name, budget))
    difference = largest_difference(expected, found)
    assert difference.relative <= LARGEST_DIFFERENCE[name], str(difference)


def _without_key_biases(results):
    """Softmax does not see a key's bias: in exact arithmetic its gradient is zero, and what is left of it is rounding."""
    value, gradients = results
    kept = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree.leaves_with_path(gradients)
        if not jax.tree_util.keystr(path).endswith("['key']['bias']")
    }
    return value, kept


@pytest.mark.parametrize(("name", "budget"), cases(BUDGETED))
def test_recomputation_changes_no_bit(name, budget):
    assert largest_difference(results(name, None), results(name, budget)).bitwise


@pytest.mark.parametrize(("name", "budget"), cases(step[:2] for step in STEPS))
def test_what_is_kept_is_what_the_plan_says(name, budget):
    plan, step = make_plan(name, budget), emitted(name, budget)
    assert step.live == plan.predicted.live
    boundary = plan.predicted.starts_backward
    assert step.crossing(boundary) == planned_crossing(plan, boundary)


@pytest.mark.parametrize(("name", "budget"), cases(BUDGETED))
def test_a_smaller_budget_keeps_less_for_the_backward_pass(name, budget):
    def kept(plan):
        return sum(plan.graph.nodes[v].charge for v in planned_crossing(plan, plan.predicted.starts_backward))

    assert kept(make_plan(name, budget)) < kept(make_plan(name, None))


@pytest.mark.parametrize(("name", "budget"), cases(BUDGETED))
def test_what_is_recomputed_is_what_the_plan_says(name, budget):
    plan, step, made = make_plan(name, budget), emitted(name, budget), model(name)
    once = flatten(jax.make_jaxpr(jax.value_and_grad(made.loss, has_aux=made.has_aux))(*made.args))
    assert plan.schedule.recomputed
    for primitive in {q.name for q in once.equations if q.reads}:
        again = sum(
            times * sum(plan.program.equations[k].name == primitive for k in plan.fused.groups[v].equations)
            for v, times in plan.schedule.recomputed.items()
        )
        keeping_all = emitted(name, None).count(primitive)
        if primitive not in {"optimization_barrier", "random_wrap", "random_unwrap", "convert_element_type"}:
            assert step.count(primitive) == keeping_all + again, primitive
        if primitive in {"dot_general", "conv_general_dilated"}:
            assert keeping_all == sum(q.name == primitive for q in once.equations), primitive


@pytest.mark.parametrize(("name", "budget"), cases(BUDGETED))
def test_the_recomputation_survives_compilation(name, budget):
    plan = make_plan(name, budget)
    planned_rise = plan.predicted.flops - make_plan(name, None).predicted.flops
    rise = compiled(name, budget).flops - compiled(name, None).flops
    assert planned_rise > 0
    assert 0.75 * planned_rise <= rise <= 1.1 * planned_rise  # XLA leaves out of a convolution what meets its padding


@pytest.mark.parametrize(("name", "budget", "tolerance"), cases(STEPS))
def test_the_compiled_size_is_the_planned_peak(name, budget, tolerance):
    plan = make_plan(name, budget)
    assert compiled(name, budget).temp_bytes == pytest.approx(plan.predicted.peak_bytes, rel=tolerance)
    assert budget is None or plan.predicted.peak_bytes <= budget * plan.predicted.keep_all_peak_bytes


def test_half_the_memory_of_a_resnet_is_less_than_plain_jax_takes_under_either_scheduler():
    half = compiled("resnet", 0.5).temp_bytes
    assert half <= 0.6 * compiled("resnet", None).temp_bytes
    assert half < min(plain("resnet", scheduler).temp_bytes for scheduler in SCHEDULERS)


@pytest.mark.parametrize("layers", [16, 64, pytest.param(256, marks=pytest.mark.slow)])
def test_sqrt_and_recursive_keep_their_word_when_compiled(layers):
    loss, args, _ = import_module("experiments.models.mlp").loss(layers=layers)
    bounds = {"sqrt": 2 * math.sqrt(layers) + 1, "recursive": 2 + math.log2(layers)}
    for solver, bound in bounds.items():
        plan = rl.plan(loss, *args, solver=solver)
        step = compile_program(plan.value_and_grad(), *args, compiler_options=plan.compiler_options)
        assert plan.predicted.peak_bytes <= bound * ACTIVATION, solver
        assert step.temp_bytes <= bound * ACTIVATION, solver


def test_a_step_holds_its_peak_inside_a_larger_program():
    plan = make_plan("mlp", 0.5)

    def train(params, x, y):
        value, gradient = plan.value_and_grad()(params, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)

    step = compile_program(train, *model("mlp").args, compiler_options=plan.compiler_options)
    gradients = sum(p["kernel"].size * 4 for p in model("mlp").args[0])  # results of the planned step are temporaries here
    assert step.temp_bytes <= 1.05 * plan.predicted.peak_bytes + gradients


def test_a_step_that_nobody_reads_is_no_link_of_the_chain():
    """XLA drops it, and what holds the steps before it in their place: masks came late, and what they are made of stayed."""

    def fun(x, w):
        y = x @ w
        above, other = y > 0, y @ w
        counts = jnp.sum(above, 0, jnp.float32, keepdims=True)
        return jnp.where(above, other @ w, 0.0) * counts

    square = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    program = flatten(jax.make_jaxpr(fun)(square, square))
    fused = fuse(program)
    assert [fused.root(v).name for v in fused.graph.steps] == ["dot_general", "gt", "dot_general", "reduce_sum", "mul"]
    schedule = Schedule.from_order(fused.graph, [0, 1, 3, 2, 3, 4])  # the first sum is dropped unread
    eqns = jax.make_jaxpr(lambda *args: run_schedule(fused, schedule, program, args))(square, square).jaxpr.eqns
    names = [eqn.primitive.name for eqn in eqns]
    second = names.index("dot_general", names.index("dot_general") + 1)
    before = max(k for k in range(second) if names[k] == "optimization_barrier")
    assert "bool" in [str(v.aval.dtype) for v in eqns[before].invars]
    dropped = eqns[names.index("reduce_sum")].outvars[0]
    assert all(v is not dropped for eqn in eqns for v in eqn.invars)


def test_bits_are_drawn_again_rather_than_kept():
    """All that they depend on is the key, no large input: XLA merged both draws, and kept a mask from one to the other."""

    def fun(x, w, key):
        y = x @ w
        z = jnp.where(jax.random.bits(key, y.shape) > 9, y, 0.0) * 2.0
        return ((z @ w) @ w) * z

    square, key = jax.ShapeDtypeStruct((256, 256), jnp.float32), jax.eval_shape(lambda: jax.random.key(0))
    program = flatten(jax.make_jaxpr(fun)(square, square, key))
    fused = fuse(program)
    drawing = 1
    assert "random_bits" in [program.equations[k].name for k in fused.groups[drawing].equations]
    schedule = Schedule.from_order(fused.graph, [0, drawing, 2, drawing, 3])
    emitted = jax.make_jaxpr(lambda *args: run_schedule(fused, schedule, program, args))(square, square, key)
    names = [q.name for q in flatten(emitted, barriers=True).equations]  # equal ones are merged
    assert names.count("random_bits") == 2


def test_dropout_is_the_same_in_the_forward_pass_and_in_its_recomputation():
    def loss(x, key):
        for _ in range(4):
            key, own = jax.random.split(key)
            x = jnp.where(jax.random.bernoulli(own, 0.5, x.shape), jnp.sin(x @ x) * 2, 0.0)
        return jnp.sum(x**2)

    x = jax.random.normal(jax.random.key(1), (64, 64))
    for key in (jax.random.key(7), jax.random.PRNGKey(7)):
        plan = rl.plan(loss, x, key, budget=0.6, solver="knapsack")
        assert plan.schedule.recomputed
        assert plan.verify(x, key).bitwise


@pytest.mark.parametrize("pool", [pooling.max_pool, pooling.min_pool])
@pytest.mark.parametrize("padding", ["VALID", "SAME"])
def test_the_gradient_of_pooling_on_zeros_of_its_own_is_the_same(pool, padding):
    """As emitted for CUDA, here on the CPU."""
    x = jax.random.normal(jax.random.key(0), (2, 7, 9, 3))
    program = flatten(jax.make_jaxpr(jax.grad(lambda x: jnp.sum(pool(x, (3, 2), (2, 2), padding) ** 2)))(x))
    (q,) = (q for q in program.equations if q.name == "select_and_scatter_add")
    source, operand = (program.avals[v] for v in q.reads)
    values = [jax.random.normal(jax.random.key(1), source.shape), x]
    assert operand.shape == x.shape
    (expected,), (found,) = _jax.bind(q.eqn, values), _jax.scatter_selected(q.eqn, values, jnp.zeros(()))
    assert jnp.array_equal(expected, found)


def test_a_step_with_pooling_can_be_mapped_over_a_batch():
    def loss(x, w):
        return jnp.sum(pooling.max_pool(jnp.sin(x * w), (2, 2), (2, 2)) ** 2)

    x, w = jax.random.normal(jax.random.key(0), (3, 2, 8, 8, 4)), jnp.arange(3.0)
    plan = rl.plan(loss, x[0], w[0], argnums=(0, 1), check="planned", solver="keep_all")
    expected = jax.vmap(jax.value_and_grad(loss, (0, 1)))(x, w)
    for step in (plan.value_and_grad(), jax.jit(plan.value_and_grad())):
        found = jax.vmap(step)(x, w)
        assert all(map(jnp.allclose, jax.tree.leaves(found), jax.tree.leaves(expected)))
