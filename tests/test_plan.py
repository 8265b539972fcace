"""Plans as users meet them: budgets, statuses, mismatches, transformations, control flow and effects."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

import remat_lab as rl
from remat_lab.verify import largest_difference

W = [jnp.eye(32) * 0.5 + 0.01 for _ in range(8)]
X = jnp.linspace(-1.0, 1.0, 64 * 32).reshape(64, 32)
LAYER = X.nbytes


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2)


def half(**options):
    return rl.plan(loss, W, X, budget=0.5, solver="chen", **options)


def test_a_plan_keeps_to_its_budget_and_says_what_it_costs():
    plan = half()
    assert plan.predicted.peak_bytes <= plan.budget_bytes == plan.predicted.keep_all_peak_bytes // 2
    assert plan.predicted.extra_flops_ratio > 0
    assert plan.verify(W, X).relative < 1e-6
    text = plan.summary()
    for expected in ("plan of loss", "recomputed", "test_plan.py", "backward pass begins", "extra FLOPs"):
        assert expected in text


def test_ample_budgets_recompute_nothing():
    for budget in (None, 1.0, "1GB", 10**12):
        plan = rl.plan(loss, W, X, budget=budget)
        assert not plan.schedule.recomputed
        assert plan.predicted.extra_flops_ratio == 0
        assert plan.solution.status.value == "optimal"


@pytest.mark.parametrize("form", ["value_and_grad", "jitted", "jit", "under a larger jit", "no jit at all"])
def test_every_way_to_run_a_plan_gives_the_same_results(form):
    plan = half()
    expected = jax.jit(jax.value_and_grad(loss))(W, X)
    if form == "no jit at all":
        with jax.disable_jit():
            found = plan.value_and_grad()(W, X)
    else:
        step = {
            "value_and_grad": plan.value_and_grad(),
            "jitted": jax.jit(plan.value_and_grad()),
            "jit": plan.jit(),
            "under a larger jit": jax.jit(lambda ws, x: plan.value_and_grad()(ws, x)),
        }[form]
        found = step(W, X)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    assert largest_difference(expected, found).relative < 1e-5


def test_a_plan_may_be_mapped_over_a_batch():
    plan = rl.plan(loss, W, X, budget=0.6, solver="chen")
    batch = jnp.stack([X, 2 * X])
    found = jax.vmap(plan.value_and_grad(), (None, 0))(W, batch)
    expected = jax.vmap(jax.value_and_grad(loss), (None, 0))(W, batch)
    assert largest_difference(expected, found).relative < 1e-5


def test_measure_shows_both_schedulers_and_separates_plans():
    keep, less = rl.plan(loss, W, X).measure(), half().measure()
    assert set(keep) == set(less) == {"default", "memory"}
    assert less["memory"].temp_bytes < keep["memory"].temp_bytes
    assert less["memory"].flops > keep["memory"].flops
    assert keep["memory"].output_bytes >= sum(w.nbytes for w in W)


@pytest.mark.parametrize("run", [lambda plan, *a: plan.value_and_grad()(*a), lambda plan, *a: plan.jit()(*a), rl.Plan.verify])
def test_other_arguments_are_refused_by_name(run):
    plan = half()
    with pytest.raises(rl.PlanMismatch, match=r"x is float32\[3,32\], but the plan was made for float32\[64,32\]"):
        run(plan, W, X[:3])
    with pytest.raises(rl.PlanMismatch, match=r"x is bfloat16.*float32"):
        run(plan, W, X.astype(jnp.bfloat16))
    with pytest.raises(rl.PlanMismatch, match="another structure"):
        run(plan, W[:3], X)


def test_another_static_value_is_refused():
    plan = rl.plan(lambda x, mode: jnp.sum(jnp.sin(x) if mode == "a" else x), X, "a")
    with pytest.raises(rl.PlanMismatch, match=r"mode is the static value 'b'.*'a'"):
        plan.value_and_grad()(X, "b")


def test_a_loss_that_has_become_another_program_is_refused():
    box = {"fun": jnp.sin}
    plan = rl.plan(lambda x: jnp.sum(box["fun"](x)), X)
    box["fun"] = jnp.tanh
    with pytest.raises(rl.PlanMismatch, match=r"is tanh .* at .*test_plan.py:\d+ .* instead of sin .*plan again"):
        plan.value_and_grad()(X)


def test_value_and_grad_plans_once_for_each_shape():
    traces = []

    def counted(ws, x):
        traces.append(x.shape)
        return loss(ws, x)

    step = rl.value_and_grad(counted, budget=0.6, solver="chen")
    for x in (X, X, X[:32], X):
        assert largest_difference(jax.value_and_grad(loss)(W, x), step(W, x)).relative < 1e-5
    assert len(step.plans) == 2
    assert len(traces) == 8  # two to plan and compile each shape, one for each call
    jax.jit(step)(W, X)
    assert len(step.plans) == 2


def test_value_and_grad_takes_static_values_and_aux():
    def with_aux(x, mode, *, scale):
        y = jnp.sin(x) if mode == "sin" else jnp.cos(x)
        return jnp.sum(y) * scale, y

    step = rl.value_and_grad(with_aux, has_aux=True, budget=1.0, static_argnames="scale")
    for mode in ("sin", "cos"):
        expected = jax.value_and_grad(partial(with_aux, mode=mode, scale=2.0), has_aux=True)(X)
        assert largest_difference(expected, step(X, mode, scale=2.0)).relative < 1e-6
    assert len(step.plans) == 2


@pytest.mark.parametrize("transform", [jax.grad, jax.hessian, jax.jacfwd], ids=["grad", "hessian", "jacfwd"])
def test_a_schedule_is_not_differentiated_again_without_a_word(transform):
    plan = rl.plan(lambda x: jnp.sum(jnp.sin(x)), X[0])
    with pytest.raises(rl.InvalidLoss, match="cannot be differentiated again"):
        transform(lambda x: plan.value_and_grad()(x)[0])(X[0])


def test_verify_wants_real_arrays():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (W, X))
    with pytest.raises(rl.InvalidArgument, match="real arrays"):
        half().verify(*shapes)


@pytest.mark.parametrize("solver", ["auto", "chen", "intervals"])
def test_an_impossible_budget_says_what_would_do_and_which_line_stands_in_the_way(solver):
    with pytest.raises(rl.InfeasibleBudget) as planned:
        rl.plan(loss, W, X, budget=1000, solver=solver, check="planned", time_limit=20)
    assert planned.value.proven
    with pytest.raises(rl.InfeasibleBudget) as caught:
        rl.plan(loss, W, X, budget=1000, solver=solver, time_limit=20)
    error = caught.value
    assert 1000 < error.lower_bound <= error.minimum
    assert not error.proven, "the compiler may need less than a schedule is counted"
    assert "test_plan.py" in error.name
    assert f"{error.minimum:,} bytes" in str(error)
    again = rl.plan(loss, W, X, budget=error.minimum, solver=solver, time_limit=20)
    assert again.predicted.peak_bytes <= error.minimum


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (0, "not positive"),
        (-5, "not positive"),
        (0.0, "above 0 and at most at 1"),
        (1.5, "above 0 and at most at 1"),
        (-0.5, "above 0"),
        ("3 GB of", "not a number with a unit"),
        ("GB", "not a number with a unit"),
        ("3 XB", "unknown unit"),
        ("150%", "at most at 1"),
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        (True, "neither a number nor a string"),
        ([1], "neither a number nor a string"),
    ],
)
def test_what_is_not_a_budget_is_refused(budget, message):
    with pytest.raises(rl.InvalidBudget, match=message):
        rl.plan(loss, W, X, budget=budget)


def test_a_program_without_temporaries_fits_any_fraction():
    assert rl.value_and_grad(lambda x: jnp.sum(jnp.sin(x)), budget=0.5)(X[0])[1].shape == (32,)


def same_under_budget(fun, *args, budget=0.7, solver="chen"):
    """A plan's results against plain JAX's, at the smallest budget known where the one asked for is too small."""
    try:
        plan = rl.plan(fun, *args, budget=budget, solver=solver)
    except rl.InfeasibleBudget as error:
        plan = rl.plan(fun, *args, budget=error.minimum, time_limit=20)
    assert plan.verify(*args).relative < 1e-5
    return plan


@pytest.mark.parametrize(
    ("ws", "options"),
    [
        (jnp.ones(0), {}),
        (jnp.linspace(0.5, 1.0, 6), {"reverse": True}),
        (None, {"length": 3}),
        (jnp.ones(5), {"unroll": 2}),
        (jnp.ones(251), {}),
        (jnp.ones(1), {}),
    ],
    ids=["empty", "reversed", "nothing to read", "unrolled", "prime length", "one trip"],
)
def test_scans_of_every_form(ws, options):
    def scanned(x):
        def body(carry, w):
            n, c = carry
            return (n + 1, jnp.sin(c * (1.0 if w is None else w) + n.astype(jnp.float32))), jnp.sum(c)

        (n, c), ys = lax.scan(body, (jnp.int32(0), x), ws, **options)
        return jnp.sum(c) * (n + 1).astype(jnp.float32) + jnp.sum(ys * jnp.arange(1.0, ys.shape[0] + 1))

    same_under_budget(scanned, X[0])


def test_loops_off_the_gradient_path_and_branches():
    def branched(x):
        n = lax.while_loop(lambda c: c[1] < 10.0, lambda c: (c[0] + 1, c[1] + 3.0), (0, 0.0))[0]
        y = lax.fori_loop(0, 4, lambda i, c: jnp.sin(c) + 1.0, x)
        y = lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, y)
        y = lax.switch(n % 3, [jnp.sin, jnp.cos, jnp.tanh], y)
        return jnp.sum(jnp.sin(y)) * n.astype(jnp.float32)

    same_under_budget(branched, X)


def test_a_loop_that_cannot_be_differentiated_gets_jaxs_own_words():
    def loops(x):
        return jnp.sum(lax.while_loop(lambda c: jnp.sum(c) < 50.0, lambda c: c * 2.0, x))

    with pytest.raises(ValueError, match=r"[Rr]everse-mode differentiation does not work"):
        rl.plan(loops, X)


def test_a_callback_runs_once_however_much_is_recomputed():
    seen = []

    def noisy(ws, x):
        for w in ws:
            x = jnp.sin(jnp.sin(x @ w))
            jax.debug.callback(lambda v: seen.append(float(v)), x[0, 0])
        return jnp.sum(x**2)

    plan = rl.plan(noisy, W, X, budget=0.6, solver="chen")
    assert plan.schedule.recomputed
    jax.block_until_ready(jax.jit(plan.value_and_grad())(W, X))
    jax.effects_barrier()
    assert len(seen) == len(W)


@pytest.mark.parametrize("solver", ["chen", "recursive", "knapsack", "greedy"])
def test_ordered_effects_keep_their_order_and_run_once(solver):
    seen = []

    def noisy(ws, x):
        for i, w in enumerate(ws):
            x = jnp.sin(jnp.sin(x @ w))
            io_callback(lambda v, i=i: seen.append(i), None, lax.stop_gradient(x[0, 0]), ordered=True)
            io_callback(lambda i=i: seen.append(-i), None, ordered=True)
        return jnp.sum(x**2)

    plan = rl.plan(noisy, W, X, budget=0.6, solver=solver, check="planned", time_limit=10)
    assert plan.schedule.recomputed
    jax.block_until_ready(jax.jit(plan.value_and_grad())(W, X))
    jax.effects_barrier()
    assert seen == [s for i in range(len(W)) for s in (i, -i)]


def test_a_counter_in_a_ref_is_advanced_once():
    counter = jax.new_ref(jnp.zeros(()))

    def counting(ws, x):
        counter[...] += 1.0
        return loss(ws, x)

    plan = rl.plan(counting, W, X, budget=0.6, solver="chen")
    jax.jit(plan.value_and_grad())(W, X)
    assert counter[...] == 1.0


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_bits_that_may_depend_on_compilation_are_not_drawn_twice(impl):
    key = jax.random.key(0, impl=impl)

    def noisy(ws, x):
        for i, w in enumerate(ws):
            mask = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, x.shape)
            x = jnp.where(mask, jnp.sin(jnp.sin(x @ w)), 0.0)
        return jnp.sum(x**2)

    plan = same_under_budget(noisy, W, X)
    drawn = [k for k, q in enumerate(plan.program.equations) if q.name == "random_bits"]
    steps = [v for v in plan.schedule.order if set(drawn) & set(plan.fused.groups[v].equations)]
    assert len(steps) == len(drawn) > 0


def test_routing_decisions_are_made_once():
    def routed(router, experts, x):
        for _ in range(3):
            gate, chosen = lax.top_k(jax.nn.softmax(x @ router), 2)
            x = jnp.sin(jnp.einsum("td,tkde->te", x, experts[chosen] * gate[..., None, None]))
        return jnp.sum(x**2)

    args = (jax.random.normal(jax.random.key(0), (16, 4)), jax.random.normal(jax.random.key(1), (4, 16, 16)), X[:, :16])
    plan = same_under_budget(routed, *args)
    again = {plan.program.equations[k].name for v in plan.schedule.recomputed for k in plan.fused.groups[v].equations}
    assert "top_k" not in again


def test_an_argument_returned_unchanged_and_a_view_of_one():
    def probing(x):
        y = lax.stop_gradient(x)
        return jnp.sum(jnp.sin(x) * y), (x, y, x.reshape(-1, 2))

    plan = rl.plan(probing, X, has_aux=True, budget=1.0)
    (_, (a, b, c)), _ = plan.value_and_grad()(X)
    np.testing.assert_array_equal(a, X)
    np.testing.assert_array_equal(b, X)
    np.testing.assert_array_equal(c, X.reshape(-1, 2))


def test_results_are_not_counted_in_the_budget_but_in_the_total():
    def probing(ws, x):
        kept = []
        for w in ws:
            x = jnp.sin(x @ w)
            kept.append(x)
        return jnp.sum(x), kept

    plan, alone = rl.plan(probing, W, X, has_aux=True), rl.plan(lambda ws, x: probing(ws, x)[0], W, X)
    assert plan.predicted.peak_bytes <= alone.predicted.peak_bytes - (len(W) - 2) * LAYER
    assert plan.predicted.total_bytes >= plan.predicted.peak_bytes + len(W) * LAYER


def test_a_donated_parameter_may_still_be_donated():
    plan = rl.plan(loss, W, X)

    @partial(jax.jit, donate_argnums=0)
    def train(ws, x):
        return jax.tree.map(lambda w, g: w - 0.001 * g, ws, plan.value_and_grad()(ws, x)[1])

    ws = jax.tree.map(jnp.copy, W)
    for _ in range(3):
        ws = train(ws, X)
    assert all(bool(jnp.isfinite(w).all()) for w in ws)
    assert train.lower(ws, X).compile().memory_analysis().alias_size_in_bytes == sum(w.nbytes for w in ws)
