"""Retention intervals as a CP-SAT model, whole or with most decisions fixed.

After MOCCASIN (Bartan et al., ICML 2023): each instance of a value is an interval from the event that computes it to the last
read that it serves, and a cumulative constraint keeps the bytes of all intervals within the budget. Where this departs from
the paper: instead of reservoir constraints, each read has one boolean for each instance that may serve it, and interval
lengths are exact. What is fixed (first computations, and in a neighbourhood of a search everything outside it) is folded into
constants and one profile of demand, so that small neighbourhoods make small models.

Variables, for step v, its i-th computation (a slot), and each value w that it writes:
    start[v, i]        event number, one of the slot's moments
    on[v, i]           whether it happens
    stop[w, i]         last event at which this instance of w is read
    serves[r, w, i]    whether the read of w by computation r is served by this instance

Constraints:
    serves[r, w, i]  =>  on[v, i] and start[v, i] < start[r] <= stop[w, i]
    exactly one instance serves each read that happens
    on[v, i + 1]  =>  on[v, i] and stop[w, i] < start[v, i + 1]
    cumulative(intervals, bytes) <= budget
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ortools.sat.python import cp_model

from solvers.graph import Graph
from solvers.intervals_replay import Key, Replay
from solvers.prune import Moments
from solvers.units import Units

Number = int | cp_model.IntVar


@dataclass(frozen=True, slots=True)
class Slot:
    """One computation of a step: the events at which it may happen (numbers, sorted), and whether it may be left out."""

    moments: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class _Read:
    """A computation that reads a value; `by` is None for the end of the program, which reads the outputs."""

    by: Key | None
    when: Number
    earliest: int
    latest: int
    happens: cp_model.IntVar | None


class IntervalModel:
    """A CP-SAT model of the computations that `slots` offers.

    Attributes:
        model: the CP-SAT model. It minimises the cost, in cost units, of the optional computations that happen, and of the
            excess over the budget where that is allowed.
        repeated: cost units of the repeated computations that are not optional.
    """

    def __init__(
        self,
        graph: Graph,
        moments: Moments,
        units: Units,
        slots: Mapping[int, Sequence[Slot]],
        *,
        cost_limit: int | None = None,
        largest_excess: int = 0,
        excess_weight: int = 1,
    ):
        """Builds the model.

        Args:
            graph: the graph.
            moments: what the numbers of events mean.
            units: bytes and costs in whole units.
            slots: for each step its possible computations in order of time, the first computation at (v, v) first.
            cost_limit: cost units that all repeated computations may cost together; None for any.
            largest_excess: byte units by which the budget may be exceeded.
            excess_weight: cost units that one byte unit of excess counts in the objective.
        """
        self.graph, self.moments, self.units, self.slots = graph, moments, units, slots
        self.model = cp_model.CpModel()
        self.end = len(moments.events)
        self._start: dict[Key, Number] = {}
        self._on: dict[Key, cp_model.IntVar] = {}
        self._stop: dict[Key, Number] = {}
        self._length: dict[Key, cp_model.IntVar] = {}
        self._serves: dict[tuple[Key | None, int, int], cp_model.IntVar] = {}
        self._changes: dict[int, int] = {}  # event -> change of the demand that is certain
        self._demands: list[tuple[cp_model.IntervalVar, int]] = []
        self._excess: cp_model.IntVar | None = None
        self._add_slots()
        self._add_reads()
        self._add_intervals()
        self._add_objective(cost_limit, largest_excess, excess_weight)

    def _add_slots(self) -> None:
        m = self.model
        for v, slots in self.slots.items():
            for i, slot in enumerate(slots):
                if len(slot.moments) == 1:
                    self._start[v, i] = slot.moments[0]
                else:
                    domain = cp_model.Domain.from_values(slot.moments)
                    self._start[v, i] = m.new_int_var_from_domain(domain, f"start_{v}_{i}")
                if slot.optional:
                    self._on[v, i] = m.new_bool_var(f"on_{v}_{i}")
                    if slots[i - 1].optional:
                        m.add_implication(self._on[v, i], self._on[v, i - 1])

    def _add_reads(self) -> None:
        reads: list[list[_Read]] = [[] for _ in self.graph.nodes]
        for v, slots in self.slots.items():
            for i, slot in enumerate(slots):
                read = _Read((v, i), self._start[v, i], slot.moments[0], slot.moments[-1], self._on.get((v, i)))
                for u in dict.fromkeys(self.graph.nodes[v].deps):
                    reads[u].append(read)
        for o in self.graph.outputs:
            reads[o].append(_Read(None, self.end, self.end, self.end, None))
        for u, found in enumerate(reads):
            self._add_stops(u, self._serve(u, found))

    def _serve(self, u: int, reads: Sequence[_Read]) -> list[list[tuple[Number, list[cp_model.IntVar]]]]:
        """Gives each read of a value an instance; returns each instance's reads and the literals that make them so."""
        m = self.model
        step = self.graph.step_of(u)
        slots = self.slots[step]
        served: list[list[tuple[Number, list[cp_model.IntVar]]]] = [[] for _ in slots]
        from_first: list[tuple[int, cp_model.IntVar]] = []
        for read in reads:
            happens = [] if read.happens is None else [read.happens]
            candidates = _candidates(slots, read)
            if len(candidates) == 1:
                conditions = [(candidates[0], happens)]
            else:
                booleans = [m.new_bool_var(f"serves_{u}_{i}") for i in candidates]
                m.add_exactly_one(booleans + [~x for x in happens])
                self._serves.update(((read.by, u, i), b) for i, b in zip(candidates, booleans, strict=True))
                conditions = [(i, [b]) for i, b in zip(candidates, booleans, strict=True)]
                if candidates[0] == 0 and isinstance(read.when, int) and read.happens is None:
                    from_first.append((read.when, booleans[0]))
            for i, literals in conditions:
                served[i].append((read.when, literals))
                if slots[i].optional:
                    m.add(self._on[step, i] == 1).only_enforce_if(literals)
                if i:
                    m.add(self._start[step, i] < read.when).only_enforce_if(literals)
        from_first.sort(key=lambda pair: pair[0])
        for (_, sooner), (_, later) in pairwise(from_first):
            m.add_implication(later, sooner)
        return served

    def _add_stops(self, u: int, served: Sequence[Sequence[tuple[Number, list[cp_model.IntVar]]]]) -> None:
        m = self.model
        step = self.graph.step_of(u)
        for i, slot in enumerate(self.slots[step]):
            start = self._start[step, i]
            certain = [when for when, literals in served[i] if not literals and isinstance(when, int)]
            least = max([slot.moments[0], *certain])
            if len(certain) == len(served[i]):
                self._stop[u, i] = start if not certain else least
            else:
                stop = self._stop[u, i] = m.new_int_var(least, self.end, f"stop_{u}_{i}")
                for when, literals in served[i]:
                    m.add(stop >= when).only_enforce_if(literals)
                if not isinstance(start, int):
                    m.add(stop >= start)
            if i:
                after = m.add(self._stop[u, i - 1] < start)
                if slot.optional:
                    after.only_enforce_if(self._on[step, i])

    def _add_intervals(self) -> None:
        for v, slots in self.slots.items():
            for i in range(len(slots)):
                start = self._start[v, i]
                for w in self.graph.written(v):
                    self._add_interval(v, i, w, self._stop[w, i], self.units.charge[w])
                self._add_interval(v, i, v, start, self.units.workspace[v])

    def _add_interval(self, v: int, i: int, w: int, last: Number, demand: int) -> None:
        """Demands bytes for value w from slot i of step v to the event `last`, if the slot is used."""
        if not demand:
            return
        m, start, on = self.model, self._start[v, i], self._on.get((v, i))
        if on is None and isinstance(start, int) and isinstance(last, int):
            self._changes[start] = self._changes.get(start, 0) + demand
            self._changes[last + 1] = self._changes.get(last + 1, 0) - demand
            return
        size: cp_model.LinearExprT
        if last is start:
            size = 1
        elif isinstance(start, int) or isinstance(last, int):
            size = last + 1 - start
        else:
            size = self._length[w, i] = m.new_int_var(1, self.end + 1, f"length_{v}_{i}")
        if on is None:
            interval = m.new_interval_var(start, size, last + 1, f"live_{v}_{i}")
        else:
            interval = m.new_optional_interval_var(start, size, last + 1, on, f"live_{v}_{i}")
        self._demands.append((interval, demand))

    def _add_objective(self, cost_limit: int | None, largest_excess: int, excess_weight: int) -> None:
        m, level = self.model, 0
        times = sorted(self._changes)
        for begin, finish in pairwise(times):
            level += self._changes[begin]
            if level:
                self._demands.append((m.new_fixed_size_interval_var(begin, finish - begin, f"certain_{begin}"), level))
        cost = self.units.cost
        extra = sum(on * cost[v] for (v, _), on in self._on.items())
        self.repeated = sum(
            cost[v] * sum(not slot.optional for slot in slots[1:]) for v, slots in self.slots.items() if len(slots) > 1
        )
        if cost_limit is not None:
            m.add(extra + self.repeated <= cost_limit)
        capacity: cp_model.LinearExprT = self.units.budget
        if largest_excess:
            self._excess = m.new_int_var(0, largest_excess, "excess")
            capacity = self._excess + self.units.budget
            m.minimize(extra + excess_weight * self._excess)
        else:
            m.minimize(extra)
        intervals, demands = [x for x, _ in self._demands], [d for _, d in self._demands]
        m.add_cumulative(intervals, demands, capacity)

    def hint(self, events: Sequence[int], excess: int = 0) -> None:
        """Suggests a schedule, given by its events in order, as a value for every variable."""
        replay = Replay.of(self.graph, list(zip(events, self.moments.order(events), strict=True)), self.end)
        m = self.model
        start_of: dict[Key, int] = {}
        for key, start in self._start.items():
            start_of[key] = replay.start.get(key, self.slots[key[0]][key[1]].moments[-1])
            if not isinstance(start, int):
                m.add_hint(start, start_of[key])
        for key, on in self._on.items():
            m.add_hint(on, key in replay.start)
        for (w, i), stop in self._stop.items():
            key = (self.graph.step_of(w), i)
            finish = replay.stop.get((w, i), start_of[key])
            if not isinstance(stop, int) and stop is not self._start[key]:
                m.add_hint(stop, finish)
            if (w, i) in self._length:
                m.add_hint(self._length[w, i], finish + 1 - start_of[key])
        for (by, u, i), b in self._serves.items():
            m.add_hint(b, replay.server.get((by, u)) == i)
        if self._excess is not None:
            m.add_hint(self._excess, excess)

    def events(self, value_of: Callable[[cp_model.IntVar], int]) -> list[int]:
        """The events of a solution, in order."""
        found: list[int] = []
        for key, start in self._start.items():
            if key not in self._on or value_of(self._on[key]):
                found.append(start if isinstance(start, int) else value_of(start))
        return sorted(found)


def _candidates(slots: Sequence[Slot], read: _Read) -> list[int]:
    """The instances that may serve a read: those that may begin before it and are not certain to be replaced by then."""
    early = [i for i, slot in enumerate(slots) if slot.moments[0] < read.latest]
    certain = [i for i in early if not slots[i].optional and slots[i].moments[-1] < read.earliest]
    return [i for i in early if i >= certain[-1]]
