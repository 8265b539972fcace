"""The promise about the compiled program: compile what was planned, compare, and plan again for less where XLA needs more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from solvers.errors import InfeasibleBudget

_ROUNDS = 6


class Candidate(Protocol):
    """What is held to its budget: a plan that can be compiled."""

    @property
    def planned_bytes(self) -> int:
        """Predicted peak of temporaries."""

    @property
    def compiled_bytes(self) -> int:
        """Temp bytes of the compiled program."""

    @property
    def compiler_options(self) -> Mapping[str, str]:
        """The options that it is compiled with: the promise is about these."""


@dataclass(frozen=True, slots=True)
class Round:
    """One attempt to meet a budget.

    Attributes:
        asked_bytes: what the planner was asked for.
        planned_bytes: peak of temporaries that it predicted.
        compiled_bytes: temp bytes of the program as compiled.
    """

    asked_bytes: int
    planned_bytes: int
    compiled_bytes: int


def hold[C: Candidate](
    make: Callable[[int], C],
    budget: int,
    *,
    tell: Callable[[Round, int], None] | None = None,
) -> tuple[C, tuple[Round, ...]]:
    """Plans until the compiled program is within the budget.

    Where the compiler needs more than was predicted, the next plan is asked for less by as much. Where the planner sees no plan
    within the budget, the smallest that it knows is compiled too: it may need less than was predicted.

    Args:
        make: plans for a number of bytes, or raises `InfeasibleBudget`.
        budget: largest temp bytes of the compiled program.
        tell: called after each attempt with it and its number.

    Returns:
        The first candidate that compiles within the budget, and all attempts.

    Raises:
        InfeasibleBudget: if no attempt does; its `minimum` is the smallest compiled program found.
    """
    attempts: list[Round] = []
    options: dict[str, str] = {}
    asked, refused = budget, None
    while len(attempts) < _ROUNDS and asked > 0:
        try:
            candidate = make(asked)
        except InfeasibleBudget as error:
            lowest = min((attempt.planned_bytes for attempt in attempts), default=error.minimum + 1)
            if asked < error.minimum < lowest and refused is None:
                asked, refused = error.minimum, error
                continue
            if not attempts:
                raise
            break
        options = dict(candidate.compiler_options)
        attempts.append(Round(asked, candidate.planned_bytes, candidate.compiled_bytes))
        if tell is not None:
            tell(attempts[-1], len(attempts))
        if attempts[-1].compiled_bytes <= budget:
            return candidate, tuple(attempts)
        asked = _less(attempts[-1], budget)
    raise _broken(attempts, budget, refused, options)


def _less(last: Round, budget: int) -> int:
    """What to ask for next: less by the excess, and less than what was planned."""
    return min(last.planned_bytes - (last.compiled_bytes - budget), last.planned_bytes - 1, last.asked_bytes - 1)


def _broken(
    attempts: list[Round], budget: int, refused: InfeasibleBudget | None, options: Mapping[str, str]
) -> InfeasibleBudget:
    smallest = min(attempt.compiled_bytes for attempt in attempts)
    under = " ".join(f"{key}={value}" for key, value in options.items()) or "the default compiler options"
    compiled = f"{len(attempts)} plan{'s' if len(attempts) > 1 else ''} as compiled with {under}"
    return InfeasibleBudget(
        budget=budget,
        minimum=smallest,
        lower_bound=0 if refused is None else min(refused.lower_bound, smallest),
        relative_to=compiled if refused is None else f"{refused.relative_to}, and {compiled}",
        bottleneck=0 if refused is None else refused.bottleneck,
        name="what the compiler adds to each plan" if refused is None else refused.name,
    )
