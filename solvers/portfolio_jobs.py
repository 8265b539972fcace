"""The parts of `auto` that run in processes of their own: which, in what order, and for how long."""

from __future__ import annotations

from dataclasses import replace

from solvers.bounds import describe_scope
from solvers.chain_view import view_chain
from solvers.errors import UnsupportedGraph
from solvers.graph import Graph
from solvers.team import Job

INTERVALS = Job("intervals", 1.0, exact=True, all_workers=True)
BLOCKS, HIERARCHICAL = Job("blocks", 0.2), Job("hierarchical", 1.0)
_GREEDY, _KNAPSACK, _IMPROVE = Job("greedy", 0.12), Job("knapsack", 0.06), Job("improve", 1.0)
EVENTS = Job("events", 1.0, exact=True, refines=True, scope=describe_scope("given"))
_FRONTIER = Job("frontier", 0.8, exact=True, small="free", scope=describe_scope("given"))
_FREE, _KEPT = replace(EVENTS, small="free", refines=False), replace(INTERVALS, small="kept")


def jobs_for(graph: Graph, workers: int, *, small: bool, fits: bool) -> list[Job]:
    """What to run, in the order in which it is started.

    With small values free, `events` is tried beside the heuristics, and begins anew with what these found.

    Args:
        graph: the graph.
        workers: processes at a time.
        small: whether exact solvers come first.
        fits: whether a schedule is known.
    """
    if workers == 1:
        heuristics = [_GREEDY if fits else replace(_GREEDY, share=0.4), _KNAPSACK, replace(_IMPROVE, share=0.15)]
        jobs = [*heuristics, replace(_KEPT, share=0.2), replace(_FRONTIER, share=0.25), _FREE, EVENTS]
    elif small:
        jobs = [_FREE, _KEPT, EVENTS, _GREEDY, _KNAPSACK, _IMPROVE]
    elif not fits:  # a start is what is missing most
        jobs = [replace(_GREEDY, share=0.4), replace(_FREE, share=0.4), EVENTS, _FRONTIER, _KEPT, _IMPROVE]
    else:
        first, second = replace(_FREE, share=0.1), replace(_FREE, share=0.5)
        start = [_GREEDY, first, EVENTS, _KNAPSACK, _FRONTIER]
        jobs = [*start, replace(_IMPROVE, share=0.12), second, EVENTS, _KEPT, _IMPROVE]
    try:
        view_chain(graph)
    except UnsupportedGraph:
        return jobs
    return [Job("chain", 1.0), *jobs]
