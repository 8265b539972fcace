"""The promise about the compiled program: compile what was planned, compare, and plan again for less where XLA needs more."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
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
    def fullest(self) -> str:
        """The step at which the prediction peaks, in words."""

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
    within the budget, the smallest that it knows is compiled too: it may need less than was predicted. The last resort of every
    budget is the floor, the plan that is made when a single byte is asked for: as an error names what the floor compiles to,
    asking for that cannot fail, where equal questions to the planner have equal answers.

    Args:
        make: plans for a number of bytes, or raises `InfeasibleBudget`.
        budget: largest temp bytes of the compiled program.
        tell: called after each attempt with it and its number.

    Returns:
        The first candidate that compiles within the budget, and all attempts.

    Raises:
        InfeasibleBudget: if no attempt does; its `minimum` is what the floor compiles to, its bound one on simulated schedules.
    """
    tried: dict[int, C] = {}  # by what was asked for

    def fits(asked: int) -> bool:
        tried[asked] = candidate = make(asked)
        if tell is not None:
            tell(_round(asked, candidate), len(tried))
        return candidate.compiled_bytes <= budget

    refused: InfeasibleBudget | None = None
    asked = budget
    while len(tried) < _ROUNDS and asked > 0:
        try:
            if fits(asked):
                return _kept(tried)
        except InfeasibleBudget as error:
            known = min((candidate.planned_bytes for candidate in tried.values()), default=error.minimum + 1)
            if refused is not None or not asked < error.minimum < known:
                break
            asked, refused = error.minimum, error
        else:
            asked = _less(_round(asked, tried[asked]), budget)
    floor = _floor(make)
    if floor not in tried and fits(floor):
        return _kept(tried)
    raise _broken(tried[floor], tried.values(), budget, refused)


def _floor(make: Callable[[int], Candidate]) -> int:
    """What to ask for to get the smallest plan that the planner knows."""
    try:
        make(1)
    except InfeasibleBudget as error:
        return error.minimum
    return 1


def _kept[C: Candidate](tried: Mapping[int, C]) -> tuple[C, tuple[Round, ...]]:
    rounds = tuple(_round(asked, candidate) for asked, candidate in tried.items())
    return list(tried.values())[-1], rounds


def _round(asked: int, candidate: Candidate) -> Round:
    return Round(asked, candidate.planned_bytes, candidate.compiled_bytes)


def _less(last: Round, budget: int) -> int:
    """What to ask for next: less by the excess, and less than what was planned."""
    return min(last.planned_bytes - (last.compiled_bytes - budget), last.planned_bytes - 1, last.asked_bytes - 1)


def _broken(floor: Candidate, tried: Collection[Candidate], budget: int, refused: InfeasibleBudget | None) -> InfeasibleBudget:
    under = " ".join(f"{key}={value}" for key, value in floor.compiler_options.items()) or "the default compiler options"
    compiled = f"{len(tried)} plan{'s' if len(tried) > 1 else ''} as compiled with {under}"
    error = InfeasibleBudget(
        budget=budget,
        minimum=floor.compiled_bytes,
        minimum_of="compiled",
        relative_to=compiled,
        fullest=floor.fullest,
    )
    if refused is None or refused.lower_bound > min(candidate.compiled_bytes for candidate in tried):
        return error  # a bound that any of them beats is none
    return error.changed(
        relative_to=f"{refused.relative_to}, and {compiled}",
        lower_bound=refused.lower_bound,
        bound_of=refused.bound_of,
        bottleneck=refused.bottleneck,
        name=refused.name,
    )
