"""`auto`: never worse than its parts, claims no more than was proven for the schedule returned, and leaves cleanly."""

from __future__ import annotations

import math
import queue
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import graphs, orders, training_graphs

import solvers.portfolio as portfolio
import solvers.portfolio_jobs as portfolio_jobs
from solvers.brute_force import brute_force
from solvers.errors import InfeasibleBudget
from solvers.essentials import Essentials
from solvers.graph import Graph, Node, training_chain
from solvers.part import Answer, Part
from solvers.pool import Claim, Pool, whole_bound
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Progress, Solution, Status
from solvers.solve import solve
from solvers.view import Small, View, best_order


def peak(graph: Graph, order: object = None) -> int:
    """Simulated peak of an order; by default of computing everything once."""
    return simulate(graph, Schedule.from_order(graph, graph.steps if order is None else order)).peak  # type: ignore[arg-type]


def attempt(graph: Graph, budget: int, **options: object) -> Solution | InfeasibleBudget:
    """What `auto` says."""
    try:
        return solve(graph, budget, "auto", time_limit=30, workers=1, **options)  # type: ignore[arg-type]
    except InfeasibleBudget as error:
        return error


def hourglass(n: int = 12) -> Graph:
    """A training chain with long skips, of costs and sizes that share no divisor: not closed by any cheap bound."""
    nodes: list[Node] = []
    for i in range(n):
        reads = {i - 1} if i else set()
        if i > n // 2:
            reads.add(n - i)
        nodes.append(Node(f"f{i}", 3 + (7 * i) % 11, 5 + (5 * i) % 13, tuple(sorted(reads))))
    for i in reversed(range(n)):
        reads = {len(nodes) - 1, i} | ({i - 1} if i else set()) | ({n - i} if i > n // 2 else set())
        nodes.append(Node(f"b{i}", 5 + (3 * i) % 7, 4 + (3 * i) % 9, tuple(sorted(reads)), backward=True, external=i == 0))
    return Graph(tuple(nodes), (len(nodes) - 1,))


@given(training_graphs(max_layers=4), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_holds_against_the_oracle(graph: Graph, fraction: float) -> None:
    full = peak(graph)
    budget = max(1, int(full * (0.4 + 0.6 * fraction)))
    solution = attempt(graph, budget)
    if isinstance(solution, InfeasibleBudget):
        assert solution.lower_bound <= solution.minimum
        with pytest.raises(InfeasibleBudget) as caught:
            brute_force(graph, budget, copies=2)
        if solution.relative_to == "any order":
            assert solution.lower_bound <= brute_force(graph, None, order="given").peak
        assert caught.value.minimum >= solution.lower_bound or "any order" not in solution.relative_to
        return
    assert solution.peak <= budget
    try:
        best = brute_force(graph, budget, copies=2).cost
    except InfeasibleBudget:
        best = math.inf
    assert solution.cost <= best or math.isclose(solution.cost, best)
    if solution.scope.startswith("the given order"):
        unlimited = brute_force(graph, budget, copies=None if "at most" not in solution.scope else 3).cost
        assert solution.lower_bound <= unlimited or math.isclose(solution.lower_bound, unlimited)


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_in_processes_end_with_a_proof(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_SMALL", 0)  # no run in this process
    graph = hourglass()
    budget = int(0.7 * peak(graph))
    solution = solve(graph, budget, time_limit=60, workers=workers)
    assert solution.status is Status.OPTIMAL
    assert solution.notes["bound"] in ("events", "intervals")
    # An order other than the given one may do better than the best of the given order.
    given = solve(graph, budget, "intervals", time_limit=60, workers=2)
    assert given.status is Status.OPTIMAL
    assert solution.cost <= given.cost


def test_the_chain_of_32_layers_is_certified() -> None:
    solution = solve(training_chain(32), 14, time_limit=60)
    assert (solution.status, solution.cost - 64, solution.lower_bound - 64) == (Status.OPTIMAL, 19, 19)


def test_without_a_budget_or_with_enough_everything_is_kept() -> None:
    graph = training_chain(16)
    for budget in (None, peak(graph), 10**30):
        solution = solve(graph, budget)
        assert (solution.solver, solution.status, solution.overhead) == ("auto", Status.OPTIMAL, 0)
        assert solution.schedule.order == graph.steps


def test_an_impossible_budget_reports_the_smallest_peak_of_all_parts() -> None:
    graph = training_chain(64)
    with pytest.raises(InfeasibleBudget) as caught:
        solve(graph, 3, time_limit=5, workers=1)
    assert caught.value.proven
    assert caught.value.relative_to == "any order"
    assert caught.value.lower_bound <= caught.value.minimum <= solve(graph, None, "recursive").peak


def test_a_work_limit_makes_runs_repeatable() -> None:
    graph = hourglass(20)
    budget = int(0.55 * peak(graph))
    runs = [solve(graph, budget, time_limit=600, work_limit=0.5, seed=3, workers=2) for _ in range(2)]
    assert runs[0].schedule == runs[1].schedule
    assert (runs[0].lower_bound, runs[0].scope, runs[0].notes) == (runs[1].lower_bound, runs[1].scope, runs[1].notes)


def test_reports_improve_and_end_at_the_result() -> None:
    graph, seen = hourglass(), list[Progress]()
    solution = solve(graph, int(0.7 * peak(graph)), time_limit=60, workers=1, progress=seen.append)
    costs, bounds = [p.cost for p in seen], [p.lower_bound for p in seen]
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds)
    assert costs[-1] == solution.cost
    assert all(bound <= solution.cost * (1 + 1e-9) for bound in bounds)


@pytest.mark.parametrize("small", [0, 120])
def test_an_interrupt_returns_the_best_so_far(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_SMALL", small)
    graph = hourglass(24)

    def interrupt(progress: Progress) -> None:
        if progress.cost < math.inf and progress.lower_bound > graph.keep_all_cost:
            raise KeyboardInterrupt

    solution = solve(graph, int(0.6 * peak(graph)), time_limit=60, workers=2, progress=interrupt)
    assert solution.status is Status.INTERRUPTED
    assert solution.peak <= int(0.6 * peak(graph))


class Enough(BaseException):
    """Not an Exception, which a solver might handle."""


def test_a_search_that_finds_nothing_new_still_reports_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_SMALL", 0)
    graph, seen = hourglass(80), list[Progress]()  # many seconds from a proof

    def end(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) > 2 and len({(p.cost, p.lower_bound) for p in seen[-3:]}) == 1:
            raise Enough

    with pytest.raises(Enough):
        solve(graph, int(0.6 * peak(graph)), time_limit=600, workers=2, progress=end)


def test_starts_count_even_where_they_exceed_the_budget() -> None:
    graph = hourglass()
    budget = int(0.7 * peak(graph))
    best = solve(graph, budget, time_limit=60, workers=2).schedule.order
    search = portfolio._Search(graph, budget, Options(starts=(best, graph.steps)), 0.0)
    search.options = replace(search.options, work_limit=1.0)
    search.try_starts()
    assert search.pool.best is not None
    assert search.pool.best.order == best


# --- the pool


def out_of_order() -> tuple[Graph, list[int], int]:
    """A graph whose cheapest schedule at a budget computes y before x: a graph, that order, and the budget."""
    # In the given order x (large) waits while y's input is held; y first needs no more than one of them at a time.
    nodes = (
        Node("x", 5, 6),
        Node("s", 1, 4),
        Node("y", 1, 1, (1,)),
        Node("z", 1, 1, (0, 2)),
    )
    return Graph(nodes, (3,)), [1, 2, 0, 3], 8


def test_what_is_proven_for_the_given_order_is_not_claimed_for_a_cheaper_schedule_in_another() -> None:
    graph, order, budget = out_of_order()
    in_order = brute_force(graph, budget)
    pool = Pool(graph, budget)
    assert not pool.closed
    pool.claim(Claim(in_order.cost, "the given order", graph.steps, "oracle"))
    pool.offer(in_order.schedule.order, "in order")
    assert pool.closed
    assert pool.strongest.scope == "the given order"
    pool.offer(order, "out of order")
    assert pool.cost == graph.keep_all_cost < in_order.cost
    assert pool.strongest.scope == "any schedule"
    assert pool.strongest.bound == graph.keep_all_cost


def test_a_claim_about_an_order_that_is_neither_given_nor_the_best_schedules_does_not_apply() -> None:
    graph, order, budget = out_of_order()
    pool = Pool(graph, budget)
    in_order = brute_force(graph, budget)
    pool.offer(in_order.schedule.order, "in order")
    pool.claim(Claim(in_order.cost, "the order of the returned schedule", tuple(order), "somebody"))
    assert pool.strongest.scope == "any schedule"


def test_the_error_takes_the_smallest_minimum_and_the_highest_floor_below_it() -> None:
    graph = training_chain(5)
    pool = Pool(graph, 3)
    pool.offer(graph.steps, "keep_all")
    pool.fail(InfeasibleBudget(budget=3, minimum=5, lower_bound=5, relative_to="a", bottleneck=2, name="f2"))
    pool.fail(InfeasibleBudget(budget=3, minimum=4, lower_bound=4, relative_to="b", bottleneck=1, name="f1"))
    error = pool.error()
    assert (error.minimum, error.lower_bound) == (4, 4)


@pytest.mark.parametrize("small", ["free", "decided"])
def test_what_small_values_of_no_size_need_is_no_budget_that_works(small: Small) -> None:
    graph = training_chain(9)
    search = portfolio._Search(graph, 3, Options(), 0.0)
    error = InfeasibleBudget(budget=3, minimum=4, lower_bound=4, relative_to="the given order")
    search.take(Answer(None, -math.inf, "", "", error), portfolio_jobs.EVENTS, View.of(graph, 3, graph.steps, small))
    assert search.pool.error().minimum == (peak(graph) if small == "free" else 4)
    assert search.pool.error().lower_bound == 4


@pytest.mark.parametrize(
    ("costs", "bound", "rounded"),
    [([2, 4, 6], 21.0, 22), ([2, 4, 6], 20.0, 20), ([3.0, 5.0], 20.2, 21), ([0.5, 1], 20.2, 20.2), ([0], 20.2, 20.2)],
)
def test_bounds_are_rounded_up_where_costs_are_whole(costs: list[float], bound: float, rounded: float) -> None:
    assert whole_bound(costs, 20, bound) == rounded


# --- views


@given(st.data(), graphs(min_nodes=3), st.integers(1, 400))
def test_small_values_kept_or_free_bracket_the_graph(data: st.DataObject, graph: Graph, budget: int) -> None:
    essentials = Essentials.of(graph, budget * 40)
    order = data.draw(orders(graph))
    own = simulate(graph, Schedule.from_order(graph, order))
    free = simulate(essentials.free, Schedule.from_order(essentials.free, order))
    assert free.peak <= own.peak
    assert free.cost == own.cost
    kept = essentials.keeping(tuple(order))
    again = simulate(essentials.kept, Schedule.from_order(essentials.kept, kept))
    assert (again.peak, again.cost) == (peak(graph, kept), sum(graph.nodes[v].cost for v in kept))
    assert sum(graph.nodes[v].charge for v in range(len(graph)) if graph.step_of(v) in essentials.small) <= budget / 5


def test_exact_parts_keep_to_the_order_of_a_schedule_that_is_better_than_any_in_the_given_one() -> None:
    graph, order, budget = out_of_order()
    pool = Pool(graph, budget)
    pool.offer(brute_force(graph, budget).schedule.order, "in order")
    assert best_order(pool) == graph.steps
    pool.offer(order, "out of order")
    assert best_order(pool) == tuple(order)
    view = View.of(graph, budget, tuple(order))
    assert view.back(view.graph.steps) == tuple(order)
    assert view.scope("the given order, twice") == "the order of the returned schedule, twice"
    assert view.starts(pool)[0] == view.graph.steps


# --- processes


def ask(name: str, graph: Graph, budget: int, **options: object) -> tuple[Part, queue.Queue[Progress | Answer]]:
    """Starts a part."""
    messages: queue.Queue[Progress | Answer] = queue.Queue()
    return Part(name, graph, budget, Options(**options), lambda _, message: messages.put(message)), messages  # type: ignore[arg-type]


def answer_of(messages: queue.Queue[Progress | Answer]) -> Answer:
    """The last message."""
    while True:
        message = messages.get(timeout=120)
        if isinstance(message, Answer):
            return message


def test_a_part_answers_what_the_solver_would_here() -> None:
    graph = hourglass()
    part, messages = ask("chen", graph, int(0.9 * peak(graph)))
    answer = answer_of(messages)
    part.kill()
    here = solve(graph, int(0.9 * peak(graph)), "chen")
    assert (answer.order, answer.bound, answer.scope) == (here.schedule.order, here.lower_bound, here.scope)


def test_a_part_reports_an_infeasible_budget_with_all_that_is_known() -> None:
    graph = training_chain(9)
    part, messages = ask("sqrt", graph, 2)
    answer = answer_of(messages)
    part.kill()
    assert answer.order is None
    assert answer.infeasible is not None
    with pytest.raises(InfeasibleBudget) as caught:
        solve(graph, 2, "sqrt")
    assert str(answer.infeasible) == str(caught.value)


def test_a_part_that_fails_says_how() -> None:
    part, messages = ask("no such solver", training_chain(9), 5)
    assert "InvalidOption: there is no solver 'no such solver'" in answer_of(messages).status
    part.kill()


def test_a_killed_part_answers_too() -> None:
    part, messages = ask("greedy", hourglass(40), 200, time_limit=60.0)
    part.kill()
    assert answer_of(messages).status.startswith("ended without an answer")


def test_without_processes_parts_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "")
    monkeypatch.setattr(portfolio, "_SMALL", 0)
    graph = hourglass()
    assert solve(graph, int(0.7 * peak(graph)), time_limit=20, workers=2).peak <= int(0.7 * peak(graph))


@pytest.mark.parametrize(("name", "bound", "excluded"), [("events", 7, True), ("events", 6, False), ("intervals", 7, False)])
def test_exact_parts_are_given_up_once_nothing_can_fit_in_their_order(name: str, bound: int, excluded: bool) -> None:
    graph = training_chain(9)
    search = portfolio._Search(graph, 6, Options(), 0.0)
    job = portfolio_jobs.EVENTS if name == "events" else portfolio_jobs.INTERVALS
    error = InfeasibleBudget(budget=6, minimum=8, lower_bound=bound, relative_to="the given order", bottleneck=2, name="f2")
    search.take(Answer(None, -math.inf, "", "", error), job, View.of(graph, 6, graph.steps))
    assert search.excluded is excluded
    assert (search.pool.error().minimum, search.pool.error().lower_bound) == (8, max(bound, 4))


def test_improve_never_returns_worse_than_its_starts_and_finds_what_was_left_in_them() -> None:
    graph = hourglass(16)
    budget = int(0.6 * peak(graph))
    start = solve(graph, budget, "greedy", time_limit=5).schedule.order
    wasteful = solve(graph, budget, "knapsack", time_limit=30)
    better = solve(graph, budget, "improve", time_limit=5, starts=[wasteful.schedule.order])
    assert better.cost <= wasteful.cost
    assert better.peak <= budget
    assert solve(graph, budget, "improve", time_limit=2, starts=[start, wasteful.schedule.order]).cost <= wasteful.cost
    with pytest.raises(InfeasibleBudget):
        solve(graph, budget, "improve")


def test_deep_networks_are_left_to_blocks_and_no_start_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_DEEP", 0)
    graph = hourglass(6)
    budget = int(0.7 * peak(graph))
    best = solve(graph, budget, "intervals", time_limit=60, work_limit=0.2, workers=1)
    found = solve(graph, budget, time_limit=60, work_limit=0.01, workers=1, starts=[best.schedule.order, graph.steps])
    assert found.notes["schedule"] in ("start 0", "hierarchical")
    assert found.cost <= best.cost
    assert solve(graph, budget, time_limit=60, work_limit=0.01, workers=1).notes["schedule"] == "hierarchical"
