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
from solvers.spans import Span, spans


@dataclass(frozen=True, slots=True)
class Lending:
    """What a schedule needs where temporaries may lie in the buffers of its results.

    Attributes:
        peak: largest number of budgeted bytes live at once that no buffer of a result could take.
        live: these bytes during each computation, in order.
        lent: bytes that lie in buffers of results during each computation.
        left: the temporaries that are not lent one, by decreasing size.
    """

    peak: int
    live: tuple[int, ...]
    lent: tuple[int, ...]
    left: tuple[Span, ...]


def lend(graph: Graph, schedule: Schedule) -> Lending:
    """Places temporaries in buffers of results, and says what is left.

    Args:
        graph: what is scheduled.
        schedule: valid, see `simulate`, whose `live` is the sum of `live` and `lent`.
    """
    count = sum(isinstance(step, Compute) for step in schedule.steps)
    kept, lent = [0] * (count + 1), [0] * (count + 1)
    buffers: list[tuple[int, list[tuple[int, int]]]] = []  # by decreasing size, with the spans that each holds
    left: list[Span] = []
    for span in sorted(spans(graph, schedule), key=lambda s: (-s.size, not s.external, s.start)):
        if span.external:
            buffers.append((span.size, [(span.start, span.end)]))
            continue
        taken = next((held for _, held in reversed(buffers) if _is_free(held, span)), None)
        if taken is None:
            left.append(span)
        else:
            insort(taken, (span.start, span.end))
        change = kept if taken is None else lent
        change[span.start] += span.size
        change[span.end + 1] -= span.size
    live, inside = tuple(accumulate(kept))[:count], tuple(accumulate(lent))[:count]
    return Lending(max(live, default=0), live, inside, tuple(left))


def _is_free(held: list[tuple[int, int]], span: Span) -> bool:
    at = bisect_left(held, (span.start, span.end))
    return (at == len(held) or held[at][0] > span.end) and (at == 0 or held[at - 1][1] < span.start)
