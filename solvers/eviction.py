"""Runs a given order under a budget, dropping values when a step does not fit and recomputing them when they are read.

The engine behind `greedy`. It follows Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021, sections 2 and 4):
when a step does not fit, drop the live value with the smallest cost / (bytes x staleness), where cost includes that of
recomputing the evicted neighbourhood. Two neighbourhoods are offered: the paper's approximation by a union-find over evicted
values (its h_DTR-eq), and the exact set of evicted ancestors. Unlike the paper's run-time system this one knows the
future, so a rule may use the distance to the next use in place of staleness, and values that nothing will need cost
nothing to drop.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Final

from solvers.components import Components
from solvers.graph import Graph

NEVER: Final = 1 << 62


class Neighbourhood(Enum):
    """Which evicted values are charged to an eviction beside the value itself."""

    NONE = "none"
    UNION = "evicted component by union-find"
    ANCESTORS = "evicted ancestors"


@dataclass(frozen=True, slots=True)
class Rule:
    """Which value goes first: the smallest cost**a / (bytes**b * distance**c).

    Attributes:
        name: for reports.
        cost: exponent a.
        size: exponent b.
        distance: exponent c.
        neighbourhood: what counts as cost.
        future: whether distance is that to the next use (in steps of the order) or, as in the paper, since the last one.
        noise: standard deviation of a normal term added to the logarithm of the score.
    """

    name: str
    cost: float = 1.0
    size: float = 1.0
    distance: float = 1.0
    neighbourhood: Neighbourhood = Neighbourhood.ANCESTORS
    future: bool = True
    noise: float = 0.0


class Eviction:
    """One run of an order under a budget.

    Attributes:
        trace: the computations made so far, recomputations included.
        cost: their total cost.
    """

    def __init__(self, graph: Graph, budget: int, base: Sequence[int], rule: Rule, rng: random.Random):
        n = len(graph)
        self.graph, self.budget, self.base, self.rule, self.rng = graph, budget, base, rule, rng
        self.deps = [tuple(dict.fromkeys(node.deps)) for node in graph.nodes]
        self.charge = [node.charge for node in graph.nodes]
        self.step = [graph.step_of(v) for v in range(n)]
        self.step_cost = [graph.nodes[s].cost for s in self.step]
        self.again = [graph.may_recompute(v) for v in range(n)]
        self.live = [False] * n
        self.done = [False] * n  # the step ran at least once
        self.lost = [False] * n  # dropped, and can never be recomputed
        self.pins = [0] * n
        self.accessed = [0] * n
        self.used = 0
        self.cost = 0.0
        self.trace: list[int] = []
        uses: list[list[int]] = [[] for _ in range(n)]
        for p, v in enumerate(base):
            for u in self.deps[v]:
                uses[u].append(p)
        for o in graph.outputs:
            uses[o].append(len(base))
        self._uses = [list(reversed(found)) for found in uses]
        self.next_use = [found[-1] if found else NEVER for found in self._uses]
        self._held: set[int] = set()  # live values
        self._missing: set[int] = set()  # dropped values that the order itself still reads
        self._components = Components(n)
        self._step_limit, self._cost_limit, self._deadline = NEVER, math.inf, math.inf

    def run(self, *, step_limit: int, cost_limit: float = math.inf, deadline: float = math.inf) -> bool:
        """Runs the whole order; False if it does not fit, or exceeds a limit.

        Args:
            step_limit: largest number of computations.
            cost_limit: largest total cost.
            deadline: value of `time.monotonic()` at which to give up.
        """
        self._step_limit, self._cost_limit, self._deadline = step_limit, cost_limit, deadline
        for p, v in enumerate(self.base):
            if not self._ensure(self.deps[v], p, v):
                return False
            for u in self.deps[v]:
                self._advance(u, p)
        return self._ensure(self.graph.outputs, len(self.base), None)

    def _advance(self, u: int, p: int) -> None:
        uses = self._uses[u]
        while uses and uses[-1] <= p:
            uses.pop()
        self.next_use[u] = uses[-1] if uses else NEVER

    def _ensure(self, wanted: Sequence[int], p: int, then: int | None) -> bool:
        """Makes the wanted values live at position p of the order, recomputing what is missing, then computes `then`."""
        frames: list[tuple[int | None, Sequence[int], set[int]]] = [(then, wanted, set())]
        while frames:
            target, needed, pinned = frames[-1]
            missing = None
            for u in needed:
                if not self.live[u]:
                    missing = u if missing is None else missing
                elif u not in pinned:
                    pinned.add(u)
                    self.pins[u] += 1
            if missing is not None:
                lead = self.step[missing]
                if self.done[lead] and not self.again[lead]:
                    return False
                frames.append((lead, self.deps[lead], set()))
                continue
            if target is not None and not self.compute(target, p):
                return False
            for u in pinned:
                self.pins[u] -= 1
            frames.pop()
        return True

    def compute(self, v: int, p: int = 0) -> bool:
        """Runs a step at position p of the order, making room first; its inputs are live and pinned."""
        written = self.graph.written(v)
        self.cost += self.graph.nodes[v].cost
        if self.cost > self._cost_limit or len(self.trace) >= self._step_limit or time.monotonic() > self._deadline:
            return False
        fresh = [w for w in written if not self.live[w]]
        excess = self.used + sum(self.charge[w] for w in fresh) + self.graph.nodes[v].workspace - self.budget
        if excess > 0 and not self._make_room(excess, p, frozenset(written)):
            return False
        self.trace.append(v)
        clock = len(self.trace)
        for u in self.deps[v]:
            self.accessed[u] = clock
        for w in written:
            if not self.live[w]:
                self.live[w] = True
                self._held.add(w)
                self._missing.discard(w)
                self.used += self.charge[w]
                if self.done[v]:
                    self._components.leave(w, self.step_cost[w])
            self.accessed[w] = clock
        self.done[v] = True
        return True

    def _make_room(self, excess: int, p: int, keep: frozenset[int]) -> bool:
        """Drops values worth at least `excess` bytes, the lowest scores first; False if there are not enough."""
        needed = self._needed()
        scored: list[tuple[float, int]] = []
        for u in sorted(self._held):
            if self.pins[u] or not self.charge[u] or u in keep:
                continue
            if needed[u] == NEVER:
                scored.append((-1 / (1 + self.step_cost[u]), u))
            elif self.again[u] and not any(self.lost[d] and not self.live[d] for d in self.deps[self.step[u]]):
                scored.append((self.score(u, needed[u] - p), u))
        scored.sort()
        chosen: list[int] = []
        for _, u in scored:
            if excess <= 0:
                break
            chosen.append(u)
            excess -= self.charge[u]
        if excess > 0:
            return False
        for u in reversed(chosen):
            if excess + self.charge[u] <= 0:
                excess += self.charge[u]
            else:
                self.drop(u)
        return True

    def _needed(self) -> list[int]:
        """For each value, the first position of the order that needs it: directly, or to recompute what it reads."""
        needed = self.next_use.copy()
        queue = [-self.step[u] for u in self._missing]
        heapify(queue)
        previous = -1
        while queue:  # falling positions, so that a step comes after all that read it
            s = -heappop(queue)
            if s == previous:
                continue
            previous = s
            soonest = min(needed[w] for w in self.graph.written(s) if not self.live[w])
            for d in self.deps[s]:
                needed[d] = min(needed[d], soonest)
                if not self.live[d]:
                    heappush(queue, -self.step[d])
        return needed

    def score(self, u: int, ahead: int) -> float:
        """What the rule makes of a live value that is needed next in `ahead` steps."""
        rule = self.rule
        cost = self.step_cost[u]
        if rule.neighbourhood is Neighbourhood.ANCESTORS:
            cost = self._ancestors_cost(self.step[u])
        elif rule.neighbourhood is Neighbourhood.UNION:
            lead = self.step[u]
            around = [d for d in self.deps[lead] if not self.live[d]]
            around += [w for r in self.graph.readers[u] for w in self.graph.written(r) if self.done[r] and not self.live[w]]
            cost += self._components.cost(around)
        distance = ahead + 1 if rule.future else len(self.trace) - self.accessed[u] + 1
        score: float = (cost + 1e-9) ** rule.cost / (self.charge[u] ** rule.size * max(1, distance) ** rule.distance)
        if rule.noise:
            score *= math.exp(self.rng.gauss(0.0, rule.noise))
        return score

    def _ancestors_cost(self, lead: int) -> float:
        seen, stack, cost = {lead}, [lead], 0.0
        while stack:
            s = stack.pop()
            cost += self.step_cost[s]
            for d in self.deps[s]:
                if not self.live[d] and self.step[d] not in seen:
                    seen.add(self.step[d])
                    stack.append(self.step[d])
        return cost

    def drop(self, u: int) -> None:
        """Evicts a value."""
        self.live[u] = False
        self._held.discard(u)
        if self.next_use[u] < NEVER:
            self._missing.add(u)
        self.used -= self.charge[u]
        lead = self.step[u]
        if not self.again[u] or any(self.lost[d] and not self.live[d] for d in self.deps[lead]):
            self._lose(u)
        self._components.enter(u, self.step_cost[u])
        for d in self.deps[lead]:
            if not self.live[d]:
                self._components.join(u, d)
        for r in self.graph.readers[u]:
            for w in self.graph.written(r):
                if self.done[r] and not self.live[w]:
                    self._components.join(u, w)

    def _lose(self, u: int) -> None:
        """Marks what can no longer be recomputed now that u is gone for good."""
        self.lost[u] = True
        stack = [u]
        while stack:
            for r in self.graph.readers[stack.pop()]:
                for w in self.graph.written(r):
                    if self.done[r] and not self.live[w] and not self.lost[w]:
                        self.lost[w] = True
                        stack.append(w)
