"""When values are needed, if first computations keep the given order: what the programs for that order have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from solvers.graph import Graph

ALWAYS = -1  # stands for a variable that is known to be 1


@dataclass(frozen=True)
class Timeline:
    """When values are needed, in positions among the steps; the end of the program is position `len(graph.steps)`.

    Attributes:
        graph: the graph.
        cap: no step that costs more than this is computed again.
        negligible: bytes; values up to this size are taken to be free and always kept.
        closed: whether nothing runs after the first computation of the last step.
    """

    graph: Graph
    cap: float = math.inf
    negligible: int = 0
    closed: bool = False

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

    def certain(self, u: int, begin: int) -> bool:
        """Whether a value is surely live after the first computation at position `begin`, whatever is recomputed."""
        if self.closed and begin == self.end - 1 and u in self.graph.outputs:
            return True
        return not self.again[u] and (self.firm[u] > begin or not self.charge[u])

    def reads(self, p: int) -> dict[int, None]:
        """What the step at a position reads, in order and without repetition."""
        return dict.fromkeys(self.graph.nodes[self.graph.steps[p]].deps)
