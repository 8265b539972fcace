"""The recursive strategy of Chen et al. (2016, arXiv:1604.06174), section 4.3: memory logarithmic in the number of layers.

A segment is divided into parts, each of which is divided in turn when the backward pass reaches it. The paper keeps k values
a level and finds g(n) = k + g(n / (k + 1)), so g(n) = k log_{k+1}(n); with two parts a level, k = 1, that is log2(n). The extra
work is at most one forward pass a level. Stopping at a smaller depth keeps whole leaves and costs less.

Where this departs from the paper: cuts are the graph's own articulation points, parts weigh about the same in bytes, and the
last part of each level is not run again. Not optimal in general; for the best schedule of a uniform chain see binomial
checkpointing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from itertools import accumulate

from solvers.candidates import choose
from solvers.errors import InvalidOption
from solvers.graph import Graph
from solvers.replay import replay
from solvers.segments import Forward, Segment, even_cuts, nested
from solvers.solution import Options, Solution

_WAYS = (2, 3, 4, 8)


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """All depths of 2, 3, 4 and 8 parts a level: the cheapest within the budget, or without one the lowest peak.

    Raises:
        InfeasibleBudget: if no candidate fits.
        UnsupportedGraph: if the graph has no backward pass.
    """
    return choose(graph, budget, _candidates(Forward.of(graph)), solver="recursive", options=options)


def recursive_order(graph: Graph, *, ways: int = 2, depth: int | None = None) -> list[int]:
    """The order for `ways` parts a level, down to single steps or to a depth.

    Raises:
        UnsupportedGraph: if the graph has no backward pass.
        InvalidOption: if `ways` is below 2.
    """
    if ways < 2:
        raise InvalidOption(f"ways is {ways}: a segment is divided into at least 2 parts")
    forward = Forward.of(graph)
    return replay(forward, _tree(forward, forward.articulation_points, ways, depth))


def _tree(forward: Forward, cuts: Sequence[int], ways: int, depth: int | None) -> Segment:
    weights = [0, *accumulate(forward.held)]

    def split(start: int, stop: int, level: int) -> list[int]:
        return [] if level == depth else even_cuts(cuts, weights, ways, start, stop)

    return nested(forward, split)


def _candidates(forward: Forward) -> Iterator[Iterator[tuple[str, list[int]]]]:
    points, every = forward.articulation_points, forward.all_cuts
    for cuts, label in ((points, "articulation points"), (every, "all cuts")):
        if label == "articulation points" or points != every:
            for ways in _WAYS:
                yield _by_depth(forward, cuts, ways, label)


def _by_depth(forward: Forward, cuts: Sequence[int], ways: int, label: str) -> Iterator[tuple[str, list[int]]]:
    """Deeper and deeper trees, each costing more, until nothing is left to divide."""
    previous: list[int] | None = None
    for depth in itertools.count():
        order = replay(forward, _tree(forward, cuts, ways, depth))
        if order == previous:
            return
        yield f"{ways} parts a level, depth {depth}, {label}", order
        previous = order
