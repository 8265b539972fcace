"""Costs of connected components of evicted values, for h_DTR."""

from __future__ import annotations

from collections.abc import Sequence


class Components:
    """Union-find over evicted values with a cost per component (Kirisame et al., ICLR 2021, section 4.1 and appendix).

    Components are never split: a value that is recomputed takes its own cost out of its component and starts a new one.
    """

    def __init__(self, n: int):
        self.slot = list(range(n))  # value -> its current element
        self.parent = list(range(n))
        self.total = [0.0] * n

    def _find(self, element: int) -> int:
        while self.parent[element] != element:
            self.parent[element] = self.parent[self.parent[element]]
            element = self.parent[element]
        return element

    def enter(self, value: int, cost: float) -> None:
        """A value is evicted: a component of its own."""
        self.slot[value] = len(self.parent)
        self.parent.append(self.slot[value])
        self.total.append(cost)

    def leave(self, value: int, cost: float) -> None:
        """A value is back: it takes its cost along."""
        root = self._find(self.slot[value])
        self.total[root] = max(0.0, self.total[root] - cost)
        self.slot[value] = len(self.parent)
        self.parent.append(self.slot[value])
        self.total.append(0.0)

    def join(self, a: int, b: int) -> None:
        """Two evicted values are neighbours."""
        a, b = self._find(self.slot[a]), self._find(self.slot[b])
        if a != b:
            self.parent[b] = a
            self.total[a] += self.total[b]

    def cost(self, values: Sequence[int]) -> float:
        """Total cost of the components that these evicted values belong to, each counted once."""
        return sum(self.total[root] for root in {self._find(self.slot[v]) for v in values})
