"""The promise on random programs: whatever `rl.plan` returns compiles within its budget, at every budget."""

from __future__ import annotations

import contextlib

import hypothesis
import jax
import pytest
from programs import Program, programs

import remat_lab as rl
from remat_lab.measure import compile_program

FRACTIONS = (0.9, 0.7, 0.55, 0.4, 0.25)
_SETTINGS = {
    "database": None,
    "deadline": None,
    "phases": [hypothesis.Phase.generate],
    "suppress_health_check": list(hypothesis.HealthCheck),
}


def hold(program: Program, fractions: tuple[float, ...]) -> int:
    """Plans under each budget, and compiles what was returned once more, apart from the planner; the number of plans."""
    args, returned = program.args(), 0
    wide = jax.enable_x64(True) if program.dtype == "float64" else contextlib.nullcontext()
    with wide:
        for fraction in fractions:
            wanted = {"argnums": program.argnums, "has_aux": program.has_aux, "solver": "greedy"}
            try:
                plan = rl.plan(program.loss, *args, budget=fraction, **wanted)
            except rl.InfeasibleBudget:
                continue
            compiled = compile_program(plan.value_and_grad(), *args, compiler_options=plan.compiler_options)
            assert compiled.temp_bytes <= plan.budget_bytes
            returned += 1
    return returned


@hypothesis.seed(7)
@hypothesis.settings(max_examples=3, **_SETTINGS)
@hypothesis.given(programs(max_steps=6))
def test_no_plan_of_a_random_program_compiles_above_its_budget(program):
    hold(program, FRACTIONS[:2])


@pytest.mark.slow
def test_no_plan_of_thirty_random_programs_at_five_budgets_compiles_above_its_budget():
    counts = []

    @hypothesis.seed(30)
    @hypothesis.settings(max_examples=30, **_SETTINGS)
    @hypothesis.given(programs(min_steps=3, max_steps=10))
    def run(program):
        counts.append(hold(program, FRACTIONS))

    run()
    assert len(counts) == 30
    assert sum(counts) >= 15, "most budgets must be met for this to say anything"
