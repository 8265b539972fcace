"""Offline eviction: run the given order and drop what is cheapest to bring back when a step does not fit.

Dynamic Tensor Rematerialization (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021) decides at run time; here
the same eviction is played through in advance, for several rules (the paper's h_DTR with its union-find neighbourhoods
among them, and ones that use the known future as Belady's rule does), then for random mixtures of them. The best result by
simulation is returned, after recomputations that turn out unnecessary have been taken out.

No optimality is claimed: the result is an upper bound, for graphs of any shape. One run takes time proportional to the
computations made, times the nodes; 1,000 nodes take a few seconds.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator

from solvers.errors import InfeasibleBudget
from solvers.eviction import Eviction, Neighbourhood, Rule
from solvers.graph import Graph
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Options, Progress, Solution, Status, make_solution
from solvers.trim import trim

RULES: tuple[Rule, ...] = (
    Rule("cost with evicted ancestors / (bytes x next use)"),
    Rule("h_DTR", neighbourhood=Neighbourhood.UNION, future=False),
    Rule("h_DTR with next use", neighbourhood=Neighbourhood.UNION),
    Rule("cost with evicted ancestors / (bytes x staleness)", future=False),
    Rule("cost with evicted ancestors / bytes", distance=0),
    Rule("root of cost with evicted ancestors / (bytes x next use)", cost=0.5),
    Rule("cost / (bytes x next use)", neighbourhood=Neighbourhood.NONE),
    Rule("bytes x next use", cost=0, neighbourhood=Neighbourhood.NONE),
    Rule("furthest next use", cost=0, size=0, neighbourhood=Neighbourhood.NONE),
)

_RESTARTS = 24
_COMPUTATIONS_PER_NODE = 30
_BISECTIONS = 8


def greedy_order(graph: Graph, budget: int, rule: Rule = RULES[0], *, seed: int = 0) -> list[int] | None:
    """The order that one rule makes of the given one, without its unnecessary recomputations.

    Args:
        graph: the graph.
        budget: bytes.
        rule: which value is evicted first.
        seed: of the rule's noise.

    Returns:
        An order whose simulated peak is within the budget, or None if the rule got stuck.
    """
    run = Eviction(graph, budget, graph.steps, rule, random.Random(seed))
    if not run.run(cost_limit=math.inf, step_limit=_COMPUTATIONS_PER_NODE * len(graph) + 1000):
        return None
    return trim(graph, run.trace, budget)


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The best schedule that any rule, or a random mixture of rules, finds within the time limit.

    Raises:
        InfeasibleBudget: if no rule finds a schedule; `proven` tells whether there is none.
    """
    start = time.monotonic()
    given = list(graph.steps)
    if budget is None or _peak(graph, given) <= budget:
        return make_solution(graph, given, solver="greedy", budget=budget, seconds=time.monotonic() - start)
    if budget < _working_set(graph)[1]:
        raise _infeasible(graph, budget)
    best: list[int] | None = None
    best_cost, best_rule, status = math.inf, "", Status.FEASIBLE
    try:
        for rule, seed in _attempts(options.seed):
            if time.monotonic() - start > options.time_limit:
                status = Status.TIME_LIMIT
                break
            order = greedy_order(graph, budget, rule, seed=seed)
            cost = math.inf if order is None else math.fsum(graph.nodes[v].cost for v in order)
            if order is not None and cost < best_cost:
                best, best_cost, best_rule = order, cost, rule.name
                if options.progress is not None:
                    options.progress(Progress("greedy", time.monotonic() - start, cost, graph.keep_all_cost))
    except KeyboardInterrupt:
        if best is None:
            raise
        status = Status.INTERRUPTED
    if best is None:
        raise _infeasible(graph, budget)
    seconds = time.monotonic() - start
    return make_solution(graph, best, solver="greedy", budget=budget, seconds=seconds, status=status, notes={"rule": best_rule})


def _attempts(seed: int) -> Iterator[tuple[Rule, int]]:
    for rule in RULES:
        yield rule, seed
    rng = random.Random(seed)
    for k in range(_RESTARTS):
        rule = Rule(
            f"random mixture {k}",
            cost=rng.uniform(0.3, 1.5),
            size=rng.uniform(0.3, 1.5),
            distance=rng.uniform(0.0, 1.5),
            neighbourhood=rng.choice((Neighbourhood.ANCESTORS, Neighbourhood.ANCESTORS, Neighbourhood.UNION)),
            future=rng.random() < 0.75,
            noise=rng.uniform(0.0, 0.6),
        )
        yield rule, rng.randrange(1 << 30)


def _peak(graph: Graph, order: list[int]) -> int:
    return simulate(graph, Schedule.from_order(graph, order)).peak


def _working_set(graph: Graph) -> tuple[int, int]:
    """The node whose step needs the most bytes with nothing but its inputs live, and those bytes."""

    def needs(v: int) -> int:
        values = {*graph.nodes[v].deps, *graph.written(v)}
        return sum(graph.nodes[u].charge for u in values) + graph.nodes[v].workspace

    node = max(graph.steps, key=needs)
    return node, needs(node)


def _infeasible(graph: Graph, budget: int) -> InfeasibleBudget:
    """The error, with the smallest budget that the first rules reach by bisection."""
    node, bound = _working_set(graph)
    low, high = max(budget, bound - 1), _peak(graph, list(graph.steps))
    for _ in range(_BISECTIONS):
        if high - low <= max(1, high // 200):
            break
        middle = (low + high) // 2
        order = next(filter(None, (greedy_order(graph, middle, rule) for rule in RULES[:3])), None)
        if order is None:
            low = middle
        else:
            high = _peak(graph, order)
    return InfeasibleBudget(
        budget=budget,
        minimum=high,
        lower_bound=bound,
        relative_to="any schedule for the bound, greedy eviction for the smallest known budget",
        bottleneck=node,
        name=graph.nodes[node].name,
    )
