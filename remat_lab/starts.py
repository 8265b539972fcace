"""The schedules that JAX's built-in policies amount to, on a planning graph: orders for a solver to start from.

A plan that starts from these costs no more than any of them does at the same planned peak. Each is a set of steps whose values
are saved, and a division of the forward pass into segments that are recomputed when the backward pass reaches them, as
`jax.checkpoint` with a policy around every block would have it:

- nothing but the segments' inputs (`nn.remat` per block);
- the results of dots and convolutions (`dots_saveable`);
- of dots without batch dimensions only (`dots_with_no_batch_dims_saveable`): projections, but not attention scores, nor
  convolutions.

Segments are cut at the graph's articulation points, at several granularities, over the whole forward pass or its first half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from remat_lab.flatten import Equation
from remat_lab.fuse import Fused
from solvers.errors import UnsupportedGraph
from solvers.replay import replay
from solvers.schedule import Schedule
from solvers.segments import Forward, even_cuts, flat
from solvers.simulate import simulate

_NEARLY = 1.15  # times the budget: orders up to this peak are worth repairing
_MOST = 12
_DEEP = 3000  # steps; beyond these, blocks are composed (`solvers.hierarchical`) from better save-sets than any policy's


def policy_orders(fused: Fused) -> Iterator[tuple[str, list[int]]]:
    """Names and orders of the policies at every granularity; none for a graph without a backward pass.

    The orders of a name differ in the number of segments only.
    """
    graph = fused.graph
    try:
        plain = Forward.of(graph)
    except UnsupportedGraph:
        return
    seen: set[tuple[int, ...]] = set()
    for name, saved in save_sets(fused).items():
        forward = Forward.of(graph, keep=saved)
        for cuts in _divisions(forward, plain):
            order = replay(forward, flat(forward, cuts))
            if tuple(order) not in seen:
                seen.add(tuple(order))
                yield f"{name}, {len(cuts) + 1} segments", order


def save_sets(fused: Fused) -> dict[str, frozenset[int]]:
    """For each policy, the forward steps whose values it saves."""
    rules: dict[str, Callable[[Equation], bool]] = {
        "nn_remat": lambda equation: False,
        "dots_saveable": _is_product,
        "dots_with_no_batch_dims_saveable": _is_plain_dot,
    }
    equations, nodes = fused.program.equations, fused.graph.nodes
    made_by = {v: [equations[k] for k in group.equations] for v, group in fused.groups.items() if not nodes[v].backward}
    return {name: frozenset(v for v, made in made_by.items() if any(map(rule, made))) for name, rule in rules.items()}


def starts(fused: Fused, budget: int) -> list[list[int]]:
    """The policies' orders that fit a budget, or nearly; the cheapest first, at most a dozen; none for a deep network."""
    graph = fused.graph
    if len(graph.steps) > _DEEP:
        return []
    found: list[tuple[bool, float, list[int]]] = []
    for _, order in policy_orders(fused):
        result = simulate(graph, Schedule.from_order(graph, order))
        if result.peak <= _NEARLY * budget:
            found.append((result.peak > budget, result.cost, order))
    found.sort(key=lambda row: row[:2])
    return [order for _, _, order in found[:_MOST]]


def _divisions(forward: Forward, plain: Forward) -> Iterator[list[int]]:
    """Cuts at the articulation points: all, then half as many and so on, even in bytes; each also without its later half.

    What follows the last cut is the last segment, which is kept.
    """
    points = plain.articulation_points
    weights = [0, *accumulate(plain.held)]
    pieces = len(points) + 1
    while pieces > 1:
        cuts = list(points) if pieces > len(points) else even_cuts(points, weights, pieces, 0, len(forward))
        yield cuts
        yield cuts[: (len(cuts) + 1) // 2]
        pieces //= 2


def _is_product(equation: Equation) -> bool:
    return equation.name in ("dot_general", "conv_general_dilated")


def _is_plain_dot(equation: Equation) -> bool:
    if equation.name != "dot_general":
        return False
    _, (left, right) = equation.eqn.params["dimension_numbers"]
    return not left and not right
