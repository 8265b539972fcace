"""What a solver returns, and the one way to make it: by simulating the schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from solvers.errors import SolverError
from solvers.graph import Graph
from solvers.orders import keeps_given_order
from solvers.schedule import Schedule
from solvers.simulate import simulate

ANY_SCHEDULE = "any schedule"


class Status(Enum):
    """How far a solver got. An impossible budget is not a status: it raises `InfeasibleBudget`."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Progress:
    """One report while a solver runs: where it is, its best cost (infinite while there is none) and its proven bound.

    Both are NaN in reports of what is no search, such as compiling a plan.
    """

    solver: str
    seconds: float
    cost: float
    lower_bound: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every solver accepts beside graph and budget.

    Attributes:
        time_limit: seconds of wall-clock time.
        work_limit: CP-SAT deterministic time; with it a run is repeatable for a fixed seed as long as `time_limit` is not
            reached. `greedy` and `knapsack` derive numbers of attempts from it. The linear backends (`events`, `checkmate`,
            `rounding`, `lp_bound`) know only the clock: their runs are repeatable where they end by themselves.
        seed: seed of every random choice.
        workers: threads for parallel search; None for as many as there are cores.
        starts: orders known to be valid, to start from.
        progress: called from time to time.
    """

    time_limit: float = 60.0
    work_limit: float | None = None
    seed: int = 0
    workers: int | None = None
    starts: Sequence[Sequence[int]] = ()
    progress: Callable[[Progress], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A simulated schedule and what is known about it.

    Attributes:
        solver: which solver found the schedule.
        status: how far it got.
        schedule: the schedule.
        cost: its total cost, in the graph's unit.
        peak: its peak of budgeted bytes.
        peak_total: its peak with the caller's buffers counted.
        keep_all_cost: cost of computing each node once.
        lower_bound: no schedule within the budget costs less, relative to `scope`.
        scope: the class of schedules that the bound (and OPTIMAL) speaks of.
        budget: bytes asked for; None if none was.
        seconds: time spent.
        notes: further facts, such as which part of a portfolio gave what.
    """

    solver: str
    status: Status
    schedule: Schedule
    cost: float
    peak: int
    peak_total: int
    keep_all_cost: float
    lower_bound: float
    scope: str
    budget: int | None
    seconds: float
    notes: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def gap(self) -> float:
        """(cost - lower_bound) / keep-all cost; 0 when nothing is left to prove."""
        return max(0.0, self.cost - self.lower_bound) / self.keep_all_cost if self.keep_all_cost else 0.0

    @property
    def overhead(self) -> float:
        """Extra cost over computing each node once, as a fraction of that."""
        return (self.cost - self.keep_all_cost) / self.keep_all_cost if self.keep_all_cost else 0.0


def make_solution(
    graph: Graph,
    order: Iterable[int],
    *,
    solver: str,
    budget: int | None,
    seconds: float,
    status: Status = Status.FEASIBLE,
    lower_bound: float | None = None,
    scope: str = ANY_SCHEDULE,
    given_order: bool = False,
    notes: dict[str, str] | None = None,
) -> Solution:
    """Simulates an order and wraps it up.

    A schedule that costs no more than its bound, or than computing each node once, is optimal whatever the solver says.

    Args:
        graph: the graph.
        order: the computations.
        solver: who found it.
        budget: bytes, or None.
        seconds: time spent.
        status: what the solver says.
        lower_bound: proven total cost; None for that of computing each node once.
        scope: what the bound speaks of.
        given_order: whether that is schedules in the given order only. If `order` is another one (that of a start, say), bound
            and status prove nothing about it: it is returned as feasible among all schedules, and the bound goes to the notes.
        notes: further facts.

    Raises:
        InvalidSchedule: if the order is not valid.
        SolverError: if it exceeds the budget, which is a fault of the solver.
    """
    schedule = Schedule.from_order(graph, order)
    result = simulate(graph, schedule)
    if budget is not None and result.peak > budget:
        raise SolverError(f"{solver} returned a schedule that peaks at {result.peak:,} bytes, above the budget of {budget:,}")
    floor = graph.keep_all_cost
    if given_order and not keeps_given_order(graph, schedule.order):
        if lower_bound is not None and lower_bound > floor:
            notes = {**(notes or {}), f"bound for {scope}": f"{lower_bound:.10g}"}
        status, lower_bound, scope = Status.FEASIBLE if status is Status.OPTIMAL else status, None, ANY_SCHEDULE
    bound = floor if lower_bound is None else min(max(lower_bound, floor), result.cost)
    if result.cost <= floor or math.isclose(result.cost, bound, rel_tol=1e-9):
        status, bound = Status.OPTIMAL, result.cost
    return Solution(
        solver=solver,
        status=status,
        schedule=schedule,
        cost=result.cost,
        peak=result.peak,
        peak_total=result.peak_total,
        keep_all_cost=floor,
        lower_bound=bound,
        scope=scope,
        budget=budget,
        seconds=seconds,
        notes=notes or {},
    )
