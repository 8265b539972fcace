"""Linear relaxation and two-phase rounding (Checkmate: Jain et al., MLSys 2020, section 5).

Phase one solves the relaxation and rounds S, what is kept, at a threshold. Phase two takes the least R that this S needs:
whatever a step reads and was not kept is recomputed just before. The paper rounds once and shrinks the budget beforehand,
hoping that the result fits; here every threshold from 0.1 to 0.9 is tried, each order is simulated and judged against the true
budget, and the relaxation is solved again for smaller budgets only while nothing fits.

The relaxation is that of `event_model`, on up to 64 steps and those that the linear bound asked for. Not optimal, except by
luck; the bound returned is that of `lp_bound`. Polynomial: a few linear programs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

from solvers.bounds import describe_scope, impossible, infeasible, minimum_budget
from solvers.event_model import EventModel
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.linear import solve_relaxation
from solvers.lp_bound import Bound, prove, spread
from solvers.orders import best_fit, cost_of, peak_of
from solvers.solution import Options, Progress, Solution, Status, make_solution
from solvers.timeline import ALWAYS, Timeline

NAME = "rounding"
THRESHOLDS = tuple(i / 10 for i in range(1, 10))
SCALES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the budget, for the relaxation

_MOST_EVENTS = 64
_BOUND_SHARE = 0.4  # of the time limit, at most


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The cheapest of the rounded schedules and the starts that fits.

    Args:
        graph: any graph.
        budget: bytes; None for no limit.
        options: `time_limit`, `starts`, `progress`.

    Returns:
        A schedule with the linear bound on the given order; OPTIMAL where the two meet.

    Raises:
        InfeasibleBudget: if the relaxation proves that nothing fits in the given order, or if no rounded schedule does.
        KeyboardInterrupt: if it came before any schedule was known.
    """
    began = time.monotonic()
    deadline = began + options.time_limit
    best = best_fit(graph, budget, (graph.steps, *options.starts))
    if best is None and budget is not None and budget < minimum_budget(graph, order="given").bytes:
        raise infeasible(graph, budget, order="given")
    bound, status = graph.keep_all_cost, Status.FEASIBLE
    peaks = [peak_of(graph, graph.steps)]
    if budget is not None and (best is None or cost_of(graph, best) > graph.keep_all_cost):
        try:
            starts = [best] if best is not None else []
            proof = prove(graph, budget, Options(time_limit=_BOUND_SHARE * options.time_limit, starts=starts))
            if math.isinf(proof.cost):
                raise impossible(graph, budget)
            bound = proof.cost
            for order in _rounded(graph, budget, proof, deadline):
                peaks.append(peak_of(graph, order))
                if peaks[-1] <= budget and (best is None or cost_of(graph, order) < cost_of(graph, best)):
                    best = order
                    if options.progress is not None:
                        options.progress(Progress(NAME, time.monotonic() - began, cost_of(graph, best), bound))
            status = Status.TIME_LIMIT if time.monotonic() > deadline else Status.FEASIBLE
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
    if best is None and budget is not None:
        if status is Status.FEASIBLE:
            raise infeasible(graph, budget, known_peaks=peaks, order="given")
        seconds = time.monotonic() - began
        return stopped(graph, budget, solver=NAME, status=status, seconds=seconds, known_peaks=peaks, order="given")
    return make_solution(
        graph,
        best or graph.steps,
        solver=NAME,
        budget=budget,
        seconds=time.monotonic() - began,
        status=status,
        lower_bound=bound,
        scope=describe_scope("given"),
        given_order=True,
    )


def _rounded(graph: Graph, budget: int, proof: Bound, deadline: float) -> Iterator[list[int]]:
    """Orders from every threshold, for smaller and smaller budgets of the relaxation until one fits the true one."""
    timeline = Timeline(graph)
    full = [p for p, most in enumerate(timeline.most) if most > budget]
    events = sorted({*proof.events, *spread(full, _MOST_EVENTS)})
    for scale in SCALES:
        if time.monotonic() > deadline:
            return
        model = EventModel(timeline, max(1, int(budget * scale)), events)
        outcome = solve_relaxation(model.program, seconds=deadline - time.monotonic())
        if not outcome.values:
            return
        fits = False
        for threshold in THRESHOLDS:
            order = model.order(round_keeping(model, outcome.values, threshold))
            fits |= peak_of(graph, order) <= budget
            yield order
        if fits:
            return


def round_keeping(model: EventModel, values: tuple[float, ...], threshold: float) -> list[float]:
    """Phase one: 1 for what is kept at least as much as the threshold, and for what could not be computed again; else 0."""
    rounded = [0.0] * len(values)
    for (_, u), j in model.keep.items():
        if j != ALWAYS:
            rounded[j] = float(values[j] >= threshold or not model.timeline.again[u])
    return rounded
