"""What may be kept of a block, and what that costs: the Pareto options that `compose` chooses from.

A *pattern* is what blocks of a group keep beyond their group's first pass, one set for each price of a byte (`priced_cut`), so
that a group of blocks of different kinds has one, too. An *option* is how one block is run from its forward to its late
steps, given a pattern: what it keeps in between, and the order of its late steps with what is recomputed among them. Each is
measured by simulating the block's own problem. Options that are worse than another in every respect are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from solvers.block_hash import Kind
from solvers.priced_cut import priced_cut
from solvers.schedule import Schedule
from solvers.simulate import simulate

_PRICES = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """How a block is run from its forward to its late steps.

    Attributes:
        keep: positions kept in between, beside what later blocks read.
        late: late steps and recomputations in order: position p as p, the k-th late step as -1 - k.
    """

    keep: frozenset[int]
    late: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """A plan measured, given what a pattern has kept already.

    Attributes:
        plan: the plan.
        kept: bytes live between forward and late steps, what later blocks read included.
        forward_peak: bytes during the forward steps.
        late_peak: bytes during the late steps.
        cost: of all steps run.
    """

    plan: Plan
    kept: int
    forward_peak: int
    late_peak: int
    cost: float

    def beats(self, other: Option) -> bool:
        """Whether it is at least as good in every respect."""
        return (
            self.kept <= other.kept
            and self.forward_peak <= other.forward_peak
            and self.late_peak <= other.late_peak
            and self.cost <= other.cost
        )


@dataclass(frozen=True, slots=True)
class Advance:
    """Running a block's forward steps once more, or first, only to keep a pattern and go on: cost and peak bytes."""

    cost: float
    peak: int


def prices_of(kinds: Iterable[Kind]) -> list[float]:
    """Prices of a byte at which choices differ, falling: a geometric grid over the cost per byte of all steps."""
    ratios = sorted(c / s for kind in kinds for c, s in zip(kind.costs, kind.sizes, strict=True) if c and s)
    if not ratios:
        return [0.0]
    low, high = ratios[0] / 4, ratios[-1] * 16
    return [low * (high / low) ** (k / (_PRICES - 1)) for k in range(_PRICES - 1, -1, -1)] + [0.0]


def pattern(kind: Kind, price: float) -> frozenset[int]:
    """What a block keeps at a price if it will have to hand its outputs on once more."""
    return _cut(kind, price, outs=True) | kind.kept


def plans(kind: Kind, prices: Sequence[float]) -> list[Plan]:
    """Candidates: what to keep by price, whether outputs have to be made again or not; recomputing at once or late."""
    sets = {kind.kept | _cut(kind, price, outs=outs) for price in prices for outs in (False, True)}
    sets.add(kind.kept)
    found: dict[Plan, None] = {}
    for keep in sorted(sets, key=sorted):
        for early in (False, True):
            found[Plan(keep, late_order(kind, keep, early=early))] = None
    return list(found)


def late_order(kind: Kind, keep: Collection[int], *, early: bool) -> tuple[int, ...]:
    """Late steps, and before each the steps that it lacks; `early` runs all of these before the first late step."""
    there = {*keep, *kind.outs, *kind.kept}
    order: list[int] = []
    if early:
        missing = closure(kind, {q for reads in kind.read_late for q in reads}, there)
        order.extend(missing)
        there.update(missing)
    for k, reads in enumerate(kind.read_late):
        missing = closure(kind, reads, there)
        order.extend(missing)
        there.update(missing)
        order.append(-1 - k)
    return tuple(order)


def closure(kind: Kind, wanted: Iterable[int], there: Collection[int]) -> list[int]:
    """Positions to run, in order, so that those wanted are there."""
    found: set[int] = set()
    todo = [q for q in wanted if q not in there]
    while todo:
        q = todo.pop()
        if q not in found:
            found.add(q)
            todo.extend(r for r in kind.reads[q] if r not in there)
    return sorted(found)


def measure(kind: Kind, plan: Plan, before: Collection[int] | None, *, last: bool) -> Option:
    """Simulates a plan.

    Args:
        kind: the block.
        plan: the plan.
        before: positions that are there when it begins; None in the first pass, when nothing is.
        last: whether nothing will read its outputs any more, so that they need not be made.
    """
    there: Collection[int] = before or ()
    keep = {*plan.keep, *there, *kind.kept}
    first = closure(kind, there, ())
    forward = closure(kind, _goals(kind, keep, first=before is None, last=last), there)
    late = completed(kind, plan.late, keep if last else keep.union(kind.outs), skip=set(there) - plan.keep)
    head = kind.forward[0] + len(first)
    order = [*range(kind.forward[0]), *(kind.forward[q] for q in (*first, *forward)), kind.turn, *kind.incoming]
    order += [kind.forward[q] if q >= 0 else kind.late[-1 - q] for q in late]
    graph = kind.last if last else kind.graph
    live = simulate(graph, Schedule.from_order(graph, order)).live
    turn = head + len(forward)
    return Option(
        plan=plan,
        kept=live[turn],
        forward_peak=max(live[head : turn + 1]),
        late_peak=max(live[turn + 1 :], default=live[turn]) + kind.resident,
        cost=sum(kind.costs[q] for q in forward) + sum(kind.costs[q] for q in late if q >= 0) + kind.late_cost,
    )


def completed(kind: Kind, late: Iterable[int], there: Collection[int], *, skip: Collection[int] = ()) -> list[int]:
    """A plan's late part without recomputations of `skip`, and with those of what is missing beside what is there."""
    now = set(there)
    order: list[int] = []
    for item in late:
        if item in skip:
            continue
        missing = closure(kind, kind.reads[item] if item >= 0 else kind.read_late[-1 - item], now)
        order.extend((*missing, item))
        now.update(missing)
        if item >= 0:
            now.add(item)
    return order


def advance(kind: Kind, before: Collection[int] | None, keep: Collection[int]) -> Advance:
    """Running a block on from what is there (None in the first pass), keeping a pattern."""
    there: Collection[int] = before or ()
    held = {*keep, *there, *kind.kept, *kind.outs}
    first = closure(kind, there, ())
    forward = closure(kind, _goals(kind, held, first=before is None, last=False), there)
    order = [*range(kind.forward[0]), *(kind.forward[q] for q in (*first, *forward)), kind.turn, *kind.incoming]
    for reads, v in zip(kind.read_late, kind.late, strict=True):  # what is kept stays live until these
        order += [*(kind.forward[q] for q in closure(kind, reads, held)), v]
    live = simulate(kind.graph, Schedule.from_order(kind.graph, order)).live
    head = kind.forward[0] + len(first)
    return Advance(sum(kind.costs[q] for q in forward), max(live[head : head + len(forward)], default=0))


def pattern_bytes(kind: Kind, keep: Collection[int]) -> int:
    """Bytes of a pattern, beside what later blocks read."""
    return sum(kind.sizes[q] for q in keep if q not in kind.outs)


def undominated(options: Iterable[Option]) -> list[Option]:
    """Those that no other one beats, cheapest first."""
    found: list[Option] = []
    for option in sorted(options, key=lambda o: (o.cost, o.kept, o.late_peak, o.forward_peak)):
        if not any(other.beats(option) for other in found):
            found.append(option)
    return found


def _goals(kind: Kind, keep: Collection[int], *, first: bool, last: bool) -> set[int]:
    """What the forward steps are run for."""
    return {*keep, *(() if last else kind.outs), *(kind.feeds if first else ())}


def _cut(kind: Kind, price: float, *, outs: bool) -> frozenset[int]:
    there = kind.kept if outs else kind.kept.union(kind.outs)
    needed = {q for reads in kind.read_late for q in reads}
    if outs:
        needed.update(kind.outs)
    reads = [[r for r in rs if r not in there] for rs in kind.reads]
    sizes = [1 << 50 if q in kind.outs else size for q, size in enumerate(kind.sizes)]
    return priced_cut(kind.costs, sizes, reads, needed - there, price).kept - frozenset(kind.outs)
