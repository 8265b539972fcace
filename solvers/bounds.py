"""What no schedule can beat: proven floors on the budget and on the cost, and the error that reports them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from solvers.errors import InfeasibleBudget, UnsupportedGraph
from solvers.graph import Graph
from solvers.orders import peak_of, runs_in_stages
from solvers.schedule import Schedule
from solvers.simulate import simulate

Order = Literal["given", "any"]

# The fully occupied moments that `cost_floor` looks at; more would cost time and rarely raise the bound.
_MOMENTS = 64


def describe_scope(order: Order, copies: int | None = None) -> str:
    """What a bound or a proof refers to, in the words that `Solution.scope` and `InfeasibleBudget.relative_to` use.

    For `brute_force` and the exact solvers "the given order" is the space defined there: first computations in the given
    order, each after recomputing some earlier steps, in increasing position and each at most once. Linear bounds hold for
    recomputations in any order.
    """
    first = "the given order" if order == "given" else "any order"
    return first if copies is None else f"{first}, at most {copies} computation{'s' if copies > 1 else ''} of each node"


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A step that needs the most memory whatever is recomputed: its budgeted bytes, and its node."""

    bytes: int
    node: int


def minimum_budget(graph: Graph, *, order: Order = "any") -> Bottleneck:
    """A proven floor on the budget: no schedule that runs every step peaks below it.

    When a step runs for the first time, these are live: what it reads, what it writes, its workspace, and every value that
    exists only once and is still to be read. A value exists once if its step may not run again. It is certainly there
    if its step comes before (is an ancestor), and still to be read if a reader comes after (is a descendant) or if it is an
    output. With `order="given"`, before and after mean the given order of first computations, which proves more.

    Returns:
        The step at which the floor is highest, the first of several.
    """
    held = _held_in_given_order(graph) if order == "given" else _held_in_any_order(graph)
    best = Bottleneck(-1, graph.steps[0])
    for v in graph.steps:
        touched = {*graph.nodes[v].deps, *graph.written(v)}
        bytes_live = held[v] + graph.nodes[v].workspace
        bytes_live += sum(graph.nodes[w].charge for w in touched if not _certain(graph, w, v, order))
        if bytes_live > best.bytes:
            best = Bottleneck(bytes_live, v)
    return best


def cost_floor(graph: Graph, budget: int | None) -> float:
    """A proven floor on the cost of schedules whose first computations keep the given order.

    Whenever keeping everything exceeds the budget at a step, enough bytes must be missing there; the missing values that
    are still to be read must be recomputed later. The cheapest way to be rid of the excess, as a fractional knapsack over
    the steps that wrote these values, bounds the extra cost; the largest over the fullest steps is taken.

    Returns:
        The floor in the graph's unit; infinite if nothing that can be dropped makes room.
    """
    once = graph.keep_all_cost
    if budget is None:
        return once
    timeline = simulate(graph, Schedule.from_order(graph, graph.steps)).live
    fullest = sorted((p for p, held in enumerate(timeline) if held > budget), key=lambda p: (-timeline[p], p))[:_MOMENTS]
    ends = _last_needed(graph)
    extra = 0.0
    for p in fullest:
        extra = max(extra, _cheapest_drop(graph, graph.steps[p], timeline[p] - budget, ends))
    return once + extra


def smallest_known_peak(graph: Graph, *, order: Order = "any") -> int:
    """The smallest simulated peak among the schedules of the cheap strategies, bytes.

    Args:
        graph: the graph.
        order: "given" for schedules in the space of `brute_force(order="given")` only.
    """
    from solvers import chen, keep_all, recursive  # those import this module to report their failures
    from solvers.replay import in_given_order
    from solvers.solution import Options

    peaks: list[int] = []
    for run in (keep_all.solve, chen.solve_sqrt, chen.solve, recursive.solve):
        try:
            found: Sequence[int] = run(graph, None, Options()).schedule.order
        except UnsupportedGraph:
            continue
        if order == "given" and not runs_in_stages(graph, found):
            found = in_given_order(graph, found)
        if order == "any" or runs_in_stages(graph, found):
            peaks.append(peak_of(graph, found))
    return min(peaks)


def infeasible(graph: Graph, budget: int, *, known_peaks: Iterable[int] = (), order: Order = "any") -> InfeasibleBudget:
    """The error to raise when a solver ends without a schedule that fits.

    Args:
        graph: the graph.
        budget: what was asked for, bytes.
        known_peaks: peaks of schedules that were simulated; without any, those of the cheap strategies.
        order: what the proven floor refers to.
    """
    known = min(known_peaks, default=None)
    minimum = smallest_known_peak(graph, order=order) if known is None else known
    floor = minimum_budget(graph, order=order)
    if minimum < floor.bytes:  # a known schedule computes first what the given order computes later
        order, floor = "any", minimum_budget(graph)
    return InfeasibleBudget(
        budget=budget,
        minimum=minimum,
        lower_bound=floor.bytes,
        relative_to=describe_scope(order),
        bottleneck=floor.node,
        name=graph.nodes[floor.node].name,
    )


def impossible(graph: Graph, budget: int) -> InfeasibleBudget:
    """The error for a budget that a program for the given order has excluded, a relaxation of it perhaps."""
    known = infeasible(graph, budget, order="given")
    return known.changed(lower_bound=max(known.lower_bound, budget + 1))


def _last_needed(graph: Graph) -> list[int]:
    """For each value, the last step that reads it; one past the end for outputs, the value's own step if nothing does."""
    ends = [max(graph.readers[w], default=graph.step_of(w)) for w in range(len(graph))]
    for o in graph.outputs:
        ends[o] = len(graph)
    return ends


def _cheapest_drop(graph: Graph, step: int, excess: int, ends: list[int]) -> float:
    touched = {*graph.nodes[step].deps, *graph.written(step)}
    bytes_by_writer: dict[int, int] = {}
    for w in range(len(graph)):
        writer = graph.step_of(w)
        if writer < step < ends[w] and w not in touched and graph.nodes[w].charge and graph.may_recompute(w):
            bytes_by_writer[writer] = bytes_by_writer.get(writer, 0) + graph.nodes[w].charge
    cost = 0.0
    for held, price in sorted(((b, graph.nodes[u].cost) for u, b in bytes_by_writer.items()), key=lambda x: x[1] / x[0]):
        if held >= excess:
            return cost + price * excess / held
        excess -= held
        cost += price
    return math.inf


def _certain(graph: Graph, w: int, v: int, order: Order) -> bool:
    """Whether the bytes that `held` counts at step v surely include value w, which v reads or writes."""
    if graph.may_recompute(w) or graph.step_of(w) == v:
        return False
    if order == "given":
        return w in graph.outputs or graph.readers[w][-1] > v
    return False


def _held_in_given_order(graph: Graph) -> list[int]:
    """Budgeted bytes of values that exist once, were written before a step and are still to be read after it."""
    change = [0] * (len(graph) + 2)
    for w, end in enumerate(_last_needed(graph)):
        if not graph.may_recompute(w):
            start = graph.step_of(w) + 1
            if start < end:
                change[start] += graph.nodes[w].charge
                change[end] -= graph.nodes[w].charge
    held, total = [0] * len(graph), 0
    for v in range(len(graph)):
        total += change[v]
        held[v] = total
    return held


def _held_in_any_order(graph: Graph) -> list[int]:
    """The same for any order: ancestors that exist once and have a reader among the descendants, or are outputs.

    What a step reads or writes itself is left out.
    """
    before = _ancestors(graph)
    after = _descendants(graph)
    outputs = set(graph.outputs)
    held = [0] * len(graph)
    for w, node in enumerate(graph.nodes):
        if graph.may_recompute(w) or not node.charge:
            continue
        between = -1 if w in outputs else 0
        for reader in graph.readers[w]:
            between |= before[reader]
        between &= after[graph.step_of(w)]
        for reader in graph.readers[w]:
            between &= ~(1 << reader)
        while between:
            lowest = between & -between
            held[lowest.bit_length() - 1] += node.charge
            between ^= lowest
    return held


def _ancestors(graph: Graph) -> list[int]:
    """For each step, the steps that must run before it, as bits."""
    found = [0] * len(graph)
    for v in graph.steps:
        mask = 0
        for u in graph.nodes[v].deps:
            step = graph.step_of(u)
            mask |= found[step] | 1 << step
        found[v] = mask
    return found


def _descendants(graph: Graph) -> list[int]:
    """For each step, the steps that can only run after it, as bits."""
    found = [0] * len(graph)
    for v in reversed(graph.steps):
        mask = found[v]
        for u in graph.nodes[v].deps:
            step = graph.step_of(u)
            found[step] |= mask | 1 << v
    return found


def __getattr__(name: str) -> Any:
    """`bounds.lp` is `lp_bound.lp_bound`, imported when asked for: it needs OR-Tools."""
    if name != "lp":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from solvers.lp_bound import lp_bound

    return lp_bound
