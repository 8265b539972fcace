"""What a schedule keeps for the backward pass: one rule for every table that says so."""

from __future__ import annotations

from collections.abc import Container

from solvers.graph import Graph
from solvers.schedule import Compute, Schedule


def kept_values(graph: Graph, again: Container[int]) -> frozenset[int]:
    """Values of the forward pass that are computed once and read by the backward pass, or are results.

    When the backward pass begins does not matter: a schedule may run a step of it early.

    Args:
        graph: a training graph.
        again: its steps that are computed more than once.
    """
    results = set(graph.outputs)
    return frozenset(
        w
        for v in graph.steps
        if not graph.nodes[v].backward and v not in again
        for w in graph.written(v)
        if w in results or any(graph.nodes[reader].backward for reader in graph.readers[w])
    )


def kept_bytes(graph: Graph, schedule: Schedule) -> int:
    """The most budgeted bytes of kept values that are there at once."""
    kept = kept_values(graph, schedule.recomputed)
    held = most = 0
    for step in schedule.steps:
        if isinstance(step, Compute):
            held += sum(graph.nodes[w].charge for w in graph.written(step.node) if w in kept)
            most = max(most, held)
        elif step.node in kept:
            held -= graph.nodes[step.node].charge
    return most
