"""Temporaries in the buffers of results that are not written yet.

The caller's buffers exist from the start, and a compiler may keep something else in one until its result is written. The rules
here are those of XLA's buffer assignment: temporaries are taken by decreasing size, those of one size in the order of their
computations, and each goes into the smallest buffer that is large enough and holds nothing else, not even at one of its ends,
while the temporary is live. Whole buffers are lent: no two temporaries lie beside each other in one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from itertools import accumulate

from solvers.graph import Graph
from solvers.schedule import Compute, Schedule


@dataclass(frozen=True, slots=True)
class Lending:
    """What a schedule needs where temporaries may lie in the buffers of its results.

    Attributes:
        peak: largest number of budgeted bytes live at once that no buffer of a result could take.
        live: these bytes during each computation, in order.
        lent: bytes that lie in buffers of results during each computation.
    """

    peak: int
    live: tuple[int, ...]
    lent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """A value, or a step's workspace, from the computation that writes it to the last that reads it, both included."""

    start: int
    end: int
    size: int
    external: bool


def lend(graph: Graph, schedule: Schedule) -> Lending:
    """Places temporaries in buffers of results, and says what is left.

    Args:
        graph: what is scheduled.
        schedule: valid, see `simulate`, whose `live` is the sum of `live` and `lent`.
    """
    spans = _spans(graph, schedule)
    count = sum(isinstance(step, Compute) for step in schedule.steps)
    kept, lent = [0] * (count + 1), [0] * (count + 1)
    buffers: list[tuple[int, list[tuple[int, int]]]] = []  # by decreasing size, with the spans that each holds
    for span in sorted(spans, key=lambda s: (-s.size, not s.external, s.start)):
        if span.external:
            buffers.append((span.size, [(span.start, span.end)]))
            continue
        taken = next((held for _, held in reversed(buffers) if _is_free(held, span)), None)
        if taken is not None:
            insort(taken, (span.start, span.end))
        change = kept if taken is None else lent
        change[span.start] += span.size
        change[span.end + 1] -= span.size
    live, inside = tuple(accumulate(kept))[:count], tuple(accumulate(lent))[:count]
    return Lending(max(live, default=0), live, inside)


def _is_free(held: list[tuple[int, int]], span: _Span) -> bool:
    at = bisect_left(held, (span.start, span.end))
    return (at == len(held) or held[at][0] > span.end) and (at == 0 or held[at - 1][1] < span.start)


def _spans(graph: Graph, schedule: Schedule) -> list[_Span]:
    found: list[_Span] = []
    since: dict[int, int] = {}
    at = -1

    def close(v: int, end: int) -> None:
        node = graph.nodes[v]
        if node.size:
            found.append(_Span(since.pop(v), end, node.size, node.external))

    for step in schedule.steps:
        if isinstance(step, Compute):
            at += 1
            since.update(dict.fromkeys(graph.written(step.node), at))
            if graph.nodes[step.node].workspace:
                found.append(_Span(at, at, graph.nodes[step.node].workspace, external=False))
        else:
            close(step.node, at)
    for v in list(since):
        close(v, at)
    return found
