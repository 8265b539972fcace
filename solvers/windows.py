"""Large-neighbourhood search across the cuts of a deep network: a few blocks at a time, whatever is around them.

A window holds the steps of the forward pass next to one that runs again, likelier where that is dear, together with the steps
that these are recomputed from. It becomes a problem of its own (`excerpt`), as small as the window however deep the network
is, in which exchanges (`repair.improve`) and the exact model of `intervals` take turns. Windows grow while the model proves
that nothing in them can be better, and shrink while it runs out of work (Shaw, CP 1998, is the origin of the idea).
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from solvers.errors import InfeasibleBudget
from solvers.excerpt import Excerpt
from solvers.graph import Graph
from solvers.intervals import solve as intervals
from solvers.orders import cost_of
from solvers.repair import improve
from solvers.solution import Options, Status
from solvers.trim import trim

_FIRST_SIZE, _LEAST_SIZE, _MOST_SIZE = 40.0, 12.0, 80.0  # steps of a window
_GROW, _SHRINK = 1.15, 0.8
_MOST_FREE = 160  # with all that they are recomputed from; where that is more, windows are left as they are
_WORK, _SECONDS = 0.5, 10.0  # for one exact model
_EXCHANGES = 20
_PATIENCE = 60  # windows without any gain after which the search ends


def search_windows(
    graph: Graph,
    order: Sequence[int],
    budget: int,
    *,
    rng: random.Random,
    rounds: float = math.inf,
    deadline: float = math.inf,
    done: Callable[[], bool] = lambda: False,
) -> Iterator[list[int]]:
    """Yields ever cheaper orders.

    Args:
        graph: the graph.
        order: a valid order within the budget.
        budget: bytes.
        rng: which windows are looked at.
        rounds: how many, at most.
        deadline: none is begun after this value of `time.monotonic()`.
        done: asked after each whether it is enough.

    Raises:
        KeyboardInterrupt: after yielding what was found until then.
    """
    ordinary = [v for v in graph.steps if graph.may_recompute(v) and any(graph.nodes[w].charge for w in graph.written(v))]
    place = {v: i for i, v in enumerate(ordinary)}
    size, fruitless, turn = _FIRST_SIZE, 0, 0
    while turn < rounds and fruitless < _PATIENCE and time.monotonic() < deadline and not done():
        turn += 1
        again = [v for v, count in Counter(order).items() if count > 1 and graph.nodes[v].cost and v in place]
        if not again:
            return
        center = place[rng.choices(again, [graph.nodes[v].cost for v in again])[0]]
        start = max(0, center - rng.randrange(round(size)))
        excerpt = Excerpt.of(graph, order, _extended(graph, order, ordinary[start : start + round(size)]))
        exact = turn % 2 == 0
        if exact:
            found, status = _exact(excerpt, budget, deadline)
            size = min(size * _GROW, _MOST_SIZE) if status is Status.OPTIMAL else max(size * _SHRINK, _LEAST_SIZE)
        else:
            part = improve(excerpt.graph, excerpt.order, budget, rng=rng, rounds=_EXCHANGES, deadline=deadline)
            found, status = trim(excerpt.graph, part, budget), Status.FEASIBLE
        fruitless += 1
        if cost_of(excerpt.graph, found) < cost_of(excerpt.graph, excerpt.order):
            order, fruitless = excerpt.back(found), 0
            yield list(order)
        if status is Status.INTERRUPTED:
            raise KeyboardInterrupt


def _extended(graph: Graph, order: Sequence[int], window: Sequence[int]) -> set[int]:
    """A window with what its steps are recomputed from: values that come and go bind whoever reads them."""
    count = Counter(order)
    found, todo = set(window), list(window)
    while todo and len(found) <= _MOST_FREE:
        for u in graph.nodes[todo.pop()].deps:
            v = graph.step_of(u)
            if count[v] > 1 and v not in found:
                found.add(v)
                todo.append(v)
    return found if len(found) <= _MOST_FREE else set(window)


def _exact(excerpt: Excerpt, budget: int, deadline: float) -> tuple[Sequence[int], Status]:
    """The best order of a part that the exact model finds, and how it ended."""
    seconds = max(0.1, min(_SECONDS, deadline - time.monotonic()))
    options = Options(time_limit=seconds, work_limit=_WORK, workers=1, starts=(excerpt.order,))
    try:
        solution = intervals(excerpt.graph, budget, options)
    except InfeasibleBudget:  # its sizes are rounded up, and the part is as full as the budget
        return excerpt.order, Status.FEASIBLE
    return solution.schedule.order, solution.status
