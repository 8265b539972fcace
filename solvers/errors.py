"""Every error that the solvers raise. All derive from `SolverError`."""

from __future__ import annotations


class SolverError(Exception):
    """Base class of every error raised by `solvers`."""


class InvalidGraph(SolverError, ValueError):
    """A graph is malformed: a cycle, an unknown dependency, a negative cost or size, an unreadable file."""


class InvalidBudget(SolverError, ValueError):
    """A budget is not a number of bytes that a program could be held to."""


class UnsupportedGraph(SolverError):
    """A solver was given a graph outside the class that its paper treats."""


class InvalidSchedule(SolverError):
    """A schedule reads, frees or computes a value at a moment when that is impossible.

    Attributes:
        step: position in `Schedule.steps`, or the number of steps when the end state is wrong.
        node: the offending node's position in the graph.
    """

    def __init__(self, message: str, *, step: int, node: int):
        super().__init__(message)
        self.step = step
        self.node = node


class InvalidNest(SolverError):
    """A nest of a loop reads a slot that does not hold what it needs, or does not cover the loop."""


class InfeasibleBudget(SolverError):
    """No schedule was found within the budget.

    Attributes:
        budget: what was asked for, bytes.
        minimum: smallest budget for which a schedule is known (simulated), bytes.
        lower_bound: no schedule can peak below this, bytes. `budget < lower_bound` proves infeasibility.
        relative_to: what the claim refers to, such as "the given order, at most 2 copies".
        bottleneck: the node whose step forces `lower_bound`.
        name: that node's name.
    """

    def __init__(self, *, budget: int, minimum: int, lower_bound: int, relative_to: str, bottleneck: int, name: str):
        self.budget = budget
        self.minimum = minimum
        self.lower_bound = lower_bound
        self.relative_to = relative_to
        self.bottleneck = bottleneck
        self.name = name
        proof = "proven impossible" if self.proven else "no schedule found"
        super().__init__(
            f"a budget of {budget:,} bytes is too small ({proof}, relative to {relative_to}): the smallest budget known to "
            f"work is {minimum:,} bytes, and none below {lower_bound:,} bytes can, because of {name!r} (node {bottleneck}). "
            f"Ask for at least {minimum:,} bytes."
        )

    @property
    def proven(self) -> bool:
        """Whether the budget lies below the proven bound."""
        return self.budget < self.lower_bound
