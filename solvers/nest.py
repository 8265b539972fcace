"""Nests: how the backward pass of a loop gets at the carries and residuals of its steps.

A loop of `length` steps is cut into blocks. The forward pass keeps the carry at the start of some blocks in slots. The backward
pass handles the blocks from the last to the first: it restores the carry at the start of a block by reading a slot and
advancing from there, block by block and without residuals, on the way storing carries for the blocks still to come; it runs
the block forward, keeping the residuals of each of its steps; and it runs those steps backward.

The constructors differ in where carries are stored. `binomial` is optimal for given slots and block length: Griewank & Walther,
"Algorithm 799: revolve", ACM TOMS 26 (2000), whose line of steps is here a line of blocks, followed by one more step that
stands for the rest of the program (the turn: so the loop's own first sweep costs nothing extra).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from solvers.errors import InvalidNest, InvalidOption
from solvers.revolve import split


@dataclass(frozen=True, slots=True)
class Replay:
    """How the carry at the start of one block is restored in the backward pass.

    Attributes:
        block: the block that is then run, first forward and then backward.
        slot: the slot read.
        start: the block at whose start the carry in that slot belongs; not after `block`.
        stores: for each of `start + 1` to `block`, the slot in which the carry at the start of that block is stored while
            advancing, or None.
    """

    block: int
    slot: int
    start: int
    stores: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Nest:
    """A plan for the backward pass of a loop. `check` says whether it is sound.

    Attributes:
        length: steps of the loop.
        blocks: lengths of the blocks in order.
        slots: buffers of one carry each.
        forward: for each block the slot in which the forward pass stores the carry at its start, or None.
        backward: one entry per replayed block, the last one first.
        keeps: True if the steps of the block at hand keep residuals; False if only their carries are kept, and each step is
            run once more to be reversed.
        direct: whether the forward pass itself keeps the residuals of the last block, which then needs no replay.
    """

    length: int
    blocks: tuple[int, ...]
    slots: int
    forward: tuple[int | None, ...]
    backward: tuple[Replay, ...]
    keeps: bool = True
    direct: bool = False

    @property
    def longest(self) -> int:
        """Steps of the longest block: that many steps' residuals are live at once."""
        return max(self.blocks)

    def recomputed_steps(self) -> int:
        """Forward steps executed in the backward pass: advances, block runs, and each step's own if it keeps no residuals."""
        starts = [0]
        for size in self.blocks:
            starts.append(starts[-1] + size)
        replayed = sum(starts[replay.block + 1] - starts[replay.start] for replay in self.backward)
        return replayed + (0 if self.keeps else self.length)

    def __str__(self) -> str:
        if len(self.blocks) == 1 and self.direct:
            return f"{self.length} steps kept as they are"
        sizes = sorted(set(self.blocks), reverse=True)
        each = f"of {sizes[0]}" if len(sizes) == 1 else f"of {sizes[-1]} to {sizes[0]}"
        return f"{self.length} steps in {len(self.blocks)} blocks {each}, {self.slots} carries kept" + (
            ", the last block kept as it is" if self.direct else ""
        )


def keep_all(length: int, *, keeps: bool = True, direct: bool = False) -> Nest:
    """One block: the residuals of all steps are live at once.

    Raises:
        InvalidOption: if the length is below 1, as for every constructor here.
    """
    return uneven([_checked(length)], keeps=keeps, direct=direct)


def two_level(length: int, block: int | None = None, *, keeps: bool = True, direct: bool = False) -> Nest:
    """Blocks of equal length, the last one perhaps shorter, each with a slot of its own: one extra forward pass.

    Args:
        length: steps.
        block: steps per block; about the square root of the length by default.
        keeps: as in `Nest`.
        direct: as in `Nest`.
    """
    return uneven(_cut(length, math.isqrt(_checked(length) - 1) + 1 if block is None else block), keeps=keeps, direct=direct)


def levels(length: int, k: int, *, keeps: bool = True, direct: bool = False) -> Nest:
    """A tree of k levels with branches of about the k-th root of the length: at most k - 1 extra forward passes.

    Args:
        length: steps.
        k: levels, at least 1 (which keeps everything); two levels are `two_level`.
        keeps: as in `Nest`.
        direct: as in `Nest`.
    """
    if k < 1:
        raise InvalidOption(f"a nest has at least one level, not {k}")
    branch = next(b for b in range(1, _checked(length) + 1) if b**k >= length)
    blocks = _cut(length, branch)

    def points(low: int, high: int, free: int) -> Sequence[int]:
        del free
        high, stride = min(high, len(blocks)), 1
        while stride * branch < high - low:
            stride *= branch
        return range(low + stride, high, stride)

    return _build(blocks, points, len(blocks), keeps, direct)


def halving(length: int, *, block: int = 1, keeps: bool = True, direct: bool = False) -> Nest:
    """Recursive halving: about log2(length / block) slots, and about half as many extra forward passes.

    Args:
        length: steps.
        block: steps per block.
        keeps: as in `Nest`.
        direct: as in `Nest`.
    """
    blocks = _cut(length, block)

    def points(low: int, high: int, free: int) -> Sequence[int]:
        del free
        high = min(high, len(blocks))
        return [(low + high + 1) // 2] if high - low > 1 else []

    return _build(blocks, points, len(blocks), keeps, direct)


def binomial(length: int, slots: int, *, block: int = 1, keeps: bool = True, direct: bool = False) -> Nest:
    """The nest of fewest recomputed steps with at most so many slots and blocks of at most so many steps.

    Optimal among all nests, those of uneven blocks included (`nest_search.fewest_steps` is its number of steps in closed form):
    it has as few blocks as possible, and the one that is not full is among those advanced over most often.

    Args:
        length: steps.
        slots: slots, at least 1.
        block: most steps per block.
        keeps: as in `Nest`.
        direct: as in `Nest`.
    """
    blocks = _cut(length, block)
    nest = uneven(blocks, slots, keeps=keeps, direct=direct)
    short = min(blocks)
    if short == max(blocks) or (direct and len(blocks) == 1):
        return nest
    passes = [0] * len(blocks)
    for replay in nest.backward:
        for passed in range(replay.start, replay.block):
            passes[passed] += 1
    worst = max(range(len(blocks) - direct), key=passes.__getitem__)
    full = [max(blocks)] * len(blocks)
    full[worst] = short
    return uneven(full, slots, keeps=keeps, direct=direct)


def uneven(blocks: Sequence[int], slots: int | None = None, *, keeps: bool = True, direct: bool = False) -> Nest:
    """Blocks of any lengths, with a slot for each or with fewer slots, reused binomially over the blocks.

    Args:
        blocks: steps of each block in order.
        slots: most slots, at least 1; None for as many as blocks.
        keeps: as in `Nest`.
        direct: as in `Nest`.
    """
    if not blocks or any(size < 1 for size in blocks):
        raise InvalidOption(f"a nest needs blocks of at least one step each, not {list(blocks)}")
    if slots is not None and slots < 1:
        raise InvalidOption(f"a nest needs at least one slot, not {slots}")
    if slots is None or slots >= len(blocks):
        return _build(blocks, lambda low, high, free: range(low + 1, high), len(blocks), keeps, direct)

    def points(low: int, high: int, free: int) -> Sequence[int]:
        return [low + split(high - low, free + 1)] if free and high - low > 1 else []

    return _build(blocks, points, slots, keeps, direct)


def check(nest: Nest) -> None:
    """Replays a nest, slots and all.

    Raises:
        InvalidNest: if the blocks do not make up the loop, if a slot read does not hold the carry that the entry names, or if
            the blocks are not run backward once each from the last to the first.
    """
    n = len(nest.blocks)
    if sum(nest.blocks) != nest.length or min(nest.blocks, default=0) < 1 or len(nest.forward) != n:
        raise InvalidNest(f"blocks {nest.blocks} with {len(nest.forward)} forward entries do not make up {nest.length} steps")
    held: dict[int, int] = {}

    def store(slot: int | None, block: int) -> None:
        if slot is not None:
            if not 0 <= slot < nest.slots:
                raise InvalidNest(f"the carry of block {block} goes to slot {slot}, but there are {nest.slots} slots")
            held[slot] = block

    for block, slot in enumerate(nest.forward):
        store(slot, block)
    expected = range(n - 1 - nest.direct, -1, -1)
    if [replay.block for replay in nest.backward] != list(expected):
        raise InvalidNest(f"the backward pass runs blocks {[r.block for r in nest.backward]}, not each once from {n - 1} to 0")
    for replay in nest.backward:
        if held.get(replay.slot) != replay.start:
            found = held.get(replay.slot)
            what = "holds nothing" if found is None else f"holds the carry of block {found}"
            raise InvalidNest(f"block {replay.block} reads block {replay.start}'s carry in slot {replay.slot}, which {what}")
        if len(replay.stores) != replay.block - replay.start:
            raise InvalidNest(f"block {replay.block} advances from {replay.start} but has {len(replay.stores)} stores")
        for block, slot in enumerate(replay.stores, replay.start + 1):
            store(slot, block)


def _checked(length: int) -> int:
    if length < 1:
        raise InvalidOption(f"a nest is about a loop of at least one step, not {length}")
    return length


def _cut(length: int, block: int) -> list[int]:
    if block < 1:
        raise InvalidOption(f"a block has at least one step, not {block}")
    whole, rest = divmod(_checked(length), block)
    return [block] * whole + ([rest] if rest else [])


def _build(
    blocks: Sequence[int], points: Callable[[int, int, int], Sequence[int]], slots: int, keeps: bool, direct: bool
) -> Nest:
    """The nest whose carries are stored where `points(low, high, free)` says.

    `points` gets a range of blocks to reverse, the carry at whose start is held, and how many slots are free, and returns
    starts within it to store on the way. The last block of a range is reversed first and needs no store. In the first range
    it stands for what needs no replay: the rest of the program, or the last block if that is kept by the forward pass.
    """
    last = len(blocks) - direct
    held: dict[int, int] = {}
    free = list(range(slots))
    stack: list[tuple[int, int]] = []

    def descend(low: int, high: int) -> dict[int, int]:
        """Stores on the way to the last block of a range; splits it accordingly."""
        stores: dict[int, int] = {}
        while found := [point for point in points(low, high, len(free)) if point != high - 1]:
            for point in found:
                stores[point] = heapq.heappop(free)
                stack.append((low, point))
                low = point
        held.update(stores)
        stack.append((low, high))
        return stores

    forward: dict[int, int] = {}
    if last:
        held[0] = forward[0] = heapq.heappop(free)
        forward.update(descend(0, last + 1))
        low, high = stack.pop()
        stack.append((low, high - 1))
    used = len(forward)
    backward: list[Replay] = []
    while stack:
        low, high = stack.pop()
        start, slot = low, held[low]
        stores = descend(low, high)
        used = max(used, slots - len(free))
        backward.append(Replay(high - 1, slot, start, tuple(stores.get(b) for b in range(start + 1, high))))
        low, high = stack.pop()
        if low == high - 1:
            heapq.heappush(free, held.pop(low))
        else:
            stack.append((low, high - 1))
    return Nest(
        sum(blocks), tuple(blocks), used, tuple(forward.get(b) for b in range(len(blocks))), tuple(backward), keeps, direct
    )
