"""Linear and 0-1 programs whose variables all lie in [0, 1], solved through OR-Tools.

The box makes certificates cheap: *any* non-negative weights y on the rows A x >= b give the bound
`y.b + sum(min(0, c - yA))` on every feasible c.x (weak duality over the box; Neumaier and Shcherbina, 2004). So a dual solution
that is inexact, or from a solver stopped half way, still proves what it proves.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]

Terms = list[tuple[int, float]]

_LARGEST_COST = 1000.0  # costs are scaled to this, since the backends' tolerances are absolute
_POLL_SECONDS = 0.05  # how quickly a KeyboardInterrupt is noticed while the solver runs in its own thread


@dataclass
class Program:
    """Minimise costs.x over x in [0, 1]^n with every row `sum(a * x[j]) >= rhs`.

    Attributes:
        costs: one per variable.
        whole: whether each variable must be 0 or 1.
        rows: `(terms, rhs)`, terms being `(variable, coefficient)`.
    """

    costs: list[float] = field(default_factory=list[float])
    whole: list[bool] = field(default_factory=list[bool])
    rows: list[tuple[Terms, float]] = field(default_factory=list[tuple[Terms, float]])

    def variable(self, cost: float = 0.0, *, whole: bool = True) -> int:
        """Adds a variable and returns its number."""
        self.costs.append(cost)
        self.whole.append(whole)
        return len(self.costs) - 1

    def at_least(self, terms: Terms, rhs: float) -> None:
        """Adds the row `terms >= rhs`."""
        self.rows.append((terms, rhs))

    def certified_bound(self, weights: Sequence[float], *, phase_one: bool = False) -> float:
        """The bound on the minimum that these row weights prove; negative weights count as 0.

        With `phase_one` the costs are taken as 0: a positive result proves that no point satisfies all rows.
        """
        constant, reduced = self._priced(weights, [0.0] * len(self.costs) if phase_one else list(self.costs))
        return math.fsum([constant, *(d for d in reduced if d < 0)])

    def settled(self, weights: Sequence[float], limit: float) -> dict[int, float]:
        """Variables that have one value, 0 or 1, in every whole point that costs at most `limit` (reduced-cost fixing)."""
        constant, reduced = self._priced(weights, list(self.costs))
        bound = math.fsum([constant, *(d for d in reduced if d < 0)])
        return {j: float(d < 0) for j, d in enumerate(reduced) if self.whole[j] and bound + abs(d) > limit}

    def _priced(self, weights: Sequence[float], reduced: list[float]) -> tuple[float, list[float]]:
        parts: list[float] = []
        for (terms, rhs), weight in zip(self.rows, weights, strict=True):
            if weight > 0:
                parts.append(weight * rhs)
                for j, a in terms:
                    reduced[j] -= weight * a
        return math.fsum(parts), reduced


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver returned.

    Attributes:
        optimal: whether `values` is optimal.
        infeasible: whether the solver found that nothing satisfies the rows.
        values: one per variable; empty if there is none.
        weights: the dual value of each row, clipped at 0; empty for 0-1 programs.
        interrupted: whether a KeyboardInterrupt ended the search.
    """

    optimal: bool = False
    infeasible: bool = False
    values: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    interrupted: bool = False


def solve_relaxation(program: Program, *, seconds: float, backend: str = "GLOP") -> Outcome:
    """Solves the program with every variable continuous. `backend` is GLOP or PDLP (HIGHS_LP returns no duals).

    Raises:
        KeyboardInterrupt: on Ctrl-C; half a linear program is of no use.
    """
    return _solve(program, backend=backend, seconds=seconds, relaxed=True, hint={}, fixed={})


def solve_whole(
    program: Program,
    *,
    seconds: float,
    backend: str = "SCIP",
    hint: Mapping[int, float] | None = None,
    fixed: Mapping[int, float] | None = None,
) -> Outcome:
    """Solves the program to proven optimality, or as far as time allows, with some variables fixed.

    `backend` is SCIP or HIGHS; only SCIP takes hints. The backend's own bound is not returned:
    `pywraplp` reports a meaningless one when time runs out.
    """
    return _solve(program, backend=backend, seconds=seconds, relaxed=False, hint=hint or {}, fixed=fixed or {})


def _solve(
    program: Program,
    *,
    backend: str,
    seconds: float,
    relaxed: bool,
    hint: Mapping[int, float],
    fixed: Mapping[int, float],
) -> Outcome:
    deadline = time.monotonic() + seconds
    solver = pywraplp.Solver.CreateSolver(backend)
    if solver is None:
        raise ValueError(f"this OR-Tools has no backend {backend!r}: use GLOP or PDLP, or for 0-1 programs SCIP or HIGHS")
    solver.SuppressOutput()
    if backend.startswith("HIGHS"):
        solver.SetSolverSpecificParametersAsString("output_flag=false")  # else it prints a banner
    xs = [solver.NumVar(0, 1, "") if relaxed or not whole else solver.BoolVar("") for whole in program.whole]
    for j, value in fixed.items():
        xs[j].SetBounds(value, value)
    scale = _LARGEST_COST / max((abs(cost) for cost in program.costs if cost), default=_LARGEST_COST)
    objective = solver.Objective()
    objective.SetMinimization()
    for x, cost in zip(xs, program.costs, strict=True):
        if cost:
            objective.SetCoefficient(x, cost * scale)
    constraints = []
    for terms, rhs in program.rows:
        constraint = solver.Constraint(rhs, solver.infinity())
        for j, a in terms:
            constraint.SetCoefficient(xs[j], a)
        constraints.append(constraint)
    if hint and backend == "SCIP":  # HiGHS of OR-Tools 9.15 crashes on hints
        solver.SetHint([xs[j] for j in hint], list(hint.values()))
    left = deadline - time.monotonic()
    if left <= 0:
        return Outcome()
    solver.SetTimeLimit(max(1, int(1000 * left)))
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(parameters.RELATIVE_MIP_GAP, 0.0)
    status, interrupted = _run(solver, parameters)
    if interrupted and relaxed:
        raise KeyboardInterrupt
    if status == solver.INFEASIBLE:
        return Outcome(infeasible=True)
    if status not in (solver.OPTIMAL, solver.FEASIBLE):
        return Outcome(interrupted=interrupted)
    weights = tuple(max(0.0, c.dual_value() / scale) for c in constraints) if relaxed else ()
    values = tuple(x.solution_value() for x in xs)
    return Outcome(optimal=status == solver.OPTIMAL, values=values, weights=weights, interrupted=interrupted)


def _run(solver: pywraplp.Solver, parameters: pywraplp.MPSolverParameters) -> tuple[int, bool]:
    """Runs the solver in a thread (it releases the interpreter's lock), so that Ctrl-C is noticed at once."""
    statuses: list[int] = []
    ended = threading.Event()  # Thread.is_alive and join cannot be relied on after an interrupt during join (CPython 3.12)

    def search() -> None:
        try:
            statuses.append(solver.Solve(parameters))
        finally:
            ended.set()

    interrupted = False
    threading.Thread(target=search, daemon=True).start()
    while not ended.is_set():
        try:
            ended.wait(_POLL_SECONDS)
        except KeyboardInterrupt:
            interrupted = True
            if not solver.InterruptSolve():
                break  # this backend cannot stop early: leave its thread to run out its time limit
    return (statuses[0] if statuses else solver.NOT_SOLVED), interrupted
