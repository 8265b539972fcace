"""Plans under JAX's debugging settings, from several threads, and for models that nobody could allocate."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import remat_lab as rl
from remat_lab import api
from remat_lab.profile_cache import Cache, Measurement

W = [jax.random.normal(jax.random.key(i), (16, 16)) / 4 for i in range(5)]
X = jax.random.normal(jax.random.key(9), (32, 16))


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2)


SETTINGS = {
    "disable_jit": jax.disable_jit,
    "debug_nans": lambda: jax.debug_nans(True),
    "check_tracer_leaks": jax.checking_leaks,
}


@pytest.mark.parametrize("form", ["exact", "applied"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_plans_work_under_settings_for_debugging(setting, form):
    expected = jax.value_and_grad(loss)(W, X)
    with SETTINGS[setting]():
        plan = rl.plan(loss, W, X, budget=0.7, solver="greedy", check="planned")
        step = plan.value_and_grad() if form == "exact" else jax.value_and_grad(plan.apply())
        found = jax.jit(step)(W, X)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_threads_share_one_plan(monkeypatch):
    made, plan = [], api._plan
    monkeypatch.setattr(api, "_plan", lambda *args, **options: made.append(1) or plan(*args, **options))
    step = rl.value_and_grad(loss, budget=0.7, solver="greedy", check="planned")
    expected, barrier = jax.value_and_grad(loss)(W, X)[0], threading.Barrier(4)
    found, plans = [], []

    def work():
        barrier.wait()
        found.append(step(W, X)[0])
        plans.append(next(iter(step.plans.values())))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose(found, [expected] * 4, rtol=1e-5)
    assert len({id(plan) for plan in plans}) == len(made) == 1


def test_threads_and_processes_may_share_measurements(tmp_path):
    """A reader sees a whole measurement or none, whoever writes at that moment: damage would be a warning, an error here."""
    barrier, read = threading.Barrier(4), []

    def work(number):
        cache = Cache(tmp_path)  # as another process would have it
        barrier.wait()
        for seconds in range(25):
            cache.write("abcdef", Measurement(float(seconds), number), about="x" * 10_000 * number)
            read.append(cache.read("abcdef"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == 100
    assert all(found is not None and found.workspace_bytes in range(4) for found in read)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cdef.json"]


def test_planning_allocates_nothing_of_the_models_size():
    huge = [jax.ShapeDtypeStruct((1 << 18, 1 << 18), jnp.float32)] * 3  # 256 GiB each
    x = jax.ShapeDtypeStruct((1 << 16, 1 << 18), jnp.float32)
    plan = rl.plan(loss, huge, x, budget=0.9, solver="greedy", check="planned")
    assert plan.predicted.keep_all_peak_bytes > 1 << 36
    assert plan.policy_plan.peak_bytes <= plan.budget_bytes
