"""The rematerialization program on a coarse time line: a relaxation that shrinks Checkmate's program to what binds.

Checkmate (Jain et al., MLSys 2020, section 4) has a stage before every first computation, and variables R (recomputed in this
stage), S (kept from the stage before) and FREE for each stage and value. Here memory is looked at only when a few chosen steps,
the *events*, run for the first time. Between two events lies a *span*. What remains is, for each span k,

    run[k, v]   step v is computed again at least once during span k,
    keep[k, u]  value u is live when span k begins and is read later without being computed again first,

    keep[k, u] + run[k, u] >= 1                  for every read of u by a first computation in span k,
    keep[k, u] + run[k, u] >= run[k, v]          for every read of u by a recomputation of v,
    keep[k, u] + run[k, u] >= keep[k + 1, u],
    touched bytes + sum(bytes[u] * keep[k, u])  <= budget    at the event before span k,

where the touched bytes are what that event reads and writes and its workspace; u was first computed before the span, and reads
within the span of its first computation need no row. FREE is gone: at a first computation what is live is known.

Every schedule whose first computations keep the given order, with any number of copies and recomputations in any order, gives
a 0-1 point of at most its cost: set the variables as they are defined. Hence the optimum of this program, of its
relaxation, or of either with other events left out, never exceeds the optimum for the given order. In the other direction a
point need not be a schedule: recomputations are not charged while they run, and steps between events are not looked at.

Variables whose value is known are not created: a step that may not or need not run again (it takes no room, or costs more
than the schedule in hand would still allow), and values that nothing reads later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from solvers.graph import Graph
from solvers.linear import Program, Terms

_ALWAYS = -1  # stands for a keep variable that is known to be 1


@dataclass(frozen=True)
class Timeline:
    """When values are needed, in positions among the steps; the end of the program is position `len(graph.steps)`.

    Attributes:
        graph: the graph.
        cap: no step that costs more than this is computed again.
        negligible: bytes; values up to this size are taken to be free and always kept.
    """

    graph: Graph
    cap: float = math.inf
    negligible: int = 0

    @cached_property
    def end(self) -> int:
        """The position after the last step."""
        return len(self.graph.steps)

    @cached_property
    def first(self) -> list[int]:
        """For each value, the position of the first computation that writes it."""
        position = {v: p for p, v in enumerate(self.graph.steps)}
        return [position[self.graph.step_of(u)] for u in range(len(self.graph))]

    @cached_property
    def charge(self) -> list[int]:
        """Bytes of each value; 0 for negligible ones."""
        return [node.charge if node.charge > self.negligible else 0 for node in self.graph.nodes]

    @cached_property
    def again(self) -> list[bool]:
        """For each value, whether its step may be worth running again."""
        graph = self.graph
        found = [
            graph.may_recompute(v) and graph.nodes[v].cost <= self.cap and any(self.charge[w] for w in graph.written(v))
            for v in graph.steps
        ]
        return [found[self.first[u]] for u in range(len(graph))]

    @cached_property
    def firm(self) -> list[int]:
        """For each value, the last first computation that reads it; -1 if none does."""
        found = [max((self.first[w] for w in self.graph.readers[u]), default=-1) for u in range(len(self.graph))]
        for o in self.graph.outputs:
            found[o] = self.end
        return found

    @cached_property
    def last(self) -> list[int]:
        """For each value, the last first computation that reads it or something that may be recomputed from it."""
        graph, found = self.graph, list(self.firm)
        for u in reversed(range(len(graph))):
            for w in graph.readers[u]:
                if self.again[w]:
                    found[u] = max(found[u], *(found[x] for x in graph.written(w)))
        return found

    @cached_property
    def most(self) -> list[int]:
        """For each position, the bytes live if nothing is dropped that could be read again: an upper limit."""
        change = [0] * (self.end + 2)
        for u, charge in enumerate(self.charge):
            change[self.first[u]] += charge
            change[max(self.first[u], self.last[u]) + 1 if self.last[u] < self.end else self.end + 1] -= charge
        live, total = [], 0
        for p, v in enumerate(self.graph.steps):
            total += change[p]
            live.append(total + self.graph.nodes[v].workspace)
        return live

    def reads(self, p: int) -> dict[int, None]:
        """What the step at a position reads, in order and without repetition."""
        return dict.fromkeys(self.graph.nodes[self.graph.steps[p]].deps)


class EventModel:
    """The program for given events. See the module for its variables and rows.

    Attributes:
        program: bytes are divided by the budget.
        bounds: -1, the events' positions, and the end; span k is the positions above `bounds[k]` up to `bounds[k + 1]`.
        keep: (span, value) to variable, -1 standing for 1.
        run: (span, step) to variable.
    """

    def __init__(self, timeline: Timeline, budget: int, events: Sequence[int]):
        self.timeline, self.budget = timeline, budget
        self.bounds = [-1, *sorted(events), timeline.end]
        self.program = Program()
        self.keep: dict[tuple[int, int], int] = {}
        self.run: dict[tuple[int, int], int] = {}
        self.rows_of_memory: list[int] = []
        spans = range(1, len(self.bounds) - 1)
        for k in spans:
            self._add_variables(k)
        for k in spans:
            self._add_reads(k)
            self._add_keeping(k)
            self._add_memory(k)

    def _add_variables(self, k: int) -> None:
        time, begin = self.timeline, self.bounds[k]
        for u, first in enumerate(time.first):
            if first <= begin < time.last[u]:
                certain = not time.again[u] and (time.firm[u] > begin or not time.charge[u])
                self.keep[k, u] = _ALWAYS if certain else self.program.variable()
        for p in range(begin + 1):
            v = time.graph.steps[p]
            if time.again[v] and max(time.last[w] for w in time.graph.written(v)) > begin:
                self.run[k, v] = self.program.variable(time.graph.nodes[v].cost)

    def _available(self, k: int, u: int) -> Terms | None:
        """`keep + run` of a value in a span; None if it is certainly there."""
        keep, run = self.keep.get((k, u)), self.run.get((k, self.timeline.graph.step_of(u)))
        if keep == _ALWAYS:
            return None
        return [(j, 1.0) for j in (keep, run) if j is not None]

    def _add_reads(self, k: int) -> None:
        time, (begin, stop) = self.timeline, self.bounds[k : k + 2]
        needed: dict[int, None] = {}
        for p in range(begin + 1, min(stop, time.end - 1) + 1):
            needed.update(time.reads(p))
        if stop == time.end:
            needed.update(dict.fromkeys(time.graph.outputs))
        for u in needed:
            if time.first[u] <= begin and (terms := self._available(k, u)) is not None:
                self.program.at_least(terms, 1.0)
        for p in range(begin + 1):
            run = self.run.get((k, time.graph.steps[p]))
            if run is None:
                continue
            for u in time.reads(p):
                if (terms := self._available(k, u)) is not None:
                    self.program.at_least([*terms, (run, -1.0)], 0.0)

    def _add_keeping(self, k: int) -> None:
        for u, first in enumerate(self.timeline.first):
            keep = self.keep.get((k + 1, u), _ALWAYS)
            if keep != _ALWAYS and first <= self.bounds[k] and (terms := self._available(k, u)) is not None:
                self.program.at_least([*terms, (keep, -1.0)], 0.0)

    def _add_memory(self, k: int) -> None:
        time, graph = self.timeline, self.timeline.graph
        p = self.bounds[k]
        v = graph.steps[p]
        touched = {*graph.nodes[v].deps, *graph.written(v)}
        held = graph.nodes[v].workspace + sum(time.charge[u] for u in touched)
        terms: Terms = []
        for u, first in enumerate(time.first):
            if first <= p < time.last[u] and u not in touched and time.charge[u]:
                j = self.keep[k, u]
                if j == _ALWAYS:
                    held += time.charge[u]
                else:
                    terms.append((j, -time.charge[u] / self.budget))
        if held - sum(a for _, a in terms) * self.budget > self.budget:
            self.rows_of_memory.append(len(self.program.rows))
            self.program.at_least(terms, (held - self.budget) / self.budget)

    def level(self, values: Sequence[float], key: tuple[int, int]) -> float:
        """How much of a value is kept into a span, from 0 to 1."""
        j = self.keep.get(key)
        return 0.0 if j is None else 1.0 if j == _ALWAYS else values[j]

    def usage(self, values: Sequence[float], k: int) -> dict[int, float]:
        """For each position strictly inside span k, the bytes that a point surely uses there."""
        time, graph = self.timeline, self.timeline.graph
        begin, stop = self.bounds[k : k + 2]
        inside = range(begin + 1, stop)
        wanted: dict[int, int] = {}  # value -> last position in the span that reads it for the first time
        for p in range(begin + 1, min(stop, time.end - 1) + 1):
            for u in time.reads(p):
                wanted[u] = p
        found: dict[int, float] = {}
        for p in inside:
            v = graph.steps[p]
            touched = {*graph.nodes[v].deps, *graph.written(v)}
            total = float(graph.nodes[v].workspace + sum(time.charge[u] for u in touched))
            for u in range(len(graph)):
                if u in touched or not time.charge[u] or not time.first[u] <= p < time.last[u]:
                    continue
                after = self.level(values, (k + 1, u)) if stop < time.end else float(u in graph.outputs)
                if time.first[u] > begin:
                    total += time.charge[u] * (1.0 if wanted.get(u, -1) > p else after)
                else:
                    now = self.level(values, (k, u))
                    total += time.charge[u] * (now if wanted.get(u, -1) > p else min(now, after))
            found[p] = total
        return found
