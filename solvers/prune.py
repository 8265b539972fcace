"""Which recomputations are worth considering: the moments that `intervals` chooses from.

Steps are first computed in the given order, which cuts time into stages: stage j runs some earlier steps again, in increasing
position, and ends with the first computation of step j. So an event is a pair (j, v) with v <= j, the numbering of MOCCASIN
(Bartan et al., ICML 2023, section 3), and the lexicographic order of the pairs is the order in time. Schedules made otherwise
may recompute in another order within a stage. Cut into runs of increasing positions, they fit too: an event here is
(j, r, v), where r = 0 for the last run of the stage, -1 for the one before, and so on.

All pairs are about n^2 / 2. Two reductions are offered:

- `every_moment` leaves out only what cannot be part of a best schedule: steps that may not or need not run again (nothing
  they write takes room, or nothing reads it), and stages after the last read that a new instance could serve.
- `useful_moments` recomputes a value only just before a late use of it, or of something that is itself recomputed then.
  Late uses are those of the backward pass and forward uses far from the one before (long skip connections); in a
  graph without a backward pass, all of them. It may miss the optimum: an input that is live for another reason and
  dies soon can make it better to recompute earlier than needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from solvers.errors import UnsupportedGraph
from solvers.graph import Graph

MOST_MOMENTS = 1_500_000

Event = tuple[int, int, int]


@dataclass(frozen=True)
class Moments:
    """The events that a schedule may use, numbered in order of time.

    Attributes:
        events: (stage, run, step), sorted; a first computation is (v, 0, v).
    """

    events: tuple[Event, ...]

    @classmethod
    def of(cls, graph: Graph, stages: Mapping[int, Iterable[int]]) -> Moments:
        """All first computations, and each step's recomputations in the last run of the stages listed for it."""
        events = {(v, 0, v) for v in graph.steps}
        events.update((j, 0, v) for v, found in stages.items() for j in found)
        return cls(tuple(sorted(events)))

    def with_events(self, more: Iterable[Event]) -> Moments:
        """These moments and further ones."""
        return Moments(tuple(sorted({*self.events, *more})))

    @cached_property
    def rank(self) -> dict[Event, int]:
        """Number of each event."""
        return {event: k for k, event in enumerate(self.events)}

    @cached_property
    def again(self) -> dict[int, tuple[int, ...]]:
        """For each step that may be recomputed, the numbers of the events that do so."""
        found: dict[int, list[int]] = {}
        for k, (j, _, v) in enumerate(self.events):
            if v < j:
                found.setdefault(v, []).append(k)
        return {v: tuple(ranks) for v, ranks in found.items()}

    def order(self, ranks: Iterable[int]) -> list[int]:
        """The steps of numbered events."""
        return [self.events[k][2] for k in ranks]


def every_moment(graph: Graph) -> Moments:
    """All events that could be part of a best schedule for the given order."""
    last = _last_service(graph)
    stages: dict[int, list[int]] = {}
    for v in graph.steps:
        if worth_recomputing(graph, v):
            stages[v] = [j for j in graph.steps if v < j <= last[v]]
    return Moments.of(graph, stages)


def useful_moments(graph: Graph) -> Moments:
    """Events just before late uses, directly or through other recomputations.

    Raises:
        UnsupportedGraph: if there are more than `MOST_MOMENTS`: they grow with the square of the graph.
    """
    late = _late_uses(graph)
    stages: dict[int, set[int]] = {}
    total = len(graph.steps)
    for v in reversed(graph.steps):
        if not worth_recomputing(graph, v):
            continue
        found: set[int] = set()
        for w in graph.written(v):
            found.update(late[w])
            for reader in graph.readers[w]:
                found.update(stages.get(reader, ()))
        stages[v] = found
        total += len(found)
        if total > MOST_MOMENTS:
            raise UnsupportedGraph(
                f"this graph of {len(graph.steps):,} steps has more than {MOST_MOMENTS:,} moments at which a recomputation may "
                'be useful: use "greedy" or "auto", or give a start to fall back on'
            )
    return Moments.of(graph, stages)


def worth_recomputing(graph: Graph, step: int) -> bool:
    """Whether running a step again can ever save memory: it may run again, takes room, and is read."""
    written = graph.written(step)
    return (
        graph.may_recompute(step)
        and any(graph.nodes[w].charge for w in written)
        and any(graph.readers[w] or w in graph.outputs for w in written)
    )


def count_moments(graph: Graph) -> int:
    """Number of events of `every_moment`, without listing them."""
    last, position = _last_service(graph), {v: k for k, v in enumerate(graph.steps)}
    again = sum(position[last[v]] - position[v] for v in graph.steps if worth_recomputing(graph, v))
    return len(graph.steps) + again


def events_of(graph: Graph, order: Sequence[int]) -> list[Event] | None:
    """The events of an order; None if its first computations are not in the graph's order.

    What comes after the last first computation is left out.
    """
    events: list[Event] = []
    runs: list[list[int]] = [[]]  # of the stage so far
    expected = iter(graph.steps)
    stage = next(expected, None)
    for v in order:
        if stage is None:
            break
        if v > stage:
            return None
        if runs[-1] and v <= runs[-1][-1]:
            runs.append([])
        runs[-1].append(v)
        if v == stage:
            events.extend((v, r + 1 - len(runs), w) for r, run in enumerate(runs) for w in run)
            runs, stage = [[]], next(expected, None)
    return events


def _last_service(graph: Graph) -> list[int]:
    """For each step, the last first computation that reads what it writes, directly or through recomputed steps."""
    last = list(range(len(graph)))
    end = graph.steps[-1]
    for v in reversed(graph.steps):
        for w in graph.written(v):
            if w in graph.outputs:
                last[v] = end
            for reader in graph.readers[w]:
                last[v] = max(last[v], last[reader] if worth_recomputing(graph, reader) else reader)
    return last


def _late_uses(graph: Graph) -> list[list[int]]:
    """For each value, the first computations just before which it may pay to recompute it."""
    trains = any(node.backward for node in graph.nodes)
    far = max(8, len(graph) // 16)
    found: list[list[int]] = []
    for w in range(len(graph)):
        before, uses = graph.step_of(w), []
        for t in graph.readers[w]:
            if not trains or graph.nodes[t].backward or t - before > far:
                uses.append(t)
            before = t
        if w in graph.outputs and graph.steps[-1] > before:
            uses.append(graph.steps[-1])
        found.append(uses)
    return found
