"""What torch.compile's memory budget does, held to a real budget: choose what to save by knapsack, recompute the rest.

The partitioner of torch.compile (`activation_memory_budget`) first finds the save-set by minimum cut (`min_cut`), then solves a
knapsack over it: which of these values to keep within a number of saved bytes, so that the cost of the steps recomputed is
least, each step charged alone, as if its inputs were there. The rest may then be recomputed, and the cut is taken again.

Its budget is a number of saved bytes. Here that number is only a parameter: each save-set is turned into an order that
recomputes what is missing just before each late read, chains of missing inputs included, and is simulated; the parameter is
searched so that the simulated peak fits. Knapsacks are solved greedily, by dynamic programming over quantised bytes, and
exactly (OR-Tools branch and bound). The knapsack is optimal for its linear model only; the schedule is an upper bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice

from ortools.algorithms.python.knapsack_solver import KnapsackSolver, SolverType  # type: ignore[import-untyped]

from solvers.bounds import infeasible
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.min_cut import min_cut, saved_bytes
from solvers.orders import cost_of, peak_of
from solvers.segments import Forward
from solvers.solution import Options, Progress, Solution, Status, make_solution
from solvers.trim import trim

NAME = "knapsack"
_LEVELS = (0.0, 0.5, 0.8)  # share of the steps, those of the lowest cost per byte, that may always be recomputed
_PROBES = 10
_QUANTA = 500
_COST_STEPS = 1 << 40
_EXACT_SECONDS = 1.0
_ORDERS_PER_WORK = 20  # how many are looked at for each unit of a work limit

Knapsack = Callable[[Sequence[float], Sequence[int], int], list[int]]


def by_ratio(values: Sequence[float], weights: Sequence[int], capacity: int) -> list[int]:
    """Items taken greedily by value per weight."""
    taken: list[int] = []
    for i in sorted(range(len(values)), key=lambda i: (-values[i] / max(1, weights[i]), i)):
        if weights[i] <= capacity:
            capacity -= weights[i]
            taken.append(i)
    return sorted(taken)


def by_dynamic_program(values: Sequence[float], weights: Sequence[int], capacity: int) -> list[int]:
    """Items of the largest value, with weights rounded up to a 500th of the capacity, which is never exceeded."""
    unit = 1 if capacity <= _QUANTA else -(-capacity // _QUANTA)
    room = capacity // unit
    best = [0.0] * (room + 1)
    rows: list[list[bool]] = []
    for value, weight in zip(values, weights, strict=True):
        w = -(-weight // unit)
        with_item = [best[m - w] + value if m >= w else -math.inf for m in range(room + 1)]
        rows.append([a > b for a, b in zip(with_item, best, strict=True)])
        best = [max(a, b) for a, b in zip(with_item, best, strict=True)]
    taken: list[int] = []
    for i in reversed(range(len(values))):
        if rows[i][room]:
            taken.append(i)
            room -= -(-weights[i] // unit)
    return taken[::-1]


def exactly(values: Sequence[float], weights: Sequence[int], capacity: int) -> list[int]:
    """Items of the largest value, by OR-Tools' branch and bound (within a second; costs rounded to 2**-40 of their sum)."""
    total = math.fsum(values)
    if not values or not total:
        return by_ratio(values, weights, capacity)
    shift = max(0, max(capacity, sum(weights)).bit_length() - 60)  # the solver counts in 64 bits
    solver = KnapsackSolver(SolverType.KNAPSACK_MULTIDIMENSION_BRANCH_AND_BOUND_SOLVER, "save-set")
    solver.init(
        [round(value / total * _COST_STEPS) for value in values], [[-(-w >> shift) for w in weights]], [capacity >> shift]
    )
    solver.set_time_limit(_EXACT_SECONDS)
    solver.solve()
    return [i for i in range(len(values)) if solver.best_solution_contains(i)]


KNAPSACKS: dict[str, Knapsack] = {"greedy": by_ratio, "dynamic program": by_dynamic_program, "branch and bound": exactly}


def recompute_order(forward: Forward, saved: Collection[int], *, keep: bool) -> list[int]:
    """The order that saves some steps' values and recomputes what else a late step reads just before it.

    Args:
        forward: the forward pass.
        saved: forward steps whose values stay until their last read, beside those that `forward` keeps.
        keep: whether a recomputed value stays for later reads by late steps; otherwise it is recomputed for each.

    Returns:
        Nodes in order. First computations keep the given order.
    """
    graph = forward.graph
    there = {*saved, *forward.kept}
    order = list(forward.steps)
    read_late = {graph.step_of(u) for v in forward.late for u in graph.nodes[v].deps}
    for v in forward.late:
        missing: set[int] = set()
        stack = [v]
        while stack:
            for u in graph.nodes[stack.pop()].deps:
                step = graph.step_of(u)
                if step not in there and step not in missing:
                    missing.add(step)
                    stack.append(step)
        order.extend(sorted(missing))
        order.append(v)
        there.add(v)
        if keep:
            there |= missing & read_late
    return order


def save_set(forward: Forward, capacity: int, knapsack: Knapsack, *, level: float) -> frozenset[int]:
    """Steps to save within a number of bytes.

    Args:
        forward: the forward pass.
        capacity: bytes that the knapsack may fill.
        knapsack: how it is solved.
        level: share of the steps, those with the lowest cost per byte, that may be recomputed in any case.
    """
    graph = forward.graph
    free = [v for v in forward.steps if v not in forward.kept]
    free.sort(key=lambda v: (graph.nodes[v].cost / max(1, saved_bytes(graph, v)), v))
    banned = set(free[int(level * len(free)) :])
    items = sorted(min_cut(forward, banned))
    costs, sizes = [graph.nodes[v].cost for v in items], [saved_bytes(graph, v) for v in items]
    chosen = {items[i] for i in knapsack(costs, sizes, capacity)}
    return min_cut(forward, banned - (set(items) - chosen)) if chosen != set(items) else frozenset(items)


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The cheapest order over all knapsacks and save-sets whose simulated peak fits.

    With a work limit a number of orders in proportion to it is looked at, without branch and bound, which is limited by time.

    Raises:
        UnsupportedGraph: if the graph has no forward and backward pass.
        InfeasibleBudget: if none fits; `proven` tells whether none can.
        KeyboardInterrupt: if it came before any was known to fit.
    """
    start = time.monotonic()
    forward = Forward.of(graph)
    given = list(graph.steps)
    peaks = [peak_of(graph, given)]
    best, best_cost, found_by, status = (given, graph.keep_all_cost, "keep all", Status.FEASIBLE)
    if budget is not None and peaks[0] > budget:
        best_cost = math.inf
        try:
            for name, order, peak in _search(forward, budget, options.work_limit):
                peaks.append(peak)
                if peak <= budget:
                    order = trim(graph, order, budget)
                    cost = cost_of(graph, order)
                    if cost < best_cost:
                        best, best_cost, found_by = order, cost, name
                        if options.progress is not None:
                            seconds = time.monotonic() - start
                            options.progress(Progress(NAME, seconds, cost, graph.keep_all_cost))
                if time.monotonic() - start > options.time_limit:
                    status = Status.TIME_LIMIT
                    break
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        if math.isinf(best_cost):
            if status is Status.FEASIBLE:
                raise infeasible(graph, budget, known_peaks=peaks)
            return stopped(graph, budget, solver=NAME, status=status, seconds=time.monotonic() - start, known_peaks=peaks)
    seconds, notes = time.monotonic() - start, {"found by": found_by}
    return make_solution(graph, best, solver=NAME, budget=budget, seconds=seconds, status=status, notes=notes)


def _search(forward: Forward, budget: int, work_limit: float | None) -> Iterator[tuple[str, list[int], int]]:
    """Orders with their peaks, as many as the limit allows."""
    if work_limit is None:
        return _bisections(forward, budget, KNAPSACKS)
    repeatable = {name: knapsack for name, knapsack in KNAPSACKS.items() if knapsack is not exactly}
    return islice(_bisections(forward, budget, repeatable), math.ceil(_ORDERS_PER_WORK * work_limit))


def _bisections(forward: Forward, budget: int, knapsacks: Mapping[str, Knapsack]) -> Iterator[tuple[str, list[int], int]]:
    """Orders with their peaks: per level, knapsack and way to recompute, a bisection over the saved bytes."""
    graph = forward.graph
    most = sum(saved_bytes(graph, v) for v in forward.steps)
    for level in _LEVELS:
        for name, knapsack in knapsacks.items():
            for keep in (True, False):
                low, high = 0, most
                for probe in range(_PROBES):
                    capacity = 0 if probe == 0 else (low + high) // 2
                    order = recompute_order(forward, save_set(forward, capacity, knapsack, level=level), keep=keep)
                    peak = peak_of(graph, order)
                    how = "kept" if keep else "dropped after each read"
                    yield f"{name} at {capacity:,} bytes, level {level}, recomputed values {how}", order, peak
                    if peak <= budget:
                        low = capacity
                    elif probe:
                        high = capacity
