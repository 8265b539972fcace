"""A sequence of blocks with all that the dynamic program over it asks: options and patterns by kind, and sums over ranges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from solvers.block_exact import exact_plans
from solvers.block_hash import Kind, kinds_of
from solvers.block_options import (
    Option,
    Plan,
    advance,
    measure,
    pattern,
    pattern_bytes,
    plans,
    prices_of,
    undominated,
)
from solvers.narrow_cuts import Blocks

_MOST_PATTERNS = 9
_EXACT_EACH, _EXACT_POINTS = 3, 12  # points of a kind, and of all, that are solved exactly


def _plans(kind: Kind, prices: Sequence[float], exact: int) -> list[Plan]:
    ruled = plans(kind, prices)
    return [*ruled, *exact_plans(kind, undominated(measure(kind, plan, None, last=False) for plan in ruled), exact)]


@dataclass(frozen=True, slots=True)
class Pass:
    """Running a range on, to keep a pattern: its cost, and the bytes that it leaves and needs."""

    pattern: int
    cost: float
    kept: int
    need: int


class BlockSequence:
    """Blocks by number, ranges of them as [start, stop).

    Attributes:
        blocks: the blocks.
        kind_of: for each block, the number of its kind.
        kinds: the kinds.
        patterns: for each pattern and kind, the positions kept. The first is that of the first pass, when nothing is there; the
            second keeps no more than must be.
    """

    def __init__(self, blocks: Blocks, *, exact: bool = True):
        """Recognises kinds and finds their options; `exact` tells whether some are solved for."""
        self.blocks = blocks
        self.kind_of, self.kinds = kinds_of(blocks)
        prices = prices_of(self.kinds)
        self.patterns = self._patterns(prices)
        points = min(_EXACT_EACH, _EXACT_POINTS // len(self.kinds)) if exact else 0
        self._plans: list[list[Plan]] = [_plans(kind, prices, points) for kind in self.kinds]
        self._options: dict[tuple[int, int, bool], list[Option]] = {}
        self._tables: dict[tuple[int, int], tuple[list[float], list[int]]] = {}
        self._ids: dict[tuple[int, int], int] = {}
        self._range_ids: dict[tuple[int, int], int] = {}
        self._groups: dict[tuple[int, int], list[Pass]] = {}

    def __len__(self) -> int:
        return len(self.blocks)

    def _patterns(self, prices: Sequence[float]) -> list[tuple[frozenset[int], ...]]:
        """None, and distinct patterns from the one that keeps least; of too many, some of evenly spaced bytes."""
        found = dict.fromkeys([tuple(kind.kept for kind in self.kinds)])
        found.update(dict.fromkeys(tuple(pattern(kind, price) for kind in self.kinds) for price in prices))
        weight = [self.kind_of.count(k) for k in range(len(self.kinds))]

        def size(sets: tuple[frozenset[int], ...]) -> int:
            return sum(n * pattern_bytes(k, s) for n, k, s in zip(weight, self.kinds, sets, strict=True))

        ranked = sorted(found, key=size)
        while len(ranked) > _MOST_PATTERNS:
            sizes = [size(sets) for sets in ranked]
            closest = min(range(1, len(ranked) - 1), key=lambda i: (sizes[i + 1] - sizes[i - 1]) / max(1, sizes[i]))
            del ranked[closest]
        return [tuple(frozenset() for _ in self.kinds), *ranked]

    @cached_property
    def larger(self) -> list[list[int]]:
        """For each pattern, those that keep, in every kind, all that it keeps; the first is none of them."""
        patterns = self.patterns
        return [
            [p for p in range(1, len(patterns)) if all(a >= b for a, b in zip(patterns[p], small, strict=True))]
            for small in patterns
        ]

    def options(self, block: int, before: int, *, last: bool) -> list[Option]:
        """The options of a block whose pattern `before` is there already; `last`, if nothing reads its outputs any more."""
        k = self.kind_of[block]
        key = (k, before, last)
        if key not in self._options:
            there = self.patterns[before][k] if before else None
            self._options[key] = undominated(measure(self.kinds[k], plan, there, last=last) for plan in self._plans[k])
        return self._options[key]

    def range_id(self, start: int, stop: int) -> int:
        """Equal for ranges of the same kinds."""
        if (start, stop) not in self._range_ids:
            last = self.kind_of[stop - 1]
            key = (-1 if stop == start + 1 else self.range_id(start, stop - 1), last)
            self._range_ids[start, stop] = self._ids.setdefault(key, len(self._ids))
        return self._range_ids[start, stop]

    def gradients(self, stop: int) -> int:
        """Bytes of late values that are live before the late steps of the blocks below `stop`."""
        return self.kinds[self.kind_of[stop - 1]].gradients if stop else 0

    def pattern_bytes(self, start: int, stop: int, pattern: int) -> int:
        """What a pattern keeps in a range."""
        sums = self._pattern_sums[pattern]
        return sums[stop] - sums[start]

    def passes(self, start: int, stop: int, before: int) -> list[Pass]:
        """Running a range on from pattern `before`, for each pattern that it may keep."""
        key = self.range_id(start, stop), before
        if key not in self._groups:
            crossing = self.crossing(start, stop)
            found: list[Pass] = []
            for keep in self.larger[before]:
                costs, peaks = self._advance_tables(before, keep)
                kept = self.pattern_bytes(start, stop, keep) + crossing
                found.append(Pass(keep, costs[stop] - costs[start], kept, kept + max(peaks[start:stop])))
            self._groups[key] = found
        return self._groups[key]

    def crossing(self, start: int, stop: int) -> int:
        """Bytes of values made in a range that later blocks read."""
        total = 0
        for b in range(start, stop):
            kind = self.kinds[self.kind_of[b]]
            total += sum(kind.sizes[q] for q, reach in zip(kind.outs, kind.reach, strict=True) if b + reach >= stop)
        return total

    @cached_property
    def _pattern_sums(self) -> list[list[int]]:
        found: list[list[int]] = []
        for sets in self.patterns:
            each = [pattern_bytes(kind, keep) for kind, keep in zip(self.kinds, sets, strict=True)]
            found.append([0, *accumulate(each[k] for k in self.kind_of)])
        return found

    def _advance_tables(self, before: int, keep: int) -> tuple[list[float], list[int]]:
        if (before, keep) not in self._tables:
            each = [
                advance(kind, self.patterns[before][k] if before else None, self.patterns[keep][k])
                for k, kind in enumerate(self.kinds)
            ]
            costs = [0.0, *accumulate(each[k].cost for k in self.kind_of)]
            self._tables[before, keep] = costs, [each[k].peak for k in self.kind_of]
        return self._tables[before, keep]
