"""The dynamic program that composes a schedule from blocks and from groups of blocks run again from a checkpoint.

A range of blocks [i, k) is run with m bytes, beside the values that it reads from before i. `before` is the pattern that its
blocks have kept already; its bytes count in m. With F the least cost,

    F(i, k, before, m) = min over
        options of block i:          cost + F(i+1, k, before, m - kept)
        groups [i, j), patterns p:   cost of running on to j, keeping p
                                     + F(j, k, before, m - what p keeps in [i, j) - what crosses j) + F(i, j, p, m)

where an option needs room for its forward steps beside what the pattern keeps of the later blocks, and for its late steps. The
second term for groups is their second pass, in which blocks are treated in the same way, so groups nest. The first form is
the recurrence for heterogeneous chains of Beaumont et al. ("Optimal checkpointing for heterogeneous chains", 2019) with several
options per stage (as in Rockmate, Zhao et al., ICML 2023), the second adds what is kept of a group beside its checkpoint.

Ranges of the same kinds share a table, so long runs of equal blocks cost no more than short ones. Groups have at most a few
sizes, and long ones must occur more than once, so time grows linearly with the number of blocks. Memory is counted in whole
units, rounded to the nearest; what a composition really needs is for simulation to tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solvers.block_options import Plan
from solvers.block_sequence import BlockSequence
from solvers.errors import SolverError

_SHORT = 12  # blocks; groups up to this size may be anywhere
_SIZES = (*range(2, _SHORT + 1), 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256)
_REPEATED = 3  # how often a longer range must occur
_WORK = 4_000_000_000  # additions, about a second for each half a billion
_FEWEST_SLOTS, _MOST_SLOTS = 500, 5000

Table = NDArray[np.float32]  # precise enough to choose by


@dataclass(frozen=True, slots=True)
class Leaf:
    """A block whose late steps run after those of all later blocks of its range, in one visit."""

    block: int
    plan: Plan
    last: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks that are run on once, keeping a pattern, and once more later, as the items say."""

    start: int
    stop: int
    pattern: int
    items: tuple[Leaf | Group, ...]


Item = Leaf | Group


@dataclass(frozen=True, slots=True)
class _Choice:
    """One term of the minimum: memory in units."""

    cost: float
    need: int
    shift: int
    rest: int  # where the rest of the range starts
    plan: Plan | None = None
    pattern: int = -1


class Composer:
    """The tables for one sequence and all budgets up to a limit.

    Attributes:
        unit: bytes.
        slots: the limit in units.
        least: the least number of units for which there is a composition; more than `slots` if there is none.
    """

    def __init__(self, sequence: BlockSequence, memory: int, check: Callable[[], None] = lambda: None):
        """Fills the tables.

        Args:
            sequence: the blocks.
            memory: the largest budget, bytes.
            check: called from time to time; what it raises ends the work.
        """
        self.sequence = sequence
        self._sizes = self._allowed_sizes()
        ranges = self._needed_ranges()
        patterns = len(sequence.patterns) - 1
        rows = (len(ranges) * patterns + len(sequence)) * (patterns * _SHORT // 2 + 4)
        slots = max(_FEWEST_SLOTS, min(_MOST_SLOTS, _WORK // rows))
        self.unit = max(1, -(-memory // slots))
        self.slots = memory // self.unit
        self._tables: dict[tuple[int, int], Table] = {}
        self._zero: Table = np.zeros(self.slots + 1, np.float32)
        self._top = [self._zero] * (len(sequence) + 1)
        self._fill(ranges, check)
        feasible = np.isfinite(self._top[0])
        self.least = int(np.argmax(feasible)) if feasible.any() else self.slots + 1

    @property
    def count(self) -> int:
        """Number of tables."""
        return len(self._tables) + len(self._top) - 1

    def cost(self, units: int) -> float:
        """Least cost with this many units of memory; infinite if nothing fits."""
        return float(self._top[0][units])

    def best(self, units: int) -> tuple[Item, ...]:
        """A composition of that cost."""
        return self._items(0, len(self.sequence), 0, units)

    def _allowed_sizes(self) -> list[tuple[int, ...]]:
        """For each block, the sizes of groups that may begin there."""
        sequence, count = self.sequence, len(self.sequence)
        ids = Counter(sequence.range_id(i, i + size) for size in _SIZES for i in range(count - size))
        return [
            tuple(
                size
                for size in _SIZES
                if i + size < count and (size <= _SHORT or ids[sequence.range_id(i, i + size)] >= _REPEATED)
            )
            for i in range(count)
        ]

    def _needed_ranges(self) -> list[tuple[int, int]]:
        """Ranges that end where a group may end, one of each kind, short ones first."""
        sequence = self.sequence
        found: dict[int, tuple[int, int]] = {}
        for i, sizes in enumerate(self._sizes):
            for size in sizes:
                if sequence.range_id(i, i + size) not in found:
                    for start in range(i + size - 1, i - 1, -1):
                        found.setdefault(sequence.range_id(start, i + size), (start, i + size))
        return sorted(found.values(), key=lambda r: r[1] - r[0])

    def _fill(self, ranges: list[tuple[int, int]], check: Callable[[], None]) -> None:
        sequence, count = self.sequence, len(self.sequence)
        for start, stop in ranges:
            check()
            for before in range(1, len(sequence.patterns)):
                self._tables[sequence.range_id(start, stop), before] = self._table(start, stop, before)
        for start in range(count - 1, -1, -1):
            check()
            self._top[start] = self._table(start, count, 0)

    def _of(self, start: int, stop: int, before: int) -> Table:
        if start == stop:
            return self._zero
        if stop == len(self.sequence):
            return self._top[start]
        return self._tables[self.sequence.range_id(start, stop), before]

    def _table(self, start: int, stop: int, before: int) -> Table:
        best: Table = np.full(self.slots + 1, np.inf, np.float32)
        for c in self._terms(start, stop, before):
            low = max(c.need, c.shift)
            if low > self.slots:
                continue
            total = self._of(c.rest, stop, before)[low - c.shift : self.slots + 1 - c.shift] + np.float32(c.cost)
            if c.plan is None:
                total += self._of(start, c.rest, c.pattern)[low:]
            np.minimum(best[low:], total, out=best[low:])
        return best

    def _terms(self, start: int, stop: int, before: int) -> Iterator[_Choice]:
        sequence = self.sequence
        final = stop == len(sequence)
        gradients = 0 if final else sequence.gradients(stop)
        last = start + 1 == stop
        beside = gradients + sequence.pattern_bytes(start + 1, stop, before)
        for option in sequence.options(start, before, last=last):
            need = self._units(max(option.forward_peak + beside, option.late_peak))
            shift = 0 if last else self._units(option.kept)
            yield _Choice(option.cost, need, shift, start + 1, option.plan)
        for size in self._sizes[start]:
            middle = start + size
            if middle >= stop:
                break
            after = gradients + sequence.pattern_bytes(middle, stop, before)
            for run in sequence.passes(start, middle, before):
                yield _Choice(run.cost, self._units(run.need + after), self._units(run.kept), middle, pattern=run.pattern)

    def _units(self, size: int) -> int:
        return round(size / self.unit)

    def _items(self, start: int, stop: int, before: int, units: int) -> tuple[Item, ...]:
        found: list[Item] = []
        while start < stop:
            best, chosen = np.inf, None
            for c in self._terms(start, stop, before):
                if max(c.need, c.shift) > units:
                    continue
                total = float(self._of(c.rest, stop, before)[units - c.shift]) + c.cost
                if c.plan is None:
                    total += float(self._of(start, c.rest, c.pattern)[units])
                if total < best:
                    best, chosen = total, c
            if chosen is None:
                raise SolverError(f"nothing fits {units} units from block {start} on")
            if chosen.plan is not None:
                found.append(Leaf(start, chosen.plan, start + 1 == stop and stop < len(self.sequence)))
            else:
                items = self._items(start, chosen.rest, chosen.pattern, units)
                found.append(Group(start, chosen.rest, chosen.pattern, items))
            units -= chosen.shift
            start = chosen.rest
        return tuple(found)
