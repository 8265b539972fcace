"""What it costs at least to have certain values live at a certain time: linear bounds on the first part of a schedule.

The program of `event_model` falls apart at every event: what comes before and what comes after are linked only by the values
kept over it. Weights on the rows of the part before, from the dual of its relaxation, prove for every set N of values that

    cost of the recomputations up to the event, if N must be live after it  >=  base + sum(price[u] for u in N),

by weak duality over the box as in `linear.Program.certified_bound`, whatever the weights. They are chosen for a typical
set, or a mixture of sets, and are then best there. In dynamic programming this is known as a bound by Lagrangean potentials
(Held and Karp, 1970, for another problem); here it guides and prunes `frontier`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from solvers.event_model import EventModel
from solvers.linear import Program, Terms, solve_relaxation
from solvers.timeline import ALWAYS, Timeline


@dataclass(frozen=True, slots=True)
class Potential:
    """A bound `base + sum(price)` on the cost of what has been recomputed, for the values that must be live."""

    base: float
    price: dict[int, float]


def potential(
    timeline: Timeline, budget: int, events: Iterable[int], event: int, needs: Mapping[int, float], *, seconds: float
) -> Potential | None:
    """The potential just after the first computation of the step at position `event`.

    Args:
        timeline: the graph.
        budget: bytes, above zero.
        events: positions at which memory is looked at; those from `event` on are left out.
        event: the position.
        needs: for each value, how likely it is to be needed; the bound is best for sets like that.
        seconds: time limit.

    Returns:
        The potential, or None if there was no time.
    """
    model = EventModel(timeline, budget, [*(e for e in events if e < event), event])
    last = len(model.bounds) - 2  # the span that begins with the event
    span = {j: k for (k, _), j in (*model.keep.items(), *model.run.items()) if j != ALWAYS}
    given = {j: u for (k, u), j in model.keep.items() if k == last and j != ALWAYS}
    program = Program()
    number = {j: program.variable(model.program.costs[j]) for j in sorted(span) if span[j] < last}
    rows: list[tuple[Terms, float]] = []
    for terms, rhs in model.program.rows:
        if any(j in number for j, _ in terms):
            rows.append((terms, rhs))
            known = math.fsum(a * needs.get(given[j], 0.0) for j, a in terms if j in given)
            program.at_least([(number[j], a) for j, a in terms if j in number], rhs - known)
    outcome = solve_relaxation(program, seconds=seconds)
    if not outcome.weights:
        return None
    parts: list[float] = []
    reduced = {j: model.program.costs[j] for j in number}
    price: dict[int, float] = {}
    for (terms, rhs), weight in zip(rows, outcome.weights, strict=True):
        if weight > 0:
            parts.append(weight * rhs)
            for j, a in terms:
                if j in number:
                    reduced[j] -= weight * a
                else:
                    price[given[j]] = price.get(given[j], 0.0) - weight * a
    parts.extend(d for d in reduced.values() if d < 0)
    return Potential(math.fsum(parts), price)
