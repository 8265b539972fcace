"""The answer's form: which step runs when, and when each value is freed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from solvers.errors import InvalidSchedule
from solvers.graph import Graph


@dataclass(frozen=True, slots=True)
class Compute:
    """Run the step of a node: all values that it writes become live."""

    node: int


@dataclass(frozen=True, slots=True)
class Free:
    """Drop one value."""

    node: int


Step = Compute | Free


@dataclass(frozen=True)
class Schedule:
    """Steps in order of execution.

    A schedule is determined by its order of computations: freeing each value right after the last read of that instance is
    always best, so solvers only choose an order and call `from_order`.

    Attributes:
        steps: `Compute` and `Free` steps.
    """

    steps: tuple[Step, ...]

    @classmethod
    def from_order(cls, graph: Graph, order: Iterable[int]) -> Schedule:
        """The schedule that computes nodes in this order and frees each value as early as possible.

        Args:
            graph: the graph.
            order: nodes with steps of their own; one that appears again is recomputed there, and reads from then on are of
                the new instance.

        Raises:
            InvalidSchedule: if a node is read before it is computed, or an output is never computed.
        """
        order = list(order)
        alive: dict[int, int] = {}  # value -> position of its current instance
        last: list[dict[int, int]] = []  # per position, value -> position of the last read of that instance
        for p, v in enumerate(order):
            if not 0 <= v < len(graph) or graph.nodes[v].part_of is not None:
                raise InvalidSchedule(f"position {p} computes node {v}, which has no step of its own", step=p, node=v)
            for u in graph.nodes[v].deps:
                if u not in alive:
                    raise InvalidSchedule(
                        f"position {p} computes node {v} ({graph.nodes[v].name!r}), which reads node {u} "
                        f"({graph.nodes[u].name!r}) before that is computed",
                        step=p,
                        node=u,
                    )
                last[alive[u]][u] = p
            written = graph.written(v)
            last.append(dict.fromkeys(written, p))
            alive.update((w, p) for w in written)
        for o in graph.outputs:
            if o not in alive:
                raise InvalidSchedule(f"output {o} ({graph.nodes[o].name!r}) is never computed", step=len(order), node=o)
            last[alive[o]][o] = len(order)
        frees: list[list[int]] = [[] for _ in range(len(order) + 1)]
        for instance in last:
            for value, p in instance.items():
                frees[p].append(value)
        steps: list[Step] = []
        for p, v in enumerate(order):
            steps.append(Compute(v))
            steps.extend(map(Free, frees[p]))
        return cls(tuple(steps))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The nodes computed, in order, with repetitions."""
        return tuple(step.node for step in self.steps if isinstance(step, Compute))

    @cached_property
    def recomputed(self) -> dict[int, int]:
        """How often each node is computed again after its first time; nodes computed once are absent."""
        return {v: n - 1 for v, n in Counter(self.order).items() if n > 1}

    def describe(self, names: Sequence[str]) -> str:
        """One line per computation: what it computes, whether again, and what is freed after it."""
        lines: list[str] = []
        seen: set[int] = set()
        for step in self.steps:
            if isinstance(step, Compute):
                lines.append(f"{'recompute' if step.node in seen else 'compute':9} {names[step.node]}")
                seen.add(step.node)
            else:
                lines[-1] += f"{',' if '; free' in lines[-1] else '; free'} {names[step.node]}"
        return "\n".join(lines)

    def __str__(self) -> str:
        highest = max((step.node for step in self.steps), default=-1)
        return self.describe([f"n{v}" for v in range(highest + 1)])

    def to_json(self) -> list[list[Any]]:
        """`[["compute", 0], ["free", 0], ...]`; `from_json` reads it back unchanged."""
        return [["compute" if isinstance(step, Compute) else "free", step.node] for step in self.steps]

    @classmethod
    def from_json(cls, data: Any) -> Schedule:
        """Reads `to_json`'s form.

        Raises:
            InvalidSchedule: if a row is not a known kind of step.
        """
        kinds: dict[str, type[Compute] | type[Free]] = {"compute": Compute, "free": Free}
        steps: list[Step] = []
        for p, row in enumerate(data):
            known = isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and row[0] in kinds
            if not known or not isinstance(row[1], int):
                raise InvalidSchedule(f'step {p} is {row!r}: a step is ["compute", node] or ["free", node]', step=p, node=-1)
            steps.append(kinds[row[0]](row[1]))
        return cls(tuple(steps))
