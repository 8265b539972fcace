"""`rl.frontier`: plans beside JAX's own policies, monotone in the budget, and the picture made of them."""

import json
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import remat_lab as rl
from experiments.models import mlp
from experiments.unrolled import loop
from remat_lab.api import as_loss, planner_for
from remat_lab.comparison import Row
from remat_lab.envelope import envelope, needs, plan_all
from remat_lab.frontier import find_excesses
from remat_lab.hlo import parse
from remat_lab.hlo_flops import repeated_flops
from remat_lab.measure import compile_program
from remat_lab.plans import Plan
from remat_lab.plot_frontier import draw


@pytest.fixture(scope="module")
def model():
    return mlp.loss(layers=6, batch=256, width=32)


@pytest.fixture(scope="module")
def found(model):
    return rl.frontier(model.loss, *model.args, blocks=model.blocks, points=3, time_limit=5)


def test_along_a_frontier_more_memory_means_less_work(found):
    plans = [row for row in found.plans if row.strategy.startswith("optimal@")]
    assert len(plans) >= 3
    for less, more in pairwise(plans):
        assert less.compiled_temp_bytes <= more.compiled_temp_bytes
        assert less.planned_extra_cost_ratio >= more.planned_extra_cost_ratio
    assert plans[0].compiled_temp_bytes < 0.6 * plans[-1].compiled_temp_bytes
    assert plans[0].planned_extra_cost_ratio > plans[-1].planned_extra_cost_ratio == 0


def test_no_baseline_is_better_than_the_frontier(found):
    assert [row.strategy for row in found.baselines] == [
        "plain",
        "nn_remat",
        "dots_saveable",
        "dots_with_no_batch_dims_saveable",
    ]
    assert found.excesses() == []
    assert not [one for one in found.taken if one.measure == "cost"], "schedules alone reach every policy of a chain"


def test_the_picture_and_the_figures_are_of_the_same_rows(found, tmp_path):
    found.save(tmp_path / "frontier.json")
    data = json.loads((tmp_path / "frontier.json").read_text())
    assert data["schema"] == "remat_lab.frontier/1"
    assert [row["strategy"] for row in data["rows"]] == [row.strategy for row in found.comparison.rows]
    cost, flops = draw(data).axes
    labels = {text.get_text() for text in cost.texts}
    assert any("nn.remat" in label for label in labels)
    for axes, column in ((cost, "planned_extra_cost_ratio"), (flops, "compiled_extra_flops_ratio")):
        assert axes.get_xlabel() == "compiled temp (MB)"
        (line,) = [line for line in axes.lines if line.get_label() == "plans"]
        drawn = list(zip(*line.get_data(), strict=True))
        rows = [(row.compiled_temp_bytes / 1e6, 100 * getattr(row, column)) for row in found.plans]
        assert drawn == sorted(p for p in set(rows) if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in rows))


def test_budgets_in_any_form_and_too_small_ones_are_rows(model):
    found = rl.frontier(model.loss, *model.args, budgets=["1 kB", 0.9], time_limit=5)
    rows = {row.strategy: row for row in found.comparison.rows}
    assert rows["nn_remat"].status == "absent"
    assert rows["optimal@1 kB"].status == "infeasible"
    assert rows["optimal@0.9"].compiled_temp_bytes <= 0.9 * found.comparison.keep_all_peak_bytes


@pytest.mark.parametrize(("options", "message"), [({"points": 1}, "two ends"), ({"rounds": -1}, "rounds=-1")])
def test_impossible_options_are_named(model, options, message):
    with pytest.raises(rl.InvalidArgument, match=message):
        rl.frontier(model.loss, *model.args, **options)


@dataclass(frozen=True)
class Fake(Plan):
    """A plan of which only its cost and its compiled size are known."""

    check: str = "compiled"
    size: int = 0

    @property
    def compiled_bytes(self):
        return self.size

    def amended(self, **changes):
        return replace(self, **changes)


@dataclass(frozen=True)
class Costs:
    """What an envelope reads of a solution."""

    cost: float
    budget: int
    lower_bound: float
    scope: str


def fake(budget, cost, size):
    solution = Costs(cost, budget, cost, "any")
    common = dict.fromkeys(("loss", "call", "fused"))
    return Fake(**common, solution=solution, budget_bytes=budget, seconds=0.0, size=min(size, budget))


@given(
    st.dictionaries(st.integers(1, 100), st.none() | st.tuples(st.integers(0, 5), st.integers(1, 100)), min_size=1, max_size=8)
)
def test_an_envelope_is_monotone_and_never_worse_than_what_it_is_made_of(made):
    outcomes = {b: ValueError("none") if one is None else fake(b, *one) for b, one in made.items()}
    best = envelope(outcomes)
    assert list(best) == list(outcomes)
    plans = [(budget, plan) for budget, plan in sorted(best.items()) if isinstance(plan, Plan)]
    for budget, plan in plans:
        assert needs(plan) <= budget == plan.budget_bytes
        fitting = [other for other in outcomes.values() if isinstance(other, Plan) and needs(other) <= budget]
        assert plan.solution.cost == min(other.solution.cost for other in fitting)
        assert plan.solution.lower_bound <= plan.solution.cost
    for (_, less), (_, more) in pairwise(plans):
        assert needs(less) <= needs(more)
        assert less.solution.cost >= more.solution.cost
    for budget, outcome in best.items():
        if not isinstance(outcome, Plan):
            assert all(needs(p) > budget for p in outcomes.values() if isinstance(p, Plan))


def test_compiled_plans_are_monotone_in_the_budget():
    def loss(ws, x):
        kept = []
        for i, w in enumerate(ws):
            x = jnp.sin(x @ w) * x
            kept.append(x)
            x = x + kept[i // 2]
        return jnp.mean(x**2)

    args = [jax.ShapeDtypeStruct((32, 32), jnp.float32)] * 6, jax.ShapeDtypeStruct((256, 32), jnp.float32)
    whole = as_loss(loss, 0, False, (), ())
    planner = planner_for(whole, whole.call(args, {}))
    budgets = [planner.keep_all_peak_bytes * percent // 100 for percent in (100, 85, 70)]
    made = plan_all(planner, budgets, solver="greedy")
    plans = [plan for _, plan in sorted(made.items()) if isinstance(plan, Plan)]
    assert len(plans) >= 3
    for less, more in pairwise(plans):
        assert less.compiled_bytes <= more.compiled_bytes
        assert less.solution.cost >= more.solution.cost
    known = {budgets[0]: plans[-1]}
    again = plan_all(planner, budgets[:1], solver="no such solver: nothing is planned", known=known)
    assert again[budgets[0]] is plans[-1]


def row(strategy, family, temp, cost, flops, **others):
    return Row(
        strategy=strategy,
        family=family,
        compiled_temp_bytes=temp,
        compiled_temp_by_scheduler=others or {"only": temp},
        planned_extra_cost_ratio=cost,
        compiled_extra_flops_ratio=flops,
    )


@pytest.mark.parametrize(
    ("plans", "expected"),
    [
        ([(100, 0.2, 0.2)], []),
        ([(101, 0.0, 0.0)], [("cost", None, None), ("FLOPs", None, None)]),
        ([(90, 0.3, 0.1)], [("cost", "p0", 0.1)]),
        ([(90, 0.3, 0.1), (80, 0.1, 0.4)], []),  # one plan by each measure
        ([(90, 0.1, 0.3), (80, 0.2, 0.4)], [("FLOPs", "p0", 0.1)]),
        ([(90, 0.1, None)], [("FLOPs", None, None)]),
    ],
)
def test_each_measure_is_compared_within_the_baselines_memory(plans, expected):
    rows = [row(f"p{i}", "optimal", *plan) for i, plan in enumerate(plans)]
    found = find_excesses([row("policy", "policy", 100, 0.2, 0.2)], rows)
    assert [(one.measure, one.plan, one.amount and round(one.amount, 9)) for one in found] == expected


def test_a_baseline_is_compared_under_every_scheduler():
    baseline = row("policy", "policy", 100, 0.2, 0.2, default=50, memory=100, broken=None)
    found = find_excesses([baseline], [row("p", "optimal", 80, 0.1, 0.1)])
    assert [(one.scheduler, one.plan) for one in found] == [("default", None)] * 2


@pytest.mark.parametrize("length", [2, 7])
def test_flops_of_a_loop_are_those_of_the_loop_written_out(length):
    def loss(scan, w, xs):
        def body(h, x):
            h = jnp.tanh(h @ w + x * 2)
            return h, h.sum()

        h, sums = scan(body, jnp.zeros((8, 32)), xs)
        return h.sum() + sums.sum()

    args = jnp.ones((32, 32)), jnp.ones((length, 8, 32))
    looped, written = (compile_program(partial(loss, scan), *args) for scan in (jax.lax.scan, loop))
    assert looped.flops_of_all_trips == pytest.approx(written.flops, rel=0.02)
    assert looped.flops_of_all_trips - looped.flops >= (length - 1) * 2 * 8 * 32 * 32
    assert written.flops_of_all_trips == written.flops


def test_flops_of_loops_in_loops():
    text = """HloModule m

%inner (p: (s32[], f32[4,6])) -> (s32[], f32[4,6]) {
  %p = (s32[], f32[4,6]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,6]{1,0} get-tuple-element(%p), index=1
  %w = f32[6,6]{1,0} constant({...})
  %d = f32[4,6]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (s32[], f32[4,6]) tuple(%i, %d)
}

%never (q: (s32[], f32[4,6])) -> pred[] {
  %q = (s32[], f32[4,6]) parameter(0)
  ROOT %c = pred[] constant(true)
}

%outer (p.1: (s32[], f32[4,6])) -> (s32[], f32[4,6]) {
  %p.1 = (s32[], f32[4,6]) parameter(0)
  ROOT %l = (s32[], f32[4,6]) while(%p.1), condition=%never, body=%inner, backend_config={"known_trip_count":{"n":"5"}}
}

ENTRY %main (a: (s32[], f32[4,6])) -> (s32[], f32[4,6]) {
  %a = (s32[], f32[4,6]) parameter(0)
  %o = (s32[], f32[4,6]) while(%a), condition=%never, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %u = (s32[], f32[4,6]) while(%o), condition=%never, body=%inner, backend_config={"known_trip_count":{"n":"2"}}
}
"""
    assert repeated_flops(parse(text)) == (3 * 5 - 1 + 1) * 2 * 4 * 6 * 6
    unknown = text.replace(', backend_config={"known_trip_count":{"n":"2"}}', "")
    assert repeated_flops(parse(unknown)) is None
    assert repeated_flops(parse(unknown.replace("dot(%x, %w)", "copy(%x)"))) == 0
