"""What a schedule makes of the variables of `intervals_model`: when each instance begins and ends, and whom it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solvers.graph import Graph

Key = tuple[int, int]
"""A step, or a value, and which of its instances."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a schedule makes of each slot.

    Attributes:
        start: (step, i) -> event of its i-th computation.
        stop: (value, i) -> last event that reads that instance.
        server: (reading computation, value) -> which instance it reads.
    """

    start: dict[Key, int]
    stop: dict[Key, int]
    server: dict[tuple[Key | None, int], int]

    @classmethod
    def of(cls, graph: Graph, events: Sequence[tuple[int, int]], end: int) -> Replay:
        """Replays (event number, step) pairs in order; `end` is the number of the event that reads the outputs."""
        replay = cls({}, {}, {})
        count = [0] * len(graph)

        def read(by: Key | None, when: int, u: int) -> None:
            i = count[graph.step_of(u)] - 1
            replay.stop[u, i] = when
            replay.server[by, u] = i

        for k, v in events:
            by = (v, count[v])
            for u in graph.nodes[v].deps:
                read(by, k, u)
            replay.start[by] = k
            for w in graph.written(v):
                replay.stop[w, count[v]] = k
            count[v] += 1
        for o in graph.outputs:
            read(None, end, o)
        return replay
