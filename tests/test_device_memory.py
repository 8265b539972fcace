"""What a device's memory leaves for temporaries, class by class."""

import jax
import jax.numpy as jnp
import optax
import pytest

import remat_lab as rl

WIDTH, BATCH, LAYERS = 64, 256, 8
WS = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
X = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.float32)
WEIGHTS = LAYERS * WIDTH * WIDTH * 4
ACTIVATION = BATCH * WIDTH * 4


def loss(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def test_classes_count_what_is_there():
    plan = rl.plan(loss, WS, X, reserved={"optimizer": optax.adam(1e-3), "ema": WS, "other": "1 kB"})
    memory = plan.memory
    assert (memory.parameters, memory.gradients, memory.other_arguments) == (WEIGHTS, WEIGHTS, ACTIVATION)
    assert memory.reserved == {"optimizer": 2 * WEIGHTS + 4, "ema": WEIGHTS, "other": 1000}  # two moments and a count
    assert memory.other_results == 4 + 8 * (1 + LAYERS)  # the loss, and an address for each result
    assert memory.temporaries == plan.predicted.peak_bytes
    assert memory.total == 5 * WEIGHTS + 4 + 1000 + ACTIVATION + memory.other_results + memory.temporaries
    assert dict(memory.rows())["temporaries"] == memory.temporaries


@pytest.mark.parametrize(
    "reserved", [optax.sgd(0.1), optax.adam(0.1), 12345, "1 MB", WS], ids=["sgd", "adam", "int", "text", "tree"]
)
def test_the_compiled_step_and_all_else_fit_the_device(reserved):
    keep_all = rl.plan(loss, WS, X, reserved=reserved)
    device = keep_all.memory.total - 2 * ACTIVATION
    plan = rl.plan(loss, WS, X, device_memory=device, reserved=reserved)
    compiled = plan.compiled
    assert compiled.total_bytes + sum(plan.reserved.values()) <= device
    assert plan.memory.total == compiled.total_bytes + sum(plan.reserved.values())
    assert plan.schedule.recomputed
    assert plan.budget_bytes == device - plan.memory.fixed


def test_the_smaller_of_two_limits_holds():
    assert rl.plan(loss, WS, X, budget=0.8, device_memory="1 GB").budget_bytes == rl.plan(loss, WS, X, budget=0.8).budget_bytes


def test_a_device_too_small_for_the_arguments_says_what_takes_the_room():
    with pytest.raises(rl.InvalidBudget, match=r"parameters 131.1 kB.*optimizer state 131.1 kB.*Recomputation cannot help"):
        rl.plan(loss, WS, X, device_memory=WEIGHTS, reserved=optax.sgd(0.1, momentum=0.9))


@pytest.mark.parametrize("reserved", [-1, True, 2.5, object(), {"optimizer": None}])
def test_what_cannot_be_counted_is_refused(reserved):
    with pytest.raises((rl.InvalidArgument, rl.InvalidBudget)):
        rl.plan(loss, WS, X, reserved=reserved)


def test_device_memory_is_not_a_fraction():
    with pytest.raises(rl.InvalidBudget, match="neither bytes"):
        rl.plan(loss, WS, X, device_memory=0.5)
