"""The schedules of JAX's policies on a planning graph: what they save, what they recompute, and that plans are no worse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import remat_lab as rl
from remat_lab.api import analyse
from remat_lab.fuse import Fused
from remat_lab.starts import policy_orders, save_sets, starts
from remat_lab.trace import Loss
from solvers.schedule import Schedule
from solvers.simulate import Simulation, simulate

LAYERS = 8
W = [jnp.eye(32) * 0.5 + 0.01 for _ in range(LAYERS)]
X = jnp.linspace(-1.0, 1.0, 64 * 32).reshape(64, 32)


def layers(ws, x):
    for w in ws:
        x = jnp.sin(jnp.sin(x @ w))
    return jnp.sum(x**2)


def attention(w, x):
    y = x @ w
    for _ in range(4):
        scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", y, y))
        y = jnp.sin(jnp.einsum("bqk,bkd->bqd", scores, y) @ w)
    return jnp.sum(y**2)


def convolutions(ws, x):
    for w in ws:
        x = jnp.sin(lax.conv_general_dilated(x, w, (1, 1), "SAME"))
    return jnp.sum(x**2)


def fused(loss, *args) -> Fused:
    wrapped = Loss(loss, 0, False, (), ())
    return analyse(wrapped, wrapped.call(args, {}), costs="flops")


def played(fused: Fused, order: list[int]) -> Simulation:
    return simulate(fused.graph, Schedule.from_order(fused.graph, order))


CASES = {
    "layers": (layers, W, X),
    "attention": (attention, jnp.eye(16) + 0.01, jnp.linspace(0.0, 1.0, 2 * 32 * 16).reshape(2, 32, 16)),
    "convolutions": (convolutions, [jnp.ones((4, 4, 3, 3)) * 0.1] * 6, jnp.linspace(0.0, 1.0, 1024).reshape(1, 4, 16, 16)),
}


def count(fused: Fused, steps: frozenset[int], name: str) -> int:
    """Equations of a primitive among the steps'."""
    return sum(fused.program.equations[k].name == name for v in steps for k in fused.groups[v].equations)


def test_save_sets_are_those_of_the_policies():
    sets = {name: save_sets(fused(*case)) for name, case in CASES.items()}
    programs = {name: fused(*case) for name, case in CASES.items()}
    assert all(not found["nn_remat"] for found in sets.values())
    assert count(programs["layers"], sets["layers"]["dots_saveable"], "dot_general") == LAYERS
    assert sets["layers"]["dots_saveable"] == sets["layers"]["dots_with_no_batch_dims_saveable"]
    assert count(programs["attention"], sets["attention"]["dots_saveable"], "dot_general") == 1 + 4 * 3
    assert count(programs["attention"], sets["attention"]["dots_with_no_batch_dims_saveable"], "dot_general") == 1 + 4
    assert count(programs["convolutions"], sets["convolutions"]["dots_saveable"], "conv_general_dilated") == 6
    assert not sets["convolutions"]["dots_with_no_batch_dims_saveable"]


@pytest.mark.parametrize("name", CASES)
def test_orders_are_valid_and_recompute_nothing_that_is_saved(name):
    found = fused(*CASES[name])
    sets = save_sets(found)
    peaks = []
    for label, order in policy_orders(found):
        peaks.append(played(found, order).peak)
        again = Schedule.from_order(found.graph, order).recomputed
        assert not sets[label.split(",")[0]] & set(again)
    assert min(peaks) < played(found, list(found.graph.steps)).peak


def test_a_layer_is_recomputed_at_most_once_and_saves_what_sqrt_does():
    found = fused(*CASES["layers"])
    labels = dict(policy_orders(found))
    full = played(found, list(found.graph.steps))
    finest = labels[f"nn_remat, {max(int(label.split()[1]) for label in labels if label.startswith('nn_remat'))} segments"]
    assert set(Schedule.from_order(found.graph, finest).recomputed.values()) == {1}
    assert played(found, finest).cost <= full.cost + sum(
        found.graph.nodes[v].cost for v in found.graph.steps if not found.graph.nodes[v].backward
    )
    assert len({played(found, order).peak for order in labels.values()}) > 1


def test_starts_fit_the_budget_or_nearly_and_come_cheapest_first():
    found = fused(*CASES["layers"])
    full = played(found, list(found.graph.steps)).peak
    for share in (0.9, 0.7, 0.5):
        budget = int(share * full)
        results = [played(found, order) for order in starts(found, budget)]
        assert results
        assert all(result.peak <= 1.15 * budget for result in results)
        fits = [result.cost for result in results if result.peak <= budget]
        assert fits == sorted(fits)
        assert all(result.peak <= budget for result in results[: len(fits)])


def test_there_are_none_without_a_backward_pass():
    wrapped = Loss(layers, 0, False, (), ())
    forward = analyse(wrapped, wrapped.call((W, X), {}))
    graph = forward.graph
    assert list(policy_orders(forward))
    only = type(graph)(tuple(n for n in graph.nodes if not n.backward), (forward.forward_nodes - 1,))
    assert not list(policy_orders(Fused(forward.program, only, forward.groups, forward.node_of, forward.forward_nodes)))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("share", [0.75, 0.55])
def test_a_plan_is_no_worse_than_any_policy_at_its_peak(name, share):
    loss, *args = CASES[name]
    found = fused(loss, *args)
    budget = int(share * played(found, list(found.graph.steps)).peak)
    fitting = [result.cost for _, order in policy_orders(found) if (result := played(found, order)).peak <= budget]
    plan = rl.plan(loss, *args, budget=budget, costs="flops", time_limit=20, workers=1)
    assert plan.solution.cost <= min(fitting, default=plan.solution.cost) * (1 + 1e-9)
