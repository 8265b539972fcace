"""Checkmate's mixed-integer program (Jain et al., MLSys 2020, section 4), with every variable of known value left out.

Stage t recomputes any subset of the steps before t, each at most once and in increasing position, then runs t for the
first time. In the paper's letters, for stage t:

    run[t, v]      R: step v is computed again in stage t (R[t, t] = 1 is not a variable),
    keep[t, u]     S: value u is live when stage t begins,
    free[t, u, i]  FREE: u is dropped right after step i ran in stage t,
    memory[t, i]   U: bytes live while step i runs, divided by the budget, in [0, 1].

Departures from the paper, none of which changes the optimum:

- R and S above the diagonal, and those of values that nothing reads later, do not exist instead of summing to zero.
- FREE is bounded only from above, since freeing less never helps, and by one row for each thing that forbids it (the step
  does not run, the value is kept, a later reader runs) instead of one big-M row over their sum: a tighter relaxation.
- There is no FREE where the stage's own step is a later reader, after that step, or where a stage cannot overflow at all.
- Stages before the first step at which keeping everything would overflow do not exist: there, keeping everything is as good.
- Values are separate from steps, so that each result of a step with several is freed by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from solvers.linear import Program, Terms
from solvers.stage_memory import add_stage_memory
from solvers.timeline import ALWAYS, Timeline


class CheckmateModel:
    """The program of one graph and budget.

    Attributes:
        program: costs are those of recomputations only.
        begin: position of the first stage that exists; the earlier steps run once, in order.
        keep: (stage, value) to variable, -1 standing for 1.
        run: (stage, position of the step) to variable.
    """

    def __init__(self, timeline: Timeline, budget: int):
        self.time, self.budget = timeline, max(budget, 1)
        over = [p for p, most in enumerate(timeline.most) if most > budget]
        self.begin = over[0] if over else timeline.end
        self.program = Program()
        self.keep: dict[tuple[int, int], int] = {}
        self.run: dict[tuple[int, int], int] = {}
        self._leads = [timeline.first[u] for u in range(len(timeline.graph))]
        self._runnable: dict[int, list[int]] = {}
        for t in range(self.begin, timeline.end):
            self._add_variables(t)
        everything = range(len(timeline.graph))
        for t in range(self.begin, timeline.end):
            self._add_reads(t)
            run = {p: self.run[t, p] for p in self._runnable[t]}
            now = {u: self.keep[t, u] for u in everything if (t, u) in self.keep}
            after = {u: self.keep[t + 1, u] for u in everything if (t + 1, u) in self.keep}
            add_stage_memory(self.program, timeline, self.budget, t, run=run, keep=now, after=after)

    @staticmethod
    def size(timeline: Timeline, budget: int) -> int:
        """About how many variables a model would have, without building it."""
        graph = timeline.graph
        begin = next((p for p, most in enumerate(timeline.most) if most > budget), timeline.end)
        total = 0
        for u in range(len(graph)):
            stages = max(0, min(timeline.last[u], timeline.end - 1) - max(timeline.first[u], begin - 1))
            total += stages * (2 + len(graph.readers[u]))
        return total

    def _add_variables(self, t: int) -> None:
        time, graph = self.time, self.time.graph
        for u, first in enumerate(time.first):
            if first < t <= time.last[u]:
                self.keep[t, u] = ALWAYS if time.certain(u, t - 1) else self.program.variable()
        self._runnable[t] = []
        for p in range(t):
            v = graph.steps[p]
            if time.again[v] and max(time.last[w] for w in graph.written(v)) >= t:
                self.run[t, p] = self.program.variable(graph.nodes[v].cost)
                self._runnable[t].append(p)

    def _available(self, t: int, u: int) -> Terms | None:
        keep, run = self.keep.get((t, u)), self.run.get((t, self._leads[u]))
        if keep == ALWAYS:
            return None
        return [(j, 1.0) for j in (keep, run) if j is not None]

    def _add_reads(self, t: int) -> None:
        time = self.time
        needed = {**time.reads(t), **(dict.fromkeys(time.graph.outputs) if t == time.end - 1 else {})}
        for u in needed:
            if time.first[u] < t and (terms := self._available(t, u)) is not None:
                self.program.at_least(terms, 1.0)
        for p in self._runnable[t]:
            for u in time.reads(p):
                if (terms := self._available(t, u)) is not None:
                    self.program.at_least([*terms, (self.run[t, p], -1.0)], 0.0)
        for u, first in enumerate(time.first):
            keep = self.keep.get((t + 1, u), ALWAYS)
            if keep != ALWAYS and first < t and (terms := self._available(t, u)) is not None:
                self.program.at_least([*terms, (keep, -1.0)], 0.0)

    def order(self, values: Sequence[float]) -> list[int]:
        """The order of computations of a solution."""
        steps = self.time.graph.steps
        found = list(steps[: self.begin])
        for t in range(self.begin, self.time.end):
            found.extend(steps[p] for p in self._runnable[t] if values[self.run[t, p]] > 0.5)
            found.append(steps[t])
        return found

    def hint(self, order: Iterable[int]) -> dict[int, float]:
        """Values of R and S for an order of computations; empty if it does not run in stages."""
        time, position = self.time, {v: p for p, v in enumerate(self.time.graph.steps)}
        stage, ran, last_in_stage = 0, set[tuple[int, int]](), -1
        for v in order:
            p = position[v]
            if p == stage:
                stage, last_in_stage = stage + 1, -1
            elif p < stage and p > last_in_stage:
                ran.add((stage, p))
                last_in_stage = p
            else:
                return {}
        if any(key not in self.run and key[0] >= self.begin for key in ran):
            return {}
        hint = {j: float(key in ran) for key, j in self.run.items()}
        hint.update(self._kept(ran))
        return hint if time.end == stage else {}

    def _kept(self, ran: set[tuple[int, int]]) -> dict[int, float]:
        """S for given R: a value is kept into a stage if it is read there, or kept on, and not computed again there."""
        time, found, needed = self.time, dict[int, float](), set[int](self.time.graph.outputs)
        for t in reversed(range(self.begin, time.end)):
            running = [p for p in range(t) if (t, p) in ran]
            needed.update(u for p in (*running, t) for u in time.reads(p))
            needed = {u for u in needed if time.first[u] < t and (t, time.first[u]) not in ran}
            for u in range(len(time.graph)):
                j = self.keep.get((t, u), ALWAYS)
                if j != ALWAYS:
                    found[j] = float(u in needed)
        return found
