"""The frontier of memory and work."""

import json

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

import remat_lab as rl
from remat_lab.cli import app
from remat_lab.comparison import Row
from remat_lab.frontier import Frontier, frontier
from remat_lab.max_batch import max_batch

WS = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 6
X = jax.ShapeDtypeStruct((512, 64), jnp.float32)


def block(w, x):
    return jnp.sin(jnp.tanh(x @ w) * x)


def build(transform):
    layer = transform(block)

    def loss(ws, x):
        for w in ws:
            x = layer(w, x)
        return jnp.mean(x**2)

    return loss


@pytest.fixture(scope="module")
def made():
    return frontier(build(lambda f: f), WS, X, blocks=build, points=4, time_limit=5)


def test_along_the_budgets_compiled_temp_rises_and_cost_falls(made):
    temps = [row.compiled_temp_bytes for row in made.plans]
    costs = [row.planned_extra_cost_ratio for row in made.plans]
    assert len(made.plans) >= 4
    assert temps == sorted(temps)
    assert costs == sorted(costs, reverse=True)
    assert temps[0] < temps[-1]
    assert costs[0] > costs[-1] == 0


def test_every_plan_keeps_its_budget_as_compiled(made):
    for row in made.plans:
        assert row.compiled_temp_bytes <= row.timeline.budget_bytes


def test_no_policy_is_cheaper_in_the_same_memory(made):
    assert {row.strategy for row in made.baselines} >= {"plain", "nn_remat", "dots_saveable"}
    assert [excess for excess in made.excesses() if excess.cost is None or excess.cost > 0] == []


def test_what_is_recomputed_by_nn_remat_is_counted_by_the_same_model(made):
    row = next(row for row in made.baselines if row.strategy == "nn_remat")
    assert row.planned_extra_flops_ratio == pytest.approx(1 / 3, abs=0.02)  # one more forward pass
    assert 0.1 < row.planned_extra_cost_ratio < 0.5  # of the step: backward and memory-bound work are most of it


def test_the_json_holds_all_that_the_picture_needs(made, tmp_path):
    made.save(tmp_path / "frontier.json")
    data = json.loads((tmp_path / "frontier.json").read_text())
    assert data["schema"].startswith("remat_lab.frontier/")
    from remat_lab.plot_frontier import picture

    for name in ("a.svg", "b.svg"):
        picture(data, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.svg").stat().st_size > 5000


def test_excesses_name_where_a_baseline_wins():
    def row(name, family, temp, cost, flops):
        return Row(
            strategy=name,
            family=family,
            compiled_temp_bytes=temp,
            compiled_temp_by_scheduler={"default": temp},
            planned_extra_cost_ratio=cost,
            compiled_extra_flops_ratio=flops,
        )

    class Rows:
        rows = (
            row("plain", "plain", 100, None, 0.0),
            row("nn_remat", "policy", 60, 0.1, 0.1),
            row("tiny", "policy", 10, 0.5, 0.5),
            row("optimal@0.5", "optimal", 50, 0.2, 0.05),
            row("optimal@1.0", "optimal", 100, 0.0, 0.0),
        )

    found = Frontier(Rows()).excesses()
    assert [(one.baseline, one.plan) for one in found] == [("nn_remat", "optimal@0.5"), ("tiny", None)]
    assert found[0].cost == pytest.approx(0.1)
    assert found[0].flops == pytest.approx(-0.05)


def test_options_out_of_range_are_refused():
    with pytest.raises(rl.InvalidArgument, match="two ends"):
        frontier(build(lambda f: f), WS, X, points=1)


def test_the_command_writes_figures_and_picture(tmp_path):
    arguments = [
        "frontier",
        "--model",
        "mlp",
        "--set",
        "layers=4",
        "--points",
        "2",
        "--time-limit",
        "5",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "optimal@1.000" in result.output
    assert json.loads((tmp_path / "frontier.json").read_text())["rows"]
    assert (tmp_path / "frontier.png").stat().st_size > 10_000


def step_of(batch):
    return build(lambda f: f), (WS, jax.ShapeDtypeStruct((batch, 64), jnp.float32))


def test_the_largest_batch_fits_as_compiled_and_recomputation_makes_room():
    device = "2 MB"
    kept = max_batch(step_of, device, max_extra_cost=0.0, solver="chen", check="planned")
    found = max_batch(step_of, device, solver="chen", precision=0.05)
    assert found.batch > kept.batch > 0
    assert found.plan.compiled.total_bytes <= 2_000_000
    assert found.plan.schedule.recomputed
    assert found.attempts[-1] == found.attempts[-1].__class__(found.batch, True, found.plan.solution.overhead, None, True)
    refused = min(attempt.batch for attempt in found.attempts if not attempt.fits and not attempt.compiled)
    assert refused - found.batch <= max(1, 0.06 * refused) + (found.attempts[-1].batch < found.batch)


def test_extra_work_can_be_limited_to_one_more_forward_pass():
    free = max_batch(step_of, "1 MB", solver="chen", check="planned")
    limited = max_batch(step_of, "1 MB", solver="chen", max_extra_cost="forward", check="planned")
    none = max_batch(step_of, "1 MB", solver="chen", max_extra_cost=0, check="planned")
    assert free.batch >= limited.batch >= none.batch > 0
    graph = limited.plan.graph
    forward = sum(node.cost for node in graph.nodes if not node.backward)
    assert limited.plan.solution.cost - graph.keep_all_cost <= forward


def test_no_batch_fits_a_device_smaller_than_the_parameters():
    found = max_batch(step_of, "100 kB", check="planned", solver="chen")
    assert (found.batch, found.plan) == (0, None)
    assert "parameters" in found.attempts[-1].reason


@pytest.mark.parametrize("options", [{"start": 0}, {"start": 5, "limit": 4}, {"precision": -1}, {"max_extra_cost": "some"}])
def test_bad_options_of_max_batch_are_refused(options):
    with pytest.raises(rl.InvalidArgument):
        max_batch(step_of, "1 MB", **options)


def test_bad_memory_is_refused_before_the_work():
    with pytest.raises(rl.InvalidBudget):
        max_batch(step_of, "a lot")
