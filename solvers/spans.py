"""When what a schedule computes is in memory."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.graph import Graph
from solvers.schedule import Compute, Schedule


@dataclass(frozen=True, slots=True)
class Span:
    """A value, or a step's workspace, from the computation that writes it to the last that reads it, both included.

    Attributes:
        node: the value, or the step whose workspace it is.
        start: position among the computations.
        end: position of the last computation before it is freed.
        size: bytes.
        external: whether it lies in a buffer of the caller.
        workspace: whether it is a workspace.
    """

    node: int
    start: int
    end: int
    size: int
    external: bool = False
    workspace: bool = False


def spans(graph: Graph, schedule: Schedule) -> list[Span]:
    """Everything of at least one byte, in the order in which it is freed; at the end what is live then.

    Args:
        graph: what is scheduled.
        schedule: valid, see `simulate`.
    """
    found: list[Span] = []
    since: dict[int, int] = {}
    at = -1

    def close(v: int) -> None:
        node = graph.nodes[v]
        if node.size:
            found.append(Span(v, since.pop(v), at, node.size, external=node.external))

    for step in schedule.steps:
        if isinstance(step, Compute):
            at += 1
            since.update(dict.fromkeys(graph.written(step.node), at))
            if graph.nodes[step.node].workspace:
                found.append(Span(step.node, at, at, graph.nodes[step.node].workspace, workspace=True))
        else:
            close(step.node)
    for v in list(since):
        close(v)
    return found
