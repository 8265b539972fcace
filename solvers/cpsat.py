"""Runs CP-SAT so that it can be watched and interrupted, and repeats itself where that is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solvers.background import run_in_background
from solvers.errors import SolverError

# With a work limit the search must not depend on how many cores a machine has.
_REPEATABLE_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how hard to search.

    Attributes:
        seconds: wall-clock limit.
        work: CP-SAT's deterministic time, or None.
        seed: random seed.
        workers: threads, or None for as many as there are cores (a fixed number if `work` is given).
    """

    seconds: float
    work: float | None = None
    seed: int = 0
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found.

    Attributes:
        found: whether there is a solution.
        proved: whether it is optimal, or, without one, whether there is none.
        objective: of the solution, or None.
        bound: proven lower bound of the objective.
        work: deterministic time spent.
        interrupted: whether a KeyboardInterrupt stopped it.
        value_of: value of a variable in the solution.
    """

    found: bool
    proved: bool
    objective: int | None
    bound: float
    work: float
    interrupted: bool
    value_of: Callable[[cp_model.IntVar], int]


class _Watch(cp_model.CpSolverSolutionCallback):
    """Remembers the latest objective and bound, which the search's threads report."""

    def __init__(self) -> None:
        super().__init__()
        self.objective: float | None = None
        self.bound = float("-inf")

    def on_solution_callback(self) -> None:
        self.objective = self.objective_value
        self.on_bound(self.best_objective_bound)

    def on_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)


def run(
    model: cp_model.CpModel, limits: Limits, report: Callable[[float | None, float], None] | None = None, **parameters: object
) -> Outcome:
    """Solves a model to minimality, or as far as the limits allow.

    The search runs in a thread of its own: a KeyboardInterrupt of the calling thread stops it and keeps what it found.

    Args:
        model: a minimisation.
        limits: how long and how hard to search.
        report: called now and then with the best objective (None while there is none) and bound, when they have changed.
        parameters: further CP-SAT parameters.
    """
    solver = cp_model.CpSolver()
    p = solver.parameters
    p.max_time_in_seconds = max(0.01, limits.seconds)
    p.random_seed = limits.seed % (1 << 31)
    p.catch_sigint_signal = False
    if limits.work is None:
        p.num_workers = limits.workers or os.cpu_count() or 1
    else:
        p.max_deterministic_time = max(1e-3, limits.work)
        p.num_workers = limits.workers or _REPEATABLE_WORKERS
        p.interleave_search = p.num_workers > 1
    for name, value in parameters.items():
        setattr(p, name, value)
    watch = _Watch()
    solver.best_bound_callback = watch.on_bound
    seen: tuple[float | None, float] = (None, float("-inf"))

    def tell() -> None:
        nonlocal seen
        if report is not None and (watch.objective, watch.bound) != seen:
            seen = (watch.objective, watch.bound)
            report(*seen)

    def stop() -> bool:
        solver.stop_search()
        return True

    status, interrupted = run_in_background(lambda: solver.solve(model, watch), stop, tell)
    if status is None:
        raise SolverError("CP-SAT stopped without a result; see the error above")
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Outcome(
        found=found,
        proved=status in (cp_model.OPTIMAL, cp_model.INFEASIBLE),
        objective=round(solver.objective_value) if found else None,
        bound=solver.best_objective_bound if status != cp_model.INFEASIBLE else float("inf"),
        work=solver.deterministic_time,
        interrupted=interrupted,
        value_of=solver.value,
    )
