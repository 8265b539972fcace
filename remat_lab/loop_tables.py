"""A nest as constant tables that the emitted loops read, so that the program's size does not depend on the loop's length."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from solvers.nest import Nest

Table = np.ndarray  # int32


@dataclass(frozen=True)
class Sweep:
    """Runs of steps, each of which may begin with storing the carry.

    Attributes:
        begin: first step of each run.
        count: steps in each run.
        slot: where the carry before the run's first step is stored; -1 for nowhere.
    """

    begin: Table
    count: Table
    slot: Table


@dataclass(frozen=True)
class Tables:
    """What the emitted loops read.

    Attributes:
        forward: the forward pass, up to the last block if that is run with residuals right away, which is then `direct`.
        slot: for each replay, the slot read.
        first: for each replay, and one more, its first run in `advance`.
        advance: from the carry that was read to the start of the block.
        begin: for each replay, the first step of its block.
        count: for each replay, the steps of its block.
        direct: first step and number of steps of the block that the forward pass keeps residuals of, if any.
    """

    forward: Sweep
    slot: Table
    first: Table
    advance: Sweep
    begin: Table
    count: Table
    direct: tuple[int, int] | None

    @property
    def stores(self) -> bool:
        """Whether the backward pass writes slots."""
        return bool((self.advance.slot >= 0).any())


def tables(nest: Nest) -> Tables:
    """Tables of a nest, one entry per block and per stored carry."""
    start = [0, *accumulate(nest.blocks)]
    last = len(nest.blocks) - nest.direct
    events = [(start[b], slot) for b, slot in enumerate(nest.forward) if slot is not None and b < last]
    if last and (not events or events[0][0] != 0):
        events.insert(0, (0, -1))
    runs = _runs(events, start[last])
    first, advance = [0], list[tuple[int, int, int]]()
    for replay in nest.backward:
        points = [(start[replay.start], -1)]
        points += [(start[b], slot) for b, slot in enumerate(replay.stores, replay.start + 1) if slot is not None]
        advance += [run for run in _runs(points, start[replay.block]) if run[1] or run[2] >= 0]
        first.append(len(advance))
    blocks = [replay.block for replay in nest.backward]
    return Tables(
        forward=_sweep(runs),
        slot=_table([replay.slot for replay in nest.backward]),
        first=_table(first),
        advance=_sweep(advance),
        begin=_table([start[b] for b in blocks]),
        count=_table([nest.blocks[b] for b in blocks]),
        direct=(start[last], nest.blocks[last]) if nest.direct else None,
    )


def _runs(events: list[tuple[int, int]], end: int) -> list[tuple[int, int, int]]:
    """Begin, count and slot of the run after each event."""
    stops = [*(begin for begin, _ in events[1:]), end][: len(events)]
    return [(begin, stop - begin, slot) for (begin, slot), stop in zip(events, stops, strict=True)]


def _table(values: list[int]) -> Table:
    return np.asarray(values, np.int32)


def _sweep(runs: list[tuple[int, int, int]]) -> Sweep:
    begin, count, slot = zip(*runs, strict=True) if runs else ((), (), ())
    return Sweep(_table(list(begin)), _table(list(count)), _table(list(slot)))
