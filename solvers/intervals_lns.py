"""Large-neighbourhood search over retention intervals, for graphs whose whole model is too large to settle.

Each round frees the recomputations of some steps, keeps those of all others as the current schedule has them, and lets CP-SAT
decide on the free ones again (Shaw, "Using constraint programming and local search methods to solve vehicle routing problems",
CP 1998, is the origin of the idea). Four kinds of neighbourhood take turns:

- window: steps computed or read nearest to a moment at which memory is nearly full;
- cut: steps whose values are needed on both sides of such a moment, kept over it or not;
- ball: steps around a recomputed one in the graph;
- scatter: any steps, recomputed ones first.

Each kind has a size of its own, which grows when rounds are proved optimal and shrinks when they run out of time. While the
current schedule exceeds the budget, the same rounds lower the excess first, around the highest peaks.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence

from solvers.intervals_search import Search
from solvers.schedule import Schedule
from solvers.simulate import simulate

_FIRST_SIZE = 24
_GROW, _SHRINK = 1.2, 0.8
_ROUND = 3.0  # seconds, or units of deterministic work
_NEARLY_FULL = 0.97


class Neighbourhoods:
    """Chooses which steps to free.

    Attributes:
        kinds: name -> function of a number of steps, giving that many (or all there are).
    """

    def __init__(self, search: Search, rng: random.Random):
        self.search, self.rng = search, rng
        self.open = set(search.moments.again)
        self.kinds: dict[str, Callable[[int], list[int]]] = {
            "window": self._window,
            "cut": self._cut,
            "ball": self._ball,
            "scatter": self._scatter,
        }

    def _window(self, size: int) -> list[int]:
        center = self._full_moment()
        nearest: dict[int, int] = {}
        for p, v in enumerate(self._order()):
            distance = abs(p - center)
            for u in (v, *map(self.search.graph.step_of, self.search.graph.nodes[v].deps)):
                if u in self.open and distance < nearest.get(u, distance + 1):
                    nearest[u] = distance
        return sorted(nearest, key=lambda v: (nearest[v], v))[:size]

    def _cut(self, size: int) -> list[int]:
        order, center = self._order(), self._full_moment()
        before = set(order[:center])
        after = {self.search.graph.step_of(u) for v in order[center:] for u in self.search.graph.nodes[v].deps}
        return self._sample(sorted(before & after & self.open), size)

    def _ball(self, size: int) -> list[int]:
        graph = self.search.graph
        around = deque(self._sample(self._repeated() or sorted(self.open), 1))
        found: dict[int, None] = {}
        while around and len(found) < size:
            v = around.popleft()
            if v in found:
                continue
            found[v] = None
            linked = [graph.step_of(u) for u in graph.nodes[v].deps]
            linked += [reader for w in graph.written(v) for reader in graph.readers[w]]
            around.extend(self._sample([u for u in linked if u in self.open and u not in found], len(linked)))
        return list(found) + self._sample(sorted(self.open - found.keys()), size - len(found))

    def _scatter(self, size: int) -> list[int]:
        repeated = self._sample(self._repeated(), size // 2)
        return repeated + self._sample(sorted(self.open.difference(repeated)), size - len(repeated))

    def _order(self) -> list[int]:
        return self.search.moments.order(self.search.current)

    def _repeated(self) -> list[int]:
        seen: set[int] = set()
        return sorted({v for v in self._order() if v in seen or seen.add(v)} & self.open)  # type: ignore[func-returns-value]

    def _full_moment(self) -> int:
        """A position in the current order at which memory is nearly full; while over the budget, at which it is fullest."""
        graph = self.search.graph
        live = simulate(graph, Schedule.from_order(graph, self._order())).live
        level = max(live) if self.search.excess else _NEARLY_FULL * min(self.search.budget, max(live))
        return self.rng.choice([p for p, held in enumerate(live) if held >= level])

    def _sample(self, steps: Sequence[int], size: int) -> list[int]:
        return self.rng.sample(steps, max(0, min(size, len(steps))))


def improve(search: Search) -> None:
    """Improves the current schedule of a search until nothing is left of its limits, or all of it was free at once."""
    rng = random.Random(search.options.seed)
    neighbourhoods = Neighbourhoods(search, rng)
    sizes = dict.fromkeys(neighbourhoods.kinds, float(_FIRST_SIZE))
    turn = 0
    while search.left > 0:
        cycle = (search.excess, search.cost)
        for kind, choose in neighbourhoods.kinds.items():
            if search.left <= 0:
                return
            free = choose(round(sizes[kind]))
            turn += 1
            before = (search.excess, search.cost)
            outcome = search.solve_part(free, min(_ROUND, search.left), turn)
            if outcome.proved and not before[0] and neighbourhoods.open.issubset(free):
                search.close()
            improved = (search.excess, search.cost) < before
            if outcome.proved and not improved:
                sizes[kind] = min(sizes[kind] * _GROW, float(len(neighbourhoods.open)))
            elif not outcome.proved:
                sizes[kind] = max(4.0, sizes[kind] * _SHRINK)
        if search.excess and cycle == (search.excess, search.cost):
            search.allow_more_copies()
