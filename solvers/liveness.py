"""Which values share a buffer when nothing is recomputed: Chen et al. (2016, arXiv:1604.06174), section 3.

An order is walked once. Every instance of a value carries a counter of reads still to come (the dependency counter of the
paper); when it falls to zero the value's buffer goes back to a pool (the recycled tag), from which later values take theirs.

- *In place*: a step that may write over an operand takes that operand's buffer, if this step is the last to read it.
- *Sharing*: any later value may take a recycled buffer, whatever its size; a buffer becomes as large as the largest value that
  ever lay in it.

The time is linear in steps and reads: buffers wait in pools by the bit length of their size, of which there are at most 64.
Greedy, as in the paper, and not optimal: fitting values into the least memory is dynamic storage allocation, which is NP-hard.
Where all values are equally large, sharing is optimal: it needs exactly the live-byte peak.

Values in buffers of the caller take none here, and neither do values of no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from solvers.graph import Graph
from solvers.schedule import Schedule

MayOverwrite = Callable[[int, int], bool]  # (step, operand): whether the step's result may take the operand's buffer


@dataclass(frozen=True, slots=True)
class Lifetime:
    """One instance of a value, or the workspace of one step, and the buffer that it lies in.

    Attributes:
        node: the value, or the step whose workspace it is.
        size: bytes.
        start: position in the order of the step that writes it.
        stop: position of the last step that reads it; the number of steps for what is live at the end.
        buffer: number of its buffer.
        inherits: whether it was written over an operand that died at the same step, in that operand's buffer.
        workspace: whether it is a workspace.
    """

    node: int
    size: int
    start: int
    stop: int
    buffer: int
    inherits: bool = False
    workspace: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """Buffers for an order of computations.

    Attributes:
        buffers: bytes of each buffer.
        lifetimes: what lies in them, in order of writing.
        live_peak: largest number of bytes live at once, an operand that is written over being counted once with its result.
    """

    buffers: tuple[int, ...]
    lifetimes: tuple[Lifetime, ...]
    live_peak: int

    @property
    def total(self) -> int:
        """Bytes of all buffers together: what the program needs."""
        return sum(self.buffers)


def unshared(graph: Graph) -> int:
    """Bytes if every value has a buffer of its own for the whole program, and so has every workspace."""
    return sum(node.charge + node.workspace for node in graph.nodes)


def assign(
    graph: Graph,
    order: Iterable[int] | None = None,
    *,
    share: bool = True,
    in_place: MayOverwrite | None = None,
) -> Assignment:
    """Gives every value of an order a buffer.

    Args:
        graph: the graph.
        order: computations, possibly with repetitions; None for each step once, in the given order.
        share: whether buffers are used again. Without it only what is written in place shares one.
        in_place: whether the result of a step may take the place of an operand that dies there. Asked only for operands of at
            least the result's bytes, and for the first value that a step writes. None for never.

    Raises:
        InvalidSchedule: if the order reads what is not computed yet, or leaves out an output.
    """
    steps = graph.steps if order is None else tuple(order)
    Schedule.from_order(graph, steps)  # refuses what is not valid
    return _Walk(graph, steps, share, in_place).run()


def overlapping(assignment: Assignment) -> list[tuple[Lifetime, Lifetime]]:
    """Pairs that lie in one buffer at the same time: none, for what `assign` returns.

    A result that is written over an operand begins where that ends; all others coexist with whatever ends at their step.
    """
    latest: dict[int, Lifetime] = {}  # per buffer, what ends last so far
    found: list[tuple[Lifetime, Lifetime]] = []
    for one in sorted(assignment.lifetimes, key=lambda one: one.start):
        before = latest.get(one.buffer)
        if before is not None and (before.stop > one.start or (before.stop == one.start and not one.inherits)):
            found.append((before, one))
        if before is None or one.stop >= before.stop:
            latest[one.buffer] = one
    return found


class _Walk:
    """State of one walk along an order."""

    def __init__(self, graph: Graph, steps: Sequence[int], share: bool, in_place: MayOverwrite | None):
        self.graph, self.steps, self.share, self.in_place = graph, steps, share, in_place
        self.size: list[int] = []
        self.pools: list[list[int]] = [[] for _ in range(64)]
        self.found: list[Lifetime] = []
        self.instance: dict[int, tuple[int, int, bool]] = {}  # value -> start, buffer, inherits
        self.live = self.peak = 0

    def run(self) -> Assignment:
        """Walks all steps."""
        reads = self._reads()
        current: dict[int, int] = {}  # value -> position of its present instance
        for p, v in enumerate(self.steps):
            deps = tuple(dict.fromkeys(self.graph.nodes[v].deps))
            dying = []
            for u in deps:
                reads[current[u]][u] -= 1
                if not reads[current[u]][u]:
                    dying.append(u)
            self._compute(p, v, dying)
            for w in self.graph.written(v):
                current[w] = p
            for u in dying:
                if u in self.instance:  # not if it was written over
                    self._release(u, p)
            for w in self.graph.written(v):
                if not reads[p][w]:
                    self._release(w, p)
        for w in sorted(self.instance):
            self._release(w, len(self.steps))
        self.found.sort(key=lambda one: (one.start, one.node, one.workspace))
        return Assignment(tuple(self.size), tuple(self.found), self.peak)

    def _reads(self) -> list[dict[int, int]]:
        """For each position, how often each value written there is read before it is written again or the order ends."""
        current: dict[int, int] = {}
        reads: list[dict[int, int]] = []
        for p, v in enumerate(self.steps):
            for u in dict.fromkeys(self.graph.nodes[v].deps):
                reads[current[u]][u] += 1
            reads.append(dict.fromkeys(self.graph.written(v), 0))
            current.update((w, p) for w in self.graph.written(v))
        for o in self.graph.outputs:
            reads[current[o]][o] += 1
        return reads

    def _compute(self, p: int, v: int, dying: Sequence[int]) -> None:
        """Buffers for what a step writes, and for its workspace, which goes back to the pool at once."""
        node = self.graph.nodes[v]
        heir = self._overwritten(v, dying)
        for w in self.graph.written(v):
            size = self.graph.nodes[w].charge
            inherits = w == v and heir is not None
            if inherits and heir is not None:
                buffer = self.instance[heir][1]
                self._release(heir, p, recycle=False)
            else:
                buffer = self._take(size)
            self.instance[w] = p, buffer, inherits
            self.live += size
        self.peak = max(self.peak, self.live + node.workspace)
        if node.workspace:
            buffer = self._take(node.workspace)
            self.found.append(Lifetime(v, node.workspace, p, p, buffer, workspace=True))
            self._give(buffer)

    def _overwritten(self, v: int, dying: Sequence[int]) -> int | None:
        """The smallest operand that the step may write over."""
        size = self.graph.nodes[v].charge
        if self.in_place is None or not size:
            return None
        able = [u for u in dying if self.graph.nodes[u].charge >= size and u in self.instance and self.in_place(v, u)]
        return min(able, key=lambda u: (self.graph.nodes[u].charge, u), default=None)

    def _release(self, u: int, p: int, *, recycle: bool = True) -> None:
        start, buffer, inherits = self.instance.pop(u)
        size = self.graph.nodes[u].charge
        self.live -= size
        if size:
            self.found.append(Lifetime(u, size, start, p, buffer, inherits))
            if recycle:
                self._give(buffer)

    def _take(self, size: int) -> int:
        """A recycled buffer of about this size, else a larger one, else the largest smaller one; else a new one."""
        if not size:
            return -1
        rank = size.bit_length()
        for pool in (*self.pools[rank:], *reversed(self.pools[:rank])) if self.share else ():
            if pool:
                buffer = pool.pop()
                self.size[buffer] = max(self.size[buffer], size)
                return buffer
        self.size.append(size)
        return len(self.size) - 1

    def _give(self, buffer: int) -> None:
        if buffer >= 0:
            self.pools[self.size[buffer].bit_length()].append(buffer)
