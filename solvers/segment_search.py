"""Segments and save-sets: the best plan of the form that `jax.checkpoint` can express.

A policy plan divides the forward pass into segments, keeps what crosses their boundaries and a set of further values, and
replays a whole segment when the backward pass reaches it. That is less than an arbitrary schedule can do, and all that nested
checkpoints with named values can.

Which cuts and values is found by the search of `segment_anneal`, or as in Chen et al. (2016), see `segment_forms`. Not optimal;
`Solution.lower_bound` is the trivial one. How much is tried is counted in plans judged, so a search ends at the same place on
any machine unless its time limit is reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.bounds import infeasible
from solvers.graph import Graph
from solvers.replay import replay
from solvers.segment_anneal import Run, Space
from solvers.segment_forms import Candidate, Form, recursive, square_root
from solvers.segments import Forward, Segment, flat
from solvers.solution import Options, Solution, Status, make_solution

FORMS: dict[str, Form | None] = {
    "auto": None,
    "sqrt": square_root,
    "recursive": recursive,
}
"""Strategies by name: a search, or the candidates of one of Chen et al. (2016)."""

EFFORTS = {"quick": 2, "full": 40}
"""Runs of annealing at most, by name of an effort. Each ends a search early once several have gained less than 0.1 %."""


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


def search(
    graph: Graph,
    budget: int | None,
    options: Options,
    *,
    keepable: frozenset[int],
    always: frozenset[int] = frozenset(),
    form: str = "auto",
    effort: str = "quick",
) -> SegmentPlan:
    """The cheapest plan of segments and kept values found within a budget; see `SegmentSearch`."""
    return SegmentSearch(graph, keepable=keepable, always=always).find(budget, options, form=form, effort=effort)


class SegmentSearch:
    """A search that remembers the plans it judged, for one budget after another.

    Args:
        graph: a training graph.
        keepable: nodes that may be kept inside a segment.
        always: nodes that must be.
        settle: from the forward steps to where each cut 0..len between them would really be made.
        owners: from the forward steps to owners of late reads, see `Forward`.

    Raises:
        UnsupportedGraph: if the graph has no backward pass.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        keepable: frozenset[int],
        always: frozenset[int] = frozenset(),
        settle: Callable[[Sequence[int]], Sequence[int]] | None = None,
        owners: Callable[[Sequence[int]], Mapping[tuple[int, int], int]] | None = None,
    ):
        base = Forward.of(graph)
        always |= frozenset(v for v in base.kept if not graph.may_recompute(v) or v in keepable)
        self.graph, self.keepable = graph, keepable
        owned = {} if owners is None else owners(base.steps)
        self.space = Space(Forward(graph, base.steps, base.late, always, owned), keepable, settle)

    def find(self, budget: int | None, options: Options, *, form: str = "auto", effort: str = "quick") -> SegmentPlan:
        """The cheapest plan found within a budget.

        Args:
            budget: bytes; None for the lowest peak found.
            options: seed, and a time limit that ends the search early.
            form: one of `FORMS`.
            effort: one of `EFFORTS`.

        Raises:
            InfeasibleBudget: if no candidate fits, with the smallest peak found.
        """
        began = time.perf_counter()
        run = Run(self.space, budget, options, began + options.time_limit)
        candidates = FORMS[form]
        status = Status.FEASIBLE
        try:
            if candidates is not None:
                for candidate in candidates(self.space.cuts):
                    run.try_out(candidate)
            else:
                run.search(EFFORTS[effort])
        except KeyboardInterrupt:
            if run.best is None:
                raise
            status = Status.INTERRUPTED
        best = run.best
        if best is None:
            best = self._smallest(candidates, options)
            if budget is not None and self.space.judge(best).peak > budget:
                raise infeasible(self.graph, budget, known_peaks=[self.space.judge(best).peak])
        best = self._without_idle_names(best)
        self.space.solved.append(best)
        return self._plan(best, budget, began, status)

    def _smallest(self, candidates: Form | None, options: Options) -> Candidate:
        """The smallest peak, which an error may name: the same for every budget."""
        run = Run(self.space, None, options, time.perf_counter() + options.time_limit)
        if candidates is None:
            run.search(EFFORTS["quick"])
        for candidate in candidates(self.space.cuts) if candidates is not None else ():
            run.try_out(candidate)
        return run.best or run.everything

    def _without_idle_names(self, best: Candidate) -> Candidate:
        """Keeps by name only what has to be: what crosses a cut is kept anyway."""
        for v in sorted(best.keep):
            other = replace(best, keep=best.keep - {v})
            was, now = self.space.judge(best), self.space.judge(other)
            if (now.cost, now.peak) == (was.cost, was.peak):
                best = other
        return best

    def _plan(self, best: Candidate, budget: int | None, began: float, status: Status) -> SegmentPlan:
        base = self.space.base
        forward = replace(base, kept=base.kept | best.keep)
        tree = best.tree or flat(forward, best.cuts)
        solution = make_solution(
            self.graph,
            replay(forward, tree),
            solver="segments",
            budget=budget,
            seconds=time.perf_counter() - began,
            status=status,
            scope="any schedule",
        )
        return SegmentPlan(tree, forward.kept & self.keepable, forward, solution)
