"""Makes an order fit a budget by moving reads onto recomputed values, the best exchange first.

Where eviction (`eviction`) walks the order once and must live with its choices, this looks at the whole memory profile: at
the position that exceeds the budget most, each idle value can be dropped between its previous and its next read and
recomputed just before the latter, together with those of its inputs that are gone and cannot be kept until then for free.
The exchange with the least extra cost per byte-step of excess removed is made, until nothing exceeds the budget. The total
excess falls with every exchange, so it ends; it may end stuck.

Starting from a schedule that fits, taking out some of its recomputations and repairing what then exceeds the budget is a
large-neighbourhood search (`improve`). No optimality is claimed for either.
"""

from __future__ import annotations

import math
import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from solvers.graph import Graph
from solvers.trim import trim

_TARGETS = 40  # positions tried, the worst first, before giving up


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Drop a value before the read at `position`, and run `steps` just before it."""

    score: float
    position: int
    steps: tuple[int, ...]


def repair(
    graph: Graph,
    order: Sequence[int],
    budget: int,
    *,
    rng: random.Random | None = None,
    noise: float = 0.0,
    cost_limit: float = math.inf,
    deadline: float = math.inf,
) -> list[int] | None:
    """Adds recomputations to a valid order until its peak is within the budget.

    Args:
        graph: the graph.
        order: a valid order of any peak.
        budget: bytes.
        rng: source of the noise.
        noise: standard deviation of a normal term added to the logarithm of each exchange's score.
        cost_limit: give up beyond this total cost.
        deadline: give up after this value of `time.monotonic()`.

    Returns:
        A valid order within the budget, or None if it got stuck or reached a limit.
    """
    profile = _Profile(graph, order, budget)
    cost = math.fsum(graph.nodes[v].cost for v in order)
    while profile.excess:
        if time.monotonic() > deadline:
            return None
        for target in sorted(profile.over, key=lambda p: -profile.live[p])[:_TARGETS]:
            changed = _exchanged(profile, profile.exchanges(target, rng, noise), cost_limit - cost)
            if changed is not None:
                break
        else:
            return None
        profile = changed
        cost = math.fsum(graph.nodes[v].cost for v in profile.order)
    return list(profile.order)


def _exchanged(profile: _Profile, exchanges: list[_Exchange], cost_limit: float) -> _Profile | None:
    """The profile after the best exchange that really lowers the excess."""
    graph, order = profile.graph, profile.order
    for exchange in sorted(exchanges, key=lambda e: (e.score, e.position, e.steps)):
        if math.fsum(graph.nodes[v].cost for v in exchange.steps) > cost_limit:
            continue
        p = exchange.position
        changed = _Profile(graph, (*order[:p], *exchange.steps, *order[p:]), profile.budget)
        if changed.excess < profile.excess:
            return changed
    return None


def improve(
    graph: Graph, order: Sequence[int], budget: int, *, rng: random.Random, rounds: int, deadline: float = math.inf
) -> list[int]:
    """Large-neighbourhood search: takes out some recomputations, repairs, and keeps the result when it is cheaper.

    Args:
        graph: the graph.
        order: a valid order within the budget.
        budget: bytes.
        rng: which recomputations are taken out, and noise.
        rounds: how many attempts are made.
        deadline: stop after this value of `time.monotonic()`.

    Returns:
        A valid order within the budget that costs no more.
    """
    best = list(order)
    best_cost = math.fsum(graph.nodes[v].cost for v in best)
    for _ in range(rounds):
        repeats = _repeats(best)
        if not repeats or time.monotonic() > deadline:
            break
        count = rng.randint(1, max(1, min(len(repeats), 12)))
        first = rng.randrange(len(repeats))
        near = repeats[first : first + count]
        taken = set(near if rng.random() < 0.5 else rng.sample(repeats, count))
        start = [v for p, v in enumerate(best) if p not in taken]
        found = repair(
            graph, start, budget, rng=rng, noise=rng.choice((0.0, 0.3, 0.8)), cost_limit=best_cost * 1.05, deadline=deadline
        )
        if found is None:
            continue
        found = trim(graph, found, budget)
        cost = math.fsum(graph.nodes[v].cost for v in found)
        if cost <= best_cost:
            best, best_cost = found, cost
    return best


def _repeats(order: Sequence[int]) -> list[int]:
    seen: set[int] = set()
    found: list[int] = []
    for p, v in enumerate(order):
        if v in seen:
            found.append(p)
        seen.add(v)
    return found


@dataclass
class _Profile:
    """Which instance lives when, and how far each position exceeds the budget."""

    graph: Graph
    order: Sequence[int]
    budget: int
    live: list[int] = field(init=False)
    births: list[list[int]] = field(init=False)
    reads: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        graph, n = self.graph, len(self.order)
        self.births = [[] for _ in graph.nodes]
        self.reads = [[] for _ in graph.nodes]
        starts = [0] * (n + 2)
        last: dict[int, int] = {}
        for p, v in enumerate(self.order):
            for u in dict.fromkeys(graph.nodes[v].deps):
                self.reads[u].append(p)
                last[u] = p
            for w in graph.written(v):
                if self.births[w]:
                    starts[last[w] + 1] -= graph.nodes[w].charge
                starts[p] += graph.nodes[w].charge
                self.births[w].append(p)
                last[w] = p
        for o in graph.outputs:
            self.reads[o].append(n)
            last[o] = n
        for w, p in last.items():
            starts[p + 1] -= graph.nodes[w].charge
        self.live, level = [], 0
        for p, v in enumerate(self.order):
            level += starts[p]
            self.live.append(level + graph.nodes[v].workspace)
        self.over = [p for p, bytes_ in enumerate(self.live) if bytes_ > self.budget]
        self.excess = sum(self.live[p] - self.budget for p in self.over)

    def exchanges(self, target: int, rng: random.Random | None, noise: float) -> list[_Exchange]:
        """Candidates among the values idle at a position."""
        found: list[_Exchange] = []
        for u, node in enumerate(self.graph.nodes):
            if not node.charge or not self.graph.may_recompute(u):
                continue
            reads = self.reads[u]
            i = bisect_left(reads, target)
            if i == len(reads) or reads[i] == target:
                continue
            after = reads[i]
            k = bisect_right(self.births[u], after - 1) - 1
            if k < 0 or self.births[u][k] >= target:
                continue
            before = max(self.births[u][k], reads[i - 1] if i else -1)
            exchange = self._exchange(u, before, after)
            if exchange is not None:
                score = exchange.score * (math.exp(rng.gauss(0.0, noise)) if rng is not None and noise else 1.0)
                found.append(_Exchange(score, exchange.position, exchange.steps))
        return found

    def _exchange(self, u: int, before: int, after: int) -> _Exchange | None:
        """What dropping u between two positions takes."""
        graph = self.graph
        relief = 0
        charge = graph.nodes[u].charge
        for p in self.over[bisect_right(self.over, before) : bisect_left(self.over, after)]:
            relief += min(charge, self.live[p] - self.budget)
        steps, kept = {graph.step_of(u)}, 0
        stack = [graph.step_of(u)]
        while stack:
            for d in graph.nodes[stack.pop()].deps:
                end = self._end(d, after)
                if end >= after or graph.step_of(d) in steps:
                    continue
                size = graph.nodes[d].charge
                if end >= 0 and max(self.live[end + 1 : after], default=0) + size <= self.budget:
                    kept += size
                elif graph.may_recompute(d):
                    steps.add(graph.step_of(d))
                    stack.append(graph.step_of(d))
                else:
                    return None
        run = sorted(steps)
        relief -= self._added(run, u, after, kept)
        if relief <= 0:
            return None
        return _Exchange(math.fsum(graph.nodes[s].cost for s in run) / relief, after, tuple(run))

    def _end(self, value: int, position: int) -> int:
        """Last read of the instance current before `position` (its birth if unread), at or after `position` if still live."""
        births = self.births[value]
        k = bisect_left(births, position) - 1
        if k < 0:
            return -1
        limit = births[k + 1] if k + 1 < len(births) else len(self.order) + 1
        i = bisect_left(self.reads[value], limit)
        return max(births[k], self.reads[value][i - 1] if i else -1)

    def _added(self, run: Sequence[int], u: int, after: int, kept: int) -> int:
        """Excess of the recomputation itself."""
        graph = self.graph
        level = kept - graph.nodes[u].charge
        if after < len(self.order):
            v = self.order[after]
            level += self.live[after] - graph.nodes[v].workspace - sum(graph.nodes[w].charge for w in graph.written(v))
        else:
            level += sum(graph.nodes[o].charge for o in graph.outputs)
        last: dict[int, int] = {}
        for s in run:
            for d in graph.nodes[s].deps:
                last[d] = s
        added, fresh = 0, set[int]()
        for s in run:
            node = graph.nodes[s]
            level += sum(graph.nodes[w].charge for w in graph.written(s))
            added += max(0, level + node.workspace - self.budget)
            fresh.update(graph.written(s))
            for d in set(fresh):
                if d != u and last.get(d, -1) <= s:
                    fresh.discard(d)
                    level -= graph.nodes[d].charge
        return added
