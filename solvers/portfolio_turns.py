"""`auto` under a work limit: its parts one after another in this process, each by an amount of work."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Protocol

from solvers.bounds import describe_scope
from solvers.portfolio_jobs import INTERVALS
from solvers.solution import Options
from solvers.team import Search, view_for

_IMPROVEMENTS = 60  # rounds of greedy improvement


class Offering(Search, Protocol):
    """A search that orders and bounds can be given to."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to find, or no time."""
        ...

    def offer(self, order: Sequence[int], source: str) -> None:
        """Takes an order that fits."""
        ...

    def claim(self, bound: float, scope: str, firsts: tuple[int, ...] | None, source: str) -> None:
        """Takes a bound."""
        ...


def take_turns(search: Offering) -> None:
    """Greedy improvement by rounds, the linear bound to its end, then `intervals` by deterministic work."""
    from solvers.lp_bound import prove
    from solvers.repair import improve

    graph, budget, best = search.pool.graph, search.pool.budget, search.pool.best
    if best is not None:
        rng = random.Random(search.options.seed)
        search.offer(improve(graph, best.order, budget, rng=rng, rounds=_IMPROVEMENTS), "greedy, improved")
    view = view_for(INTERVALS, graph, search.pool)
    proof = prove(view.graph, budget, Options(time_limit=max(0.01, search.left), starts=view.starts(search.pool)))
    if math.isfinite(proof.cost):
        search.claim(proof.cost, view.scope(describe_scope("given")), view.firsts, "linear program")
    if not search.done:
        search.run_inline(INTERVALS, search.left)
