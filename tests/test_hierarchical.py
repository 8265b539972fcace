"""Hierarchical planning: where graphs are cut, what is known about blocks, what the program promises, and its limits."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from deep_graphs import dense_network, residual_network

from solvers.block_exact import exact_plans, plan_of
from solvers.block_options import Option, Plan, measure, plans, prices_of, undominated
from solvers.block_sequence import BlockSequence
from solvers.compose import Composer, Group
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph, Node, training_chain
from solvers.hierarchical import compose as solve_blocks
from solvers.intervals import solve as intervals
from solvers.narrow_cuts import Blocks
from solvers.orders import cost_of, peak_of
from solvers.revolve import solve as revolve
from solvers.solution import ANY_SCHEDULE, Options, Status
from solvers.solve import solve
from solvers.unroll import unroll

SHARED = Path(__file__).parents[2] / "shared" / "graphs"
NETWORKS = {
    "residual": residual_network(12),
    "wide residual": residual_network(12, narrow=300),
    "skips": residual_network(7, narrow=200, skips=True),
    "chain": training_chain(24),
}


def budget_of(graph: Graph, share: float) -> int:
    return int(share * peak_of(graph, graph.steps))


def quick(graph: Graph, budget: int, **more):
    return solve(graph, budget, "hierarchical", work_limit=0.1, time_limit=60, workers=1, **more)


def sequence(graph: Graph, budget: int) -> BlockSequence:
    return BlockSequence(Blocks.of(graph, budget))


@pytest.mark.parametrize("blocks", [3, 12])
def test_residual_networks_are_cut_at_their_sums_and_every_late_step_finds_its_block(blocks):
    graph = residual_network(blocks)
    found = Blocks.of(graph, budget_of(graph, 0.5))
    names = [graph.nodes[found.forward.steps[edge - 1]].name for edge in found.edges[1:-1]]
    assert names == ["stem", *(f"sum{k}" for k in range(blocks - 1))] or names == [f"sum{k}" for k in range(blocks - 1)]
    for late, (start, stop) in zip(found.late, zip(found.edges, found.edges[1:], strict=False), strict=True):
        inside = {graph.nodes[v].name for v in found.forward.steps[start:stop]}
        numbers = {n for v in late for n in re.findall(r"\d+$", graph.nodes[v].name)}
        assert all(f"b{n}" in inside for n in numbers)


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_divide_the_steps(name):
    graph = NETWORKS[name]
    found = Blocks.of(graph, budget_of(graph, 0.5))
    assert found.edges[0] == 0
    assert list(found.edges) == sorted(set(found.edges))
    assert sorted([*found.forward.steps, *(v for late in found.late for v in late)]) == list(graph.steps)


def test_depth_adds_no_kinds_and_tables_grow_with_it_at_most():
    counts = {}
    for blocks in (16, 32, 64):
        graph = residual_network(blocks)
        found = sequence(graph, budget_of(graph, 0.3))
        composer = Composer(found, budget_of(graph, 0.3))
        counts[blocks] = len(found.kinds), composer.count
    assert counts[16][0] == counts[32][0] == counts[64][0] <= 5
    assert counts[64][1] <= 2.2 * counts[32][1] <= 2.2**2 * 1.1 * counts[16][1]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("share", [0.85, 0.6])
def test_the_dynamic_program_knows_what_its_composition_costs(name, share):
    graph = NETWORKS[name]
    budget = budget_of(graph, share)
    found = sequence(graph, budget)
    composer = Composer(found, budget)
    units = composer.slots
    order = unroll(found, composer.best(units))
    assert set(order) == set(graph.steps)
    extra = cost_of(graph, order) - graph.keep_all_cost
    expected = composer.cost(units) - graph.keep_all_cost
    assert expected - 0.06 * graph.keep_all_cost <= extra <= expected + 1e-4 * graph.keep_all_cost
    assert peak_of(graph, order) <= 1.05 * budget


def test_little_memory_makes_groups_within_groups():
    graph = training_chain(120)
    found = sequence(graph, 10)
    composer = Composer(found, 10)

    def depth(items) -> int:
        return max((1 + depth(item.items) for item in items if isinstance(item, Group)), default=0)

    assert depth(composer.best(composer.slots)) >= 2


@pytest.mark.parametrize(("length", "budget"), [(24, 12), (48, 20), (96, 20)])
def test_near_the_optimum_of_uniform_chains(length, budget):
    graph = training_chain(length)
    best = revolve(graph, budget, Options()).cost
    found = solve_blocks(graph, budget, Options())
    assert found.peak <= budget
    assert best <= found.cost <= 1.05 * best


@pytest.mark.parametrize(("share", "kind"), [(0.8, ""), (0.6, ""), (0.8, "skips"), (0.65, "skips"), (0.7, "dense")])
def test_within_three_percent_of_what_intervals_proves(share, kind):
    graph = dense_network(8) if kind == "dense" else residual_network(4, skips=kind == "skips")
    budget = budget_of(graph, share)
    best = intervals(graph, budget, Options(work_limit=20.0, workers=1))
    found = quick(graph, budget)
    assert best.status is Status.OPTIMAL
    assert found.peak <= budget
    assert found.cost <= 1.03 * best.cost
    assert found.scope == ANY_SCHEDULE
    assert found.lower_bound <= min(found.cost, best.cost)


def test_a_hundred_blocks_end_close_to_the_bound():
    graph = residual_network(100)
    found = solve(graph, budget_of(graph, 0.4), time_limit=100, work_limit=0.05, solver="hierarchical")
    assert found.gap < 0.02
    assert found.overhead > 0


def test_repeatable_with_a_work_limit():
    graph = residual_network(3)
    runs = [quick(graph, budget_of(graph, 0.5), seed=3) for _ in range(2)]
    assert runs[0].schedule == runs[1].schedule


def test_a_start_is_never_lost():
    graph = residual_network(4)
    budget = budget_of(graph, 0.6)
    best = intervals(graph, budget, Options(work_limit=2.0, workers=1))
    assert quick(graph, budget, starts=[best.schedule.order]).cost <= best.cost


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupt_ends_it_with_the_best_so_far(after):
    graph = residual_network(12)
    heard = []

    def stop(progress):
        heard.append(progress)
        if sum(math.isfinite(p.cost) for p in heard) == after:
            raise KeyboardInterrupt

    budget = budget_of(graph, 0.5)
    found = quick(graph, budget, progress=stop)
    assert found.status in (Status.INTERRUPTED, Status.FEASIBLE)
    assert found.peak <= budget
    costs = [p.cost for p in heard]
    assert costs == sorted(costs, reverse=True)
    assert all(graph.keep_all_cost <= p.lower_bound <= p.cost for p in heard)


def test_interrupted_before_anything_was_found():
    def stop(progress):
        raise KeyboardInterrupt

    graph = residual_network(12)
    found = quick(graph, budget_of(graph, 0.7), progress=stop)
    assert found.status is Status.INTERRUPTED
    assert found.peak <= budget_of(graph, 0.7)


def test_no_budget_and_a_large_one_keep_everything():
    graph = residual_network(4)
    for budget in (None, peak_of(graph, graph.steps)):
        assert solve(graph, budget, "hierarchical").schedule.order == graph.steps


def test_impossible_budgets_are_proven_so():
    graph = residual_network(4)
    with pytest.raises(InfeasibleBudget) as caught:
        solve(graph, 900, "hierarchical")
    assert caught.value.proven
    assert quick(graph, caught.value.minimum).peak <= caught.value.minimum


def test_graphs_without_a_backward_pass_are_planned_by_eviction():
    nodes = tuple(replace(node, backward=False) for node in residual_network(4).nodes)
    graph = Graph(nodes, (len(nodes) - 1,))
    budget = budget_of(graph, 0.6)
    found = quick(graph, budget)
    assert found.peak <= budget
    assert "no backward pass" in found.notes["blocks"]


def test_steps_that_must_not_run_again_run_once():
    nodes = [replace(n, recomputable=n.name != "b3") for n in residual_network(5).nodes]
    graph = Graph(tuple(nodes), residual_network(5).outputs)
    found = quick(graph, budget_of(graph, 0.5))
    once = next(v for v, node in enumerate(graph.nodes) if node.name == "b3")
    assert found.schedule.recomputed
    assert once not in found.schedule.recomputed


def test_a_value_that_an_earlier_block_reads_in_the_backward_pass_is_not_made_twice():
    nodes = list(residual_network(8).nodes)
    late = next(v for v, node in enumerate(nodes) if node.name == "gc1")
    far = next(v for v, node in enumerate(nodes) if node.name == "a6")
    nodes[late] = replace(nodes[late], deps=(*nodes[late].deps, far))
    graph = Graph(tuple(nodes), residual_network(8).outputs)
    budget = budget_of(graph, 0.7)
    assert solve_blocks(graph, budget, Options()).overhead < 0.1


def test_a_single_block_is_no_sequence_but_a_plan():
    graph = Graph((Node("a", 1, 4), Node("b", 1, 4, (0,)), Node("c", 1, 2, (0, 1), backward=True)), (2,))
    assert quick(graph, peak_of(graph, graph.steps)).cost == 3


def test_an_option_that_is_worse_in_every_respect_is_dropped():
    plan = Plan(frozenset(), ())
    cheap, small, worse = Option(plan, 5, 9, 9, 1.0), Option(plan, 3, 9, 9, 2.0), Option(plan, 5, 9, 10, 2.0)
    assert undominated([worse, small, cheap]) == [cheap, small]


@pytest.mark.parametrize(("share", "best"), [(0.9, 0.00471), (0.5, 0.0262)])
def test_blocks_alone_beat_what_exact_search_in_the_given_order_found_for_resnet50(share, best):
    path = SHARED / "resnet50_b256.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    graph = Graph.load(path)
    found = solve_blocks(graph, budget_of(graph, share), Options())
    assert found.peak <= budget_of(graph, share)
    assert found.overhead <= best


def test_points_below_what_rules_give_are_solved_exactly():
    graph = residual_network(6, wide=100, narrow=400)
    kind = sequence(graph, budget_of(graph, 0.5)).kinds[2]
    ruled = [measure(kind, plan, None, last=False) for plan in plans(kind, prices_of([kind]))]
    solved = [measure(kind, plan, None, last=False) for plan in exact_plans(kind, ruled, exact=12)]
    assert solved
    assert min(o.late_peak for o in solved) <= min(o.late_peak for o in ruled)
    for option in solved:
        assert not any(
            other.beats(option) and not option.beats(other) for other in ruled if other.late_peak <= option.late_peak
        )


def test_a_plan_is_read_off_an_order():
    kind = sequence(residual_network(4), 2000).kinds[1]
    for plan in plans(kind, [0.0]):
        late = [kind.forward[q] if q >= 0 else kind.late[-1 - q] for q in plan.late]
        first = [v for v in kind.graph.steps if v < kind.turn]
        again = plan_of(kind, [*first, kind.turn, *kind.incoming, *late])
        assert again.late == plan.late
        assert again.keep <= plan.keep
