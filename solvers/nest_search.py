"""The cheapest nest of a loop within a memory budget.

The family: every nest of `solvers.nest` (blocks of any lengths, carries stored and restored in any order) with one option for
the body, which says what each step keeps and what that leaves to recompute; and the loop as it is, which keeps the residuals of
all steps. Within this family the answer is exact, by enumeration over the number of slots: for s slots and blocks of at most b
steps the fewest recomputed steps are known in closed form (`fewest_steps`), they do not grow with b, and so b is the most that
memory allows.

The closed form is Griewank & Walther's Theorem 1 (see `revolve`) for blocks instead of steps: a step that is advanced over i
times at most stands in one of the first b (C(s + i + 1, s) - 1) of the loop, and each step is run once more with its block.
Uneven blocks gain nothing over full ones of which one is shorter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from solvers.errors import InfeasibleBudget, InvalidOption
from solvers.nest import Nest, binomial


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One way to run the steps of a loop backward.

    Attributes:
        name: for people.
        residual_bytes: bytes that each step keeps until it is run backward.
        extra_cost: cost per step of recomputing what it did not keep, in the unit of `Loop.step_cost`.
        workspace: bytes needed while one step runs backward.
        keeps: as in `Nest`: False if only each step's carry is kept.
    """

    name: str = "keep all"
    residual_bytes: int
    extra_cost: float = 0.0
    workspace: int = 0
    keeps: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What the planner knows of a loop.

    Attributes:
        length: steps.
        carry_bytes: bytes of one carry.
        step_cost: cost of running one step forward, in any one unit.
        bodies: the options of its body, at least one.
        fixed_bytes: bytes needed whatever the nest: gradient accumulators, gradients of xs, cotangents of ys.
    """

    length: int
    carry_bytes: int
    step_cost: float
    bodies: tuple[Body, ...]
    fixed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A nest for a loop, with the option for its body.

    Attributes:
        nest: the nest; None leaves the loop as it is, keeping the residuals of all steps.
        body: position of the option in `Loop.bodies`.
        peak_bytes: slots, residuals, workspace and fixed bytes together.
        extra_cost: cost of what is computed again.
    """

    nest: Nest | None
    body: int
    peak_bytes: int
    extra_cost: float


def fewest_steps(length: int, slots: int, block: int, *, direct: bool = False) -> int:
    """Fewest forward steps that a backward pass executes, in closed form.

    Args:
        length: steps of the loop.
        slots: carries that can be held, at least 1.
        block: most steps of a block.
        direct: whether the forward pass keeps the residuals of the last block.

    Raises:
        InvalidOption: if an argument is below 1.
    """
    if min(length, slots, block) < 1:
        raise InvalidOption(f"a nest needs steps, slots and blocks of at least 1, not {length}, {slots} and {block}")
    if direct:
        length -= min(block, length)
    passes = 0
    while block * (math.comb(slots + passes + 1, slots) - 1) < length:
        passes += 1
    advances = passes * (length + block) - block * (math.comb(slots + passes + 1, slots + 1) - 1)
    return length + advances


def smallest(loop: Loop) -> int:
    """The least bytes with which the loop can be reversed."""
    return loop.fixed_bytes + min(
        body.workspace + min(body.residual_bytes * loop.length, loop.carry_bytes + body.residual_bytes) for body in loop.bodies
    )


def cheapest(loop: Loop, budget: int, *, direct: bool = False) -> Choice:
    """The choice of least extra cost within a budget; of several such, one that needs few bytes.

    Args:
        loop: the loop.
        budget: bytes, for everything in `Choice.peak_bytes`.
        direct: whether nests may have the forward pass keep the residuals of the last block.

    Raises:
        InfeasibleBudget: proven within the family, with the least bytes that suffice.
    """
    found = [shape for body in range(len(loop.bodies)) for shape in _shapes(loop, body, budget, direct)]
    if not found:
        least = smallest(loop)
        raise InfeasibleBudget(
            budget=budget,
            minimum=least,
            lower_bound=least,
            relative_to=f"all nests of a loop of {loop.length} steps",
            name="the carries and residuals of the loop",
        )
    return _choice(loop, min(found), direct)


def frontier(loop: Loop, *, points: int = 48, direct: bool = False) -> list[Choice]:
    """Choices from the cheapest, which needs most bytes, to the smallest, none worse than another in both.

    Each is exact for its own bytes. Between neighbours there may be others: budgets are tried in geometric steps, and for each
    body those of the loop as it is and of the smallest nest of one extra forward pass, the knee of the curve.

    Args:
        loop: the loop.
        points: budgets to try.
        direct: as for `cheapest`.
    """
    least = smallest(loop)
    most = loop.fixed_bytes + max(body.workspace + body.residual_bytes * loop.length for body in loop.bodies)
    ratio = (most / least) ** (1 / (points - 1)) if points > 1 and most > least > 0 else 1.0
    budgets = {least, *(shape[1] for body in range(len(loop.bodies)) for shape in (_knee(loop, body), _as_it_is(loop, body)))}
    budgets.update(min(most, math.ceil(least * ratio**k)) for k in range(points))
    found: list[Choice] = []
    for budget in sorted(budgets):
        choice = cheapest(loop, budget, direct=direct)
        if not found or choice.extra_cost < found[-1].extra_cost:
            found.append(choice)
    return found[::-1]


_Shape = tuple[float, int, int, int, int]  # extra cost, bytes, body, slots (0 for the loop as it is), block


def _shapes(loop: Loop, body: int, budget: int, direct: bool) -> Iterator[_Shape]:
    """For one body: the loop as it is, if it fits, and the best block length for each number of slots that could be best."""
    option, length = loop.bodies[body], loop.length
    whole, knee = _as_it_is(loop, body), _knee(loop, body)
    if whole[1] <= budget:
        yield whole
    if not direct and knee[1] <= budget:  # nothing but the loop as it is recomputes less
        yield knee
        return
    base = loop.fixed_bytes + option.workspace
    for slots in range(1, length + 1):
        free = budget - base - slots * loop.carry_bytes
        if free < option.residual_bytes:
            return
        block = min(length, free // option.residual_bytes) if option.residual_bytes else length
        steps = fewest_steps(length, slots, block, direct=direct)
        size = base + slots * loop.carry_bytes + block * option.residual_bytes
        yield steps * loop.step_cost + option.extra_cost * length, size, body, slots, block
        if slots >= -(-length // block) - direct:  # a carry for each block: with more of them blocks only get shorter
            return


def _as_it_is(loop: Loop, body: int) -> _Shape:
    option = loop.bodies[body]
    size = loop.fixed_bytes + option.workspace + option.residual_bytes * loop.length
    return option.extra_cost * loop.length, size, body, 0, loop.length


def _knee(loop: Loop, body: int) -> _Shape:
    """The smallest nest that holds a carry for each block: one extra forward pass."""
    option, length, root = loop.bodies[body], loop.length, math.isqrt(loop.length)
    blocks = {*range(1, root + 1), *(-(-length // slots) for slots in range(1, root + 2))}  # every value of ceil(length / s)
    size, block = min((-(-length // b) * loop.carry_bytes + b * option.residual_bytes, b) for b in blocks)
    extra = length * (loop.step_cost + option.extra_cost)
    return extra, loop.fixed_bytes + option.workspace + size, body, -(-length // block), block


def _choice(loop: Loop, shape: _Shape, direct: bool) -> Choice:
    extra, size, body, slots, block = shape
    if not slots:
        return Choice(None, body, size, extra)
    keeps = loop.bodies[body].keeps
    return Choice(binomial(loop.length, slots, block=block, keeps=keeps, direct=direct), body, size, extra)
