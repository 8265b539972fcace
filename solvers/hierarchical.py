"""Plans for deep networks: blocks solved once per structure, and a dynamic program over the sequence of them.

1. The forward pass is cut where few bytes cross (`narrow_cuts`), and blocks of equal structure are recognised (`block_hash`).
2. Each distinct block gets a Pareto set of options: what to keep of it, at what cost and peaks (`block_options`,
   `block_exact`).
3. `compose` chooses one option per block, and groups of blocks to run again from a checkpoint, recursively.
4. The composition becomes an order of the whole graph (`unroll`), which is simulated. The program's idea of memory is close,
   not exact, so the largest budget for it whose order fits the real one is searched.
5. What still recomputes needlessly is trimmed, and `intervals` polishes across the cuts: the whole of a graph of up to some
   hundred steps, windows of a larger one.

Beaumont et al. ("Optimal checkpointing for heterogeneous chains", 2019) and Rockmate (Zhao et al., ICML 2023) compose blocks
likewise. Here groups may also keep a pattern of values beside their checkpoint, and ranges of equal structure share tables,
so that time grows with the number of distinct ranges. Not optimal in general; `turn_bound` says how far off a plan may be,
among schedules in any order.

Where a graph has no backward pass to come back through blocks, or nothing composed fits, greedy eviction gives the start; on
a graph of some hundred steps it is tried in any case.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from solvers import bounds
from solvers.block_sequence import BlockSequence
from solvers.compose import Composer
from solvers.errors import UnsupportedGraph
from solvers.evicted import by_each_rule, on_leaner_order
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.narrow_cuts import Blocks
from solvers.orders import cost_of, peak_of
from solvers.part import run_here
from solvers.repair import improve, repair
from solvers.solution import Options, Progress, Solution, Status, make_solution
from solvers.trim import trim
from solvers.turn_bound import turn_bound
from solvers.unroll import unroll
from solvers.windows import search_windows

NAME = "hierarchical"
_HEADROOM = 1.25  # budgets looked at beyond the real one, since the program may think an order larger than it is
_TRIES = 8  # orders made for one set of tables
_SMALL = 1500  # steps up to which orders that do not fit are repaired, and exchanges are looked for everywhere
_EXACT = 600  # steps up to which all of it is one model
_BOUND_SHARE, _REPAIR_SHARE, _GREEDY_SHARE, _IMPROVE_SHARE = 0.25, 0.05, 0.5, 0.3  # of the time left
_EVICTION_SHARE = 0.1
_TELL_SECONDS = 1.0
_SETTLED = 1e-6  # of the keep-all cost; a gap that is not worth polishing
_MOST_ROUNDS, _ROUNDS_PER_WORK = 2000, 20  # of exchanges or windows, without and with a work limit
_NO_GAIN = 1 + 1e-5  # by this factor at least more memory must be cheaper to be tried


class _OutOfTime(Exception):
    """The time limit is over in the midst of the tables."""


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The cheapest schedule that is found within the budget, and a lower bound for any order.

    Raises:
        InfeasibleBudget: if nothing fits, or nothing that fits was found; its `proven` says which.
        KeyboardInterrupt: if it came before any schedule was known.
    """
    return _solve(graph, budget, options, polish=True)


def compose(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The same from the blocks alone, without greedy eviction, polishing and a bound: a start for others.

    Raises:
        InfeasibleBudget: if nothing fits, or nothing that fits was found.
        KeyboardInterrupt: if it came before any schedule was known.
    """
    return _solve(graph, budget, options, polish=False)


def _solve(graph: Graph, budget: int | None, options: Options, *, polish: bool) -> Solution:
    began = time.monotonic()
    if budget is None or peak_of(graph, graph.steps) <= budget:
        return make_solution(graph, graph.steps, solver=NAME, budget=budget, seconds=time.monotonic() - began)
    if budget < bounds.minimum_budget(graph).bytes:
        raise bounds.infeasible(graph, budget, known_peaks=[peak_of(graph, graph.steps)])
    search = _Search(graph, budget, options, began, polish)
    status = Status.FEASIBLE
    try:
        search.run()
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    if status is Status.FEASIBLE and search.left <= 0:
        status = Status.TIME_LIMIT
    return search.solution(status)


class _Search:
    """One run."""

    def __init__(self, graph: Graph, budget: int, options: Options, began: float, polish: bool):
        self.graph, self.budget, self.options, self.began, self.polish = graph, budget, options, began, polish
        self.best: Sequence[int] | None = None
        self.cost, self.source = math.inf, ""
        self.told = began
        self.bound = graph.keep_all_cost
        self.peaks: list[int] = []
        self.facts: dict[str, str] = {}

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return self.options.time_limit - (time.monotonic() - self.began)

    @property
    def open(self) -> bool:
        """Whether there is anything left to gain."""
        return self.cost - self.bound > _SETTLED * self.graph.keep_all_cost

    @property
    def small(self) -> bool:
        """Whether the graph is small enough for work that grows faster than it."""
        return len(self.graph.steps) <= _SMALL

    def run(self) -> None:
        """Bound, composition, and what makes the best of it."""
        for k, order in enumerate(self.options.starts):
            self.offer(order, f"start {k}")
        if self.polish:
            self.bound = turn_bound(self.graph, self.budget, deadline=time.monotonic() + _BOUND_SHARE * self.left)
            self.report()
        try:
            for order, name in self._composed():
                self.offer(order, name)
                if self.left <= 0 and self.best is not None:  # with the tables there, a few more tries cost little
                    break
        except UnsupportedGraph:
            self.facts["blocks"] = "none: there is no backward pass"
        except _OutOfTime:
            self.facts["blocks"] = "the time limit was over before they were composed"
        if not self.polish:
            return
        if self.left > 0 and self.open and len(self.graph.steps) <= _EXACT:
            self._from_eviction()
        if self.left > 0 and self.best is None:
            self._from_greedy()
        if self.left > 0 and self.open:
            self._polish()

    @property
    def last_peak(self) -> int:
        """Peak of the order offered last, before any repair."""
        return self.peaks[-1]

    def offer(self, order: Sequence[int], source: str) -> None:
        """Takes an order if it fits (repaired, on a small graph) and is cheaper than the best."""
        self.peaks.append(peak_of(self.graph, order))
        if self.last_peak > self.budget:
            deadline = time.monotonic() + _REPAIR_SHARE * max(0.0, self.left)
            repaired = repair(self.graph, order, self.budget, cost_limit=self.cost, deadline=deadline) if self.small else None
            if repaired is None:
                return
            order, source = repaired, f"{source}, repaired"
        order = trim(self.graph, order, self.budget)
        cost = cost_of(self.graph, order)
        if cost < self.cost:
            self.best, self.cost, self.source = order, cost, source
            self.report()

    def report(self) -> None:
        """Tells the caller where the search is."""
        self.told = time.monotonic()
        if self.options.progress is not None:
            seconds = time.monotonic() - self.began
            self.options.progress(Progress(NAME, seconds, self.cost, min(self.bound, self.cost)))

    def _composed(self) -> Iterator[tuple[list[int], str]]:
        """Orders from the dynamic program, for the largest memory whose order fits."""
        sequence = BlockSequence(Blocks.of(self.graph, self.budget), exact=self.polish)
        self.facts["blocks"] = f"{len(sequence)} of {len(sequence.kinds)} kinds, {len(sequence.patterns) - 1} patterns"
        composer = Composer(sequence, int(_HEADROOM * self.budget), check=self._check_time)
        self.facts["tables"] = f"{composer.count} of {composer.slots + 1} entries"
        fits, exceeds = None, composer.slots + 1
        units = max(self.budget // composer.unit, composer.least)
        for _ in range(_TRIES):
            if units > composer.slots:
                return
            yield unroll(sequence, composer.best(units)), f"blocks composed for {units * composer.unit:,} bytes"
            if self.last_peak <= self.budget:
                fits = units
            else:
                exceeds = units
            if fits is None:
                units = max(composer.least, min(exceeds - 1, units * self.budget // self.last_peak))
            elif exceeds > composer.slots:
                units = min(composer.slots, units + max(1, units // 40))
            else:
                units = (fits + exceeds) // 2
            if units in (fits, exceeds) or (fits is not None and composer.cost(fits) <= composer.cost(exceeds - 1) * _NO_GAIN):
                return

    def _check_time(self) -> None:
        self._keep_telling()
        if self.left <= 0:
            raise _OutOfTime

    def _keep_telling(self) -> None:
        """Reports from long work, so that the caller sees that it goes on, and may interrupt it."""
        if time.monotonic() - self.told > _TELL_SECONDS:
            self.report()

    def _settled(self) -> bool:
        self._keep_telling()
        return not self.open

    def _from_eviction(self) -> None:
        """Greedy eviction by each rule, which where little fits may beat blocks that do not look alike."""
        deadline = time.monotonic() + _EVICTION_SHARE * self.left
        for order, source in by_each_rule(self.graph, self.budget, deadline):
            self.offer(order, source)

    def _from_greedy(self) -> None:
        """Greedy eviction, for graphs that do not come in blocks, or too tight budgets for these."""
        if not self.small:
            return
        deadline = time.monotonic() + _GREEDY_SHARE * self.left
        found = on_leaner_order(self.graph, self.budget, self.options.seed, deadline)
        if found is not None:
            self.offer(*found)
            return
        share = replace(self.options, time_limit=_GREEDY_SHARE * self.left, starts=())
        self._run_part("greedy", share)

    def _polish(self) -> None:
        """Exchanges of recomputations, then an exact model across the cuts, of the whole or of windows."""
        if self.best is None:
            return
        work, rng = self.options.work_limit, random.Random(self.options.seed)
        rounds = _MOST_ROUNDS if work is None else math.ceil(_ROUNDS_PER_WORK * work)
        if self.small:
            deadline = time.monotonic() + _IMPROVE_SHARE * self.left
            self.offer(improve(self.graph, self.best, self.budget, rng=rng, rounds=rounds, deadline=deadline), self.source)
        if self.left <= 0 or not self.open:
            return
        if len(self.graph.steps) <= _EXACT:
            self._run_part("intervals", replace(self.options, time_limit=self.left, starts=(self.best,)))
            return
        source, deadline = self.source, time.monotonic() + self.left
        found = search_windows(
            self.graph, self.best, self.budget, rng=rng, rounds=rounds, deadline=deadline, done=self._settled
        )
        for order in found:
            self.offer(order, f"{source}, polished")

    def _run_part(self, name: str, options: Options) -> None:
        answer = run_here(name, self.graph, self.budget, replace(options, progress=lambda _: self._keep_telling()))
        self.facts[f"part {name}"] = answer.status
        if answer.order is not None:
            self.offer(answer.order, name if self.best is None else f"{self.source}, polished")
        if answer.status == Status.INTERRUPTED.value:
            raise KeyboardInterrupt

    def solution(self, status: Status) -> Solution:
        """The best schedule.

        Raises:
            InfeasibleBudget: if there is none.
        """
        seconds = time.monotonic() - self.began
        if self.best is None:
            return stopped(self.graph, self.budget, solver=NAME, status=status, seconds=seconds, known_peaks=self.peaks)
        return make_solution(
            self.graph,
            self.best,
            solver=NAME,
            budget=self.budget,
            seconds=seconds,
            status=status,
            lower_bound=self.bound,
            notes={"schedule": self.source, **self.facts},
        )
