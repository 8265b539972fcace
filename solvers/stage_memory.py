"""Checkmate's memory accounting inside one stage (Jain et al., MLSys 2020, sections 4.5 to 4.8): the variables U and FREE.

Where a stage runs steps p1 < p2 < ... again and then t, bytes are followed from step to step. FREE[u, p] says that value u
is dropped right after p: only if p runs, u is not kept into the next stage, and no later reader of u runs. It is bounded
from above only, since freeing less never helps, and has one row for each of these conditions instead of one big-M row over
their sum. There is none after which t itself reads u.
"""

from __future__ import annotations

from collections.abc import Mapping

from solvers.linear import Program, Terms
from solvers.timeline import ALWAYS, Timeline


def add_stage_memory(
    program: Program,
    time: Timeline,
    budget: int,
    t: int,
    *,
    run: Mapping[int, int],
    keep: Mapping[int, int],
    after: Mapping[int, int],
) -> None:
    """Adds the rows that hold stage t within the budget, unless it cannot exceed it.

    Args:
        program: gains one variable in [0, 1] for each step that may run (bytes live, divided by the budget), and those of FREE.
        time: the graph and when its values are needed.
        budget: bytes, above zero.
        t: position of the step that ends the stage.
        run: for the position of each step that may run again, in increasing order, its variable.
        keep: for each value that may be live when the stage begins, its variable.
        after: the same for the next stage.
    """
    graph = time.graph
    if not _may_overflow(time, budget, t, run, keep):
        return
    level: Terms = []  # what is live, as terms and a constant; replaced by one variable at each step that may run
    constant = 0.0
    for u, j in keep.items():
        if j == ALWAYS:
            constant += time.charge[u] / budget
        elif time.charge[u]:
            level.append((j, time.charge[u] / budget))
    for p, running in run.items():
        v = graph.steps[p]
        space = graph.nodes[v].workspace / budget
        memory = program.variable(whole=False)
        level.append((running, sum(time.charge[w] for w in graph.written(v)) / budget))
        program.at_least([(memory, 1.0), *((j, -a) for j, a in level)], constant)
        if space:
            program.at_least([(memory, -1.0), (running, -space)], -1.0)
        level, constant = [(memory, 1.0), *_freed(program, time, budget, t, p, run, after)], 0.0
    v = graph.steps[t]
    needed = (graph.nodes[v].workspace + sum(time.charge[w] for w in graph.written(v))) / budget
    program.at_least([(j, -a) for j, a in level], constant + needed - 1.0)


def _may_overflow(time: Timeline, budget: int, t: int, run: Mapping[int, int], keep: Mapping[int, int]) -> bool:
    written = [w for p in (*run, t) for w in time.graph.written(time.graph.steps[p])]
    space = max(time.graph.nodes[time.graph.steps[p]].workspace for p in (*run, t))
    return sum(time.charge[u] for u in {*keep, *written}) + space > budget


def _freed(
    program: Program, time: Timeline, budget: int, t: int, p: int, run: Mapping[int, int], after: Mapping[int, int]
) -> Terms:
    """Adds FREE for one step of a stage; returns what it takes off the live bytes."""
    graph = time.graph
    terms: Terms = []
    for u in (*time.reads(p), *graph.written(graph.steps[p])):
        kept = ALWAYS if t == time.end - 1 and u in graph.outputs else after.get(u)
        later = [time.first[w] for w in graph.readers[u] if p < time.first[w] <= t]
        if not time.charge[u] or kept == ALWAYS or t in later:
            continue
        free = program.variable(whole=False)
        program.at_least([(run[p], 1.0), (free, -1.0)], 0.0)
        for forbidding in (kept, *(run.get(q) for q in later)):
            if forbidding is not None:
                program.at_least([(free, -1.0), (forbidding, -1.0)], -1.0)
        terms.append((free, -time.charge[u] / budget))
    return terms
