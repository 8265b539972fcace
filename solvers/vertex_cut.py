"""The lightest set of values to keep so that others can be computed again from it.

By max-flow min-cut in the graph whose values are split into an entrance and an exit, with the value's size as capacity between.
The save-set problem of one step of a loop; `min_cut` is the same idea on whole training graphs, with rules of what they keep
anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from solvers.errors import SolverError

_LIMIT = 1 << 60


def vertex_cut(
    sizes: Mapping[int, int], inputs: Mapping[int, Sequence[int]], sources: Collection[int], needed: Collection[int]
) -> frozenset[int]:
    """Values to keep, of the least total size.

    Args:
        sizes: bytes of each value.
        inputs: for each value that may be computed again, what that takes; values not in `sizes` are there anyway.
        sources: values that exist only if kept.
        needed: values that must be available in the end, kept or computed again.

    Returns:
        The kept values; of cuts of equal size the one nearest to the needed values, so that the least is computed again.
    """
    from ortools.graph.python.max_flow import SimpleMaxFlow  # type: ignore[import-untyped]

    number = {value: i for i, value in enumerate(sorted(sizes))}
    source, sink = 2 * len(number), 2 * len(number) + 1
    shift = max(0, sum(sizes.values()).bit_length() - 58)
    # One unit more for each value, so that empty ones are not kept for nothing.
    capacity = {value: (size >> shift) * (len(number) + 1) + 1 for value, size in sizes.items()}
    scale = max(1, -(-sum(capacity.values()) // _LIMIT))
    capacity = {value: -(-units // scale) for value, units in capacity.items()}
    infinite = sum(capacity.values()) + 1
    flow = SimpleMaxFlow()
    for value, i in number.items():
        flow.add_arc_with_capacity(2 * i, 2 * i + 1, capacity[value])
        for read in inputs.get(value, ()) if value not in sources else ():
            if read in number:
                flow.add_arc_with_capacity(2 * number[read] + 1, 2 * i, infinite)
    for value in sources:
        flow.add_arc_with_capacity(source, 2 * number[value], infinite)
    for value in needed:
        flow.add_arc_with_capacity(2 * number[value] + 1, sink, infinite)
    if not sources or not needed:
        return frozenset()
    if flow.solve(source, sink) != flow.OPTIMAL:
        raise SolverError("the lightest set of kept values was not found: capacities overflow")
    behind = set(flow.get_sink_side_min_cut())
    return frozenset(value for value, i in number.items() if 2 * i + 1 in behind and 2 * i not in behind)
