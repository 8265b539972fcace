"""The oracle: an exhaustive search that is right by construction, for graphs of about ten nodes.

Not an algorithm for users; it exists so that every other solver can be held against it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from solvers.bounds import Order, describe_scope
from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.orders import cost_of, peak_of
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Solution, Status, make_solution

MAX_STEPS = 14


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The optimum over all schedules whose first computations keep the given order; see `brute_force`.

    Stopped by the time limit or an interrupt it has nothing to show, and returns what the cheap strategies find.
    """
    began = time.monotonic()
    try:
        return brute_force(graph, budget, deadline=began + options.time_limit)
    except TimeoutError:
        status = Status.TIME_LIMIT
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    limit = peak_of(graph, graph.steps) if budget is None else budget
    return stopped(graph, limit, solver="brute_force", status=status, seconds=time.monotonic() - began)


def brute_force(
    graph: Graph, budget: int | None, *, order: Order = "given", copies: int | None = None, deadline: float = math.inf
) -> Solution:
    """The cheapest schedule within a budget, by exhaustive best-first search.

    The space searched, in which every step runs at least once:

    - `order="given"`: stage j, for each step j in turn, first recomputes any subset of the steps before j, each at most once
      and in increasing position, then computes j for the first time. Nothing runs after the last step's first computation.
      This is the space of retention intervals (Bartan et al., ICML 2023).
    - `order="any"`: steps run in any order that respects their reads, and again at any time.

    In both, every value may be dropped at any time, a step that `Graph.may_recompute` forbids runs once, at most one instance
    of a value is live, and with `copies=C` each step runs at most C times in all. Only schedules that drop an instance
    right after its last read are visited, since dropping it later never helps.

    Args:
        graph: at most 14 steps.
        budget: bytes; None for no limit.
        order: which space.
        copies: most computations of one step; None for no limit.
        deadline: give up after this value of `time.monotonic()`.

    Returns:
        An optimal solution of that space.

    Raises:
        InfeasibleBudget: proven for that space. `minimum` and `lower_bound` are both its exact smallest budget.
        TimeoutError: at the deadline.
        UnsupportedGraph: if there are too many steps.
    """
    began = time.perf_counter()
    space = _space(graph, order, copies)
    found = _cheapest(space, budget, deadline)
    scope = describe_scope(order, copies)
    if found is None:
        smallest = minimum_budget(graph, order=order, copies=copies, deadline=deadline)
        raise InfeasibleBudget(
            budget=budget if budget is not None else 0,
            minimum=smallest.budget,
            lower_bound=smallest.budget,
            relative_to=scope,
            bottleneck=smallest.node,
            name=graph.nodes[smallest.node].name,
        )
    cost = cost_of(graph, found)
    seconds = time.perf_counter() - began
    return make_solution(
        graph,
        found,
        solver="brute_force",
        budget=budget,
        seconds=seconds,
        status=Status.OPTIMAL,
        lower_bound=cost,
        scope=scope,
    )


@dataclass(frozen=True, slots=True)
class SmallestBudget:
    """The exact smallest budget of a space: bytes, the node at the peak, and an order of computations that attains it."""

    budget: int
    node: int
    order: tuple[int, ...]


def minimum_budget(
    graph: Graph, *, order: Order = "given", copies: int | None = None, deadline: float = math.inf
) -> SmallestBudget:
    """The smallest budget for which the space of `brute_force` holds a schedule.

    Raises:
        TimeoutError: at the deadline.
        UnsupportedGraph: if there are too many steps.
    """
    found = _lowest(_space(graph, order, copies), deadline)
    result = simulate(graph, Schedule.from_order(graph, found))
    return SmallestBudget(result.peak, found[result.peak_at], tuple(found))


def _space(graph: Graph, order: Order, copies: int | None) -> _Space:
    if len(graph.steps) > MAX_STEPS:
        raise UnsupportedGraph(
            f"brute_force searches at most {MAX_STEPS} steps and the graph has {len(graph.steps)}: use another solver"
        )
    if order not in ("given", "any"):
        raise ValueError(f'order is {order!r}: "given" or "any"')
    if copies is not None and copies < 1:
        raise ValueError(f"copies is {copies!r}: at least 1, or None for no limit")
    return _Space(graph, order == "given", copies)


@dataclass(frozen=True, slots=True)
class _State:
    """Steps done at least once, the least step the stage may still recompute, live values, and extra runs per step."""

    done: int
    at: int
    live: int
    runs: int


class _Space:
    """States and moves. Sets of steps and of values are bit masks."""

    def __init__(self, graph: Graph, given: bool, copies: int | None):
        self.graph, self.given, self.copies = graph, given, copies
        self.steps = graph.steps
        index = {v: k for k, v in enumerate(self.steps)}
        nodes = [graph.nodes[v] for v in self.steps]
        self.cost = [node.cost for node in nodes]
        self.workspace = [node.workspace for node in nodes]
        self.reads = [_mask(node.deps) for node in nodes]
        self.writes = [_mask(graph.written(v)) for v in self.steps]
        self.again = [graph.may_recompute(v) for v in self.steps]
        self.writer = [index[graph.step_of(v)] for v in range(len(graph))]
        self.outputs = _mask(graph.outputs)
        self.everything = (1 << len(self.steps)) - 1
        self.replayable_reads = _union(r for r, again in zip(self.reads, self.again, strict=True) if again)
        self.single = _union(w for w, again in zip(self.writes, self.again, strict=True) if not again)
        self.base = copies or 1  # `_State.runs` is a number in this base, with one digit for each step
        self.unit = [int(self.base**k) for k in range(len(self.steps))]
        self._charges: dict[int, int] = {0: 0}

    start = _State(0, 0, 0, 0)

    def charge(self, values: int) -> int:
        """Budgeted bytes of a set of values."""
        if values not in self._charges:
            lowest = values & -values
            self._charges[values] = self.charge(values ^ lowest) + self.graph.nodes[lowest.bit_length() - 1].charge
        return self._charges[values]

    def pending_reads(self, done: int) -> int:
        """Values that some step still to be done for the first time reads, and the outputs."""
        reads = self.outputs
        for k in range(len(self.steps)):
            if not done >> k & 1:
                reads |= self.reads[k]
        return reads

    def debt(self, state: _State) -> float:
        """Least further cost of a state: first runs, and every missing value that must be made again; infinite if it cannot.

        A missing value that a step must read needs one more run of its own step, and so do that step's own missing reads.
        """
        total = math.fsum(c for k, c in enumerate(self.cost) if not state.done >> k & 1)
        made = _union(w for k, w in enumerate(self.writes) if state.done >> k & 1)
        missing = self.pending_reads(state.done) & made & ~state.live
        counted = 0
        while missing:
            k = self.writer[(missing & -missing).bit_length() - 1]
            if not self.again[k] or (self.copies is not None and self._extra(state.runs, k) >= self.copies - 1):
                return math.inf
            total += self.cost[k]
            counted |= self.writes[k]
            missing = (missing | self.reads[k] & made & ~state.live) & ~counted
        return total

    def moves(self, state: _State) -> Iterator[tuple[int, int, list[_State]]]:
        """Each step that can run next: its position, the bytes live while it runs, and the states it may lead to."""
        stage = state.done.bit_count()
        for k in range(len(self.steps)):
            first = not state.done >> k & 1
            if self.reads[k] & ~state.live or self.writes[k] & state.live:
                continue
            if self.given and not (k == stage if first else state.at <= k < stage):
                continue
            if self.given and state.done == self.everything:
                continue
            if not first and not self._may_run_again(state, k):
                continue
            live = state.live | self.writes[k]
            done = state.done | 1 << k
            at = k + 1 if self.given and not first else 0
            runs = state.runs if first or self.copies is None else state.runs + self.unit[k]
            needed = self.pending_reads(done)
            dead = ~(needed | self.replayable_reads)
            choice = (self.reads[k] | self.writes[k]) & live & ~dead & ~(self.single & needed)
            after = [_State(done, at, live & ~dead & ~drop, runs) for drop in _subsets(choice)]
            yield k, self.charge(live) + self.workspace[k], after

    def finished(self, state: _State) -> bool:
        return state.done == self.everything and not self.outputs & ~state.live

    def _may_run_again(self, state: _State, k: int) -> bool:
        return self.again[k] and (self.copies is None or self._extra(state.runs, k) < self.copies - 1)

    def _extra(self, runs: int, k: int) -> int:
        return runs // self.unit[k] % self.base


def _cheapest(space: _Space, budget: int | None, deadline: float) -> list[int] | None:
    """A* on cost. `debt` never exceeds the true remaining cost, so the first finished state is optimal."""
    limit = math.inf if budget is None else budget
    return _best_first(space, lambda cost, k, _: cost + space.cost[k], lambda debt: debt, limit, deadline)


def _lowest(space: _Space, deadline: float) -> list[int]:
    """Dijkstra on the peak. Computing everything once in the given order is in every space, so it always finishes."""
    found = _best_first(space, lambda peak, _, held: max(peak, held), lambda _: 0.0, math.inf, deadline)
    assert found is not None
    return found


def _best_first(
    space: _Space,
    grow: Callable[[float, int, int], float],
    left: Callable[[float], float],
    limit: float,
    deadline: float,
) -> list[int] | None:
    """The order with the least value; None if there is none within the limit.

    Args:
        space: states and moves.
        grow: the value after a move, given that before it, the step and the bytes live while it runs. It never falls.
        left: at most what is still to be added to the value, given a state's debt.
        limit: most bytes live at once.
        deadline: give up after this value of `time.monotonic()`.

    Raises:
        TimeoutError: at the deadline.
    """
    value: dict[_State, float] = {space.start: 0.0}
    parent: dict[_State, tuple[_State, int]] = {}
    closed: set[_State] = set()
    ticket = itertools.count()
    queue = [(left(space.debt(space.start)), next(ticket), space.start)]
    while queue:
        _, _, state = heapq.heappop(queue)
        if state in closed:
            continue
        closed.add(state)
        if space.finished(state):
            return _trace(space, parent, state)
        if time.monotonic() > deadline:
            raise TimeoutError
        for k, held, after in space.moves(state):
            if held > limit:
                continue
            grown = grow(value[state], k, held)
            for new in after:
                if new not in closed and grown < value.get(new, math.inf):
                    debt = space.debt(new)
                    if debt < math.inf:
                        value[new], parent[new] = grown, (state, k)
                        heapq.heappush(queue, (grown + left(debt), -next(ticket), new))
    return None


def _trace(space: _Space, parent: dict[_State, tuple[_State, int]], state: _State) -> list[int]:
    order: list[int] = []
    while state in parent:
        state, k = parent[state]
        order.append(space.steps[k])
    return order[::-1]


def _mask(members: tuple[int, ...]) -> int:
    return _union(1 << v for v in members)


def _union(masks: Iterator[int] | tuple[int, ...]) -> int:
    result = 0
    for mask in masks:
        result |= mask
    return result


def _subsets(mask: int) -> Iterator[int]:
    subset = mask
    while True:
        yield subset
        if not subset:
            return
        subset = (subset - 1) & mask
