"""Every error that the solvers raise, and the root that they share with those of `remat_lab`, which imports it from here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

Counted = Literal["simulated", "compiled"]
"""How bytes were counted: by simulating a schedule of the graph, or by the compiler, for the program that it made."""


class RematLabError(Exception):
    """Base class of every error that is raised on purpose here: by `solvers`, by `remat_lab`, by their command line."""


class SolverError(RematLabError):
    """Base class of every error raised by `solvers`."""


class InvalidOption(SolverError, ValueError):
    """A solver, or something that makes orders and nests, was given an option that it does not have or cannot use."""


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


def _bytes(count: int) -> str:
    return f"{count:,} bytes"


class InfeasibleBudget(SolverError):
    """No schedule was found within the budget.

    Two figures are claimed, and each says how it was counted. `minimum` is what a plan that is known needs. `lower_bound` is a
    proof: no schedule of a class needs less. A known plan refutes a bound above it: then the bound goes, and nothing is said of
    a proof. It is never lowered to agree, since a proof of one figure proves no other. All errors pass through `__init__`,
    which sees to this.

    - A bound on simulated schedules above a compiled `minimum` only shows that the model counts more than the compiler takes.
      Where it is not above, it still proves nothing about compiled bytes: the message says what it counts, and `proven` is
      False.
    - Counted alike, the two contradict each other only by a fault of the solver. The bound is dropped then, too, so that a user
      is told nothing false and meets no second error; it is left in `refuted`, on which the tests fail.

    Attributes:
        budget: what was asked for, bytes, counted as `minimum` is.
        minimum: smallest budget for which a plan is known, bytes.
        minimum_of: how they were counted.
        lower_bound: no schedule that `relative_to` speaks of can peak below this, bytes; 0 if nothing is known.
        bound_of: how they were counted.
        relative_to: what was searched, and what the bound refers to, such as "the given order, at most 2 copies".
        bottleneck: the node whose step forces `lower_bound`; None if there is no bound, or no such node.
        name: that node's name, or what else forces the bound; empty if there is none.
        fullest: the step at which the plan of `minimum` needs most, in words; empty if not known.
        refuted: a bound that was given and dropped, bytes; 0 if none was.
    """

    def __init__(
        self,
        *,
        budget: int,
        minimum: int,
        relative_to: str,
        lower_bound: int = 0,
        bottleneck: int | None = None,
        name: str = "",
        minimum_of: Counted = "simulated",
        bound_of: Counted = "simulated",
        fullest: str = "",
    ):
        self.refuted = lower_bound if lower_bound > minimum else 0
        if self.refuted or lower_bound <= 0:
            lower_bound, bottleneck, name = 0, None, ""
        self.budget = budget
        self.minimum = minimum
        self.minimum_of: Counted = minimum_of
        self.lower_bound = lower_bound
        self.bound_of: Counted = bound_of
        self.relative_to = relative_to
        self.bottleneck = bottleneck
        self.name = name
        self.fullest = fullest
        super().__init__(f"{self.reason()}. {self.advice()}.")

    @property
    def proven(self) -> bool:
        """Whether the budget lies below a bound that is counted as the budget is."""
        return self.bound_of == self.minimum_of and self.budget < self.lower_bound

    def reason(self, size: Callable[[int], str] = _bytes) -> str:
        """What is wrong: a sentence without its full stop.

        Args:
            size: writes a number of bytes.
        """
        proof = "proven impossible" if self.proven else "no schedule found"
        known = f"the smallest budget known to work is {size(self.minimum)}"
        text = f"a budget of {size(self.budget)} is too small ({proof}, relative to {self.relative_to}): {known}"
        if self.minimum_of == "compiled":
            text += " as compiled"
        if not self.lower_bound:
            return f"{text}, by a plan that is fullest at {self.fullest!r}" if self.fullest else text
        cause = f", because of {self.name!r}" if self.name else ""
        if self.bound_of == self.minimum_of:
            return f"{text}, and none below {size(self.lower_bound)} can{cause}"
        return f"{text}, and no schedule needs less than {size(self.lower_bound)} as {self.bound_of}{cause}"

    def advice(self, size: Callable[[int], str] = _bytes) -> str:
        """What to do: a sentence without its full stop.

        Args:
            size: writes a number of bytes.
        """
        return f"Ask for at least {size(self.minimum)}, or make the problem smaller (a smaller batch, say)"

    @property
    def facts(self) -> dict[str, Any]:
        """What the error is made of, ready for JSON: `InfeasibleBudget(**facts)` says the same."""
        return {name: value for name, value in vars(self).items() if name != "refuted" and not name.startswith("_")}

    def changed(self, **facts: Any) -> InfeasibleBudget:
        """The same error, with its notes, but for some facts; the only way to pass one on with other figures."""
        other = InfeasibleBudget(**{**self.facts, **facts})
        for note in getattr(self, "__notes__", ()):
            other.add_note(note)
        return other

    def __reduce__(self) -> Any:
        return partial(InfeasibleBudget, **self.facts), (), vars(self)
