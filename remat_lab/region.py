"""One call of a decorated function: traced once, checked for what must not be repeated, and run so that it can be recomputed.

The user's code runs once per call, whatever happens afterwards: the planner and JAX see only the jaxpr. So counters of random
streams, containers and prints of the user are touched exactly as often as without the decorator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_policies

from remat_lab import _jax
from remat_lab.checkpointing import Plans, planned_checkpoint
from remat_lab.errors import InvalidArgument, UnsupportedEffect
from remat_lab.keep import KEPT, CheckedPolicy, SaveNamed, keep_all_but

_NAMES = ("save", "dont_save", "must_save", "must_recompute")
_CONCRETIZATION = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@dataclass(frozen=True)
class Options:
    """How a decorated function is recomputed; see `remat`.

    Attributes:
        budget: of the function's own forward and backward pass; None: no planning.
        solver: what plans.
        policy: of `jax.checkpoint`, instead of a budget.
        save: names to save, nothing else.
        dont_save: names not to save, everything else is.
        must_save: names, or a predicate, that a plan keeps.
        must_recompute: names, or a predicate, that a plan recomputes.
        time_limit: seconds for the search, for each set of shapes.
        seed: of the solver.
        check: "compiled" holds a budget as compiled, "planned" does not.
    """

    budget: int | float | str | None = None
    solver: str = "auto"
    policy: Callable[..., Any] | None = None
    save: tuple[str, ...] = ()
    dont_save: tuple[str, ...] = ()
    must_save: Any = ()
    must_recompute: Any = ()
    time_limit: float = 20.0
    seed: int = 0
    check: str = "planned"

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else value if callable(value) else tuple(value))
        for one, other in (("save", "dont_save"), ("must_save", "must_recompute")):
            lists = [set(v) for v in (getattr(self, one), getattr(self, other)) if not callable(v)]
            both = set.intersection(*lists) if len(lists) == 2 else set()
            if both:
                raise InvalidArgument(
                    f"{', '.join(map(repr, sorted(both)))} is in both {one}= and {other}=, which exclude each other"
                )
        given = [name for name in ("budget", "policy") if getattr(self, name) is not None]
        given += [name for name in ("save", "dont_save") if getattr(self, name)]
        if len(given) > 1:
            advice = " With a budget, use must_save= and must_recompute=." if "budget" in given else ""
            raise InvalidArgument(f"{' and '.join(f'{name}=' for name in given)} exclude each other: give one.{advice}")
        if self.budget is None and (self.must_save or self.must_recompute):
            raise InvalidArgument(
                "must_save= and must_recompute= tell a plan what to do and need budget=; without one use save= or dont_save="
            )
        if self.check not in ("compiled", "planned"):
            raise InvalidArgument(
                f'check={self.check!r} is unknown: "compiled" compiles a plan to hold its budget, "planned" does not'
            )
        if self.policy is not None and not callable(self.policy):
            raise InvalidArgument(f"policy= is a function of (primitive, *avals, **params), not {self.policy!r}")

    def without_plan(self) -> Options:
        """The same, but for what only a plan can do."""
        return replace(self, budget=None, must_save=(), must_recompute=())

    @property
    def names(self) -> dict[str, str]:
        """Every name that the user chose, and the option it stands in."""
        return {name: option for option in _NAMES if not callable(getattr(self, option)) for name in getattr(self, option)}


def run(
    options: Options,
    body: Callable[..., Any],
    values: Sequence[Any],
    *,
    name: str,
    paths: Sequence[str],
    hint: Callable[[str], str],
    plans: Plans,
) -> Any:
    """Runs one call so that JAX recomputes it, in part or wholly, when it is differentiated.

    Args:
        options: of the decorator.
        body: what to run; its arguments are arrays, its result is any pytree.
        values: its arguments.
        name: of the user's function, for messages.
        paths: names of the arguments, for messages.
        hint: from an argument's name to advice for when its traced value is used as a Python number.
        plans: where plans are remembered from call to call.

    Returns:
        What `body` returns; leaves that are not arrays are untouched.

    Raises:
        UnsupportedEffect: if the function has a side effect that must not be repeated.
        InvalidArgument: if a name does not occur, or a policy returns something that is no answer.
    """
    jaxpr, tree, leaves = _trace(body, values, name, paths, hint)
    _check_effects(jaxpr, name)
    _check_names(jaxpr, options, name)
    if options.policy is not None:
        CheckedPolicy(options.policy).probe(jaxpr)
    operands = [*jaxpr.consts, *values]
    if any(map(_jax.is_ref, operands)):
        outputs = _run_with_refs(options, jaxpr, operands, name, plans)
    else:
        outputs = _recomputed(options, jaxpr, jaxpr.consts, plans)(*values)
    arrays = iter(outputs)
    return jax.tree.unflatten(tree, [next(arrays) if leaf is _ARRAY else leaf for leaf in leaves])


_ARRAY = object()


def _trace(
    body: Callable[..., Any], values: Sequence[Any], name: str, paths: Sequence[str], hint: Callable[[str], str]
) -> tuple[Any, Any, list[Any]]:
    found: list[tuple[Any, list[Any]]] = []

    def flat(*values: Any) -> list[Any]:
        leaves, tree = jax.tree.flatten(body(*values))
        arrays = [isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in leaves]
        found.append((tree, [_ARRAY if array else leaf for leaf, array in zip(leaves, arrays, strict=True)]))
        return [leaf for leaf, array in zip(leaves, arrays, strict=True) if array]

    try:
        jaxpr = jax.make_jaxpr(flat)(*values)
    except _CONCRETIZATION as error:
        mine = re.search(r"values\[(\d+)\]", str(error))
        if mine is not None and error.args:
            argument = paths[int(mine.group(1))]
            text = re.sub(r"values\[(\d+)\]", lambda m: paths[int(m.group(1))], error.args[0])
            text = re.sub(r"while tracing the function .* for jit\.", f"in {name}, which rl.remat traces.", text)
            error.args = (f"{text}\n\n{hint(argument)}", *error.args[1:])
        raise
    tree, leaves = found[-1]
    return jaxpr, tree, leaves


def _recomputed(options: Options, jaxpr: Any, consts: Sequence[Any], plans: Plans) -> Callable[..., list[Any]]:
    """The traced function as one that recomputes when differentiated; a new one each time, as JAX caches traces by identity."""

    def plain(*values: Any) -> list[Any]:
        return jax.core.eval_jaxpr(jaxpr, consts, *values)

    if options.budget is not None:
        return planned_checkpoint(
            plain,
            budget=options.budget,
            solver=options.solver,
            must_save=options.must_save,
            must_recompute=options.must_recompute,
            time_limit=options.time_limit,
            seed=options.seed,
            check=options.check,
            plans=plans,
        )
    if options.policy is not None:
        known = options.policy in (checkpoint_policies.everything_saveable, checkpoint_policies.nothing_saveable)
        return jax.checkpoint(plain, policy=options.policy if known else CheckedPolicy(options.policy))
    if options.save:
        return jax.checkpoint(plain, policy=SaveNamed(frozenset(options.save)))
    if options.dont_save:
        excluded = frozenset(options.dont_save)
        return jax.checkpoint(
            lambda *values: keep_all_but(jaxpr, consts, values, excluded), policy=SaveNamed(frozenset({KEPT}))
        )
    return jax.checkpoint(plain)


def _run_with_refs(options: Options, jaxpr: Any, operands: Sequence[Any], name: str, plans: Plans) -> list[Any]:
    """Mutable references are read before the region and written after it, so that recomputation touches none of them."""
    pure, positions, written = _jax.refs_to_values(jaxpr)
    refs = [operands[i] for i in positions]
    if len(set(map(id, refs))) < len(refs):
        raise InvalidArgument(f"{name} gets the same Ref twice, as an argument or from around it: pass it once")
    contents = [x[...] if i in positions else x for i, x in enumerate(operands)]
    results = _recomputed(options, pure, pure.consts, plans)(*contents)
    outputs, finals = results[: len(jaxpr.outvars)], results[len(jaxpr.outvars) :]
    for ref, final, changed in zip(refs, finals, written, strict=True):
        if changed:
            ref[...] = final
    return outputs


def _equations(jaxpr: Any, calls: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """All equations, those inside others first, each with the equations around it."""
    for eqn in jaxpr.eqns:
        for inner in _jax.bodies(eqn):
            yield from _equations(inner, (*calls, eqn))
        yield eqn, calls


def _check_effects(jaxpr: Any, name: str) -> None:
    if not jaxpr.effects:
        return
    for eqn, calls in _equations(jaxpr):
        once = _jax.effects_to_run_once(eqn)
        if once:
            effects = ", ".join(sorted({type(effect).__name__ for effect in once}))
            raise UnsupportedEffect(
                f"{name} contains {eqn.primitive.name} at {_jax.source_line(eqn, calls)}, with a side effect ({effects}) "
                f"that recomputing {name} in the backward pass would repeat. Move it out of the decorated function, returning "
                "what it needs; if it is for debugging only, use the unordered jax.debug.callback or jax.debug.print."
            )


def _check_names(jaxpr: Any, options: Options, name: str) -> None:
    missing = set(options.names)
    if not missing:
        return
    present = _names_in(jaxpr)
    if missing - present:
        present |= _names_in(_derivative(jaxpr))  # derivative rules of the user may give names too
    missing -= present
    if missing:
        wrong = ", ".join(f"{n!r} (in {options.names[n]}=)" for n in sorted(missing))
        found = ", ".join(map(repr, sorted(present))) or "none: give them with jax.ad_checkpoint.checkpoint_name"
        raise InvalidArgument(f"no value in {name} has the name {wrong}. Names present: {found}")


def _names_in(jaxpr: Any) -> set[str]:
    return {name for eqn, _ in _equations(jaxpr) if (name := _jax.checkpoint_name_of(eqn)) is not None}


def _derivative(jaxpr: Any) -> Any:
    def tangent(value: Any) -> Any:
        inexact = jax.dtypes.issubdtype(value.dtype, np.inexact)
        return jax.numpy.ones_like(value) if inexact else np.zeros(value.shape, jax.dtypes.float0)

    def push(*values: Any) -> Any:
        return jax.jvp(lambda *v: jax.core.eval_jaxpr(jaxpr, jaxpr.consts, *v), values, tuple(map(tangent, values)))[0]

    return jax.make_jaxpr(push)(*(_jax.shape_of(v.aval) for v in jaxpr.invars))
