"""Leaving small values out of the decisions: two graphs with fewer of them, one of which underestimates and one overestimates.

In the graphs of real networks most values are small (statistics, biases, masks), and together they hardly matter. With a set of
small values,

- `kept`: their steps run once, so they are kept. A schedule for this graph is one for the original, at the same peak and cost;
  what is proven for it holds for schedules that keep these values.
- `free`: their bytes do not count. Every schedule for the original fits here too, so a bound proven here holds for the
  original; a schedule found here may exceed the budget by a little.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.graph import Graph

_SHARE = 1 / 200  # of the budget: what the small values may take together
_WORTHWHILE = 1 / 4  # of the steps that could run again; with fewer small ones the graph stays as it is


@dataclass(frozen=True)
class Essentials:
    """A graph without decisions about small values.

    Attributes:
        small: steps whose values are small.
        largest: bytes of the largest of them; 0 if there are none.
        kept: the graph with these steps run once.
        free: the graph with these values of no size.
    """

    small: frozenset[int]
    largest: int
    kept: Graph
    free: Graph

    @classmethod
    def of(cls, graph: Graph, budget: int) -> Essentials:
        """Chooses the smallest values that together take at most a two-hundredth of the budget, if those are many."""
        size = {
            v: sum(graph.nodes[w].charge for w in graph.written(v))
            for v in graph.steps
            if graph.may_recompute(v) and any(graph.nodes[w].charge for w in graph.written(v))
        }
        room, small = int(budget * _SHARE), set[int]()
        for v in sorted(size, key=lambda v: (size[v], v)):
            room -= size[v]
            if room < 0:
                break
            small.add(v)
        if not small or len(small) < _WORTHWHILE * len(size):
            return cls(frozenset(), 0, graph, graph)
        kept = [replace(n, recomputable=False) if v in small else n for v, n in enumerate(graph.nodes)]
        free = [replace(n, size=0) if graph.step_of(v) in small else n for v, n in enumerate(graph.nodes)]
        largest = max(size[v] for v in small)
        return cls(frozenset(small), largest, Graph(tuple(kept), graph.outputs), Graph(tuple(free), graph.outputs))

    def keeping(self, order: tuple[int, ...]) -> tuple[int, ...]:
        """An order of the original graph without the recomputations of small values; its peak may be a little higher."""
        seen: set[int] = set()
        result: list[int] = []
        for v in order:
            if v not in self.small or v not in seen:
                result.append(v)
            seen.add(v)
        return tuple(result)
