"""Loops with a memory budget for their backward pass: `scan`, `fori_loop`, `while_loop`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from jax import lax

from remat_lab.budget import parse_budget
from remat_lab.errors import InvalidArgument
from remat_lab.loop import Loop, PlannedLoop
from remat_lab.loop_body import body_of
from remat_lab.loop_checkpoint import checkpointed
from remat_lab.loop_measure import Measured, measure
from remat_lab.loop_primitives import replace_scan, run_loop
from remat_lab.loop_while import bounded_step, unbounded
from solvers import nest as nests
from solvers import nest_search
from solvers.nest import Nest

Form = Literal["backward", "checkpoint"]
NestLike = Nest | Callable[[int], Nest] | str

_NAMED: dict[str, Callable[[int], Nest]] = {
    "keep_all": lambda length: nests.keep_all(length, direct=True),
    "two_level": nests.two_level,
    "halving": nests.halving,
}
_ONE_PASS = 1.05  # of the forward pass's FLOPs: one extra pass, and elementwise work on top


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    budget: int | float | str | None = None,
    nest: NestLike | None = None,
    keep: float | None = None,
    form: Form = "backward",
) -> tuple[Any, Any]:
    """`jax.lax.scan` whose backward pass fits a budget.

    The forward pass keeps the carry at some steps only. The backward pass goes through the loop in blocks, from the last: it
    restores the carry at the start of a block, runs the block again, and reverses it. What is kept where, and what each step of
    a block keeps, is the cheapest choice within the budget (`solvers.nest_search`): exact in its family, with FLOPs as cost and
    bytes as measured on the traced body. Values and gradients are those of `jax.lax.scan`, in every mode of differentiation;
    derivatives other than the first in reverse come from the checkpoint form.

    Args:
        f: the body, as for `jax.lax.scan`.
        init: first carry.
        xs: what to scan over.
        length: number of steps, if xs is None.
        reverse: from the last slice to the first.
        unroll: steps per trip.
        budget: for the temporaries of this loop's own forward and backward pass, where the gradients are results: an int is
            bytes, a string has a unit, a float is a fraction of what keeping all residuals takes. None for the smallest
            that one extra forward pass reaches.
        nest: instead of a budget, the nest itself, from `solvers.nest`; or a function of the length that makes it; or
            "keep_all", "two_level" or "halving".
        keep: with a nest, what each step of a block keeps: -1.0 all residuals, 0.0 those that cannot be recomputed elementwise,
            which is the default, `math.inf` the carry, x in between what takes more than x FLOPs per byte.
        form: "backward" for a backward pass that is written out, with one accumulator of the gradients; "checkpoint" for nested
            scans under `jax.checkpoint`, which other tools may look into, and which need more memory.

    Returns:
        The final carry and the stacked results, as `jax.lax.scan` does.

    Raises:
        InfeasibleBudget: if no nest fits, with the smallest budget.
        InvalidArgument: if options exclude each other, or the nest is for another length.
        TypeError: for what `jax.lax.scan` rejects, with its message.

    Example:
        >>> import jax, jax.numpy as jnp, remat_lab as rl
        >>> def loss(w, xs):
        ...     cell = lambda h, x: (jnp.tanh(h @ w + x), None)
        ...     return jnp.sum(rl.scan(cell, jnp.zeros((4, 8)), xs, budget="8kB")[0])
        >>> jax.grad(loss)(jnp.eye(8), jnp.ones((100, 4, 8))).shape
        (8, 8)
    """
    if budget is not None and nest is not None:
        raise InvalidArgument("budget= and nest= exclude each other: a budget chooses the nest. Give one")
    if nest is None and keep is not None:
        raise InvalidArgument("keep= says what the steps of a given nest keep: with a budget that is chosen, too. Give nest=")
    if form not in ("backward", "checkpoint"):
        raise InvalidArgument(f'form={form!r} is neither "backward" nor "checkpoint"')
    operands, tree = jax.tree.flatten((init, xs))
    found: list[Any] = []

    def flat(*values: Any) -> Any:
        carry, x = jax.tree.unflatten(tree, values)
        leaves, out_tree = jax.tree.flatten(lax.scan(f, carry, x, length, reverse, unroll))
        found.append(out_tree)
        return leaves

    jaxpr = jax.make_jaxpr(flat)(*operands)

    def run(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
        loop = Loop.from_equation(eqn)
        planned = _planned(loop, budget, nest, keep) if loop.length else None
        if planned is None:
            return loop.scan(values)
        return checkpointed(planned)(values) if form == "checkpoint" else run_loop(planned, values)

    outputs = replace_scan(jaxpr, operands, run)
    return jax.tree.unflatten(found[-1], outputs)


def fori_loop(
    lower: int,
    upper: int,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool = 1,
    budget: int | float | str | None = None,
    nest: NestLike | None = None,
    keep: float | None = None,
    form: Form = "backward",
) -> Any:
    """`jax.lax.fori_loop` with bounds known when tracing, whose backward pass fits a budget.

    Args:
        lower: first index.
        upper: one above the last.
        body_fun: from index and carry to carry.
        init_val: first carry.
        unroll: steps per trip.
        budget: as for `scan`.
        nest: as for `scan`.
        keep: as for `scan`.
        form: as for `scan`.

    Returns:
        The final carry; the first one if upper <= lower.

    Raises:
        InvalidArgument: if a bound is only known at run time, or is no integer; and as for `scan`.
        InfeasibleBudget: if no nest fits, with the smallest budget.
    """
    try:
        first, stop = operator.index(lower), operator.index(upper)
    except (TypeError, jax.errors.JAXTypeError):
        raise InvalidArgument(
            f"fori_loop needs integers as bounds that are known when it is traced, not {lower} and {upper}: without them the "
            "backward pass cannot know how much to keep. Pass Python integers (static_argnums= of jax.jit), or use while_loop "
            "with max_steps="
        ) from None

    def step(carry: Any, x: None) -> tuple[Any, None]:
        del x
        i, value = carry
        return (i + 1, body_fun(i, value)), None  # carried, so that a Python integer stays weakly typed, as in jax.lax

    options: dict[str, Any] = {"budget": budget, "nest": nest, "keep": keep, "form": form}
    return scan(step, (lower, init_val), length=max(0, stop - first), unroll=unroll, **options)[0][1]


def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    max_steps: int | None = None,
    budget: int | float | str | None = None,
    nest: NestLike | None = None,
    keep: float | None = None,
    form: Form = "backward",
) -> Any:
    """`jax.lax.while_loop` that can be differentiated in reverse if the number of steps has a bound.

    Args:
        cond_fun: from the carry to whether to take another step.
        body_fun: from carry to carry.
        init_val: first carry.
        max_steps: the loop ends after this many steps even if the condition still holds; steps after it ended cost little, and
            change nothing. None for `jax.lax.while_loop` itself, which only forward mode differentiates.
        budget: as for `scan`.
        nest: as for `scan`, for `max_steps` steps.
        keep: as for `scan`.
        form: as for `scan`.

    Returns:
        The final carry: the first for which the condition does not hold, or the one after `max_steps` steps.

    Raises:
        InvalidArgument: without a bound, once it is differentiated in reverse; if the bound is negative, no integer, or only
            known at run time; and as for `scan`.
        InfeasibleBudget: if no nest fits, with the smallest budget.
    """
    if max_steps is None:
        if budget is not None or nest is not None or keep is not None:
            raise InvalidArgument("budget=, nest= and keep= are about the backward pass, which needs a bound: give max_steps=")
        return unbounded(cond_fun, body_fun, init_val)
    try:
        most = operator.index(max_steps)
    except (TypeError, jax.errors.JAXTypeError):
        raise InvalidArgument(
            f"max_steps={max_steps} must be an integer that is known when the loop is traced: it says how much the backward "
            "pass may have to keep"
        ) from None
    if most < 0:
        raise InvalidArgument(f"max_steps={most} is negative")
    step = bounded_step(cond_fun, body_fun)
    return scan(step, init_val, length=most, budget=budget, nest=nest, keep=keep, form=form)[0]


def choose(measured: Measured, budget: int | float | str | None) -> nest_search.Choice:
    """The cheapest nest within a budget, or the smallest that takes one extra forward pass.

    Raises:
        InfeasibleBudget: if no nest fits, with the smallest budget.
    """
    search = measured.search
    if budget is not None:
        return nest_search.cheapest(search, parse_budget(budget, measured.keep_all_bytes))
    most = _ONE_PASS * search.length * search.step_cost
    choices = [choice for choice in nest_search.frontier(search) if choice.extra_cost <= most]
    return min(choices, key=lambda choice: choice.peak_bytes)


def _planned(loop: Loop, budget: Any, nest: NestLike | None, keep: float | None) -> PlannedLoop | None:
    """The loop with its nest; None if it is best left alone."""
    moving = (True,) * len(loop.in_avals)
    if not any(body_of(loop, moving).moving):
        return None
    if nest is None:
        measured = measure(loop, moving)
        choice = choose(measured, budget)
        as_it_is = choice.nest is None and measured.tiers[choice.body] == measured.tiers[0]
        return None if as_it_is else measured.planned(choice)
    if isinstance(nest, str):
        if nest not in _NAMED:
            raise InvalidArgument(f"nest={nest!r} is unknown: choose one of {', '.join(_NAMED)}, or give a solvers.nest.Nest")
        nest = _NAMED[nest]
    made = nest if isinstance(nest, Nest) else nest(loop.length)
    if made.length != loop.length:
        raise InvalidArgument(f"the nest is for a loop of {made.length} steps, but this one has {loop.length}")
    nests.check(made)
    return PlannedLoop(loop, made, 0.0 if keep is None else float(keep))
