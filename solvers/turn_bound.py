"""A lower bound on the cost of every schedule, in any order, that decomposes over the graph and so scales with it.

Take any step T. When it first runs, what is live fits the budget; and whatever can only run after it (its descendants) and
reads a value from elsewhere finds that value kept, or has it computed after T. If the step that computes it must run before T
as well (an ancestor), that is once more than needed, and so for all that it reads in turn. So the cheapest choice of values to
keep within the budget bounds the extra cost of all schedules. For each price of a byte that choice is a minimum cut
(`priced_cut`), and Lagrangean duality makes a bound of it: its value less price times budget. The price is searched.

At the turn of a training graph, where nearly everything is still to be read, this is the cost of what does not fit. It says
nothing about room for the backward pass itself.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from solvers.graph import Graph
from solvers.priced_cut import priced_cut

_AROUND = 12  # candidates for T on either side of the turn
_MOST_PRICES = 40
_PRECISE = 1e-9  # relative gain in a choice's priced cost that counts


@dataclass(frozen=True)
class _Problem:
    """What to keep at one step."""

    costs: list[float]
    sizes: list[int]
    reads: list[list[int]]
    needed: list[int]
    room: int


def turn_bound(graph: Graph, budget: int | None, *, deadline: float = math.inf) -> float:
    """A proven lower bound on total cost, in the graph's unit.

    Args:
        graph: any graph; one without a backward pass gets the trivial bound.
        budget: bytes; None for no limit.
        deadline: stop the search for a better price at this value of `time.monotonic()`.
    """
    once = graph.keep_all_cost
    problem = None if budget is None else _fullest(graph, budget)
    if problem is None:
        return once
    if problem.room < 0:
        return once  # the budget is below the need of this very step: a matter for `minimum_budget`
    return once + _best_over_prices(problem, deadline) * (1 - 1e-9)


def _best_over_prices(problem: _Problem, deadline: float) -> float:
    """The dual optimum: the price moves to where the best choices known on either side of the room cost the same."""
    bytes_of = [float(size) for size in problem.sizes]

    def solve(price: float) -> tuple[float, float, float]:
        """Bytes kept, cost of what runs again, and the bound at this price."""
        cut = priced_cut(problem.costs, problem.sizes, problem.reads, problem.needed, price)
        kept = math.fsum(bytes_of[v] for v in cut.kept)
        return kept, math.fsum(problem.costs[v] for v in cut.again), cut.floor - price * problem.room

    more = (math.fsum(bytes_of[v] for v in problem.needed), 0.0)  # keeping all that is needed
    if more[0] <= problem.room:
        return 0.0
    *less, best = solve(math.fsum(problem.costs) + 1.0)
    for _ in range(_MOST_PRICES):
        if less[0] >= min(more[0], problem.room + 1) or time.monotonic() > deadline:
            break
        price = (less[1] - more[1]) / (more[0] - less[0])
        kept, again, bound = solve(price)
        best = max(best, bound)
        if again + price * kept >= (less[1] + price * less[0]) * (1 - _PRECISE):  # nothing is cheaper than both at this price
            break
        if kept > problem.room:
            more = (kept, again)
        else:
            less = [kept, again]
    return max(best, 0.0)


def _fullest(graph: Graph, budget: int) -> _Problem | None:
    """The problem at the step near the turn that most bytes come before and are read after."""
    score = turn = best = 0
    for p, v in enumerate(graph.steps):
        score += -1 if graph.nodes[v].backward else 1
        if score > best:
            best, turn = score, p
    if not best or best == len(graph.steps):
        return None
    near = graph.steps[max(0, turn - _AROUND) : turn + _AROUND]
    problems = [_problem(graph, step, budget) for step in near]
    return max(problems, key=lambda p: sum(p.sizes[v] for v in p.needed if p.costs[v]) - p.room)


def _problem(graph: Graph, step: int, budget: int) -> _Problem:
    after = [False] * len(graph)
    for v in graph.steps:
        if v == step or any(after[graph.step_of(u)] for u in graph.nodes[v].deps):
            after[v] = True
    before = [False] * len(graph)
    todo = [step]
    while todo:
        for u in graph.nodes[todo.pop()].deps:
            s = graph.step_of(u)
            if not before[s]:
                before[s] = True
                todo.append(s)
    needed: set[int] = set()
    for v in graph.steps:
        if after[v] and v != step:
            needed.update(s for u in graph.nodes[v].deps if not after[s := graph.step_of(u)])
    written = graph.written(step)
    room = budget - graph.nodes[step].workspace - sum(graph.nodes[w].charge for w in written)
    nodes = graph.nodes
    costs = [
        (nodes[v].cost if before[v] else 0.0) if graph.may_recompute(v) else (math.inf if before[v] else 0.0)
        for v in range(len(graph))
    ]
    finite = math.fsum(c for c in costs if math.isfinite(c))
    costs = [c if math.isfinite(c) else 2 * finite for c in costs]
    # Of several results, keeping one is the least that saves running the step again.
    sizes = [
        min((nodes[w].charge for w in graph.written(v) if graph.readers[w]), default=0) if nodes[v].part_of is None else 0
        for v in range(len(graph))
    ]
    reads = [[s for u in nodes[v].deps if not after[s := graph.step_of(u)]] for v in range(len(graph))]
    return _Problem(costs, sizes, reads, sorted(needed), room)
