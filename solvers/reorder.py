"""Topological orders with a low peak: the memory that costs no recomputation at all.

List scheduling: of the steps whose inputs are ready, run the one that raises the live bytes least, counting a share of the
inputs that it brings closer to their last read. Repeated with noise; the orders with the lowest simulated peak are kept.
Finding the best order is NP-hard (one-shot pebbling, Sethi 1975), so this is a heuristic. In training graphs, whose backward
pass fixes most of the order, the given order is usually best already; in irregular graphs much can be gained.
"""

from __future__ import annotations

import random
import time

from solvers.graph import Graph
from solvers.schedule import Schedule
from solvers.simulate import simulate

_SHARES = (0.0, 0.3, 0.6, 1.0)


def lean_orders(graph: Graph, *, rng: random.Random, tries: int, deadline: float, keep: int = 3) -> list[list[int]]:
    """Topological orders, the lowest peak first.

    Args:
        graph: the graph.
        rng: source of the noise.
        tries: how many orders are made beside the given one.
        deadline: stop after this value of `time.monotonic()`.
        keep: how many to return.

    Returns:
        At most `keep` different orders that compute each step once; the given order is among the candidates.
    """
    given = list(graph.steps)
    found = {tuple(given): simulate(graph, Schedule.from_order(graph, given)).peak}
    scale = sum(node.charge for node in graph.nodes) / len(graph)
    for k in range(tries):
        if time.monotonic() > deadline:
            break
        noise = 0.0 if k < len(_SHARES) else scale * rng.choice((0.03, 0.1, 0.3))
        order = _list_order(graph, _SHARES[k % len(_SHARES)], rng, noise)
        if tuple(order) not in found:
            found[tuple(order)] = simulate(graph, Schedule.from_order(graph, order)).peak
    return [list(order) for order in sorted(found, key=lambda order: found[order])[:keep]]


def _list_order(graph: Graph, share: float, rng: random.Random, noise: float) -> list[int]:
    """One order; `share` weighs inputs by the part of their reads that a step does, against whole inputs freed."""
    nodes = graph.nodes
    deps = [tuple(dict.fromkeys(node.deps)) for node in nodes]
    unread = [len(readers) for readers in graph.readers]
    for o in graph.outputs:
        unread[o] += 1
    # A step waits for the steps that write its inputs.
    waits = [len({graph.step_of(u) for u in deps[v]}) for v in range(len(nodes))]
    followers = [sorted({r for w in graph.written(s) for r in graph.readers[w]}) for s in range(len(nodes))]
    ready = [v for v in graph.steps if not waits[v]]
    order: list[int] = []

    def growth(v: int) -> tuple[float, int]:
        grown: float = sum(nodes[w].charge for w in graph.written(v) if unread[w])
        for u in deps[v]:
            grown -= nodes[u].charge * (share / unread[u] + (1 - share) * (unread[u] == 1))
        return grown + (rng.gauss(0.0, noise) if noise else 0.0), v

    while ready:
        v = min(ready, key=growth)
        ready.remove(v)
        order.append(v)
        for u in deps[v]:
            unread[u] -= 1
        for r in followers[v]:
            waits[r] -= 1
            if not waits[r]:
                ready.append(r)
    return order
