"""Segments, replay and the strategies built on them: the guarantees of the papers, and validity on every training graph."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, training_graphs

from solvers import brute_force, chen, keep_all, recursive
from solvers.candidates import choose
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph, Node, chain, training_chain
from solvers.replay import in_given_order, prune, replay
from solvers.schedule import Schedule
from solvers.segments import Forward, even_cuts, flat, nested
from solvers.simulate import Simulation, simulate
from solvers.solution import Options, Progress, Solution, Status

STRATEGIES = {"keep_all": keep_all.solve, "sqrt": chen.solve_sqrt, "chen": chen.solve, "recursive": recursive.solve}


def run(graph: Graph, order: list[int]) -> Simulation:
    return simulate(graph, Schedule.from_order(graph, order))


@pytest.mark.parametrize("n", [16, 64, 256])
def test_square_root_on_a_uniform_chain(n: int) -> None:
    graph = training_chain(n)
    for solution in (chen.solve_sqrt(graph, None, Options()), chen.solve(graph, None, Options())):
        assert abs(solution.peak - 2 * math.sqrt(n)) <= 1
        assert max(solution.schedule.recomputed.values()) == 1
        assert solution.cost <= graph.keep_all_cost + n
    assert run(graph, chen.sqrt_order(graph)).peak == 2 * math.isqrt(n)


@pytest.mark.parametrize("n", [16, 64, 256])
def test_recursion_on_a_uniform_chain(n: int) -> None:
    graph = training_chain(n)
    assert run(graph, recursive.recursive_order(graph)).peak <= 2 + math.log2(n)
    solution = recursive.solve(graph, None, Options())
    assert solution.peak <= 2 + math.log2(n)
    assert max(solution.schedule.recomputed.values()) <= math.log2(n)


@pytest.mark.parametrize("ways", [2, 3, 4, 8])
def test_wider_recursion_keeps_more_and_recomputes_less(ways: int) -> None:
    n = 512
    graph = training_chain(n)
    result = run(graph, recursive.recursive_order(graph, ways=ways))
    levels = math.ceil(math.log(n, ways))
    assert result.peak <= 2 + (ways - 1) * levels + 1
    assert result.cost <= graph.keep_all_cost + n * levels


def test_deeper_recursion_trades_cost_for_memory() -> None:
    graph = training_chain(64)
    results = [run(graph, recursive.recursive_order(graph, depth=depth)) for depth in range(7)]
    assert results[0].cost == graph.keep_all_cost
    assert [r.peak for r in results] == sorted((r.peak for r in results), reverse=True)
    assert [r.cost for r in results] == sorted(r.cost for r in results)


def test_the_last_segment_is_not_recomputed() -> None:
    graph = training_chain(16)
    again = Schedule.from_order(graph, chen.sqrt_order(graph)).recomputed
    assert again == {v: 1 for v in range(12) if v % 4 != 3}


def test_segments_even_in_bytes() -> None:
    """Half of the bytes are in the first two of nine layers, so two segments are cut there."""
    sizes = [4, 4, *[1] * 8]
    forward = Forward.of(_sized_chain(sizes))
    cuts = even_cuts(forward.all_cuts, [0, *_running(forward.held)], 2, 0, len(forward))
    assert cuts == [2]


def test_articulation_points_of_residual_blocks() -> None:
    """x -> (a -> b) + x: only between blocks is a single value alive."""
    graph = _residual(blocks=5)
    forward = Forward.of(graph)
    assert forward.articulation_points == (1, 4, 7, 10, 13)
    assert [forward.crossing[c] for c in (1, 2, 3, 4)] == [8, 16, 16, 8]


def test_every_cut_that_one_value_crosses_is_an_articulation_point() -> None:
    """The crossing bytes have only two local minima, after the layers of 3 bytes."""
    forward = Forward.of(_sized_chain([5, 4, 3, 5, 4, 3, 5, 4]))
    assert forward.articulation_points == (1, 2, 3, 4, 5, 6, 7)


def test_a_small_value_that_crosses_everything_hides_no_narrow_place() -> None:
    graph = _residual(blocks=5, mask=1)
    forward = Forward.of(graph)
    names = {graph.nodes[forward.steps[c - 1]].name for c in forward.articulation_points}
    assert names == {"mask", "x1", "x2", "x3", "x4"}
    assert chen.solve_sqrt(graph, None, Options()).peak < 0.8 * run(graph, list(graph.steps)).peak


def test_algorithm_3_closes_segments_above_the_limit() -> None:
    forward = Forward.of(training_chain(9))
    assert chen.memory_plan(forward, forward.all_cuts, 2) == ([3, 6], 2, 3)
    assert chen.memory_plan(forward, forward.all_cuts, 0) == ([1, 2, 3, 4, 5, 6, 7, 8], 8, 1)
    assert chen.memory_plan(forward, [4], 2) == ([4], 1, 5)
    assert chen.memory_plan(forward, forward.all_cuts, 100) == ([], 0, 9)


@given(training_graphs(), st.data())
def test_every_tree_of_segments_gives_a_valid_order(graph: Graph, data: st.DataObject) -> None:
    try:
        forward = Forward.of(graph, keep=data.draw(st.sets(st.sampled_from(graph.steps), max_size=2).map(tuple)))
    except UnsupportedGraph:
        return

    def split(start: int, stop: int, depth: int) -> list[int]:
        inside = range(start + 1, stop)
        return sorted(data.draw(st.sets(st.sampled_from(inside), max_size=3))) if inside and depth < 3 else []

    order = replay(forward, nested(forward, split))
    result = run(graph, order)
    counts = Counter(order)
    assert set(counts) == set(graph.steps)
    assert all(counts[v] == 1 for v in forward.kept)
    assert prune(graph, order) == order
    assert result.cost >= graph.keep_all_cost


@given(training_graphs(), st.data())
def test_orders_are_put_back_in_the_given_order(graph: Graph, data: st.DataObject) -> None:
    order = recursive.recursive_order(graph, ways=data.draw(st.integers(2, 4)))
    back = in_given_order(graph, order)
    assert tuple(dict.fromkeys(back)) == graph.steps
    run(graph, back)


def test_a_value_two_levels_down_is_recomputed_twice() -> None:
    """Late steps read the forward pass from its start: f0 is run in the outer segment, for f1, and again in the inner one."""
    forward_nodes = [Node(f"f{i}", 1, 1, (i - 1,) if i else ()) for i in range(8)]
    late = [Node(f"b{i}", 1, 1, (i, i + 7), backward=True) for i in range(8)]
    graph = Graph((*forward_nodes, *late), (15,))
    forward = Forward.of(graph)
    cuts = {0: [4], 1: [2], 2: []}
    order = replay(forward, nested(forward, lambda start, stop, depth: [] if start else cuts[depth]))
    assert order == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 0, *range(8, 16)]


def test_with_a_budget_the_cheapest_order_that_fits_is_chosen() -> None:
    graph = training_chain(64)
    orders = [[(f"depth {d}", recursive.recursive_order(graph, depth=d))] for d in (5, 1, 3)]
    chosen = [choose(graph, b, orders, solver="x", options=Options()).notes["candidate"] for b in (None, 12, 40, 64)]
    assert chosen == ["depth 5", "depth 3", "depth 1", "depth 1"]


def test_values_read_only_late_are_first_computed_there() -> None:
    """The masks of dropped segments are not computed in the forward pass at all."""
    nodes = [Node("f0", 1, 10), Node("m0", 1, 10, (0,))]
    for i in range(1, 4):
        nodes += [Node(f"f{i}", 1, 10, (2 * i - 2,)), Node(f"m{i}", 1, 10, (2 * i,))]
    nodes.append(Node("b3", 1, 10, (6, 7), backward=True))
    for i in reversed(range(3)):
        nodes.append(Node(f"b{i}", 1, 10, (2 * i, 2 * i + 1, len(nodes) - 1), backward=True))
    graph = Graph(tuple(nodes), (len(nodes) - 1,))
    forward = Forward.of(graph)
    order = replay(forward, flat(forward, [2, 4, 6]))
    assert Counter(order)[1] == 1
    assert order.index(1) > order.index(8)


@given(st.one_of(training_graphs(max_layers=4), graphs(max_nodes=8)), st.sampled_from(sorted(STRATEGIES)), st.floats(0, 1.2))
@settings(max_examples=150)
def test_within_the_budget_and_never_below_the_optimum(graph: Graph, name: str, fraction: float) -> None:
    budget = max(1, int(fraction * run(graph, list(graph.steps)).peak))
    solution = _attempt(name, graph, budget)
    if solution is None:
        assert name != "keep_all"
        return
    if isinstance(solution, InfeasibleBudget):
        assert budget < solution.minimum
        assert solution.lower_bound <= solution.minimum
        if solution.proven and len(graph.steps) <= 10:
            with pytest.raises(InfeasibleBudget):
                brute_force.brute_force(graph, budget, order="any")
        return
    result = simulate(graph, solution.schedule)
    assert (solution.peak, solution.cost) == (result.peak, result.cost)
    assert solution.peak <= budget
    assert graph.keep_all_cost <= solution.lower_bound <= solution.cost
    if len(graph.steps) <= 10:
        try:
            optimum = brute_force.brute_force(graph, budget, order="given").cost
        except InfeasibleBudget:
            optimum = math.inf
        assert solution.lower_bound <= optimum
        assert solution.cost >= brute_force.brute_force(graph, budget, order="any").cost


@given(training_graphs(min_layers=4))
def test_without_a_budget_the_lowest_peak_is_returned(graph: Graph) -> None:
    for name in ("sqrt", "chen", "recursive"):
        try:
            solution = STRATEGIES[name](graph, None, Options())
        except UnsupportedGraph:
            return
        fits = STRATEGIES[name](graph, solution.peak, Options())
        assert fits.peak <= solution.peak
        with pytest.raises(InfeasibleBudget) as caught:
            STRATEGIES[name](graph, solution.peak - 1, Options())
        assert caught.value.minimum in (solution.peak, run(graph, list(graph.steps)).peak)


def test_keep_all_says_what_it_needs() -> None:
    with pytest.raises(InfeasibleBudget, match="smallest budget known to work is 17 bytes"):
        keep_all.solve(training_chain(16), 16, Options())
    assert keep_all.solve(training_chain(16), 17, Options()).status is Status.OPTIMAL


@pytest.mark.parametrize("name", ["sqrt", "chen", "recursive"])
@pytest.mark.parametrize(
    "graph", [chain([1] * 5, [1] * 5), Graph((Node("b", 1, 1, backward=True),), (0,))], ids=["forward", "backward"]
)
def test_graphs_without_a_turn_are_refused(name: str, graph: Graph) -> None:
    with pytest.raises(UnsupportedGraph, match="mark its backward nodes"):
        STRATEGIES[name](graph, None, Options())


def test_a_narrow_recursion_is_refused() -> None:
    with pytest.raises(ValueError, match="ways is 1"):
        recursive.recursive_order(training_chain(4), ways=1)


def test_a_time_limit_returns_the_best_so_far() -> None:
    solution = chen.solve(training_chain(64), None, Options(time_limit=1e-9))
    assert solution.status is Status.TIME_LIMIT
    assert solution.peak < 65


def test_an_interrupt_returns_the_best_so_far() -> None:
    def interrupt(progress: Progress) -> None:
        assert progress.solver == "recursive"
        if progress.cost > 128:
            raise KeyboardInterrupt

    solution = recursive.solve(training_chain(64), None, Options(progress=interrupt))
    assert solution.status is Status.INTERRUPTED
    assert solution.peak < 65


@pytest.mark.parametrize("name", ["sqrt", "recursive"])
def test_a_line_of_10000_nodes(name: str) -> None:
    graph = training_chain(5_000)
    solution = STRATEGIES[name](graph, 200, Options())
    assert solution.peak <= 200


def test_public_training_graphs(shared) -> None:
    for path in sorted((shared / "graphs").glob("*.json")):
        graph = Graph.load(path)
        if not any(node.backward for node in graph.nodes):
            continue
        full = run(graph, list(graph.steps)).peak
        for name in ("sqrt", "chen", "recursive"):
            solution = STRATEGIES[name](graph, None, Options())
            assert solution.peak < 0.9 * full, (path.name, name)
            assert solution.cost <= 2.1 * graph.keep_all_cost, (path.name, name)


def _attempt(name: str, graph: Graph, budget: int) -> Solution | InfeasibleBudget | None:
    try:
        return STRATEGIES[name](graph, budget, Options())
    except InfeasibleBudget as error:
        return error
    except UnsupportedGraph:
        return None


def _running(values: tuple[int, ...]) -> list[int]:
    return [sum(values[: k + 1]) for k in range(len(values))]


def _sized_chain(sizes: list[int]) -> Graph:
    graph = training_chain(len(sizes))
    nodes = [replace(node, size=sizes[v] if v < len(sizes) else node.size) for v, node in enumerate(graph.nodes)]
    return Graph(tuple(nodes), graph.outputs)


def _residual(blocks: int, mask: int = 0) -> Graph:
    """Blocks x -> x + b(a(x)) with a backward pass that reads every activation; optionally a mask that all of it reads."""
    nodes: list[Node] = [Node("mask", 1, mask)] if mask else []
    shared_reads = (0,) if mask else ()
    forward: list[tuple[int, ...]] = []

    def add(name: str, reads: tuple[int, ...], backward: bool = False) -> int:
        nodes.append(Node(name, 1, 8, tuple(sorted({*reads, *shared_reads})), backward=backward))
        forward.append(reads)
        return len(nodes) - 1

    x = add("x0", ())
    activations = [x]
    for k in range(blocks):
        a = add(f"a{k}", (x,))
        b = add(f"b{k}", (a,))
        x = add(f"x{k + 1}", (x, b))
        activations += [a, b, x]
    above: tuple[int, ...] = ()
    for v in reversed(activations):
        above = (add(f"grad {nodes[v].name}", (v, *above), backward=True),)
    return Graph(tuple(nodes), above)
