"""A budget is a promise about the compiled program."""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import remat_lab as rl
from remat_lab import planner
from remat_lab.measure import compile_program
from remat_lab.promise import hold
from remat_lab.units import size
from solvers.errors import InfeasibleBudget

WS = [jnp.eye(64) * 0.9] * 6
X = jnp.linspace(-1, 1, 512 * 64).reshape(512, 64)


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.tanh(x @ w) * x)
    return jnp.mean(x**2)


@dataclass
class Fake:
    """A plan whose compiled size is what the compiler makes of the planned one."""

    planned_bytes: int
    compiled_bytes: int
    compiler_options: dict = field(default_factory=lambda: {"option": "value"})
    fullest: str = "dot at file.py:3"


class Planner:
    """Plans as large as allowed, in steps, never below a smallest."""

    def __init__(self, smallest, step, excess):
        self.smallest, self.step, self.excess, self.asked = smallest, step, excess, []

    def __call__(self, budget):
        self.asked.append(budget)
        if budget < self.smallest:
            raise InfeasibleBudget(
                budget=budget, minimum=self.smallest, lower_bound=1, relative_to="any order", bottleneck=0, name="dot"
            )
        planned = self.smallest + (budget - self.smallest) // self.step * self.step
        return Fake(planned, planned + self.excess(planned))


@given(
    budget=st.integers(1, 3000),
    smallest=st.integers(1, 2000),
    step=st.integers(1, 200),
    percent=st.integers(-10, 30),
    extra=st.integers(-20, 60),
)
def test_what_is_returned_fits_and_what_is_refused_says_what_was_found(budget, smallest, step, percent, extra):
    make = Planner(smallest, step, lambda planned: max(-planned + 1, planned * percent // 100 + extra))
    found = hold_or_error(make, budget)
    if isinstance(found, InfeasibleBudget):
        assert found.minimum > budget
        assert found.lower_bound <= found.minimum
        assert not found.proven, "what schedules need proves nothing about programs"
        assert "node" not in str(found)
        assert len(make.asked) <= 10
        assert hold(make, found.minimum)[0].compiled_bytes <= found.minimum
        assert found.relative_to == "any order" or "option=value" in found.relative_to
        return
    plan, rounds = found
    assert plan.compiled_bytes == rounds[-1].compiled_bytes <= budget
    assert all(attempt.compiled_bytes > budget for attempt in rounds[:-1])
    planned = [attempt.planned_bytes for attempt in rounds]
    assert planned == sorted(planned, reverse=True)


def hold_or_error(make, budget):
    try:
        return hold(make, budget)
    except InfeasibleBudget as error:
        return error


@given(
    budget=st.integers(1, 200),
    plans=st.lists(st.tuples(st.integers(40, 200), st.integers(-30, 60)), min_size=1, max_size=8),
)
@example(102, [(136, 7), (125, 26)])
def test_what_an_error_names_can_be_had_from_a_planner_that_finds_less_for_more(budget, plans):
    def make(asked):
        fitting = [plan for plan in plans if plan[0] <= asked]
        if not fitting:
            known, _ = plans[asked % len(plans)]
            raise InfeasibleBudget(
                budget=asked, minimum=known, lower_bound=1, relative_to="any order", bottleneck=0, name="dot"
            )
        planned, excess = fitting[asked % len(fitting)]
        return Fake(planned, planned + excess)

    found = hold_or_error(make, budget)
    minimum = found.minimum if isinstance(found, InfeasibleBudget) else budget
    assert hold(make, minimum)[0].compiled_bytes <= minimum


@given(budget=st.integers(300, 3000), step=st.integers(1, 50), extra=st.integers(0, 100))
def test_a_constant_excess_is_made_up_for_in_two_rounds(budget, step, extra):
    make = Planner(100, step, lambda planned: extra)
    _, rounds = hold(make, budget)
    assert len(rounds) <= 2


def test_the_smallest_plan_is_compiled_before_giving_up():
    make = Planner(1000, 1, lambda planned: -100)  # compiles to less than predicted
    found, _ = hold(make, 950)
    assert found.compiled_bytes == 900
    with pytest.raises(InfeasibleBudget) as caught:
        hold(make, 850)
    assert caught.value.minimum == 900


def refusing(lower_bound, excess):
    """A planner of one plan of 1,000 bytes, with what it says about smaller ones."""

    def make(asked):
        if asked < 1000:
            raise InfeasibleBudget(
                budget=asked, minimum=1000, lower_bound=lower_bound, relative_to="any order", bottleneck=4, name="sin at a.py:1"
            )
        return Fake(1000, 1000 + excess)

    return make


def test_a_bound_that_a_compiled_program_beats_is_void():
    with pytest.raises(InfeasibleBudget) as caught:
        hold(refusing(950, excess=-100), 800)
    error = caught.value
    assert (error.minimum, error.minimum_of, error.lower_bound) == (900, "compiled", 0)
    assert (error.bottleneck, error.name) == (None, "")
    assert "950" not in str(error)
    assert "by a plan that is fullest at 'dot at file.py:3'" in str(error)


def test_a_bound_that_stands_is_said_to_be_one_on_what_is_simulated():
    with pytest.raises(InfeasibleBudget) as caught:
        hold(refusing(850, excess=-100), 800)
    error = caught.value
    assert (error.minimum_of, error.lower_bound, error.bound_of) == ("compiled", 850, "simulated")
    assert not error.proven
    assert "no schedule needs less than 850 bytes as simulated, because of 'sin at a.py:1'" in str(error)


def test_a_bound_that_another_compiled_plan_beats_is_void():
    """The planner's smallest plan compiles to more than one before it."""
    plans = {1000: Fake(1000, 940), 960: Fake(955, 960), 955: Fake(955, 965)}

    def make(asked):
        if asked not in plans:
            known = 1000 if asked == 900 else 955
            raise InfeasibleBudget(budget=asked, minimum=known, lower_bound=950, relative_to="any order")
        return plans[asked]

    with pytest.raises(InfeasibleBudget) as caught:
        hold(make, 900)
    assert (caught.value.minimum, caught.value.lower_bound) == (965, 0)


def test_plain_jax_counts_among_what_is_known_to_work():
    """A switch is counted with what all of its branches keep; the program takes less than any schedule of that."""
    branches = [jnp.sin, lambda x: jnp.sin(jnp.sin(jnp.sin(x))), lambda x: jnp.exp(jnp.exp(-x))]

    def switched(i, x):
        return jnp.sum(jax.lax.switch(i, branches, x))

    args = jnp.int32(1), jnp.linspace(0.1, 1.0, 4096)
    counted = rl.plan(switched, *args, argnums=1, check="planned")
    with pytest.raises(rl.InfeasibleBudget) as caught:
        rl.plan(switched, *args, argnums=1, budget=2048, time_limit=5)
    error = caught.value
    plain = compile_program(jax.value_and_grad(switched, 1), *args, compiler_options=counted.compiler_options)
    assert error.minimum == plain.temp_bytes < counted.predicted.keep_all_peak_bytes
    assert (error.lower_bound, error.proven) == (0, False)
    assert "and plain JAX" in error.relative_to
    found = rl.plan(switched, *args, argnums=1, budget=error.minimum, time_limit=5)
    assert found.compiled_bytes <= error.minimum
    with pytest.raises(rl.InfeasibleBudget) as named:
        rl.plan(switched, *args, argnums=1, budget=2048, solver="chen")
    assert "plain JAX" not in named.value.relative_to


@pytest.mark.parametrize("budget", [0.7, 0.5])
def test_the_compiled_step_keeps_the_budget_under_the_plans_own_options(budget):
    plan = rl.plan(loss, WS, X, budget=budget, time_limit=20)
    again = compile_program(plan.value_and_grad(), WS, X, compiler_options=plan.compiler_options)
    assert again.temp_bytes == plan.compiled_bytes == plan.rounds[-1].compiled_bytes <= plan.budget_bytes
    assert f"compiled temp   {size(plan.compiled_bytes)}" in plan.summary()


def test_a_policy_keeps_the_budget_as_compiled():
    plan = rl.plan(loss, WS, X, budget=0.6, time_limit=20)
    step = jax.value_and_grad(plan.apply())
    compiled = compile_program(step, WS, X, compiler_options=plan.compiler_options)
    assert compiled.temp_bytes <= plan.budget_bytes
    assert plan.applied_policy.rounds[-1].compiled_bytes <= plan.budget_bytes


def test_the_executable_of_the_promise_is_the_one_that_runs():
    plan = rl.plan(loss, WS, X, budget=0.6, time_limit=20)
    step = plan.jit()
    compilations = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compilations.append(event) if event.endswith("backend_compile_duration") else None
    )
    try:
        jax.block_until_ready(step(WS, X))
        assert not compilations
    finally:
        jax.monitoring.clear_event_listeners()


def test_plain_jax_is_the_plan_where_it_fits_and_a_schedule_would_recompute():
    plain = compile_program(jax.value_and_grad(loss), WS, X, compiler_options=rl.plan(loss, WS, X).compiler_options)
    plan = rl.plan(loss, WS, X, budget=plain.temp_bytes, time_limit=20)
    assert plan.unscheduled == (plan.predicted.keep_all_peak_bytes > plan.budget_bytes)
    assert plan.unscheduled, "XLA fuses more here than the planner takes it to"
    assert plan.solution.overhead == 0
    assert plan.compiled_bytes <= plan.budget_bytes
    assert "plain JAX" in plan.summary()
    assert plan.verify(WS, X).bitwise
    named = rl.plan(loss, WS, X, budget=plain.temp_bytes, solver="chen")
    assert not named.unscheduled


def test_what_lies_in_buffers_of_results_is_planned_with_once_more(monkeypatch):
    """Weights larger than activations: most temporaries fit into gradients that are not there yet."""
    monkeypatch.setattr(planner, "_SPARE_BYTES", 0)
    weights, x = [jnp.eye(128) * 0.9] * 6, jnp.ones((64, 128))
    once = rl.plan(loss, weights, x, budget=0.5, solver="greedy", check="planned")
    plan = rl.plan(loss, weights, x, budget=0.5, solver="greedy")
    assert plan.solution.cost < once.solution.cost
    assert plan.compiled_bytes <= plan.budget_bytes < plan.planned_bytes
    assert plan.compiled_bytes == plan.rounds[-1].compiled_bytes
    assert once.predicted.temp_bytes < once.predicted.peak_bytes
    assert replace(once, target="v5e").predicted.temp_bytes >= once.predicted.peak_bytes, "nothing is lent on a TPU"
    if jax.__version_info__ >= (0, 12):
        assert abs(plan.compiled_bytes - plan.predicted.temp_bytes) <= 0.03 * plan.compiled_bytes


def test_nothing_is_compiled_for_a_prediction():
    plan = rl.plan(loss, WS, X, budget=0.6, check="planned", time_limit=20)
    assert plan.rounds == ()
    assert "compiled" not in plan.__dict__
    assert "compiled temp" not in plan.summary()


def test_unknown_checks_are_refused():
    with pytest.raises(rl.InvalidArgument, match="compiles and holds the plan"):
        rl.plan(loss, WS, X, budget=0.6, check="maybe")
