"""A composition of blocks and groups as an order of computations over the whole graph.

Values are tracked as there or dropped. Whatever a step lacks is computed just before it, from what is there, so the order is
valid for any composition and any graph; that it needs no more memory than the composition was chosen for is not promised.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from solvers.block_hash import Kind
from solvers.block_sequence import BlockSequence
from solvers.compose import Group, Item, Leaf
from solvers.replay import prune


def unroll(sequence: BlockSequence, items: Iterable[Item]) -> list[int]:
    """Nodes in order, for `Schedule.from_order`."""
    run = _Unroll(sequence)
    run.range(tuple(items), first=True)
    return prune(sequence.blocks.forward.graph, run.order)


class _Unroll:
    """What is there, while the order grows."""

    def __init__(self, sequence: BlockSequence):
        self.sequence, self.blocks = sequence, sequence.blocks
        self.forward = sequence.blocks.forward
        self.there = [False] * len(self.forward)
        self.borrowed: list[int] = []  # positions in other blocks that are there only for the present one
        self.order: list[int] = []
        self.ends: dict[int, list[int]] = {}  # positions read last by late steps of a block before their own
        for q, block in self.blocks.read_below.items():
            self.ends.setdefault(block, []).append(q)

    def range(self, items: tuple[Item, ...], *, first: bool) -> None:
        """Forward through the items, then back."""
        for item in items:
            if isinstance(item, Leaf):
                keep = {*item.plan.keep} if item.last else {*item.plan.keep, *self._kind(item.block).outs}
                self.run(item.block, keep, first=first)
            else:
                self.advance(item, first=first)
        for item in reversed(items):
            if isinstance(item, Leaf):
                self.late(item)
            else:
                self.range(item.items, first=False)

    def advance(self, group: Group, *, first: bool) -> None:
        """Runs a group on, keeping its pattern."""
        sets = self.sequence.patterns[group.pattern]
        for b in range(group.start, group.stop):
            self.run(b, {*sets[self.sequence.kind_of[b]], *self._kind(b).outs}, first=first)
        for b in range(group.start, group.stop):
            kind = self._kind(b)
            cross = {q for q, reach in zip(kind.outs, kind.reach, strict=True) if b + reach >= group.stop}
            self.retain(b, {*sets[self.sequence.kind_of[b]], *cross})

    def run(self, block: int, keep: Collection[int], *, first: bool) -> None:
        """Runs what a block lacks of what it is to keep, and in the first pass all that is never dropped."""
        start, stop = self.blocks.edges[block], self.blocks.edges[block + 1]
        before = {q - start for q in range(start, stop) if self.there[q]}
        wanted = [start + q for q in keep]
        if first:
            wanted.extend(q for q in range(start, stop) if not self.forward.replayed[q])
            wanted.extend(start + q for q in self._kind(block).feeds)
        self.compute(wanted, block)
        self.retain(block, {*keep, *before})

    def late(self, leaf: Leaf) -> None:
        """The late steps of a block, as its plan says."""
        start, kind = self.blocks.edges[leaf.block], self._kind(leaf.block)
        mine = {*leaf.plan.keep, *kind.outs}  # what the plan runs again although it was kept, it drops in between
        skip = {q for q in range(len(kind.forward)) if self.there[start + q] and q not in mine}
        for item in leaf.plan.late:
            if item >= 0 and item in skip:
                continue
            if item >= 0:
                self.there[start + item] = False
                self.compute([start + item], leaf.block)
            else:
                step = self.blocks.late[leaf.block][-1 - item]
                self.compute(self._positions(step), leaf.block)
                self.order.append(step)
        below = self.blocks.read_below
        self.retain(leaf.block, {q for q in range(len(kind.forward)) if below.get(start + q, leaf.block) < leaf.block})
        for q in self.ends.get(leaf.block, ()):
            self.there[q] = False

    def compute(self, wanted: Iterable[int], block: int) -> None:
        """Runs the steps at these positions, where they are not there, after all that they lack."""
        missing: set[int] = set()
        todo = [q for q in wanted if not self.there[q]]
        while todo:
            q = todo.pop()
            if q not in missing:
                missing.add(q)
                todo.extend(r for r in self._positions(self.forward.steps[q]) if not self.there[r])
        start, stop = self.blocks.edges[block], self.blocks.edges[block + 1]
        for q in sorted(missing):
            self.order.append(self.forward.steps[q])
            self.there[q] = True
            if not start <= q < stop and self.forward.replayed[q]:
                self.borrowed.append(q)

    def retain(self, block: int, keep: Collection[int]) -> None:
        """Drops what a block need not keep."""
        start = self.blocks.edges[block]
        for q in range(start, self.blocks.edges[block + 1]):
            if self.forward.replayed[q] and q - start not in keep:
                self.there[q] = False
        for q in self.borrowed:
            self.there[q] = False
        self.borrowed = []

    def _kind(self, block: int) -> Kind:
        return self.sequence.kinds[self.sequence.kind_of[block]]

    def _positions(self, step: int) -> list[int]:
        graph, position = self.forward.graph, self.forward.position
        return [q for u in graph.nodes[step].deps if (q := position.get(graph.step_of(u))) is not None]
