"""Optimal persistent schedules of heterogeneous training chains, by dynamic programming.

Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains" (2019; the rotor library):
Theorem 1's recurrence, whose forward operations keep nothing, the input only, or all that backward needs. With stages 1..L,
stage s turning a(s-1) into a(s), let C(i, j, m, held) be the least cost of the backward parts j..i+1, when a(i) is live, what
the backward parts above j left behind is live, and m bytes are available beside a(i):

    C(j-1, j) = cost of [full forward of j, unless held] + backward of j
    C(i, j)   = min over i < k < j of
        advance i+1..k,       C(k, j, m - a(k), held),             C(i, k, m, not held)     keep the input only
        advance i+1..k-1, full k, C(k, j, m - a(k) - saved(k), held),  C(i, k, m, held)      keep all internals
    C(i, j)   = backward of j, C(i, j-1, m, not held)       if held, and it does not read a(j-1)

`held` says that what stage j's backward part reads of stage j is live; its bytes are part of m. Two refinements over the
paper follow from our memory rule: where backward reads no internals but a(k), keeping the input is keeping all; and a(i) may
go before the last backward part runs, if that does not read it.

Optimal among persistent schedules: a value kept beyond the forward sweep that computed it stays until the recursion above is
done with the segment it begins, or with the backward part that reads it. On uniform chains (`training_chain`) that is optimal
among all schedules (Griewank & Walther 2000). On heterogeneous ones it nearly always is, and not always: dropping a
checkpoint early, and rebuilding it later, can be cheaper (the same paper, section 4) and is not searched: on random uneven
chains of up to five layers brute force finds something cheaper for 13 of 794 budgets (`tests/test_chain.py`). Nor are outputs
of the forward pass, such as a loss, dropped and computed again. First computations keep the given order, except that values
that only backward reads are first computed when it needs them.

Memory is exact if the budget is at most `slots` times the greatest common divisor of the sizes kept; otherwise kept sizes are
rounded up to a multiple of budget / slots, so that the budget is never exceeded, only not quite used. Time L^3 x slots.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from solvers.bounds import infeasible
from solvers.chain_view import Stage, peak_between, view_chain
from solvers.errors import UnsupportedGraph
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.orders import cost_of, peak_of
from solvers.solution import Options, Solution, Status, make_solution

NAME = "chain"
SCOPE = "persistent schedules of the chain"
_WORK = 12_000_000
_FEWEST_SLOTS, _MOST_SLOTS = 50, 1000
_MOST_STAGES = 400

_Key = tuple[int, int, bool, bool]  # i, j, held, whether a(i) stays after


@dataclass(frozen=True, slots=True)
class _Choice:
    """How a segment is run: `split` is k, or 0 for running the backward part of j now."""

    split: int
    full: bool = False
    held: bool = False
    stays: bool = False


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The cheapest persistent schedule of a training chain.

    A table half filled says nothing: stopped by the time limit or an interrupt, this returns what the cheap strategies find.

    Raises:
        UnsupportedGraph: if the graph is no chain, or one of more than 400 stages.
        InfeasibleBudget: if no persistent schedule fits, or none was found in time.
        KeyboardInterrupt: if it came before any schedule was known.
    """
    start = time.monotonic()
    stages = view_chain(graph)
    peak = peak_of(graph, graph.steps)
    if budget is None or budget >= peak:
        return make_solution(graph, graph.steps, solver=NAME, budget=budget, seconds=time.monotonic() - start)
    if len(stages) > _MOST_STAGES:
        raise UnsupportedGraph(
            f'the chain has {len(stages):,} stages, and its table would be too large beyond {_MOST_STAGES}: use "auto", '
            '"revolve" if the chain is uniform, or join stages'
        )
    try:
        return _solve(graph, budget, stages, peak, start, start + options.time_limit)
    except TimeoutError:
        status = Status.TIME_LIMIT
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    return stopped(graph, budget, solver=NAME, status=status, seconds=time.monotonic() - start)


def _solve(graph: Graph, budget: int, stages: Sequence[Stage], peak: int, start: float, deadline: float) -> Solution:
    table = ChainTable(graph, stages, budget, deadline=deadline)
    order, exact = table.order(), table.unit_exact
    if order is None:
        order, exact = ChainTable(graph, stages, peak, deadline=deadline).leanest_order(), False
        lowest = peak if order is None else min(peak, peak_of(graph, order))
        if order is None or lowest > budget:
            raise infeasible(graph, budget, known_peaks=[lowest])
    return make_solution(
        graph,
        order,
        solver=NAME,
        budget=budget,
        seconds=time.monotonic() - start,
        status=Status.OPTIMAL if exact else Status.FEASIBLE,
        lower_bound=cost_of(graph, order) if exact else None,
        scope=SCOPE,
        notes={"memory": table.rounding},
    )


def chain_order(graph: Graph, budget: int) -> list[int] | None:
    """The order of the cheapest persistent schedule within a budget in bytes; None if there is none.

    Raises:
        UnsupportedGraph: if the graph is no chain.
    """
    return ChainTable(graph, view_chain(graph), budget).order()


class ChainTable:
    """The dynamic program for one budget.

    Raises:
        TimeoutError: if `deadline`, a value of `time.monotonic()`, passes before the table is full.

    Attributes:
        unit: bytes per slot of memory.
        unit_exact: whether nothing was rounded.
        rounding: the loss from rounding, in words.
    """

    def __init__(self, graph: Graph, stages: Sequence[Stage], budget: int, *, deadline: float = math.inf):
        self.graph, self.stages, self.budget = graph, stages, budget
        n = len(stages)
        self._bytes = [0, *(self._charge(stage.outputs) for stage in stages)]  # of a(s)
        self._all = [0, *(self._charge(stage.outputs | stage.saved) for stage in stages)]
        slots = max(_FEWEST_SLOTS, min(_MOST_SLOTS, 6 * _WORK // (8 * n**3)))
        common = math.gcd(*self._bytes, *self._all) or 1
        self.unit_exact = budget // common <= slots
        self.unit = common if self.unit_exact else -(-budget // slots)
        self.slots = budget // self.unit
        lost = n * (self.unit - 1)
        self.rounding = (
            "exact"
            if self.unit_exact
            else (f"in units of {self.unit:,} bytes: kept sizes rounded up, which wastes at most {lost:,} bytes")
        )
        self._advance_cost = [0.0, *(cost_of(self.graph, stage.advance) for stage in stages)]
        self._full_cost = [0.0, *(cost_of(self.graph, stage.full) for stage in stages)]
        # Peaks of running a stage, with its input counted elsewhere (True) or freed after its last read.
        self._advance_peak = {(k, begins): self._peak(k, False, begins) for k in range(n) for begins in (False, True)}
        self._full_peak = {(k, begins): self._peak(k, True, begins) for k in range(n) for begins in (False, True)}
        self._cost_of: dict[_Key, list[float]] = {}
        self._choice: dict[_Key, list[_Choice | None]] = {}
        for width in range(1, n + 1):
            for i in range(n - width + 1):
                if time.monotonic() > deadline:
                    raise TimeoutError
                self._fill(i, i + width)

    def order(self) -> list[int] | None:
        """The best order within the whole budget."""
        return self._emit(self.slots)

    def leanest_order(self) -> list[int] | None:
        """The order for the smallest number of slots that suffices."""
        costs = self._cost_of[0, len(self.stages), False, True]
        least = next((m for m, cost in enumerate(costs) if cost < math.inf), None)
        return None if least is None else self._emit(least)

    def _charge(self, values: frozenset[int]) -> int:
        return sum(self.graph.nodes[u].charge for u in values)

    def _peak(self, k: int, full: bool, begins: bool) -> int:
        stage = self.stages[k]
        steps = _union(stage.advance, stage.full) if full else stage.advance
        beside = stage.inputs if begins else frozenset[int]()
        keep = beside | stage.outputs | (stage.saved if full else frozenset())
        return peak_between(self.graph, steps, live=stage.inputs, keep=keep, ignore=beside)

    def _slots_for(self, needed: int) -> int:
        """Fewest slots m that hold this; m slots are m * unit bytes and the remainder of the budget."""
        return max(0, -(-(needed - self.budget % self.unit) // self.unit))

    def _fill(self, i: int, j: int) -> None:
        for held in (False, True) if j < len(self.stages) else (False,):
            for stays in (False, True):
                key = i, j, held, stays
                self._cost_of[key] = [math.inf] * (self.slots + 1)
                self._choice[key] = [None] * (self.slots + 1)
                if j - i == 1:
                    self._fill_single(key)
                else:
                    self._fill_backward_now(key)
                    self._fill_splits(key)

    def _offer(self, key: _Key, start: int, costs: Sequence[float], choice: _Choice) -> None:
        best, choices = self._cost_of[key], self._choice[key]
        for m, cost in enumerate(costs, start):
            if cost < best[m]:
                best[m], choices[m] = cost, choice

    def _fill_single(self, key: _Key) -> None:
        _, j, held, stays = key
        stage = self.stages[j - 1]
        if not held and j < len(self.stages) and stage.once and set(stage.full) & set(stage.advance):
            return
        steps = stage.backward if held else (*stage.full, *stage.backward)
        live = stage.inputs | stage.resident | (stage.saved if held else frozenset())
        ignore = stage.inputs if stays else frozenset[int]()
        kept = stage.leaves | (stage.inputs if stays else frozenset())
        needed = peak_between(self.graph, steps, live=live, keep=kept, ignore=ignore)
        start = self._slots_for(needed - (0 if stays else self._charge(stage.inputs)))
        if start > self.slots:
            return
        self._offer(key, start, [cost_of(self.graph, steps)] * (self.slots + 1 - start), _Choice(0))

    def _fill_backward_now(self, key: _Key) -> None:
        i, j, held, stays = key
        stage = self.stages[j - 1]
        reads_input = any(u in stage.inputs for b in stage.backward for u in self.graph.nodes[b].deps)
        if reads_input or not (held or (not stage.saved and j < len(self.stages))):
            return
        needed = peak_between(self.graph, stage.backward, live=stage.saved | stage.resident, keep=stage.leaves)
        start, cost = self._slots_for(needed), cost_of(self.graph, stage.backward)
        rest = self._cost_of[i, j - 1, False, stays][start:]
        self._offer(key, start, [cost + c for c in rest], _Choice(0))

    def _fill_splits(self, key: _Key) -> None:
        i, j, held, _ = key
        top = self.stages[j - 1]
        beside = self._charge(top.resident) + (self._charge(top.saved) if held else 0)
        swept, cost = 0, 0.0
        for k in range(i + 1, j):
            stage = self.stages[k - 1]
            if stage.once and j < len(self.stages):
                return  # a second pass may not go over this stage
            advance = self._advance_peak[k - 1, k == i + 1]
            own = stage.saved <= stage.outputs
            held_later = (False, True) if own else (False,)
            for after in held_later:
                needed = max(swept, advance) + beside
                choice = _Choice(k, False, after, after and bool(stage.saved))
                self._split(key, choice, needed, self._bytes[k], cost + self._advance_cost[k])
            if not own:
                steps = _union(stage.advance, stage.full)
                full = self._full_peak[k - 1, k == i + 1]
                choice = _Choice(k, True, True, bool(stage.outputs & stage.saved))
                self._split(key, choice, max(swept, full) + beside, self._all[k], cost + cost_of(self.graph, steps))
            swept, cost = max(swept, advance), cost + self._advance_cost[k]

    def _split(self, key: _Key, choice: _Choice, needed: int, kept: int, cost: float) -> None:
        i, j, held, stays = key
        k, step = choice.split, -(-kept // self.unit)
        start = max(step, self._slots_for(needed))
        if start > self.slots:
            return
        right = self._cost_of[k, j, held, choice.stays][start - step : self.slots + 1 - step]
        left = self._cost_of[i, k, choice.held, stays][start:]
        self._offer(key, start, [cost + a + b for a, b in zip(right, left, strict=True)], choice)

    def _emit(self, slots: int) -> list[int] | None:
        order: list[int] = []
        stack: list[tuple[_Key, int]] = [((0, len(self.stages), False, True), slots)]
        while stack:
            key, m = stack.pop()
            choice = self._choice[key][m]
            if choice is None:
                return None
            i, j, held, stays = key
            k = choice.split
            if k:
                for s in range(i, k - 1):
                    order.extend(self.stages[s].advance)
                stage = self.stages[k - 1]
                order.extend(_union(stage.advance, stage.full) if choice.full else stage.advance)
                kept = self._all[k] if choice.full else self._bytes[k]
                stack.append(((i, k, choice.held, stays), m))
                stack.append(((k, j, held, choice.stays), m + -kept // self.unit))
                continue
            stage = self.stages[j - 1]
            if j - i == 1:
                order.extend(() if held else stage.full)
            else:
                stack.append(((i, j - 1, False, stays), m))
            order.extend(stage.backward)
        return order


def _union(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return sorted({*a, *b})
