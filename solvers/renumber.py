"""A graph with its nodes in another order, and the way back: solvers for the given order then work on any order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from solvers.errors import InvalidSchedule
from solvers.graph import Graph


@dataclass(frozen=True)
class Renumbered:
    """A graph whose given order is another order of the same steps.

    Attributes:
        graph: the renumbered graph.
        old: for each node of it, the node of the original graph.
        new: for each original node, the node of the renumbered graph.
    """

    graph: Graph
    old: tuple[int, ...]
    new: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, order: Sequence[int]) -> Renumbered:
        """Renumbers by the first computations of a valid order; further values of a step follow the step.

        Raises:
            InvalidGraph: if the order reads a value before it is computed.
            InvalidSchedule: if it leaves steps out.
        """
        firsts = first_computations(order)
        if len(firsts) != len(graph.steps):
            text = f"the order computes {len(firsts)} different steps and the graph has {len(graph.steps)}"
            raise InvalidSchedule(text, step=len(order), node=min(set(graph.steps).symmetric_difference(firsts)))
        old = [w for v in firsts for w in graph.written(v)]
        new = [0] * len(graph)
        for k, v in enumerate(old):
            new[v] = k
        nodes = []
        for v in old:
            node = graph.nodes[v]
            lead = None if node.part_of is None else new[node.part_of]
            nodes.append(replace(node, deps=tuple(sorted(new[u] for u in node.deps)), part_of=lead))
        return cls(Graph(tuple(nodes), tuple(new[o] for o in graph.outputs)), tuple(old), tuple(new))

    def there(self, order: Iterable[int]) -> tuple[int, ...]:
        """An order of the original graph in the numbers of the renumbered one."""
        return tuple(self.new[v] for v in order)

    def back(self, order: Iterable[int]) -> tuple[int, ...]:
        """An order of the renumbered graph in the numbers of the original one."""
        return tuple(self.old[v] for v in order)


def first_computations(order: Iterable[int]) -> tuple[int, ...]:
    """The steps of an order, each where it is computed first."""
    return tuple(dict.fromkeys(order))
