"""The one entry point: `solve(graph, budget, solver)`, with every algorithm under its name."""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from solvers.errors import InvalidBudget, InvalidOption
from solvers.graph import Graph
from solvers.schedule import Schedule
from solvers.solution import Options, Progress, Solution

# name -> "module:function". Modules are imported when they are asked for, so that nobody waits for solvers not used.
REGISTRY: dict[str, str] = {
    "auto": "solvers.portfolio:solve",
    "keep_all": "solvers.keep_all:solve",
    "sqrt": "solvers.chen:solve_sqrt",
    "chen": "solvers.chen:solve",
    "recursive": "solvers.recursive:solve",
    "greedy": "solvers.greedy:solve",
    "knapsack": "solvers.knapsack:solve",
    "revolve": "solvers.revolve:solve",
    "chain": "solvers.chain:solve",
    "intervals": "solvers.intervals:solve",
    "events": "solvers.events:solve",
    "frontier": "solvers.frontier:solve",
    "checkmate": "solvers.checkmate:solve",
    "rounding": "solvers.rounding:solve",
    "hierarchical": "solvers.hierarchical:solve",
    "brute_force": "solvers.brute_force:solve",
}

# Parts of `auto`, and not a choice of their own: what works from given starts only, or leaves the rest to others.
PARTS: dict[str, str] = {"improve": "solvers.improve:solve", "blocks": "solvers.hierarchical:compose"}

Solver = Callable[[Graph, int | None, Options], Solution]


def solve(
    graph: Graph,
    budget: int | None = None,
    solver: str = "auto",
    *,
    time_limit: float = 60.0,
    work_limit: float | None = None,
    seed: int = 0,
    workers: int | None = None,
    starts: Sequence[Sequence[int]] = (),
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Plans what is kept, freed and recomputed.

    Args:
        graph: the graph.
        budget: largest peak allowed, bytes. None for no limit: `auto` then keeps everything, and strategies without an
            objective of their own return their lowest peak.
        solver: a name from `available()`.
        time_limit: seconds of wall-clock time.
        work_limit: CP-SAT deterministic time; with it a run is repeatable for a fixed seed.
        seed: seed of every random choice.
        workers: threads for parallel search; None for as many as there are cores.
        starts: orders of computations known to be valid, to start from.
        progress: called from time to time.

    Returns:
        A simulated schedule within the budget, with what is proven about it.

    Raises:
        InvalidBudget: if the budget is not a positive whole number of bytes.
        InfeasibleBudget: if no schedule was found; it says whether that is proven.
        InvalidSchedule: if a start is not valid for the graph.
        UnsupportedGraph: if the solver does not treat such graphs.
        InvalidOption: for an unknown solver, or an option out of range.

    >>> from solvers.graph import training_chain
    >>> solve(training_chain(16), solver="sqrt").peak
    8
    """
    run = find_solver(solver)
    budget = check_budget(budget)
    for label, limit in (("time_limit", time_limit), ("work_limit", work_limit)):
        if limit is not None and not limit > 0:
            raise InvalidOption(f"{label} is {limit!r}: a number above zero")
    if workers is not None and (isinstance(workers, bool) or workers < 1):
        raise InvalidOption(f"workers is {workers!r}: at least 1, or None for as many as there are cores")
    for start in starts:
        Schedule.from_order(graph, start)
    options = Options(
        time_limit=time_limit, work_limit=work_limit, seed=seed, workers=workers, starts=tuple(starts), progress=progress
    )
    return run(graph, budget, options)


def check_budget(budget: object) -> int | None:
    """The budget as an int, or None.

    Raises:
        InvalidBudget: if it is anything but None or a positive whole number.
    """
    if budget is None:
        return None
    what = f"the budget is {budget!r}: a whole number of bytes above zero, or None for no limit"
    if isinstance(budget, float) and math.isfinite(budget):
        raise InvalidBudget(f"{what}; round it, and turn a fraction of a peak into bytes first")
    if isinstance(budget, bool):
        raise InvalidBudget(what)
    try:
        size = operator.index(budget)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidBudget(what) from error
    if size <= 0:
        raise InvalidBudget(what)
    return size


def available() -> tuple[str, ...]:
    """Names that `solve` accepts, `auto` first."""
    return tuple(name for name, where in REGISTRY.items() if find_spec(where.partition(":")[0]))


def find_solver(name: str) -> Solver:
    """The function behind a name.

    Raises:
        InvalidOption: if there is no such solver, listing those there are.
    """
    if name not in available() and name not in PARTS:
        raise InvalidOption(f"there is no solver {name!r}: choose one of {', '.join(available())}")
    module, _, function = {**REGISTRY, **PARTS}[name].partition(":")
    found: Solver = getattr(importlib.import_module(module), function)
    return found
