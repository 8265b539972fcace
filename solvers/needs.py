"""The problem read backwards in time: which values are still needed, and where recomputing them can be decided.

For first computations in the given order, what a schedule does later depends on what it did before only through the set of
live values. Read backwards, that set is what is *needed*: it starts as the outputs; going back over the first computation of a
step takes out what the step writes and puts in what it reads; going back over a recomputation does the same, and costs. All
that is needed must fit the budget beside what the step touches. `frontier` searches over these sets.

Two reductions lose nothing:

- Only values that may be recomputed, or are needed only by recomputations, are members of a set. The others are live at known
  times, and are folded into the room that each step leaves. Room is counted in the greatest common divisor of the members'
  sizes, rounded down, so that bytes too few for any member do not count.
- Stages (the gaps between first computations, in which steps run again) are contracted. A step that writes no member, reads
  only members that the next one needs too, and leaves at least as much room, cannot matter: what is recomputed just after it
  can as well be recomputed just before it. A step that touches no member can be passed in the other direction.

The recomputations of a contracted stage may come in as many runs of increasing position as it stands for stages. All
schedules of `brute_force(order="given")` remain, and some are added that are not among them, since all runs now come before
the same step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.errors import UnsupportedGraph
from solvers.timeline import Timeline

WORD = 64

_MOST_MEMBERS = 4096
_MOST_BYTES = 2**61

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Move:
    """A step, as it acts on sets of needed values.

    Attributes:
        position: of the step.
        cost: of running it again.
        reads: members of the sets that it reads, as bits.
        writes: the same for what it writes.
        touched: numbers of both.
        room: units that members may take while it runs for the first time.
        workspace: bytes.
    """

    position: int
    cost: float
    reads: int
    writes: int
    touched: tuple[int, ...]
    room: int
    workspace: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps `first` to `last` run for the first time, without decisions in between; before them, others may run again.

    Attributes:
        first: position of the first of these steps.
        last: position of the last of them.
        runs: how many stages were contracted into this one.
        held: bytes live all the time while steps run again, apart from members of the sets.
    """

    first: int
    last: int
    runs: int
    held: int


class NeedSpace:
    """Members, moves and stages.

    Args:
        timeline: the graph; `closed`, since nothing runs after the last step's first computation.
        budget: bytes.
        contract: whether stages that cannot matter are contracted.

    Raises:
        UnsupportedGraph: if there are more than 4,096 values to decide on, or their bytes do not fit 64-bit numbers.

    Attributes:
        members: the values that the sets may hold; member i is bit i.
        unit: bytes.
        size: units of each member.
        words: 64-bit words that a set takes.
        moves: one for each step, by position.
        again: those that may run again, in order.
        stages: in order of time.
    """

    def __init__(self, timeline: Timeline, budget: int, *, contract: bool = True):
        self.timeline, self.budget = timeline, budget
        graph, charge = timeline.graph, timeline.charge
        self.members = [
            u for u in range(len(graph)) if charge[u] and (timeline.again[u] or timeline.last[u] > timeline.firm[u])
        ]
        total = sum(charge[u] for u in self.members)
        if len(self.members) > _MOST_MEMBERS or total >= _MOST_BYTES:
            raise UnsupportedGraph(
                f"this graph has {len(self.members):,} values to decide on, {total:,} bytes in all: more than "
                f'{_MOST_MEMBERS:,}, or bytes beyond 64 bits. Use "events", "intervals" or "greedy"'
            )
        self.index = {u: i for i, u in enumerate(self.members)}
        self.unit = math.gcd(*(charge[u] for u in self.members)) or 1
        self.size = np.array([charge[u] // self.unit for u in self.members], dtype=np.int64)
        self.words = max(1, -(-len(self.members) // WORD))
        self._held, used = self._certain()
        self.moves = [self._move(p, used[p]) for p in range(timeline.end)]
        self.again = [m for m in self.moves if m.writes and timeline.again[graph.steps[m.position]]]
        self.outputs = self.bits(graph.outputs)
        self.stages = self._contracted() if contract else [Stage(p, p, 1, self._held[p]) for p in range(timeline.end)]

    def bits(self, values: Iterable[int]) -> int:
        """Those of the values that are members, as bits."""
        return sum({1 << self.index[u] for u in values if u in self.index})

    def room(self, held: int) -> int:
        """Units left for members beside `held` bytes; negative if there is no room at all."""
        return (self.budget - held) // self.unit

    def _certain(self) -> tuple[list[int], list[int]]:
        """Bytes of values that are no members: live just before each step, and while it runs."""
        time = self.timeline
        before, during = [0] * (time.end + 1), [0] * (time.end + 1)
        for u, charge in enumerate(time.charge):
            if charge and u not in self.index:
                last = min(max(time.firm[u], time.first[u]), time.end - 1)
                during[time.first[u]] += charge
                during[last + 1] -= charge
                before[min(time.first[u] + 1, last + 1)] += charge
                before[last + 1] -= charge
        for p in range(1, time.end + 1):
            during[p] += during[p - 1]
            before[p] += before[p - 1]
        return before, during

    def _move(self, p: int, used: int) -> Move:
        graph = self.timeline.graph
        v = graph.steps[p]
        node = graph.nodes[v]
        reads, writes = self.bits(node.deps), self.bits(graph.written(v))
        touched = tuple(sorted({self.index[u] for u in (*node.deps, *graph.written(v)) if u in self.index}))
        return Move(p, node.cost, reads, writes, touched, self.room(used + node.workspace), node.workspace)

    def _contracted(self) -> list[Stage]:
        spaces = sorted({0, *(m.workspace for m in self.again)})
        rooms = [[self.room(held + space) for space in spaces] for held in self._held[: self.timeline.end]]

        def roomier(q: int, p: int) -> bool:
            return all(a >= b for a, b in zip(rooms[q], rooms[p], strict=True))

        places: list[tuple[int, int]] = []  # where steps may run again, and how many stages that stands for; backwards
        waiting, seen, passed = 0, 0, True
        for p in range(self.timeline.end - 1, 0, -1):
            here, before = self.moves[p], self.moves[p - 1]
            if not passed:
                place, runs = places[-1]
                if self._may_wait(p, place, rooms[p][0]) and roomier(place, p):
                    places[-1] = place, runs + 1
                    continue
                passed = True
            waiting, seen = waiting + 1, seen | here.reads
            light = not before.writes and not before.reads & ~seen and before.room >= rooms[p][0]
            if not (light and roomier(p - 1, p)):
                places.append((p, waiting))
                waiting, seen, passed = 0, 0, False
        places.append((0, waiting + 1))
        stages, last = list[Stage](), self.timeline.end - 1
        for place, runs in places:
            stages.append(Stage(place, last, runs, self._held[place]))
            last = place - 1
        return stages[::-1]

    def _may_wait(self, p: int, place: int, room: int) -> bool:
        """Whether what is recomputed before step p may wait until just before step `place`."""
        return all(not m.touched and m.room >= room for m in self.moves[p:place])


def to_words(sets: Sequence[int], words: int) -> Words:
    """Sets of members as columns of 64-bit words."""
    mask = (1 << WORD) - 1
    return np.array([[s >> WORD * w & mask for s in sets] for w in range(words)], dtype=np.uint64)


def to_set(column: Words) -> int:
    """One column of words as a set."""
    return sum(int(word) << WORD * w for w, word in enumerate(column))


def holds(needs: Words, member: int) -> NDArray[np.bool_]:
    """Which columns hold a member."""
    bit: NDArray[np.bool_] = (needs[member // WORD] >> np.uint64(member % WORD) & np.uint64(1)).astype(bool)
    return bit
