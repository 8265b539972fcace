"""Rows of `frontier_sweep`: sets of needed values with what each cost so far, as columns of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from solvers.needs import Words

Numbers = NDArray[np.int64]

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Layer:
    """States at one moment, one per column.

    Attributes:
        needs: sets of members, as words.
        size: units that each takes.
        cost: of all recomputations after the moment.
        floor: no schedule through the state has less overhead.
        parent: the state of the layer before that it comes from.
        trail: its last recomputation in this stage, as a number in the stage's `Trail`; -1 for none.
        last: position of that recomputation.
        fresh: whether the current run of recomputations is still to choose its first one.
    """

    needs: Words
    size: Numbers
    cost: NDArray[np.float64]
    floor: NDArray[np.float64]
    parent: Numbers
    trail: Numbers
    last: Numbers
    fresh: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.cost)

    def take(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> Layer:
        """Some of the states."""
        return Layer(*(getattr(self, field.name)[..., chosen] for field in fields(self)))

    @staticmethod
    def joined(layers: Sequence[Layer]) -> Layer:
        """All states of several layers."""
        if len(layers) == 1:
            return layers[0]
        return Layer(*(np.concatenate([getattr(x, field.name) for x in layers], axis=-1) for field in fields(Layer)))

    def by_floor(self) -> Numbers:
        """Numbers of the states, the most promising first."""
        return np.argsort(self.floor, kind="stable")

    def distinct(self) -> Layer:
        """The cheapest state of each set, the first of several."""
        if len(self) < 2:
            return self
        order = np.lexsort((self.cost, *self.needs))
        needs = self.needs[:, order]
        first = np.ones(len(self), dtype=bool)
        first[1:] = (needs[:, 1:] != needs[:, :-1]).any(axis=0)
        return self.take(order[first])

    def undominated(self, most: int) -> Layer:
        """The states without those that hold another one that costs no more; at most the `most` smallest are compared with."""
        order = np.lexsort((self.cost, self.size))
        needs, cost = self.needs[:, order], self.cost[order]
        numbers = np.arange(len(self))
        kept = np.ones(len(self), dtype=bool)
        for begin in range(0, len(self), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            others = slice(0, min(begin + _BLOCK, most))
            beats = cost[others, None] <= cost[None, block]
            beats &= numbers[others, None] < numbers[None, block]
            for word in needs:
                beats &= (word[others, None] & ~word[None, block]) == 0
            kept[block] = ~beats.any(axis=0)
        return self.take(order[kept])


class Trail:
    """Recomputations of one stage, each linked to the one decided on before it, that is, the one that runs after it."""

    def __init__(self) -> None:
        self._before: list[Numbers] = []
        self._move: list[Numbers] = []
        self._count = 0

    def extend(self, before: Numbers, position: int) -> Numbers:
        """One more recomputation at the end of each trail; returns their numbers."""
        numbers = np.arange(self._count, self._count + len(before))
        self._before.append(before)
        self._move.append(np.full(len(before), position))
        self._count += len(before)
        return numbers

    def pruned(self, trails: Numbers) -> tuple[Trail, Numbers]:
        """Only what some trails need, and their new numbers."""
        if not self._count:
            return self, trails
        before, move = np.concatenate(self._before), np.concatenate(self._move)
        used = np.zeros(self._count + 1, dtype=bool)  # the last place stands for no recomputation at all
        ends = np.unique(trails)
        while len(ends):
            used[ends] = True
            ends = np.unique(before[ends[ends >= 0]])
            ends = ends[~used[ends]]
        used[-1] = False
        number = np.cumsum(used) - 1
        number[-1] = -1
        small = Trail()
        small._before, small._move = [number[before[used[:-1]]]], [move[used[:-1]]]
        small._count = int(used.sum())
        return small, number[trails]

    def positions(self, number: int) -> list[int]:
        """A trail, in order of time."""
        found: list[int] = []
        if number >= 0:
            before, move = np.concatenate(self._before), np.concatenate(self._move)
            while number >= 0:
                found.append(int(move[number]))
                number = int(before[number])
        return found
