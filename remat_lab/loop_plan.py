"""Nests for the loops of a program, chosen together with the rest of its plan.

Every loop has a frontier of nests, from the cheapest, which needs most bytes, to the smallest. A common price of memory says
how far each is followed: along the path of rising prices the loops' bytes fall and their recomputation grows. A point of the
path is judged by what it makes of the whole program: the loss is traced anew with its loops replaced, grouped, and simulated.
The first point that fits is found by bisection, and what bytes it leaves go to the loop that recomputes most; at a few points
before it the solver is asked whether recomputing something outside the loops is cheaper.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from remat_lab.errors import UnsupportedEffect
from remat_lab.fuse import Fused
from remat_lab.loop import PlannedLoop
from remat_lab.loop_measure import Measured, measure
from remat_lab.loop_sites import Site
from solvers.errors import InfeasibleBudget
from solvers.nest_search import Choice, cheapest, frontier
from solvers.simulate import keep_all_peak

_POINTS = 32  # budgets tried for the frontier of one loop
_EARLIER = 2  # points of the path, beside the first that fits, for which the solver is asked


@dataclass(frozen=True)
class NestedLoop:
    """A loop as a plan has it.

    Attributes:
        source_line: the user's line.
        choice: nest and option for the body; a nest of None keeps what the option says of every step.
        body: the option in words.
        extra_flops: FLOPs that the loop computes again.
        peak_bytes: bytes of the loop's own backward pass: carries, residuals and workspace.
        number: its place among all scans of the program, as `loop_sites` counts them.
        tier: the option as `PlannedLoop` takes it.
    """

    source_line: str
    choice: Choice
    body: str
    extra_flops: float
    peak_bytes: int
    number: int
    tier: float

    def __str__(self) -> str:
        nest = self.choice.nest
        text = "every step kept" if nest is None else str(nest)
        return f"{text}; {self.body}; at {self.source_line}"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A loop of the program and the choices there are for it, from the cheapest to the smallest."""

    site: Site
    measured: Measured
    choices: tuple[Choice, ...]

    def with_choice(self, choice: Choice) -> NestedLoop:
        """The loop as a plan has it."""
        body, tier = self.measured.search.bodies[choice.body].name, self.measured.tiers[choice.body]
        site = self.site
        return NestedLoop(site.source_line, choice, body, choice.extra_cost, choice.peak_bytes, site.number, tier)


@dataclass(frozen=True, eq=False)
class Variant:
    """The program with one choice for each of its loops.

    Attributes:
        function: the loss, or another function, with its loops replaced.
        fused: its step.
        peak: its peak of temporaries with everything outside the loops kept.
        loops: what was chosen; empty if the loops are JAX's own.
        planned: the same by the loops' numbers, as `loop_sites.run_with` takes it.
    """

    function: Any
    fused: Fused
    peak: int
    loops: tuple[NestedLoop, ...] = ()
    planned: Mapping[int, PlannedLoop] = field(default_factory=dict[int, PlannedLoop])

    @property
    def cost(self) -> float:
        """Cost of the step with everything outside the loops kept: no plan with these loops costs less."""
        return self.fused.graph.keep_all_cost


class Priced(Protocol):
    """A plan with its cost, in the unit of the graph that it is for."""

    @property
    def cost(self) -> float:
        """Of the whole step."""


@dataclass(eq=False)
class LoopPlanner:
    """Chooses the nests of one program for any number of budgets.

    Attributes:
        sites: finds the loops that gradients flow through.
        rewrite: makes the function with planned loops, by their numbers, and its step.
        plain: the program as it is.
    """

    sites: Callable[[], Sequence[Site]]
    rewrite: Callable[[Mapping[int, PlannedLoop]], tuple[Any, Fused]]
    plain: Variant
    _made: dict[tuple[Choice, ...], Variant] = field(default_factory=dict[tuple[Choice, ...], Variant], repr=False)

    @cached_property
    def loops(self) -> list[Candidate]:
        """The loops that gradients flow through."""
        found: list[Candidate] = []
        if not any(q.name == "scan" for q in self.plain.fused.program.equations):
            return found  # without tracing once more
        for site in self.sites():
            try:
                measured = measure(site.loop, site.moving)
            except UnsupportedEffect:  # it must run once, and so stays as it is
                continue
            found.append(Candidate(site, measured, tuple(frontier(measured.search, points=_POINTS, direct=True))))
        return found

    @cached_property
    def path(self) -> list[tuple[Choice, ...]]:
        """For each point, the choice that every loop takes."""
        moves = sorted(
            (slope, number, index)
            for number, loop in enumerate(self.loops)
            for index, slope in enumerate(_slopes(loop.choices), 1)
        )
        at = [loop.choices[0] for loop in self.loops]
        points = [tuple(at)]
        for _, number, index in moves:
            at[number] = self.loops[number].choices[index]
            points.append(tuple(at))
        return points

    def choose[S: Priced](self, budget: int | None, solve: Callable[[Variant, int | None], S]) -> tuple[Variant, S]:
        """The cheapest plan found: loops and schedule.

        Args:
            budget: bytes of temporaries; None for no limit.
            solve: plans a program within a budget; raises `InfeasibleBudget`.

        Raises:
            InfeasibleBudget: if no point of the path has a schedule within the budget.
        """
        if budget is None or self.plain.peak <= budget or not self.loops:
            return self.plain, solve(self.plain, budget)
        last = len(self.path) - 1
        fits = bisect_left(range(last + 1), True, key=lambda point: self.variant(self.path[point]).peak <= budget)
        tried = [self.variant(self.path[point]) for point in _around(min(fits, last))]
        if fits <= last:
            tried.insert(0, self._refined(self.path[fits], budget))
        best: tuple[Variant, S] | None = None
        errors: list[InfeasibleBudget] = []
        for variant in tried:
            if best is not None and variant.cost >= best[1].cost:
                continue
            try:
                solution = solve(variant, budget)
            except InfeasibleBudget as error:
                errors.append(error)
                continue
            if best is None or solution.cost < best[1].cost:
                best = variant, solution
        if best is None:
            raise _with_nests(min(errors, key=lambda error: error.minimum))
        return best

    def variant(self, picked: tuple[Choice, ...]) -> Variant:
        """The program with a choice for each of its loops."""
        if picked not in self._made:
            chosen = list(zip(self.loops, picked, strict=True))
            planned = {loop.site.number: loop.measured.planned(choice) for loop, choice in chosen}
            function, fused = self.rewrite(planned)
            nested = tuple(loop.with_choice(choice) for loop, choice in chosen)
            self._made[picked] = Variant(function, fused, keep_all_peak(fused.graph), nested, planned)
        return self._made[picked]

    def _refined(self, picked: tuple[Choice, ...], budget: int) -> Variant:
        """A point that fits, with one loop's nest made cheaper by the bytes that are left: the loop that recomputes most."""
        variant = self.variant(picked)
        n = max(range(len(picked)), key=lambda n: picked[n].extra_cost)
        room = picked[n].peak_bytes + budget - variant.peak
        choice = cheapest(self.loops[n].measured.search, room, direct=True)
        if choice.extra_cost >= picked[n].extra_cost:
            return variant
        finer = self.variant((*picked[:n], choice, *picked[n + 1 :]))
        return finer if finer.peak <= budget else variant


def _with_nests(error: InfeasibleBudget) -> InfeasibleBudget:
    """The same, saying that other nests were not tried: what is proven is so for these only."""
    return error.changed(relative_to=f"{error.relative_to}, with the loops in the smallest nests known")


def _around(point: int) -> list[int]:
    """The point itself, and a few before it, where loops cost less and the rest has less memory."""
    earlier = [point - 1, point // 2, point - 2][:_EARLIER]
    return list(dict.fromkeys([point, *(p for p in earlier if p >= 0)]))


def _slopes(choices: Sequence[Choice]) -> list[float]:
    """For each choice after the first, the price of a byte at which it is taken: those of the lower convex hull."""
    hull = [0]
    for i in range(1, len(choices)):
        while len(hull) > 1 and _slope(choices, hull[-2], hull[-1]) >= _slope(choices, hull[-1], i):
            hull.pop()
        hull.append(i)
    slopes: list[float] = []
    for start, end in itertools.pairwise(hull):
        slopes += [_slope(choices, start, end)] * (end - start)
    return slopes


def _slope(choices: Sequence[Choice], one: int, other: int) -> float:
    saved = choices[one].peak_bytes - choices[other].peak_bytes
    return (choices[other].extra_cost - choices[one].extra_cost) / saved
