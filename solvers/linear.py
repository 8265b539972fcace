"""Linear and 0-1 programs whose variables all lie in [0, 1], solved through OR-Tools, or HiGHS through SciPy.

The box makes certificates cheap: *any* non-negative weights y on the rows A x >= b give the bound
`y.b + sum(min(0, c - yA))` on every feasible c.x (weak duality over the box; Neumaier and Shcherbina, 2004). So a dual solution
that is inexact, or from a solver stopped half way, still proves what it proves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from ortools.linear_solver import pywraplp  # type: ignore[import-untyped]
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp  # type: ignore[import-untyped]
from scipy.sparse import csr_array  # type: ignore[import-untyped]

from solvers.background import run_in_background
from solvers.errors import InvalidOption

Terms = list[tuple[int, float]]

_LARGEST_COST = 1000.0  # costs are scaled to this, since the backends' tolerances are absolute


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
        bound: for 0-1 programs solved by HIGHS, no point costs less, up to its relative tolerance of 1e-6; else minus infinity.
    """

    optimal: bool = False
    infeasible: bool = False
    values: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    interrupted: bool = False
    bound: float = -math.inf


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

    `backend` is SCIP or HIGHS. Only SCIP takes hints. Only HIGHS, which is called through SciPy, gives a bound: `pywraplp`
    reports a meaningless one when time runs out.
    """
    if backend == "HIGHS":
        return _solve_with_highs(program, seconds=seconds, fixed=fixed or {})
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
        raise InvalidOption(f"this OR-Tools has no backend {backend!r}: use GLOP or PDLP, or for 0-1 programs SCIP or HIGHS")
    solver.SuppressOutput()
    xs = [solver.NumVar(0, 1, "") if relaxed or not whole else solver.BoolVar("") for whole in program.whole]
    for j, value in fixed.items():
        xs[j].SetBounds(value, value)
    scale = _scale(program)
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
    if hint:
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
    status, interrupted = run_in_background(lambda: solver.Solve(parameters), solver.InterruptSolve)
    return (solver.NOT_SOLVED if status is None else status), interrupted


def _solve_with_highs(program: Program, *, seconds: float, fixed: Mapping[int, float]) -> Outcome:
    if seconds <= 0:
        return Outcome()
    places = [(i, j, a) for i, (terms, _) in enumerate(program.rows) for j, a in terms]
    rows, columns, coefficients = zip(*places, strict=True) if places else ((), (), ())
    matrix = csr_array((coefficients, (rows, columns)), shape=(len(program.rows), len(program.costs)))
    low, high = np.zeros(len(program.costs)), np.ones(len(program.costs))
    for j, value in fixed.items():
        low[j] = high[j] = value
    scale = _scale(program)

    def search() -> OptimizeResult:
        return milp(
            np.array(program.costs) * scale,
            integrality=np.array(program.whole, dtype=int),
            bounds=Bounds(low, high),
            constraints=[LinearConstraint(matrix, np.array([rhs for _, rhs in program.rows]), np.inf)] if program.rows else [],
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )

    result, interrupted = run_in_background(search, lambda: False)
    if result is None or result.status == 2:  # 2: nothing satisfies the rows
        return Outcome(infeasible=result is not None, interrupted=interrupted)
    bound = result.mip_dual_bound
    return Outcome(
        optimal=result.status == 0,
        values=() if result.x is None else tuple(map(float, result.x)),
        interrupted=interrupted,
        bound=-math.inf if bound is None or not math.isfinite(bound) else bound / scale,
    )


def _scale(program: Program) -> float:
    return _LARGEST_COST / max((abs(cost) for cost in program.costs if cost), default=_LARGEST_COST)
