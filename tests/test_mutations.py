"""Deliberate faults in emitter and simulator, each caught by a check that would be run without knowing of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from fuzzing import OPTIONS

import remat_lab as rl
from remat_lab import emit
from remat_lab.fuse import Fused
from remat_lab.measure import compile_program
from remat_lab.verify import largest_difference
from solvers import Compute, Free, Schedule, simulate
from solvers.errors import InvalidSchedule
from solvers.graph import Graph, Node

W = [jax.random.normal(jax.random.key(i), (32, 32)) / 6 for i in range(6)]
X = jax.random.normal(jax.random.key(9), (64, 32))


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2)


@pytest.fixture(scope="module")
def plan() -> rl.Plan:
    found = rl.plan(loss, W, X, budget=0.7, solver="greedy", check="planned")
    assert found.schedule.recomputed
    return found


def checks(plan: rl.Plan) -> None:
    """What is held for every plan: equations as planned, recomputation and peak as planned when compiled, the same results."""
    emitted = jax.make_jaxpr(plan.value_and_grad())(W, X)
    planned = sum(plan.program.equations[k].name == "sin" for v in plan.schedule.order for k in plan.fused.groups[v].equations)
    assert sum(eqn.primitive.name == "sin" for eqn in emitted.eqns) == planned
    plain = compile_program(jax.value_and_grad(loss), W, X, compiler_options=OPTIONS)
    step = compile_program(plan.value_and_grad(), W, X, compiler_options=OPTIONS)
    assert step.flops is not None
    assert plain.flops is not None
    assert step.flops >= 0.98 * plain.flops * (1 + plan.predicted.extra_flops_ratio)
    assert step.temp_bytes <= 1.1 * plan.predicted.peak_bytes
    assert largest_difference(plain.call(W, X), step.call(W, X)).relative < 1e-4


def without_barriers(monkeypatch):
    monkeypatch.setattr(emit, "_barrier", lambda tied, pending: tied)


def every_other_barrier(monkeypatch):
    original, count = emit._barrier, [0]

    def barrier(tied, pending):
        count[0] += 1
        return original(tied, pending) if count[0] % 3 == 0 else tied

    monkeypatch.setattr(emit, "_barrier", barrier)


def results_swapped_in_the_barrier(monkeypatch):
    original = emit._barrier

    def barrier(tied, pending):
        held = original(tied, pending)
        same = len(held) > 1 and held[0].shape == held[1].shape
        return [held[1], held[0], *held[2:]] if same else held

    monkeypatch.setattr(emit, "_barrier", barrier)


def the_first_instance_is_read_for_ever(monkeypatch):
    original = emit.run_schedule

    def run(fused: Fused, schedule: Schedule, program: Any, args: Any) -> Any:
        seen: set[int] = set()
        steps = []
        for step in schedule.steps:
            if isinstance(step, Compute) and step.node not in seen:
                seen.add(step.node)
                steps.append(step)
        return original(fused, Schedule(tuple(steps)), program, args)

    monkeypatch.setattr("remat_lab.step.run_schedule", run)


def an_equation_is_left_out(monkeypatch):
    original = emit.run_equation

    def run(q, local, env):
        if q.name == "sin":
            local[q.outs[0]] = local[q.ins[0]] if q.ins[0] in local else env[q.ins[0]]
        else:
            original(q, local, env)

    monkeypatch.setattr(emit, "run_equation", run)


def a_result_is_a_thousandth_off(monkeypatch):
    original = emit.run_equation

    def run(q, local, env):
        original(q, local, env)
        if q.name == "mul":
            local[q.outs[0]] = local[q.outs[0]] * 1.001

    monkeypatch.setattr(emit, "run_equation", run)


EMITTER = [
    without_barriers,
    every_other_barrier,
    results_swapped_in_the_barrier,
    the_first_instance_is_read_for_ever,
    an_equation_is_left_out,
    a_result_is_a_thousandth_off,
]


def test_without_a_fault_all_checks_pass(plan):
    checks(plan)


@pytest.mark.parametrize("fault", EMITTER, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_emitter_is_caught(plan, fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        checks(plan)


GRAPH = Graph(
    (
        Node("a", 1, 4),
        Node("b", 1, 2, (0,), workspace=3),
        Node("c", 1, 1, (1,), recomputable=False),
        Node("d", 1, 5, (0, 2)),
    ),
    (3,),
)
SCHEDULE = Schedule((Compute(0), Compute(1), Compute(2), Free(1), Compute(3), Free(0), Free(2)))


def by_hand(schedule: Schedule) -> tuple[int, tuple[int, ...]]:
    result = simulate(GRAPH, schedule)
    return result.peak, result.live


def test_the_simulator_counts_as_by_hand():
    assert by_hand(SCHEDULE) == (10, (4, 9, 7, 10))


SIMULATOR: dict[str, Callable[[Schedule], Schedule]] = {
    "frees one step early": lambda s: Schedule((*s.steps[:3], s.steps[3], Free(0), Compute(3), Free(2))),
    "frees twice": lambda s: Schedule((*s.steps, Free(2))),
    "repeats what may not be repeated": lambda s: Schedule((*s.steps[:3], Free(2), Compute(2), *s.steps[3:])),
    "forgets an output": lambda s: Schedule((*s.steps, Free(3))),
}


@pytest.mark.parametrize("fault", SIMULATOR)
def test_a_fault_in_a_schedule_is_caught_by_the_simulator(fault):
    with pytest.raises(InvalidSchedule):
        simulate(GRAPH, SIMULATOR[fault](SCHEDULE))


@pytest.mark.parametrize("fault", ["reads are not checked", "bytes are off by one", "parts are not counted"])
def test_a_fault_of_the_simulator_is_caught_by_hand_computed_peaks(fault, monkeypatch):
    if fault == "reads are not checked":
        monkeypatch.setattr(sys.modules["solvers.simulate"], "_check_compute", lambda *_: None)
        with pytest.raises(pytest.fail.Exception), pytest.raises(InvalidSchedule):
            simulate(GRAPH, SIMULATOR["frees one step early"](SCHEDULE))
    elif fault == "parts are not counted":
        whole = Graph((Node("a", 1, 4), Node("p", 0, 3, part_of=0), Node("b", 1, 1, (0, 1))), (2,))
        order = Schedule.from_order(whole, (0, 2))
        assert simulate(whole, order).live == (7, 8)
        monkeypatch.setattr(Graph, "written", lambda self, v: (v,))
        with pytest.raises(InvalidSchedule):
            simulate(whole, order)
    else:
        monkeypatch.setattr(Node, "charge", property(lambda node: node.size - 1))
        assert by_hand(SCHEDULE) != (10, (4, 9, 7, 10))
