"""The one memory accounting. Every solver's answer is replayed here before it is returned."""

from __future__ import annotations

import math
from dataclasses import dataclass

from solvers.errors import InvalidSchedule
from solvers.graph import Graph
from solvers.schedule import Compute, Schedule


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a schedule needs.

    Attributes:
        peak: largest number of budgeted bytes live at once. Values in buffers of the caller are not counted.
        peak_total: the same with those values counted.
        cost: sum of the costs of all computations, in the graph's unit.
        live: budgeted bytes live during each computation, its workspace included, in order.
        peak_at: position among the computations at which `peak` is reached first.
    """

    peak: int
    peak_total: int
    cost: float
    live: tuple[int, ...]
    peak_at: int


def simulate(graph: Graph, schedule: Schedule) -> Simulation:
    """Replays a schedule step by step.

    A step's results coexist with all of its inputs, and with its workspace while it runs.

    Raises:
        InvalidSchedule: naming step and node, if a step reads, frees or overwrites a value that it cannot, computes again a
            node that may not be, or if an output is not live at the end.
    """
    live: set[int] = set()
    seen: set[int] = set()
    temp = total = peak = peak_total = peak_at = 0
    costs: list[float] = []
    timeline: list[int] = []
    for p, step in enumerate(schedule.steps):
        v = step.node
        if not 0 <= v < len(graph):
            raise InvalidSchedule(f"step {p} names node {v}: there are {len(graph)} nodes, numbered from 0", step=p, node=v)
        node = graph.nodes[v]
        if isinstance(step, Compute):
            _check_compute(graph, live, seen, p, v)
            seen.add(v)
            for w in graph.written(v):
                live.add(w)
                temp += graph.nodes[w].charge
                total += graph.nodes[w].size
            if temp + node.workspace > peak:
                peak, peak_at = temp + node.workspace, len(timeline)
            peak_total = max(peak_total, total + node.workspace)
            timeline.append(temp + node.workspace)
            costs.append(node.cost)
        else:
            if v not in live:
                raise InvalidSchedule(f"step {p} frees node {v} ({node.name!r}), which is not live", step=p, node=v)
            live.remove(v)
            temp -= node.charge
            total -= node.size
    for o in graph.outputs:
        if o not in live:
            name = graph.nodes[o].name
            raise InvalidSchedule(f"output {o} ({name!r}) is not live at the end", step=len(schedule.steps), node=o)
    return Simulation(peak, peak_total, math.fsum(costs), tuple(timeline), peak_at)


def fullest_step(graph: Graph, schedule: Schedule) -> str:
    """The name of the step at which a schedule peaks first."""
    return graph.nodes[schedule.order[simulate(graph, schedule).peak_at]].name


def keep_all_peak(graph: Graph) -> int:
    """Peak of budgeted bytes when every value is computed once, in the given order, and kept until its last use."""
    return simulate(graph, Schedule.from_order(graph, graph.steps)).peak


def _check_compute(graph: Graph, live: set[int], seen: set[int], p: int, v: int) -> None:
    node = graph.nodes[v]
    if node.part_of is not None:
        raise InvalidSchedule(
            f"step {p} computes node {v} ({node.name!r}), which is written by the step of node {node.part_of}", step=p, node=v
        )
    for u in node.deps:
        if u not in live:
            raise InvalidSchedule(
                f"step {p} computes node {v} ({node.name!r}), which reads node {u} ({graph.nodes[u].name!r}): not live",
                step=p,
                node=u,
            )
    for w in graph.written(v):
        if w in live:
            raise InvalidSchedule(f"step {p} computes node {v} ({node.name!r}) while node {w} is still live", step=p, node=w)
    if v in seen and not graph.may_recompute(v):
        raise InvalidSchedule(f"step {p} computes node {v} ({node.name!r}) again, which is not allowed", step=p, node=v)
