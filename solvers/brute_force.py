"""The oracle: an exhaustive search that is right by construction, for graphs of about ten nodes.

Not an algorithm for users; it exists so that every other solver can be held against it.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from solvers.bounds import Order, describe_scope
from solvers.errors import InfeasibleBudget, InvalidOption, UnsupportedGraph
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.orders import cost_of, peak_of
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Solution, Status, make_solution
from solvers.state_space import State, StateSpace

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


def _space(graph: Graph, order: Order, copies: int | None) -> StateSpace:
    if len(graph.steps) > MAX_STEPS:
        raise UnsupportedGraph(
            f"brute_force searches at most {MAX_STEPS} steps and the graph has {len(graph.steps)}: use another solver"
        )
    if order not in ("given", "any"):
        raise InvalidOption(f'order is {order!r}: "given" or "any"')
    if copies is not None and copies < 1:
        raise InvalidOption(f"copies is {copies!r}: at least 1, or None for no limit")
    return StateSpace(graph, order == "given", copies)


def _cheapest(space: StateSpace, budget: int | None, deadline: float) -> list[int] | None:
    """A* on cost. `debt` never exceeds the true remaining cost, so the first finished state is optimal."""
    limit = math.inf if budget is None else budget
    return _best_first(space, lambda cost, k, _: cost + space.cost[k], lambda debt: debt, limit, deadline)


def _lowest(space: StateSpace, deadline: float) -> list[int]:
    """Dijkstra on the peak. Computing everything once in the given order is in every space, so it always finishes."""
    found = _best_first(space, lambda peak, _, held: max(peak, held), lambda _: 0.0, math.inf, deadline)
    assert found is not None
    return found


def _best_first(
    space: StateSpace,
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
    value: dict[State, float] = {space.start: 0.0}
    parent: dict[State, tuple[State, int]] = {}
    closed: set[State] = set()
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


def _trace(space: StateSpace, parent: dict[State, tuple[State, int]], state: State) -> list[int]:
    order: list[int] = []
    while state in parent:
        state, k = parent[state]
        order.append(space.steps[k])
    return order[::-1]
