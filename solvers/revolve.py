"""Binomial checkpointing of uniform chains.

Griewank & Walther, "Algorithm 799: revolve", ACM TOMS 26 (2000): with s slots for states, the first of them taken by the
initial state, reversing a line of n steps needs at least

    t(n, s) = min over 1 <= k < n of  k + t(n - k, s - 1) + t(k, s),   t(1, s) = 0,   t(n, 1) = n (n - 1) / 2

advances, and Theorem 1 solves this: with r the repetition number, that is C(s + r - 1, s) < n <= C(s + r, s),

    t(n, s) = r n - C(s + r, s + 1).

On `training_chain(n)` the initial state is the program's input, which takes no memory; a backward step also needs the value of
its own layer, which is the state that the backward step before it started from; and the two last layers are reversed
together. So a budget of b values is a line of n - 1 steps with s = b - 3 slots, whose first sweep of n - 2 advances is no extra
cost. The schedule is optimal among all schedules of a uniform chain.
"""

from __future__ import annotations

import math
import time

from solvers.bounds import infeasible
from solvers.errors import InvalidOption, UnsupportedGraph
from solvers.graph import Graph, training_chain
from solvers.orders import cost_of, peak_of
from solvers.solution import Options, Solution, Status, make_solution


def cost(n: int, s: int) -> int:
    """Least number of advances that reverse n steps with s slots, in closed form.

    Args:
        n: steps, at least 1.
        s: slots, at least 1, that of the initial state included.

    Returns:
        The number of forward steps run only to reach a later state; the n that are reversed are not counted.

    Raises:
        InvalidOption: if n or s is below 1.
    """
    if n < 1 or s < 1:
        raise InvalidOption(f"binomial checkpointing needs at least one step and one slot, not {n} and {s}")
    repetitions = _repetitions(n, s)
    return repetitions * n - math.comb(s + repetitions, s + 1)


def _repetitions(n: int, s: int) -> int:
    """How often the n-th step is advanced over: the slope of `cost` there."""
    repetitions = 0
    while math.comb(s + repetitions, s) < n:
        repetitions += 1
    return repetitions


def split(n: int, s: int) -> int:
    """Where the next checkpoint goes: the smallest k that attains the minimum of the recurrence.

    Raises:
        InvalidOption: if nothing is left to split (n below 2) or no slot is free (s below 2).
    """
    if n < 2 or s < 2:
        raise InvalidOption(f"{n} steps with {s} slots have no split")
    low, high = 1, n - 1
    while low < high:  # what one step more costs grows with k
        k = (low + high) // 2
        if 1 + _repetitions(k + 1, s) >= _repetitions(n - k, s - 1):
            high = k
        else:
            low = k + 1
    return low


def revolve_order(n: int, s: int) -> list[int]:
    """The order of `training_chain(n)` with s slots; its peak is at most s + 3 values.

    Raises:
        InvalidOption: if n or s is below 1.
    """
    if n < 1 or s < 1:
        raise InvalidOption(f"binomial checkpointing needs at least one layer and one slot, not {n} and {s}")
    if n == 1:
        return [0, 1]
    order: list[int] = []

    def turn(step: int) -> None:
        """Runs backward layer step - 1; layer step - 2 is live, and layer step - 1 unless this is the first turn."""
        if step == n - 1:
            order.extend((n - 2, n - 1, n))
        order.append(2 * n - step)

    stack = [(0, n - 1, s)]
    while stack:
        low, high, slots = stack.pop()
        if high - low == 1:
            turn(high)
        elif slots == 1:
            for step in range(high, low, -1):
                order.extend(range(low, step - 1))
                turn(step)
        else:
            k = split(high - low, slots)
            order.extend(range(low, low + k))
            stack.append((low, low + k, slots))
            stack.append((low + k, high, slots - 1))
    return order


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The optimal schedule of a uniform training chain.

    Raises:
        UnsupportedGraph: if the graph is not `training_chain(n, size, cost)` for any n, size and cost.
        InfeasibleBudget: proven.
    """
    del options  # the schedule is known in closed form
    start = time.perf_counter()
    layers = _layers(graph)
    size = graph.nodes[0].size
    slots = layers if budget is None or not size else max(1, min(layers, budget // size - 3))
    order = revolve_order(layers, slots)
    peak = peak_of(graph, order)
    if budget is not None and peak > budget:  # only with one slot, and nothing needs less
        raise infeasible(graph, budget, known_peaks=[peak])
    return make_solution(
        graph,
        order,
        solver="revolve",
        budget=budget,
        seconds=time.perf_counter() - start,
        status=Status.OPTIMAL,
        lower_bound=cost_of(graph, order),
        notes={"slots": str(slots)},
    )


def _layers(graph: Graph) -> int:
    """How many layers the uniform chain has."""
    first, n = graph.nodes[0], len(graph) // 2
    if n:
        uniform = training_chain(n, first.size, first.cost)
        if uniform.structural_hash == graph.structural_hash:
            return n
        for v, (node, model) in enumerate(zip(graph.nodes, uniform.nodes, strict=False)):
            if (node.cost, node.size, node.deps, node.workspace) != (model.cost, model.size, model.deps, 0):
                raise UnsupportedGraph(
                    f"node {v} ({node.name!r}) breaks the uniform chain: binomial checkpointing wants cost {model.cost}, size "
                    f'{model.size} and reads of {list(model.deps)} there; use "chain" or "auto" instead'
                )
    raise UnsupportedGraph('this graph is no uniform training chain: use "chain" for uneven chains, "auto" for other graphs')
