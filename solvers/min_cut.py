"""The cheapest set of values to save so that backward recomputes only what it may.

Forward and backward as one graph, cut where the fewest bytes cross from the steps that are not to be recomputed to the reads
of the backward pass: the partitioner of torch.compile (min_cut_rematerialization_partition; He & Yu, "Transcending runtime-
memory tradeoffs in checkpointing by being fusion aware", MLSys 2023), without its fusion heuristics. By max-flow min-cut the
saved set is optimal in bytes for the steps given; it says nothing about the peak.
"""

from __future__ import annotations

from collections.abc import Collection

from ortools.graph.python.max_flow import SimpleMaxFlow  # type: ignore[import-untyped]

from solvers.errors import SolverError
from solvers.graph import Graph
from solvers.segments import Forward

_LIMIT = 1 << 62


def saved_bytes(graph: Graph, step: int) -> int:
    """Budgeted bytes of what a step writes and anything reads."""
    return sum(graph.nodes[w].charge for w in graph.written(step) if graph.readers[w])


def min_cut(forward: Forward, banned: Collection[int]) -> frozenset[int]:
    """Forward steps to save, so that no banned step runs again.

    Args:
        forward: the forward pass. Its kept steps are saved anyway and not part of the answer.
        banned: steps that are not to be recomputed.
    """
    graph, position = forward.graph, forward.position
    banned = set(banned) - forward.kept
    n = len(forward.steps)
    source, sink = 2 * n, 2 * n + 1
    flow = SimpleMaxFlow()
    # Capacities must not overflow when summed; sizes are scaled down by a power of two if they might.
    sizes = [saved_bytes(graph, v) for v in forward.steps]
    shift = max(0, sum(sizes).bit_length() - 60)
    infinite = min(_LIMIT, (sum(sizes) >> shift) + 1)
    linked = False
    for q, v in enumerate(forward.steps):
        if v in forward.kept:
            continue
        flow.add_arc_with_capacity(2 * q, 2 * q + 1, sizes[q] >> shift)
        if v in banned:
            flow.add_arc_with_capacity(source, 2 * q, infinite)
        for reader in sorted({r for w in graph.written(v) for r in graph.readers[w]}):
            r = position.get(reader)
            if r is None:
                flow.add_arc_with_capacity(2 * q + 1, sink, infinite)
                linked = True
            elif reader not in banned and reader not in forward.kept:
                flow.add_arc_with_capacity(2 * q + 1, 2 * r, infinite)
    if not linked or not banned:
        return frozenset()
    if flow.solve(source, sink) != flow.OPTIMAL:
        raise SolverError("the minimum cut of the forward pass was not found: capacities overflow")
    reached = set(flow.get_source_side_min_cut())
    return frozenset(
        v for q, v in enumerate(forward.steps) if 2 * q in reached and 2 * q + 1 not in reached and v not in forward.kept
    )
