"""Retention intervals: equal to the exhaustive oracle, honest about what is proved, and never worse than their start."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, orders, training_graphs

from solvers import intervals
from solvers.brute_force import brute_force, minimum_budget
from solvers.cpsat import Limits, run
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph, Node, training_chain
from solvers.intervals_lns import improve
from solvers.intervals_model import IntervalModel, Slot
from solvers.intervals_search import Search
from solvers.prune import events_of, every_moment, useful_moments
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Progress, Status
from solvers.units import Units

QUICK = Options(time_limit=60, workers=1)


def keep_all_peak(graph: Graph) -> int:
    return simulate(graph, Schedule.from_order(graph, graph.steps)).peak


def random_graph(n: int, seed: int) -> Graph:
    """A graph without a backward pass whose reads reach far back."""
    rng = random.Random(seed)
    nodes = []
    for v in range(n):
        deps = sorted({rng.randrange(max(0, v - 12), v) for _ in range(rng.randint(1, 3))}) if v else []
        nodes.append(Node(f"n{v}", rng.randint(1, 100), rng.randint(1, 100), tuple(deps)))
    return Graph(tuple(nodes), (n - 1,))


def check_against_oracle(graph: Graph, budget: int, copies: int) -> None:
    try:
        expected = brute_force(graph, budget, order="given", copies=copies)
    except InfeasibleBudget:
        with pytest.raises(InfeasibleBudget) as caught:
            intervals.solve(graph, budget, QUICK, copies=copies)
        assert caught.value.proven
        return
    found = intervals.solve(graph, budget, QUICK, copies=copies)
    assert found.status is Status.OPTIMAL
    assert found.cost == pytest.approx(expected.cost, rel=1e-12)
    assert found.lower_bound == pytest.approx(expected.cost, rel=1e-9)
    assert found.peak <= budget


@st.composite
def problems(draw: st.DrawFn, strategy: st.SearchStrategy[Graph]) -> tuple[Graph, int, int]:
    """A graph, a number of copies, and a budget around the range in which recomputation is needed."""
    graph = draw(strategy)
    copies = draw(st.integers(1, 3))
    smallest = minimum_budget(graph, order="given", copies=copies).budget
    return graph, draw(st.integers(max(0, smallest - 1), keep_all_peak(graph))), copies


@settings(max_examples=300)
@given(problems(graphs(max_nodes=9)))
def test_equals_oracle_on_any_graph(problem: tuple[Graph, int, int]) -> None:
    check_against_oracle(*problem)


@settings(max_examples=60)
@given(problems(training_graphs(max_layers=4)))
def test_equals_oracle_on_training_graphs(problem: tuple[Graph, int, int]) -> None:
    check_against_oracle(*problem)


@st.composite
def started(draw: st.DrawFn) -> tuple[Graph, list[int]]:
    graph = draw(graphs(max_nodes=9))
    return graph, draw(orders(graph))


@given(started(), st.integers(1, 3))
def test_never_worse_than_a_start_that_fits(problem: tuple[Graph, list[int]], copies: int) -> None:
    graph, order = problem
    start = simulate(graph, Schedule.from_order(graph, order))
    options = Options(time_limit=60, workers=1, starts=[order])
    found = intervals.solve(graph, start.peak, options, copies=copies)
    assert found.status is Status.OPTIMAL
    assert found.cost <= start.cost
    assert found.cost >= brute_force(graph, start.peak, order="any").cost - 1e-9


@given(started())
def test_hint_of_a_schedule_is_complete_and_feasible(problem: tuple[Graph, list[int]]) -> None:
    graph, order = problem
    events = events_of(graph, order)
    assert events is not None
    moments = every_moment(graph).with_events(events)
    ranks = sorted(moments.rank[event] for event in events)
    staged = simulate(graph, Schedule.from_order(graph, moments.order(ranks)))
    units = Units.of(graph, staged.peak, len(moments.events) + 1)
    slots = {v: [Slot((k,)) for k in ranks if moments.events[k][2] == v] for v in graph.steps}
    for v, again in moments.again.items():
        slots[v][1:] = [Slot(again, optional=True)] * len(slots[v][1:])
    model = IntervalModel(graph, moments, units, slots)
    model.hint(ranks)
    outcome = run(model.model, Limits(60, workers=1), fix_variables_to_their_hinted_value=True)
    assert outcome.found
    assert model.events(outcome.value_of) == ranks
    hinted = set(model.model.proto.solution_hint.vars)
    open_variables = {k for k, variable in enumerate(model.model.proto.variables) if variable.domain[0] < variable.domain[1]}
    assert open_variables <= hinted


def test_start_in_another_order_is_improved_in_that_order() -> None:
    # In the given order both big values are live together; b before a needs nothing to be recomputed.
    nodes = (
        Node("x", 1, 1),
        Node("a", 1, 10, (0,)),
        Node("b", 1, 10, (0,)),
        Node("c", 1, 1, (2,)),
        Node("d", 1, 1, (1, 3)),
    )
    graph = Graph(nodes, (4,))
    found = intervals.solve(graph, 12, Options(starts=[(0, 2, 3, 1, 4)], workers=1))
    assert found.cost == graph.keep_all_cost
    assert found.schedule.order == (0, 2, 3, 1, 4)


@pytest.mark.parametrize("size", [1, 10**12, 10**12 + 7])
def test_sizes_of_any_magnitude(size: int) -> None:
    small, large = training_chain(6), training_chain(6, size=size)
    expected = intervals.solve(small, 5, QUICK, copies=2)
    found = intervals.solve(large, 5 * size, QUICK, copies=2)
    assert found.cost == expected.cost
    assert found.peak <= 5 * size
    assert expected.cost == brute_force(small, 5, copies=2).cost


def test_units_round_sizes_up_budget_down_and_costs_down() -> None:
    graph = Graph(tuple(Node(f"n{v}", 0.1 * (v + 1), 2**61 - v, (v - 1,) if v else ()) for v in range(6)), (5,))
    units = Units.of(graph, 2**62, 1000)
    assert not units.exact_bytes
    assert all(c * units.byte_unit >= node.charge for c, node in zip(units.charge, graph.nodes, strict=True))
    assert units.budget * units.byte_unit <= 2**62
    assert sum(units.charge) * 1000 < 2**62
    for whole, node in zip(units.cost, graph.nodes, strict=True):
        assert 0 <= Fraction(node.cost) - whole * units.cost_unit < Fraction(graph.keep_all_cost) / 10**6


def test_float_costs_are_those_of_the_graph() -> None:
    graph = training_chain(8, cost=0.1)
    found = intervals.solve(graph, 6, QUICK)
    assert found.cost == pytest.approx(0.1 * intervals.solve(training_chain(8), 6, QUICK).cost)
    assert found.gap < 1e-6


def test_repeats_itself_under_a_work_limit() -> None:
    graph = random_graph(60, seed=3)
    budget = int(0.8 * keep_all_peak(graph))
    first, second = (intervals.solve(graph, budget, Options(time_limit=60, work_limit=0.8, seed=5, workers=2)) for _ in "ab")
    assert first.schedule == second.schedule
    assert (first.lower_bound, first.status) == (second.lower_bound, second.status)


def test_interrupt_returns_the_best_so_far() -> None:
    graph = random_graph(60, seed=3)
    budget = int(0.8 * keep_all_peak(graph))
    heard: list[Progress] = []

    def interrupt(progress: Progress) -> None:
        heard.append(progress)
        if math.isfinite(progress.cost):
            raise KeyboardInterrupt

    found = intervals.solve(graph, budget, Options(time_limit=600, workers=1, progress=interrupt))
    assert found.status is Status.INTERRUPTED
    assert found.peak <= budget
    assert found.cost >= found.lower_bound


def test_progress_improves_and_bounds_stay_below() -> None:
    graph = random_graph(24, seed=2)
    budget = int(0.7 * keep_all_peak(graph))
    heard: list[Progress] = []
    found = intervals.solve(graph, budget, Options(time_limit=60, workers=1, progress=heard.append), copies=2)
    assert found.status is Status.OPTIMAL
    assert heard
    for earlier, later in pairwise(heard):
        assert later.cost <= earlier.cost
        assert later.lower_bound >= earlier.lower_bound
    assert heard[-1].lower_bound <= found.cost * (1 + 1e-9)


def test_neighbourhoods_reach_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(24, seed=2)
    budget = int(0.7 * keep_all_peak(graph))
    best = intervals.solve(graph, budget, QUICK, copies=2)
    assert best.status is Status.OPTIMAL
    search = Search(
        graph, budget, Options(time_limit=60, work_limit=3, workers=1), copies=2, most_moments=intervals.EVERY_MOMENT
    )
    search.prepare(greedy=False)
    assert search.excess > 0
    improve(search)
    assert search.order is not None
    assert search.cost == pytest.approx(best.cost)


@pytest.mark.slow
def test_training_chain_of_32_layers_at_14() -> None:
    found = intervals.solve(training_chain(32), 14, Options(time_limit=600, work_limit=15, workers=2))
    assert found.peak <= 14
    assert found.cost - 64 == 19


def test_more_copies_are_tried_unless_the_caller_forbids(shared: Path) -> None:
    graph = Graph.load(shared / "graphs" / "vgg19_b256.json")
    budget = int(0.8 * keep_all_peak(graph))
    two, open_ended = (intervals.solve(graph, budget, Options(time_limit=60, workers=2), copies=c) for c in (2, None))
    assert max(two.schedule.recomputed.values()) == 1
    assert max(open_ended.schedule.recomputed.values()) == 2
    assert open_ended.status is Status.OPTIMAL
    assert open_ended.cost < two.cost


def test_wrong_copies() -> None:
    with pytest.raises(ValueError, match="at least once"):
        intervals.solve(training_chain(4), 5, QUICK, copies=0)


def test_useful_moments_are_among_all() -> None:
    graph = training_chain(12)
    assert set(useful_moments(graph).events) <= set(every_moment(graph).events)


OPTIMA = {  # extra cost in per cent of keep-all's, two computations of each node; from two independent programs
    ("vgg16_b256", 0.9): 1.968,
    ("fcn_8_vgg_b32", 0.9): 0.029,
    ("segnet_b32", 0.9): 0.103,
    ("segnet_b32", 0.5): 40.660,
    ("vgg_unet_b32", 0.9): 1.129,
    ("vgg_unet_b32", 0.5): 6.967,
}


@pytest.mark.parametrize(("name", "fraction"), OPTIMA)
def test_known_optima(name: str, fraction: float, shared: Path) -> None:
    graph = Graph.load(shared / "graphs" / f"{name}.json")
    found = intervals.solve(graph, int(fraction * keep_all_peak(graph)), Options(time_limit=120, workers=2), copies=2)
    assert found.status is Status.OPTIMAL
    assert 100 * found.overhead == pytest.approx(OPTIMA[name, fraction], abs=6e-4)


def test_a_read_that_may_not_happen_does_not_tie_those_after_it() -> None:
    """`g` could run again at one moment only, so the times of its reads are fixed, but it need not."""
    rows = [(0, 1, ()), (0, 6, ()), (1, 9, ()), (0, 8, (0, 1)), (0, 1, (0,)), (0, 0, ()), (1, 1, (1, 2)), (0, 0, (2, 3, 6))]
    graph = Graph(tuple(Node(name, *row) for name, row in zip("abcdefgh", rows, strict=True)), (7,))
    check_against_oracle(graph, 24, 2)
