"""One search among segments and kept values: greedy starts, then simulated annealing.

Greedy: starting from everything kept, values are dropped one after the other, always the one that takes most bytes beyond the
budget away for its cost, for several sets of cuts. Gains are evaluated lazily, as in Minoux, "Accelerated greedy algorithms for
maximizing submodular set functions" (1978); here they are not submodular, so that is a heuristic. The best results are then
improved by simulated annealing (Kirkpatrick et al. 1983), over cuts and kept values together. Every plan is judged exactly.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from solvers.segment_cost import Judged, SegmentCost
from solvers.segment_forms import Candidate, Cuts, even_segments, trees
from solvers.segments import Forward, flat
from solvers.solution import Options

_RUN = 750  # moves in a run of annealing, for 64 steps that may be replayed; grows with the root of their number
_STARTS = 1100  # plans judged for starts, likewise
_PATIENCE, _GAIN = 8, 1e-3
_HOT, _COLD = 3e-3, 3e-4  # temperatures, as parts of the cost of keeping everything
_PRICE = 100  # of bytes beyond the budget, over what the greedy start paid for each
_PEAK_COST = 0.05  # cost against peak when the smallest peak is looked for


class Space:
    """All plans of one forward pass, with those judged so far remembered.

    Args:
        base: the forward pass, with what is kept in any case.
        keepable: nodes that may be kept inside a segment.
        settle: from the forward steps to where each cut 0..len between them would really be made.

    Attributes:
        cuts: where it may be cut.
        cost: judges plans.
        choices: the steps of which a plan decides whether they are kept.
        judged: all candidates so far.
        solved: the best candidates for the budgets so far.
    """

    def __init__(self, base: Forward, keepable: frozenset[int], settle: Callable[[Sequence[int]], Sequence[int]] | None = None):
        graph = base.graph
        self.base = base
        self.cuts = Cuts.of(base, None if settle is None else settle(base.steps))
        self.cost = SegmentCost(base)
        self.choices = [v for v in self.cost.steps if v in keepable and any(graph.nodes[w].charge for w in graph.written(v))]
        self.judged: dict[Candidate, Judged] = {}
        self.solved: list[Candidate] = []

    def judge(self, candidate: Candidate) -> Judged:
        """Cost and peak of a candidate."""
        if candidate not in self.judged:
            self.judged[candidate] = self.cost.judge(candidate.keep, candidate.tree or flat(self.base, candidate.cuts))
        return self.judged[candidate]


class Run:
    """One search: for the least cost within a budget, or for the smallest peak.

    Attributes:
        best: the best candidate so far that fits.
    """

    def __init__(self, space: Space, budget: int | None, options: Options, deadline: float):
        self.space, self.budget, self.deadline = space, budget, deadline
        self.chance = random.Random(options.seed)
        self.best: Candidate | None = None
        self.scale = space.base.graph.keep_all_cost or 1.0
        self.everything = Candidate((), frozenset(space.choices))
        self.top = space.judge(self.everything).peak or 1
        self.size = math.sqrt(max(1, len(space.cost.steps)) / 64)
        self.price = 0.0

    def search(self, runs: int) -> None:
        """Starts, then runs of annealing from the best of them in turn."""
        starts = self._starts()
        self.price = _PRICE * self._paid(starts[0])
        best, fruitless = math.inf, 0
        for k in range(runs):
            if fruitless == _PATIENCE or time.perf_counter() > self.deadline:
                return
            fresh = k < 2 or k % 2 or self.best is None
            self._anneal(starts[k % min(2, len(starts))] if fresh or self.best is None else self.best)
            now = math.inf if self.best is None else self._worth(self.best)
            fruitless = fruitless + 1 if now > best - _GAIN else 0
            best = min(best, now)

    def try_out(self, candidate: Candidate) -> Judged:
        """Judges a candidate and remembers it if it is the best that fits."""
        judged = self.space.judge(candidate)
        fits = self.budget is None or judged.peak <= self.budget
        if fits and (self.best is None or self._key(candidate) < self._key(self.best)):
            self.best = candidate
        return judged

    def _key(self, candidate: Candidate) -> tuple[float, float]:
        judged = self.space.judge(candidate)
        return (judged.peak, judged.cost) if self.budget is None else (judged.cost, judged.peak)

    def _worth(self, candidate: Candidate) -> float:
        """What annealing minimises, as a part of the cost of keeping everything."""
        judged = self.space.judge(candidate)
        if self.budget is None:
            return judged.peak / self.top + _PEAK_COST * judged.cost / self.scale
        return judged.cost / self.scale + self.price * judged.excess(self.budget)

    def _starts(self) -> list[Candidate]:
        """Candidates to anneal from, the best first."""
        flat_ones, found = list(even_segments(self.space.cuts)), list[Candidate]()
        if self.budget is None:
            found = [*flat_ones, *trees(self.space.cuts)]
            for candidate in found:
                self.try_out(candidate)
            return sorted(found, key=self._key)
        judged = len(self.space.judged)
        for candidate in [*(replace(c, keep=self.everything.keep) for c in self.space.solved), *flat_ones]:
            if len(self.space.judged) - judged <= _STARTS * self.size and time.perf_counter() < self.deadline:
                found.append(self._greedy(candidate))
        if self.best is None:
            nested = [c for c in trees(self.space.cuts) if self.space.judge(c).peak <= self.budget]
            found += [self._greedy(c) for c in nested if time.perf_counter() < self.deadline]
        found += self.space.solved
        budget = self.budget
        return sorted(found, key=lambda c: (self.space.judge(c).excess(budget), self.space.judge(c).cost))

    def _greedy(self, candidate: Candidate) -> Candidate:
        """Drops values from everything kept until the budget is met or nothing helps."""
        budget = self.budget or 0
        current = replace(candidate, keep=self.everything.keep)
        judged = self.try_out(current)

        def gain(v: int) -> float:
            other = self.space.judge(replace(current, keep=current.keep - {v}))
            dearer = max(0.0, other.cost - judged.cost) + 1e-6 * self.scale
            return (judged.excess(budget) - other.excess(budget)) / dearer

        heap = [(-gain(v), v) for v in sorted(current.keep)]
        heapq.heapify(heap)
        while heap and judged.excess(budget):
            _, v = heapq.heappop(heap)
            now = gain(v)
            if heap and -now > heap[0][0] and not math.isclose(-now, heap[0][0]):
                heapq.heappush(heap, (-now, v))
            elif now <= 0:
                break
            else:
                current = replace(current, keep=current.keep - {v})
                judged = self.try_out(current)
        return current

    def _paid(self, start: Candidate) -> float:
        """What a start pays for each byte beyond the budget that it takes away, as a part of the cost of keeping everything."""
        if self.budget is None:
            return 0.0
        before, after = self.space.judge(self.everything), self.space.judge(start)
        saved = before.excess(self.budget) - after.excess(self.budget)
        return max(after.cost - before.cost, 1e-3 * self.scale) / self.scale / max(1, saved)

    def _anneal(self, start: Candidate) -> None:
        current, worth = start, self._worth(start)
        moves = round(_RUN * self.size)
        for k in range(moves):
            if k % 64 == 0 and time.perf_counter() > self.deadline:
                return
            candidate = self._move(current)
            self.try_out(candidate)
            other = self._worth(candidate)
            heat = _HOT * (_COLD / _HOT) ** (k / moves)
            if other <= worth or self.chance.random() < math.exp((worth - other) / heat):
                current, worth = candidate, other

    def _move(self, current: Candidate) -> Candidate:
        """A neighbour: a cut added, removed or shifted, with or without what crosses it; a value kept, dropped or exchanged."""
        chance, points, options = self.chance, self.space.cuts.points, self.space.choices
        cuts, keep = set(current.cuts), set(current.keep)
        if current.tree is None and points and (not options or chance.random() < 0.5):
            kind = chance.randrange(4)
            if kind and cuts:
                cut = chance.choice(sorted(cuts))
                cuts.discard(cut)
                if chance.random() < 0.5:
                    keep -= self.space.cost.crossers(cut)
                if kind == 3:
                    place = bisect_left(points, cut) + chance.choice((-2, -1, 1, 2))
                    cuts.add(points[min(max(place, 0), len(points) - 1)])
            if kind < 2:
                cuts.add(chance.choice(points))
        elif options:
            kind = chance.randrange(3)
            if kind and keep:
                keep.discard(chance.choice(sorted(keep)))
            if kind != 1:
                keep.add(chance.choice(options))
        return Candidate(tuple(sorted(cuts)), frozenset(keep), current.tree)
