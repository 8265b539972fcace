"""Segments and save-sets: the best plan of the form that `jax.checkpoint` can express.

A policy plan divides the forward pass into segments, keeps what crosses their boundaries and a set of further values, and
replays a whole segment when the backward pass reaches it. That is less than an arbitrary schedule can do, and all that nested
checkpoints with named values can. Candidates are segments of even weight and trees of segments (Chen et al. 2016, sections 4
and 4.3), each with values kept by cost per byte; the best is improved by local search, every step judged by exact simulation.
Not optimal; `Solution.lower_bound` is the trivial one.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from solvers.bounds import infeasible
from solvers.graph import Graph
from solvers.replay import replay
from solvers.schedule import Schedule
from solvers.segments import Forward, Segment, even_cuts, flat, nested
from solvers.simulate import simulate
from solvers.solution import Options, Solution, Status, make_solution

_SHARES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75)
_PATIENCE = 3000  # fruitless moves before the local search gives up


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A plan made of segments and kept values.

    Attributes:
        tree: segments over the positions of `forward.steps`.
        keep: nodes that are kept although their segment is replayed.
        forward: the forward pass that `tree` refers to.
        solution: the schedule that it amounts to.
    """

    tree: Segment
    keep: frozenset[int]
    forward: Forward
    solution: Solution


@dataclass(frozen=True, slots=True)
class _Candidate:
    cuts: tuple[int, ...]
    keep: frozenset[int]
    tree: Segment | None = None


def search(
    graph: Graph,
    budget: int | None,
    options: Options,
    *,
    keepable: frozenset[int],
    always: frozenset[int] = frozenset(),
    form: str = "auto",
) -> SegmentPlan:
    """The cheapest plan of segments and kept values found within a budget.

    Args:
        graph: a training graph.
        budget: bytes; None for the lowest peak found.
        options: time limit and seed.
        keepable: nodes that may be kept inside a segment.
        always: nodes that must be.
        form: one of `FORMS`: all candidates and a local search, or only those of one strategy of Chen et al. (2016).

    Raises:
        InfeasibleBudget: if no candidate fits, with the smallest peak among them.
        UnsupportedGraph: if the graph has no backward pass.
    """
    began = time.perf_counter()
    base = Forward.of(graph)
    always |= frozenset(v for v in base.kept if not graph.may_recompute(v) or v in keepable)
    found: dict[_Candidate, tuple[float, int, list[int]]] = {}

    def judge(candidate: _Candidate) -> tuple[float, int, list[int]]:
        if candidate not in found:
            forward = _forward(base, always | candidate.keep)
            order = replay(forward, candidate.tree or flat(forward, candidate.cuts))
            result = simulate(graph, Schedule.from_order(graph, order))
            found[candidate] = (result.cost, result.peak, order)
        return found[candidate]

    def key(candidate: _Candidate) -> tuple[float, float]:
        cost, peak, _ = judge(candidate)
        return (peak, cost) if budget is None else (cost, peak)

    def fits(candidate: _Candidate) -> bool:
        return budget is None or judge(candidate)[1] <= budget

    status = Status.FEASIBLE
    best: _Candidate | None = None
    try:
        for candidate in FORMS[form](base, keepable):
            if fits(candidate) and (best is None or key(candidate) < key(best)):
                best = candidate
            if time.perf_counter() - began > options.time_limit / 2 and best is not None:
                break
        if best is not None and form == "auto":
            chance = random.Random(options.seed)
            fruitless = 0
            while fruitless < _PATIENCE and time.perf_counter() - began < options.time_limit:
                candidate = _move(base, keepable, best, chance)
                if fits(candidate) and key(candidate) < key(best):
                    best, fruitless = candidate, 0
                else:
                    fruitless += 1
    except KeyboardInterrupt:
        if best is None:
            raise
        status = Status.INTERRUPTED
    if best is None:
        peaks = [peak for _, peak, _ in found.values()]
        raise infeasible(graph, budget if budget is not None else 0, known_peaks=peaks)
    forward = _forward(base, always | best.keep)
    solution = make_solution(
        graph,
        judge(best)[2],
        solver="segments",
        budget=budget,
        seconds=time.perf_counter() - began,
        status=status,
        scope="any schedule",
    )
    return SegmentPlan(best.tree or flat(forward, best.cuts), (always | best.keep) & keepable, forward, solution)


def _forward(base: Forward, keep: frozenset[int]) -> Forward:
    return Forward(base.graph, base.steps, base.late, keep)


def _starts(base: Forward, keepable: frozenset[int]) -> Iterator[_Candidate]:
    """One segment, then even segments at articulation points with more and more kept, then trees of segments."""
    ranked = _by_worth(base, keepable)
    total = sum(_charge(base.graph, v) for v in ranked)
    weights = [0, *accumulate(base.held)]
    yield _Candidate((), frozenset())
    points = base.articulation_points
    counts = sorted({2, 3, *(round(len(points) * share) + 1 for share in (0.1, 0.2, 0.35, 0.5, 0.7, 1.0))})
    for share in _SHARES:
        keep = _worthiest(base.graph, ranked, share * total)
        for pieces in counts:
            yield _Candidate(tuple(even_cuts(points, weights, pieces, 0, len(base))), keep)
    for ways in (2, 3, 4):
        for depth in (2, 3, 5):
            for cuts in (points, base.all_cuts):
                tree = nested(base, _splitter(cuts, weights, ways, depth))
                yield _Candidate((), frozenset(), tree)


def _square_root(base: Forward, keepable: frozenset[int]) -> Iterator[_Candidate]:
    points, weights = base.articulation_points, [0, *accumulate(base.held)]
    yield _Candidate(tuple(even_cuts(points, weights, math.isqrt(len(points) + 1), 0, len(base))), frozenset())


def _recursive(base: Forward, keepable: frozenset[int]) -> Iterator[_Candidate]:
    weights = [0, *accumulate(base.held)]
    for depth in range(1, len(base).bit_length() + 1):
        tree = nested(base, _splitter(base.articulation_points, weights, 2, depth))
        yield _Candidate((), frozenset(), tree)


def _splitter(cuts: Sequence[int], weights: list[int], ways: int, depth: int) -> Callable[[int, int, int], list[int]]:
    def split(start: int, stop: int, level: int) -> list[int]:
        return [] if level == depth else even_cuts(cuts, weights, ways, start, stop)

    return split


def _move(base: Forward, keepable: frozenset[int], best: _Candidate, chance: random.Random) -> _Candidate:
    """A neighbour: a cut added, removed or shifted, or a value kept, dropped or exchanged."""
    points = base.articulation_points
    cuts, keep = set(best.cuts), set(best.keep)
    options = [v for q, v in enumerate(base.steps) if base.replayed[q] and v in keepable]
    if best.tree is None and points and chance.random() < 0.4:
        kind = chance.randrange(3)
        if kind and cuts:
            cuts.discard(chance.choice(sorted(cuts)))
        if kind != 1:
            cuts.add(chance.choice(points))
    elif options:
        kind = chance.randrange(3)
        if kind and keep:
            keep.discard(chance.choice(sorted(keep)))
        if kind != 1:
            keep.add(chance.choice(options))
    return _Candidate(tuple(sorted(cuts)), frozenset(keep), best.tree)


def _by_worth(base: Forward, keepable: frozenset[int]) -> list[int]:
    """Values that may be kept, the most cost per byte first."""
    graph = base.graph
    values = [v for q, v in enumerate(base.steps) if base.replayed[q] and v in keepable and _charge(graph, v)]
    return sorted(values, key=lambda v: (-graph.nodes[v].cost / _charge(graph, v), v))


def _charge(graph: Graph, v: int) -> int:
    return sum(graph.nodes[w].charge for w in graph.written(v))


def _worthiest(graph: Graph, ranked: list[int], room: float) -> frozenset[int]:
    chosen: list[int] = []
    for v in ranked:
        if _charge(graph, v) <= room:
            room -= _charge(graph, v)
            chosen.append(v)
    return frozenset(chosen)


FORMS: dict[str, Callable[[Forward, frozenset[int]], Iterator[_Candidate]]] = {
    "auto": _starts,
    "sqrt": _square_root,
    "recursive": _recursive,
}
"""Candidates by name of a strategy."""
