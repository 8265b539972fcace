"""What segments and kept values cost and need, without building their schedule.

A search for segments asks this thousands of times. Two plans differ only in the steps that may be replayed at all, so what
concerns the others is prepared once: an answer takes time proportional to the number of replayable steps and what they read,
and a few array operations as long as the schedule. It is exactly what `simulate` says of the order of `replay`; a test holds
the two together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from solvers.segments import Forward, Segment


@dataclass(frozen=True, slots=True)
class Judged:
    """What a plan of segments needs.

    Attributes:
        cost: of all computations, in the graph's unit.
        peak: largest number of budgeted bytes live at once.
        live: budgeted bytes live during each step of the given order and each replay between them, workspace included.
    """

    cost: float
    peak: int
    live: npt.NDArray[np.int64]

    def excess(self, budget: int) -> int:
        """Bytes beyond a budget, summed over the steps."""
        over = self.live - budget
        return int(over[over > 0].sum())


@dataclass(slots=True)
class _Block:
    """Replays run before a late step, in order; `made` are those whose values stay until their late reads."""

    slot: int
    run: list[int]
    made: set[int] = field(default_factory=set[int])


class SegmentCost:
    """Cost and peak of trees of segments over one forward pass.

    Args:
        base: the forward pass, with what is kept in any case.
    """

    def __init__(self, base: Forward):
        graph, count = base.graph, len(base.steps)
        outputs = set(graph.outputs)
        order = (*base.steps, *base.late)
        slot = {v: t for t, v in enumerate(order)}
        self.places = [q for q, replayed in enumerate(base.replayed) if replayed]
        self.steps = [base.steps[q] for q in self.places]
        index = {v: i for i, v in enumerate(self.steps)}
        self._written = [graph.written(v) for v in self.steps]
        self._deps = [graph.nodes[v].deps for v in self.steps]
        self._costs = [graph.nodes[v].cost for v in self.steps]
        self._reads = [sorted({index[s] for u in deps if (s := graph.step_of(u)) in index}) for deps in self._deps]
        self._readers: list[list[int]] = [[] for _ in self.steps]
        for i, reads in enumerate(self._reads):
            for u in reads:
                self._readers[u].append(i)
        readers = [{slot[r] for w in written for r in graph.readers[w]} for written in self._written]
        self._is_output = [not outputs.isdisjoint(written) for written in self._written]
        self._read_late = [any(t >= count for t in slots) for slots in readers]
        self._read_early = [any(t < count and order[t] not in index for t in slots) for slots in readers]
        owned = [
            [base.owners.get((order[t], v), place) for t in slots if t >= count]
            for v, place, slots in zip(self.steps, self.places, readers, strict=True)
        ]
        self._owned = [max(found, default=place) for place, found in zip(self.places, owned, strict=True)]
        self._late_reads = sorted((t, -i) for i, slots in enumerate(readers) for t in slots if t >= count)
        self._total = graph.keep_all_cost
        # Of each value: its slot, the last that reads it among forward steps that are never replayed, and the last late one.
        born = [slot[graph.step_of(w)] for w in range(len(graph))]
        fixed = [[slot[r] for r in graph.readers[w] if r not in index] for w in range(len(graph))]
        self._early = [max((t for t in slots if t < count), default=born[w]) for w, slots in enumerate(fixed)]
        self._late = [
            len(order) if w in outputs else max((t for t in slots if t >= count), default=-1) for w, slots in enumerate(fixed)
        ]
        self._last = np.maximum(np.array([*map(max, self._early, self._late)]), np.array(born))
        self._born = np.array(born)
        self._charges = np.array([node.charge for node in graph.nodes], np.int64)
        self._workspace = np.array([graph.nodes[v].workspace for v in order], np.int64)
        self._crossers: dict[int, frozenset[int]] = {}

    def crossers(self, cut: int) -> frozenset[int]:
        """Steps before a cut that a replayable step after it reads."""
        if cut not in self._crossers:
            self._crossers[cut] = frozenset(
                v
                for v, place, readers, owned in zip(self.steps, self.places, self._readers, self._owned, strict=True)
                if place < cut <= max([owned, *(self.places[r] for r in readers)])
            )
        return self._crossers[cut]

    def judge(self, keep: Set[int], root: Segment) -> Judged:
        """Cost and peak of a tree of segments.

        Args:
            keep: steps that are kept, beside those of the forward pass.
            root: segments over all positions of the forward pass.
        """
        blocks, run_first = self._pruned(self._blocks(keep, root))
        shift = np.zeros(len(self._workspace) + 1, np.int64)
        for block in blocks:
            shift[block.slot :] += len(block.run)
        position = np.arange(len(shift)) + shift
        length = len(self._workspace) + int(shift[-1])
        born, charges = position[self._born], self._charges.copy()
        died: list[int] = position[self._last].tolist()
        workspace = np.zeros(length, np.int64)
        workspace[position[:-1]] = self._workspace
        cost = self._total
        replayed = {i for block in blocks for i in block.run}
        for i in replayed:
            for w in self._written[i]:
                died[w] = self._early[w]
            if not run_first[i]:
                cost -= self._costs[i]
                charges[list(self._written[i])] = 0
                workspace[self.places[i]] = 0
        for i, place in enumerate(self.places):
            if run_first[i]:
                for u in self._deps[i]:
                    if died[u] < place:
                        died[u] = place
        current: dict[int, int] = {}  # the row of a value's instance, where it is not the first
        rows_born: list[int] = []
        rows_charge: list[int] = []
        done = 0
        for block in blocks:
            for i in block.run:
                now = block.slot + done
                done += 1
                cost += self._costs[i]
                workspace[now] = self._workspace[self.places[i]]
                for u in self._deps[i]:
                    row = current.get(u, u)
                    if died[row] < now:
                        died[row] = now
                for w in self._written[i]:
                    current[w] = len(died)
                    last = self._late[w] if i in block.made or self._is_output[i] else -1
                    died.append(max(now, int(position[last])) if last >= 0 else now)
                    rows_born.append(now)
                    rows_charge.append(int(self._charges[w]))
        weights = np.concatenate([charges, np.array(rows_charge, np.int64)])
        change = np.bincount(np.concatenate([born, np.array(rows_born, np.int64)]), weights, length + 2)
        change -= np.bincount(np.array(died) + 1, weights, length + 2)
        live = np.cumsum(change)[:length].astype(np.int64) + workspace
        return Judged(cost, int(live.max()), live)

    def _blocks(self, keep: Set[int], root: Segment) -> list[_Block]:
        """Which steps are run again where, as `replay` has it."""
        count, places, readers = len(self.steps), self.places, self._readers
        last = self._owned.copy()  # of each step, the position of the last replayed one, or owner of a late one, that reads it
        available = [True] * count
        for i in reversed(range(count)):
            if self.steps[i] not in keep:
                again = [r for r in readers[i] if not available[r]]
                if again:
                    last[i] = max(last[i], places[again[-1]])
                available[i] = not (again or self._read_late[i])
        opened: set[int] = set()

        def span(segment: Segment) -> range:
            return range(bisect_left(places, segment.start), bisect_left(places, segment.stop))

        def open_segment(segment: Segment) -> None:
            while True:
                opened.add(id(segment))
                if not segment.children:
                    for i in span(segment):
                        available[i] = True
                    return
                for child in segment.children[:-1]:
                    for i in span(child):
                        if last[i] >= child.stop:
                            available[i] = True
                segment = segment.children[-1]

        open_segment(root)
        blocks: list[_Block] = []
        for slot, negative in self._late_reads:
            i = -negative
            while not available[i]:
                segment = root
                while id(segment) in opened:
                    segment = segment.children[bisect_right(segment.children, places[i], key=lambda child: child.start) - 1]
                run = [k for k in span(segment) if not available[k]]
                open_segment(segment)
                blocks.append(_Block(slot, run, {k for k in run if available[k]}))
        return blocks

    def _pruned(self, blocks: list[_Block]) -> tuple[list[_Block], list[bool]]:
        """Blocks without what nobody reads, and whether each step runs in the forward pass too."""
        wanted = list(self._is_output)
        again = [False] * len(self.steps)
        for block in reversed(blocks):
            run: list[int] = []
            for i in reversed(block.run):
                if wanted[i] or (i in block.made and self._read_late[i]):
                    run.append(i)
                    wanted[i], again[i] = False, True
                    for u in self._reads[i]:
                        wanted[u] = True
            block.run = run[::-1]
        run_first = [True] * len(self.steps)
        for i in reversed(range(len(self.steps))):
            if again[i] and not self._read_early[i] and not wanted[i]:
                run_first[i] = any(run_first[r] for r in self._readers[i])
        return [block for block in blocks if block.run], run_first
