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
a 0-1 point of at most its cost (`EventModel.point`). Hence the optimum of this program, of its relaxation, or of either with
fewer events, never exceeds the optimum for the given order. In the other direction a point need not be a schedule:
recomputations are not charged while they run, and steps between events are not looked at. Where that matters, single stages
can be made *detailed*: Checkmate's accounting inside that stage, which holds if its recomputations run in increasing position.
With all stages events and detailed, this is Checkmate's program.

Variables whose value is known are not created: a step that may not or need not run again (it takes no room, or costs more
than the schedule in hand would still allow), and values that nothing reads later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from solvers.linear import Program, Terms
from solvers.stage_memory import add_stage_memory
from solvers.timeline import ALWAYS, Timeline


class EventModel:
    """The program for given events. See the module for its variables and rows.

    Args:
        timeline: the graph, and what is known beforehand.
        budget: bytes, above zero.
        events: positions of steps.
        detailed: positions of stages to account for exactly; the position itself and the one before must be events.

    Attributes:
        program: bytes are divided by the budget.
        bounds: -1, the events' positions, and the end; span k is the positions above `bounds[k]` up to `bounds[k + 1]`.
        keep: (span, value) to variable, -1 standing for 1.
        run: (span, step) to variable.
    """

    def __init__(self, timeline: Timeline, budget: int, events: Iterable[int], detailed: Collection[int] = ()):
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
            if self.bounds[k + 1] in detailed and self.bounds[k + 1] == self.bounds[k] + 1:
                self._add_detail(k)

    def _add_variables(self, k: int) -> None:
        time, begin = self.timeline, self.bounds[k]
        for u, first in enumerate(time.first):
            if first <= begin < time.last[u]:
                self.keep[k, u] = ALWAYS if time.certain(u, begin) else self.program.variable()
        for p in range(begin + 1):
            v = time.graph.steps[p]
            if time.again[v] and max(time.last[w] for w in time.graph.written(v)) > begin:
                self.run[k, v] = self.program.variable(time.graph.nodes[v].cost)

    def _available(self, k: int, u: int) -> Terms | None:
        """`keep + run` of a value in a span; None if it is certainly there."""
        keep, run = self.keep.get((k, u)), self.run.get((k, self.timeline.graph.step_of(u)))
        if keep == ALWAYS:
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
            keep = self.keep.get((k + 1, u))
            if keep is None or first > self.bounds[k] or (terms := self._available(k, u)) is None:
                continue
            if keep == ALWAYS:  # an output, when the last step has run
                self.program.at_least(terms, 1.0)
            else:
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
                if j == ALWAYS:
                    held += time.charge[u]
                else:
                    terms.append((j, -time.charge[u] / self.budget))
        if held - sum(a for _, a in terms) * self.budget > self.budget:
            self.rows_of_memory.append(len(self.program.rows))
            self.program.at_least(terms, (held - self.budget) / self.budget)

    def _add_detail(self, k: int) -> None:
        steps, t = self.timeline.graph.steps, self.bounds[k + 1]
        run = {p: self.run[k, steps[p]] for p in range(t) if (k, steps[p]) in self.run}
        now = {u: j for (span, u), j in self.keep.items() if span == k}
        after = {u: j for (span, u), j in self.keep.items() if span == k + 1}
        add_stage_memory(self.program, self.timeline, self.budget, t, run=run, keep=now, after=after)

    def order(self, values: Sequence[float]) -> list[int]:
        """The order of computations that a 0-1 point describes, each recomputation as late as the point allows.

        It is valid, costs at most what the point costs, and may exceed the budget.
        """
        time, steps, found = self.timeline, self.timeline.graph.steps, list[int]()
        for k in range(len(self.bounds) - 1):
            begin, stop = self.bounds[k : k + 2]
            live = {u for u, first in enumerate(time.first) if first <= begin and self.level(values, (k, u)) > 0.5}
            for p in range(begin + 1, min(stop, time.end - 1) + 1):
                wanted = list(time.reads(p))
                if p == time.end - 1:
                    wanted.extend(time.graph.outputs)
                elif p == stop:
                    wanted.extend(u for u in range(len(time.first)) if self.level(values, (k + 1, u)) > 0.5)
                for q in self._missing(wanted, live, begin):
                    found.append(steps[q])
                    live.update(time.graph.written(steps[q]))
                found.append(steps[p])
        return found

    def _missing(self, wanted: Iterable[int], live: set[int], begin: int) -> list[int]:
        """Positions of the steps up to `begin` to run again so that the wanted values are live."""
        time, found, stack = self.timeline, set[int](), list(wanted)
        while stack:
            u = stack.pop()
            p = time.first[u]
            if u not in live and p <= begin and p not in found:
                found.add(p)
                stack.extend(time.reads(p))
        return sorted(found)

    def point(self, order: Sequence[int]) -> dict[int, float]:
        """The keep and run variables of an order whose first computations keep the given order; it costs no more than that."""
        time, graph = self.timeline, self.timeline.graph
        spans: list[list[int]] = [[] for _ in self.bounds[1:]]  # positions in `order`, by span
        seen, k = 0, 0
        for i, v in enumerate(order):
            spans[k].append(i)
            if seen < time.end and v == graph.steps[seen]:
                k += seen == self.bounds[k + 1]
                seen += 1
        found = dict.fromkeys(j for j in (*self.keep.values(), *self.run.values()) if j != ALWAYS)
        live: set[int] = set(graph.outputs)
        for k in reversed(range(1, len(spans))):
            for i in reversed(spans[k]):
                v = order[i]
                if (k, v) in self.run:
                    found[self.run[k, v]] = 1.0
                live.difference_update(graph.written(v))
                live.update(graph.nodes[v].deps)
            for u in live:
                j = self.keep.get((k, u), ALWAYS)
                if j != ALWAYS:
                    found[j] = 1.0
        return {j: value or 0.0 for j, value in found.items()}

    def level(self, values: Sequence[float], key: tuple[int, int]) -> float:
        """How much of a value is kept into a span, from 0 to 1."""
        j = self.keep.get(key)
        return 0.0 if j is None else 1.0 if j == ALWAYS else values[j]

    def usage(self, values: Sequence[float], k: int) -> dict[int, float]:
        """For each position strictly inside span k, the bytes a point uses there, if nothing is run again in its first span."""
        time, graph = self.timeline, self.timeline.graph
        begin, stop = self.bounds[k : k + 2]
        wanted: dict[int, int] = {}  # value -> last first computation of the span that reads it
        for p in range(begin + 1, min(stop, time.end - 1) + 1):
            wanted.update(dict.fromkeys(time.reads(p), p))
        change = [0.0] * (stop - begin + 1)  # of the bytes held, from position to position
        levels: dict[int, tuple[float, float]] = {}  # value -> how much of it is held before and from its last reading on
        for u, charge in enumerate(time.charge):
            low, high = max(begin + 1, time.first[u]), min(stop, time.last[u])
            if not charge or low >= high:
                continue
            after = self.level(values, (k + 1, u)) if stop < time.end else float(u in graph.outputs)
            before = 1.0 if time.first[u] > begin else self.level(values, (k, u))
            levels[u] = before, after = before, after if time.first[u] > begin else min(before, after)
            middle = min(max(low, wanted.get(u, -1)), high)
            for a, b, level in ((low, middle, before), (middle, high, after)):
                change[a - begin] += charge * level
                change[b - begin] -= charge * level
        found: dict[int, float] = {}
        held = 0.0
        for p in range(begin + 1, stop):
            v = graph.steps[p]
            held += change[p - begin]
            total = held + graph.nodes[v].workspace
            for u in {*graph.nodes[v].deps, *graph.written(v)}:
                there = 0.0
                if u in levels and time.first[u] <= p < time.last[u]:
                    there = levels[u][p >= wanted.get(u, -1)]
                total += time.charge[u] * (1.0 - there)
            found[p] = total
        return found
