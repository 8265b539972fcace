"""Strategies side by side on a small network, for real: planned, compiled, run and timed."""

import json

import jax
import jax.numpy as jnp
import pytest

from remat_lab.arguments import is_concrete, materialise
from remat_lab.compare import compare
from remat_lab.errors import InvalidArgument
from remat_lab.strategies import FIXED, block_transform, select
from solvers.errors import InfeasibleBudget, InvalidBudget

LAYERS, BATCH, WIDTH = 6, 512, 32
KEYS = {
    "strategy",
    "planned_peak_bytes",
    "compiled_temp_bytes",
    "compiled_temp_by_scheduler",
    "argument_bytes",
    "output_bytes",
    "planned_extra_flops_ratio",
    "compiled_flops",
    "step_time_ratio",
    "max_grad_difference",
    "status",
    "lower_bound",
    "plan_seconds",
    "compile_seconds",
}


def layer(w, x):
    return jnp.tanh(x @ w)


def blocks(transform):
    step = transform(layer)

    def loss(weights, x):
        for w in weights:
            x = step(w, x)
        return jnp.mean(x**2)

    return loss


loss = blocks(lambda block: block)
SHAPES = (
    [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS,
    jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32),
)


@pytest.fixture(scope="module")
def comparison():
    seen = []
    result = compare(
        loss, *SHAPES, blocks=blocks, budgets=(0.8, 0.01), rounds=2, time_limit=5, progress=lambda *now: seen.append(now)
    )
    return result, seen


def test_every_strategy_has_a_row_with_every_key(comparison):
    data = json.loads(json.dumps(comparison[0].to_json()))
    assert [row["strategy"] for row in data["rows"]] == [*FIXED, "optimal@0.8", "optimal@0.01"]
    assert all(set(row) >= KEYS for row in data["rows"])
    assert data["environment"]["versions"]["jax"] == jax.__version__
    assert data["settings"]["rounds"] == 2


def test_rows_are_measured_under_their_own_options_and_under_each_scheduler(comparison):
    for row in comparison[0].rows[:-1]:
        assert set(row.compiled_temp_by_scheduler) == {"default", "memory"}
        own = "memory" if row.compiler_options else "default"
        assert row.compiled_temp_bytes == row.compiled_temp_by_scheduler[own]
        assert row.argument_bytes == 4 * (LAYERS * WIDTH**2 + BATCH * WIDTH)
        assert row.step_seconds > 0
        assert row.compile_seconds > 0


def test_plain_jax_is_timed_under_the_options_of_the_plans_too(comparison):
    assert set(comparison[0]["plain"].step_time_ratio_by_scheduler) == {"memory"}
    assert comparison[0]["plain"].step_time_ratio_by_scheduler["memory"] > 0


def test_plans_keep_their_budget_and_the_gradients(comparison):
    result, _ = comparison
    plan = result["optimal@0.8"]
    assert plan.planned_peak_bytes <= 0.8 * result.keep_all_peak_bytes
    assert plan.timeline.budget_bytes == int(0.8 * result.keep_all_peak_bytes)
    assert max(plan.timeline.live_bytes) == plan.planned_peak_bytes
    assert 0 < plan.timeline.starts_backward < len(plan.timeline.live_bytes)
    for row in result.rows[:-1]:
        assert row.max_grad_relative_difference < 1e-5
        assert row.max_value_difference < 1e-6
    assert result["keep_all"].planned_extra_flops_ratio == 0
    assert result["sqrt"].planned_extra_flops_ratio > 0


def test_rows_without_a_plan_have_no_planned_figures(comparison):
    for name in ("plain", "nn_remat", "dots_saveable"):
        row = comparison[0][name]
        assert (row.status, row.planned_peak_bytes, row.lower_bound, row.plan_seconds, row.timeline) == (None,) * 5
    assert comparison[0]["plain"].step_time_ratio == 1
    assert comparison[0]["plain"].bitwise_equal
    assert comparison[0]["nn_remat"].compiled_flops > comparison[0]["plain"].compiled_flops


def test_an_impossible_budget_is_a_row_that_says_why(comparison):
    row = comparison[0]["optimal@0.01"]
    assert row.status == "infeasible"
    assert "smallest budget known to work" in row.reason
    assert row.compiled_temp_bytes is None
    assert "optimal@0.01: infeasible" in str(comparison[0])


def test_progress_counts_up_to_all_of_the_work(comparison):
    _, seen = comparison
    assert seen[-1][1] + 1 == seen[-1][2]
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert any(message.startswith("compile optimal@0.8") for message, _, _ in seen)


def test_strict_raises_before_anything_is_compiled():
    seen = []
    with pytest.raises(InfeasibleBudget):
        compare(loss, *SHAPES, budgets=[1000], strict=True, progress=lambda *now: seen.append(now[0]))
    assert not any(message.startswith("compile") for message in seen)


def test_without_blocks_and_timings_rows_say_so():
    result = compare(loss, *SHAPES, strategies=["nn_remat", "keep_all"], rounds=0)
    assert [row.strategy for row in result.rows] == ["plain", "nn_remat", "keep_all"]
    assert result["nn_remat"].status == "absent"
    assert "no blocks" in result["nn_remat"].reason
    assert result["keep_all"].step_time_ratio is None
    with pytest.raises(KeyError, match="no row 'sqrt'"):
        result["sqrt"]


def test_a_strategy_that_fails_is_a_row_and_the_others_go_on():
    def broken(transform):
        raise RuntimeError("these blocks cannot be wrapped")

    result = compare(loss, *SHAPES, blocks=broken, strategies=["nn_remat", "keep_all"], rounds=0)
    assert (result["nn_remat"].status, result["nn_remat"].reason) == ("failed", "RuntimeError: these blocks cannot be wrapped")
    assert result["keep_all"].compiled_temp_bytes > 0


def test_gradients_that_differ_are_reported_not_hidden():
    def other(transform):
        return lambda weights, x: 2 * loss(weights, x)

    result = compare(loss, *SHAPES, blocks=other, strategies=["nn_remat"], rounds=0)
    assert result["nn_remat"].max_grad_relative_difference == pytest.approx(1, rel=1e-3)
    assert not result["nn_remat"].bitwise_equal


def test_aux_outputs_and_several_differentiated_arguments():
    def with_aux(weights, x):
        value = loss(weights, x)
        return value, {"double": 2 * value}

    result = compare(with_aux, *SHAPES, strategies=["optimal@0.8"], argnums=(0, 1), has_aux=True, rounds=0, time_limit=5)
    assert result["optimal@0.8"].max_value_difference < 1e-6
    assert result["optimal@0.8"].max_grad_relative_difference < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategies": ["fastest"]}, "no strategy named 'fastest'"),
        ({"strategies": ["optimal@"]}, "no strategy named 'optimal@'"),
        ({"solver": "oracle"}, "no solver 'oracle'"),
        ({"rounds": -1}, "rounds is -1"),
    ],
)
def test_options_out_of_range_are_refused_before_the_work(options, message):
    with pytest.raises(InvalidArgument, match=message):
        compare(loss, *SHAPES, **options)


def test_a_budget_that_is_none_is_refused_before_the_work():
    with pytest.raises(InvalidBudget, match="3 GB of"):
        compare(loss, *SHAPES, budgets=["3 GB of"])


def test_rows_come_in_the_order_of_the_table():
    names = [strategy.name for strategy in select(["optimal", "sqrt", "optimal@2GiB"], [0.5, 0.3])]
    assert names == ["plain", "sqrt", "optimal@0.5", "optimal@0.3", "optimal@2GiB"]


def test_shapes_become_arrays_of_the_same_kind():
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = {
        "x": jax.ShapeDtypeStruct((1000,), jnp.float32),
        "small": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
        "complex": jax.ShapeDtypeStruct((4,), jnp.complex64),
        "label": jax.ShapeDtypeStruct((3,), jnp.int32),
        "mask": jax.ShapeDtypeStruct((2,), jnp.bool_),
        "key": key,
        "keys": jax.ShapeDtypeStruct((2, 3), key.dtype),
        "real": 3.0,
        "none": None,
    }
    assert not is_concrete(shapes)
    made = materialise(shapes, seed=1)
    assert is_concrete(made)
    assert made["real"] == 3.0
    for name in set(shapes) - {"real", "none"}:
        assert (made[name].shape, made[name].dtype) == (shapes[name].shape, shapes[name].dtype)
    assert 0.09 < float(jnp.std(made["x"])) < 0.11
    assert not made["label"].any()
    again, other = materialise(shapes, seed=1), materialise(shapes, seed=2)
    assert (again["x"] == made["x"]).all()
    assert (other["x"] != made["x"]).any()


def test_blocks_that_are_modules_are_wrapped_by_flax():
    from flax import linen as nn

    wrapped = block_transform("dots_saveable")(nn.Dense)
    assert issubclass(wrapped, nn.Module)
    x = jnp.ones((2, 3))
    params = nn.Dense(4).init(jax.random.key(0), x)
    assert (wrapped(4).apply(params, x) == nn.Dense(4).apply(params, x)).all()
