"""Where temporaries lie in one block of memory, and how large that has to be.

The bytes live at once are what a schedule needs at least. A compiler gives each value an address for good, and what it frees
may be too small, or too scattered, for what comes next. The rules are those of XLA's buffer assignment: values are placed by
decreasing size, those of one size by decreasing duration, each into the smallest gap that is large enough beside whatever is
placed already and live at the same time, at its lowest address; where there is none, at the end. A result that may be written
over an operand takes the place of one that dies there. A workspace is placed in the arrays that it is made of; where they are
not known, they are copies of what its step reads and writes: no piece is larger than these.

This is dynamic storage allocation by best fit, and a prediction, not a bound: XLA also has small values of its own, and which
of two equal values comes first may decide about one more of their size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from solvers.graph import Graph
from solvers.spans import Span

_ALIGNMENT = 64  # bytes


@dataclass(frozen=True, slots=True)
class Placement:
    """Addresses.

    Attributes:
        total: bytes of the block.
        places: what lies in it, and from which byte.
    """

    total: int
    places: tuple[tuple[Span, int], ...]


def place(
    graph: Graph,
    spans: Sequence[Span],
    overwrites: Mapping[int, Collection[int]] | None = None,
    scratch: Mapping[int, Sequence[int]] | None = None,
) -> Placement:
    """Places temporaries.

    Time grows with the square of their number, 20,000 taking about a second.

    Args:
        graph: what is scheduled.
        spans: temporaries of one schedule, such as `lend` leaves.
        overwrites: for a value, those which its step reads and which it may be written over; nothing else is read there.
        scratch: for the node of a workspace, the bytes of each array in it, if they are known.
    """
    chains = sorted(_chains(list(_pieces(graph, spans, scratch or {})), overwrites or {}), key=lambda c: (-c.size, -c.duration))
    used = _Used(sum(len(chain.spans) for chain in chains))
    places: list[tuple[Span, int]] = []
    for chain in chains:
        at = used.gap(chain)
        used.add(chain, at)
        places += ((span, at) for span in chain.spans)
    return Placement(used.total, tuple(places))


@dataclass(slots=True)
class _Chain:
    """Values of one size, each written over the one before.

    Attributes:
        spans: the values.
        duration: of the first one, counted in what is written and freed.
    """

    spans: list[Span]
    duration: int = 0

    @property
    def size(self) -> int:
        return self.spans[0].size


@dataclass
class _Used:
    """What is placed, as arrays of which the first `length` entries count."""

    room: int
    length: int = 0
    total: int = 0
    start: np.ndarray = field(init=False)
    end: np.ndarray = field(init=False)
    low: np.ndarray = field(init=False)
    high: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.start, self.end, self.low, self.high = (np.zeros(self.room, np.int64) for _ in range(4))

    def gap(self, chain: _Chain) -> int:
        """The address of the smallest gap at the times of a chain, or the end of all that lies there."""
        n = self.length
        meets = np.zeros(n, bool)
        for span in chain.spans:
            meets |= (self.start[:n] <= span.end) & (self.end[:n] >= span.start)
        low, high = self.low[:n][meets], self.high[:n][meets]
        if not len(low):
            return 0
        by_address = np.argsort(low, kind="stable")
        low, reached = low[by_address], np.maximum.accumulate(high[by_address])
        since = np.concatenate(([0], reached[:-1]))
        room = low - since
        large = np.flatnonzero(room >= chain.size)
        return int(since[large[np.argmin(room[large])]] if len(large) else reached[-1])

    def add(self, chain: _Chain, at: int) -> None:
        """Takes the memory of a chain."""
        for span in chain.spans:
            k = self.length
            self.start[k], self.end[k], self.low[k] = span.start, span.end, at
            self.high[k] = -(-(at + span.size) // _ALIGNMENT) * _ALIGNMENT
            self.length += 1
        self.total = max(self.total, at + chain.size)


def _pieces(graph: Graph, spans: Sequence[Span], scratch: Mapping[int, Sequence[int]]) -> Iterator[Span]:
    for span in spans:
        if not span.workspace:
            yield span
            continue
        known = scratch.get(span.node, ())
        if sum(known) == span.size:
            yield from (replace(span, size=size) for size in known)
            continue
        sizes = (graph.nodes[v].size for v in (*graph.nodes[span.node].deps, *graph.written(span.node)))
        piece, left = max(sizes, default=0) or span.size, span.size
        while left > 0:
            yield replace(span, size=min(piece, left))
            left -= piece


def _chains(spans: Sequence[Span], overwrites: Mapping[int, Collection[int]]) -> list[_Chain]:
    """What is placed together: each value with those that are written over it, in order of the first ones."""
    begin: dict[int, list[int]] = {}
    finish: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        begin.setdefault(span.start, []).append(i)
        finish.setdefault(span.end, []).append(i)
    chain_of: dict[int, _Chain] = {}
    found: list[_Chain] = []
    tick, written = count(), [0] * len(spans)
    for at in sorted(begin.keys() | finish.keys()):
        dying = [i for i in finish.get(at, ()) if i in chain_of and not spans[i].workspace]
        for i in sorted(begin.get(at, ()), key=lambda i: spans[i].node):
            span, written[i] = spans[i], next(tick)
            able = () if span.workspace else overwrites.get(span.node, ())
            heir = next((k for k in dying if spans[k].node in able and spans[k].size == span.size), None)
            if heir is None:
                found.append(_Chain([]))
                chain_of[i] = found[-1]
            else:
                dying.remove(heir)
                chain_of[i] = chain_of[heir]
            chain_of[i].spans.append(span)
        for i in finish.get(at, ()):
            if chain_of[i].spans[0] is spans[i]:
                chain_of[i].duration = next(tick) - written[i]
            else:
                next(tick)
    return found
