"""Deliberate faults in emitters and simulator, each caught by a check that would be run without knowing of it.

Most are made in the source: a piece of a module's text is replaced, the module run anew, and its function put in place of the
original. A text that is not there any more fails the test, so that no fault is forgotten when the code changes.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from fuzzing import OPTIONS

import remat_lab as rl
from remat_lab import emit
from remat_lab.flatten import flatten
from remat_lab.fuse import Fused
from remat_lab.measure import Compiled, compile_program
from remat_lab.policy_promise import plan_applied
from remat_lab.verify import largest_difference
from solvers import Compute, Free, Schedule
from solvers.errors import InvalidSchedule
from solvers.graph import Graph, Node

W = [jax.random.normal(jax.random.key(i), (32, 32)) / 6 for i in range(6)]
X = jax.random.normal(jax.random.key(9), (64, 32))


def loss(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2)


def mutated(name: str, old: str, new: str) -> types.ModuleType:
    """A module with one piece of its source replaced."""
    source = inspect.getsource(importlib.import_module(name))
    assert source.count(old) == 1, f"{name} has {old!r} {source.count(old)} times: this fault cannot be made"
    module = types.ModuleType(f"{name}_mutated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module.__name__, module)  # where dataclasses look for it
        exec(compile(source.replace(old, new), name, "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def plan() -> rl.Plan:
    found = rl.plan(loss, W, X, budget=0.7, solver="greedy", check="planned")
    assert found.schedule.recomputed
    return found


@pytest.fixture(scope="module")
def plain() -> Compiled:
    return compile_program(jax.value_and_grad(loss), W, X, compiler_options=OPTIONS)


def checks(plan: rl.Plan, plain: Compiled) -> None:
    """What is held for every plan: equations as planned, recomputation and peak as planned when compiled, the same results."""
    emitted = jax.make_jaxpr(plan.value_and_grad())(W, X)
    planned = sum(plan.program.equations[k].name == "sin" for v in plan.schedule.order for k in plan.fused.groups[v].equations)
    assert sum(eqn.primitive.name == "sin" for eqn in emitted.eqns) == planned
    held(plan.value_and_grad(), plain, plan.predicted.extra_flops_ratio, 1.1 * plan.predicted.peak_bytes)


def held(step: Any, plain: Compiled, extra_flops_ratio: float, temp_bytes: float) -> None:
    found = compile_program(step, W, X, compiler_options=OPTIONS)
    assert found.flops is not None
    assert plain.flops is not None
    assert 0.98 <= found.flops / plain.flops / (1 + extra_flops_ratio) <= 1.02
    assert found.temp_bytes <= temp_bytes
    assert largest_difference(plain.call(W, X), found.call(W, X)).relative < 1e-4


def two_of_three_barriers_are_missing(monkeypatch):
    original, count = emit.wait, [0]

    def wait(program, tied, pending):
        count[0] += 1
        return original(program, tied, pending) if count[0] % 3 == 0 else [x for _, x in tied]

    monkeypatch.setattr(emit, "wait", wait)


def results_swapped_in_the_barrier(monkeypatch):
    original = emit.wait

    def wait(program, tied, pending):
        held = original(program, tied, pending)
        same = len(held) > 1 and held[0].shape == held[1].shape
        return [held[1], held[0], *held[2:]] if same else held

    monkeypatch.setattr(emit, "wait", wait)


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


EXACT: dict[str, tuple[str, str] | Callable[[Any], None]] = {
    "barriers are missing": ("if tied and pending:", "if False:"),
    "two of three barriers are missing": two_of_three_barriers_are_missing,
    "barriers wait for nothing": ("for v in tied], pending)", "for v in tied], [])"),
    "results are swapped in the barrier": results_swapped_in_the_barrier,
    "the first instance is read for ever": the_first_instance_is_read_for_ever,
    "another value is freed": ("value_of.get(step.node, -1)", "value_of.get(step.node - 1, -1)"),
    "operands are in the wrong order": ("else env[v] for v in q.ins]", "else env[v] for v in reversed(q.ins)]"),
    "an equation is left out": an_equation_is_left_out,
    "a result is a thousandth off": a_result_is_a_thousandth_off,
}


def test_without_a_fault_all_checks_pass(plan, plain):
    checks(plan, plain)


@pytest.mark.parametrize("fault", EXACT)
def test_a_fault_of_the_exact_emitter_is_caught(plan, plain, fault, monkeypatch):
    made = EXACT[fault]
    if callable(made):
        made(monkeypatch)
    else:
        monkeypatch.setattr("remat_lab.step.run_schedule", mutated("remat_lab.emit", *made).run_schedule)
    with pytest.raises((AssertionError, KeyError, IndexError, TypeError)):
        checks(plan, plain)


@pytest.fixture(scope="module")
def regions(plan) -> Any:
    """A policy plan that recomputes and keeps values by name."""
    products = {"must_save": lambda value: value.primitive == "dot_general"}
    found = plan_applied(plan.loss, plan.call, int(1.15 * plan.budget_bytes), OPTIONS, check=False, **products).plan
    assert len(found.layout.root.children) > 1
    assert found.layout.names
    return found


REGIONS = {
    "regions are not checkpointed": ("jax.checkpoint(body, policy=policy)", "body"),
    "names are not given to the policy": ("jax.checkpoint(body, policy=policy)", "jax.checkpoint(body)"),
    "the compiler may merge computations": (
        "jax.checkpoint(body, policy=policy)",
        "jax.checkpoint(body, policy=policy, prevent_cse=False)",
    ),
    "tied values are swapped": ("barrier([env[v] for v in tied])", "[env[v] for v in reversed(tied)]"),
    "a region gives back what it read": (
        "self._inside(region, env)\n                return [env[v] for v in writes]",
        "self._inside(region, env)\n                return [env[v] if v not in writes else values[-1] for v in writes]",
    ),
}


def check_regions(plan: rl.Plan, plain: Compiled, regions: Any, emitter: Any) -> None:
    program = flatten(jax.make_jaxpr(lambda ws, x: loss(ws, x))(W, X), merge=False)
    run = emitter(program, regions.layout).run

    def applied(ws: Any, x: Any) -> Any:
        return run(program.constants, [*ws, x])[0]

    extra = regions.extra_flops_ratio
    held(jax.value_and_grad(applied), plain, extra, 1.1 * regions.peak_bytes)


@pytest.mark.parametrize("fault", [None, *REGIONS])
def test_a_fault_of_the_policy_emitter_is_caught(plan, plain, regions, fault):
    if fault is None:
        check_regions(plan, plain, regions, importlib.import_module("remat_lab.segments").Emitter)
        return
    emitter = mutated("remat_lab.segments", *REGIONS[fault]).Emitter
    with pytest.raises((AssertionError, KeyError, TypeError, ValueError)):
        check_regions(plan, plain, regions, emitter)


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
PARTS = Graph(
    (Node("a", 2, 4), Node("p", 0, 3, part_of=0), Node("b", 1, 6, (0, 1), external=True), Node("c", 1, 1, (0,))), (2, 3)
)
TWICE = Schedule((Compute(0), Free(1), Free(0), Compute(0), Compute(2), Free(1), Compute(3), Free(0)))
WORK = Graph((Node("a", 1, 4), Node("b", 1, 0, (0,), workspace=9)), (1,))
INVALID: dict[str, Schedule] = {
    "frees one step early": Schedule((*SCHEDULE.steps[:3], SCHEDULE.steps[3], Free(0), Compute(3), Free(2))),
    "frees twice": Schedule((*SCHEDULE.steps, Free(2))),
    "repeats what may not be repeated": Schedule((*SCHEDULE.steps[:3], Free(2), Compute(2), *SCHEDULE.steps[3:])),
    "repeats what is still there": Schedule((Compute(0), *SCHEDULE.steps)),
    "forgets an output": Schedule((*SCHEDULE.steps, Free(3))),
}


def by_hand(simulate: Callable[[Graph, Schedule], Any]) -> None:
    """Schedules counted by hand, and invalid ones, which must be refused."""
    one, two, three = simulate(GRAPH, SCHEDULE), simulate(PARTS, TWICE), simulate(WORK, Schedule.from_order(WORK, (0, 1)))
    assert (one.peak, one.peak_total, one.cost, one.live, one.peak_at) == (10, 10, 4, (4, 9, 7, 10), 3)
    assert (two.peak, two.peak_total, two.cost, two.live, two.peak_at) == (7, 13, 6, (7, 7, 7, 5), 0)
    assert (three.peak, three.peak_total, three.peak_at) == (13, 13, 1)
    for schedule in INVALID.values():
        with pytest.raises(InvalidSchedule):
            simulate(GRAPH, schedule)


SIMULATOR = {
    "the peak is taken before the result is there": (
        "peak, peak_at = temp + node.workspace, len(timeline)",
        "peak, peak_at = temp - node.charge + node.workspace, len(timeline)",
    ),
    "work space is forgotten": ("if temp + node.workspace > peak:", "if temp > peak:"),
    "work space is not in the timeline": ("timeline.append(temp + node.workspace)", "timeline.append(temp)"),
    "a free gives nothing back": ("temp -= node.charge", "temp -= 0"),
    "a free gives back one byte too many": ("temp -= node.charge", "temp -= node.charge + 1"),
    "bytes are off by one": ("temp += graph.nodes[w].charge", "temp += graph.nodes[w].charge + 1"),
    "further results of a step are not counted": (
        "for w in graph.written(v):\n                live",
        "for w in (v,):\n                live",
    ),
    "results of the program are charged": ("temp += graph.nodes[w].charge", "temp += graph.nodes[w].size"),
    "results of the program are not in the total": ("total += graph.nodes[w].size", "total += graph.nodes[w].charge"),
    "computing again costs nothing": ("costs.append(node.cost)", "costs = [graph.nodes[u].cost for u in seen]"),
    "the last of several peaks is reported": ("node.workspace > peak:", "node.workspace >= peak:"),
    "reads are not checked": ("if u not in live:", "if False:"),
    "frees are not checked": ("if v not in live:", "if v not in live: continue\n            if False:"),
    "overwriting is allowed": ("if w in live:", "if False:"),
    "repeating is always allowed": ("not graph.may_recompute(v)", "False"),
    "outputs may be missing": ("if o not in live:", "if False:"),
}


def test_the_simulator_counts_as_by_hand():
    by_hand(importlib.import_module("solvers.simulate").simulate)


@pytest.mark.parametrize("fault", SIMULATOR)
def test_a_fault_of_the_simulator_is_caught_by_hand_computed_peaks(fault):
    simulate = mutated("solvers.simulate", *SIMULATOR[fault]).simulate
    with pytest.raises((AssertionError, InvalidSchedule, pytest.fail.Exception)):
        by_hand(simulate)
