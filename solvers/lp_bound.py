"""A lower bound on the cost of every schedule in the given order, from linear programming.

The program is that of `event_model`, a relaxation of Checkmate's (Jain et al., MLSys 2020, section 4) that drops FREE and
looks at memory only at chosen steps. Rows of memory are cutting planes: it starts with a few, solves, finds where the solution
would overflow, adds these steps, and solves again. Every round is a relaxation, so the best round so far is a valid bound
whenever time runs out.

Valid: the value returned is proven by the dual weights (`linear.Program.certified_bound`), not read from a solver's status.
Never above the optimum of `brute_force(order="given")`; usually below, by what fractions of values can save.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from solvers.event_model import EventModel
from solvers.graph import Graph
from solvers.linear import Outcome, Program, solve_relaxation
from solvers.orders import best_fit, cost_of
from solvers.solution import Options
from solvers.timeline import Timeline

_FIRST_EVENTS = 16
_EVENTS_PER_ROUND = 24
_OVERFLOW = 1e-6  # of the budget; smaller overflows are not worth a row
_ROUNDING = 1e-6  # of the common divisor of all costs; how far a bound may lie above a multiple before it is rounded up


@dataclass(frozen=True, slots=True)
class Bound:
    """What was proven.

    Attributes:
        cost: no schedule in the given order costs less; infinite if none fits.
        rounds: how many linear programs were solved.
        events: positions of the steps at which memory was looked at, in the last of them.
        complete: whether the last one overflows nowhere, so that more rounds would not help.
    """

    cost: float
    rounds: int
    events: tuple[int, ...]
    complete: bool


def lp_bound(graph: Graph, budget: int | None, options: Options, *, backend: str = "GLOP") -> float:
    """A proven lower bound on the cost of schedules whose first computations keep the given order.

    Args:
        graph: the graph.
        budget: bytes; None for no limit.
        options: `time_limit`, and `starts`: the cheaper the best of these that fits, the smaller the program (a step that alone
            costs more than its whole overhead is in no better schedule).
        backend: GLOP or PDLP.

    Returns:
        Total cost in the graph's unit, at least that of computing everything once; infinite if no schedule in the given order
        fits, which is proven too.
    """
    return prove(graph, budget, options, backend=backend).cost


def prove(graph: Graph, budget: int | None, options: Options, *, backend: str = "GLOP", negligible: int = 0) -> Bound:
    """`lp_bound` with what it rests on. Values of at most `negligible` bytes are taken to be free, which keeps it valid."""
    deadline = time.monotonic() + options.time_limit
    start = best_fit(graph, budget, options.starts)
    known = math.inf if start is None else cost_of(graph, start)
    floor = graph.keep_all_cost
    timeline = Timeline(graph, cap=known - floor, negligible=negligible)
    candidates = [] if budget is None else [p for p, most in enumerate(timeline.most) if most > budget]
    if budget is None or not candidates:
        return Bound(floor, 0, (), True)
    unit = common_divisor(timeline)
    events = spread(candidates, _FIRST_EVENTS)
    best, rounds, complete = 0.0, 0, False
    while not complete and time.monotonic() < deadline:
        model = EventModel(timeline, max(budget, 1), events)
        outcome = solve_relaxation(model.program, seconds=deadline - time.monotonic(), backend=backend)
        rounds += 1
        if outcome.infeasible and proves_infeasible(model, deadline - time.monotonic(), backend):
            return Bound(known, rounds, tuple(events), True)
        if outcome.weights:
            best = max(best, round_up(model.program.certified_bound(outcome.weights), unit))
        if not outcome.optimal:
            break
        more = overflows(model, outcome)
        complete = not more
        events = sorted({*events, *more})
    return Bound(min(floor + best, known), rounds, tuple(events), complete)


def proves_infeasible(model: EventModel, seconds: float, backend: str = "GLOP") -> bool:
    """Whether no point satisfies all rows, by a certificate: weights whose bound is positive when all costs are 0."""
    program = Program(whole=list(model.program.whole), costs=[0.0] * len(model.program.costs))
    program.rows = [(list(terms), rhs) for terms, rhs in model.program.rows]
    excess = program.variable(1.0)
    memory = [program.rows[i] for i in model.rows_of_memory]
    room = 1.0 + max((rhs - sum(a for _, a in terms) for terms, rhs in memory), default=0.0)
    for terms, _ in memory:
        terms.append((excess, room))
    outcome = solve_relaxation(program, seconds=seconds, backend=backend)
    return bool(outcome.weights) and model.program.certified_bound(outcome.weights, phase_one=True) > 1e-7


def overflows(model: EventModel, outcome: Outcome) -> list[int]:
    """Steps between events at which a point surely exceeds the budget: the worst of each span, and of those the worst few."""
    worst: list[tuple[float, int]] = []
    for k in range(len(model.bounds) - 1):
        usage = model.usage(outcome.values, k)
        if usage:
            p = max(usage, key=lambda q: usage[q])
            worst.append((usage[p], p))
    worst.sort(reverse=True)
    return [p for used, p in worst[:_EVENTS_PER_ROUND] if used > model.budget * (1 + _OVERFLOW)]


def spread(candidates: Sequence[int], count: int) -> list[int]:
    """At most `count` of the candidates, evenly spaced."""
    if len(candidates) <= count:
        return list(candidates)
    return sorted({candidates[i * len(candidates) // count] for i in range(count)})


def common_divisor(timeline: Timeline) -> float:
    """The largest number of which every possible overhead is a multiple; 0 if it is too small to matter."""
    costs = [Fraction(timeline.graph.nodes[v].cost) for v in timeline.graph.steps if timeline.again[v]]
    if not any(costs):
        return 0.0
    denominator = math.lcm(*(c.denominator for c in costs))
    return float(Fraction(math.gcd(*(int(c * denominator) for c in costs)), denominator)) if denominator < 2**20 else 0.0


def round_up(extra: float, unit: float) -> float:
    """The least multiple of `unit` that is not below a proven overhead, up to rounding errors."""
    return math.ceil(extra / unit - _ROUNDING) * unit if unit > 0 else extra
