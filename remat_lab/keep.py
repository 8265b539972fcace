"""What `jax.checkpoint` saves: policies by name, checks of a user's own policy, and "everything but these names".

A policy is compared by identity in JAX's caches, so all of them are frozen and equal by content: no recompilation per call.
JAX's own `save_anything_except_these_names` saves everything, and a policy cannot do better: it is asked about one equation at
a time, and saving the operand of `checkpoint_name` is as good as saving its result. Here every value that may be saved is given
a name of ours, and those that only rename a value that may not be saved are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import Offloadable, Recompute, Saveable, checkpoint_name

from remat_lab import _jax
from remat_lab.errors import InvalidArgument
from remat_lab.primitives import VIEWS

INTERNAL_NAMES = "remat_lab/"  # how names begin that no user gave
KEPT = INTERNAL_NAMES + "kept"

_ANSWERS = (bool, type(Recompute), type(Saveable), Offloadable)
_ALIASES = VIEWS | {"convert_element_type", "copy", "copy_p", "optimization_barrier", "reduce_precision", "transpose", "rev"}

Path = tuple[int, ...]  # positions of the equations around a variable: one body may be called from several places
Place = tuple[Path, Any]


@dataclass(frozen=True)
class SaveNamed:
    """Saves the values with these names and nothing else."""

    names: frozenset[str]

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> bool:
        """Whether to save the results of an equation."""
        return primitive.name == "name" and params.get("name") in self.names


@dataclass(frozen=True)
class CheckedPolicy:
    """A user's policy, whose answers are checked."""

    policy: Callable[..., Any]

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> Any:
        """The user's answer for an equation."""
        answer = self.policy(primitive, *avals, **params)
        if not isinstance(answer, _ANSWERS):
            raise InvalidArgument(
                f"the policy {getattr(self.policy, '__name__', self.policy)!r} returned {answer!r}, a {type(answer).__name__}, "
                f"for {primitive.name}: a policy returns a Python bool (True: save), or Recompute, Saveable or an Offloadable "
                "of jax.ad_checkpoint"
            )
        return answer

    def probe(self, jaxpr: Any) -> None:
        """Asks the policy about every equation, so that a wrong answer is found before anything is differentiated."""
        for eqn in jaxpr.eqns:
            self(eqn.primitive, *(atom.aval for atom in eqn.invars), **eqn.params)


def keep_all_but(jaxpr: Any, consts: Sequence[Any], values: Sequence[Any], excluded: frozenset[str]) -> list[Any]:
    """Runs a jaxpr, giving the name `KEPT` to every value but those with excluded names and their aliases.

    Aliases hold the same elements: reshaped, transposed, converted, passed into or out of a loop body or a branch. Values
    inside custom derivative rules, inner `jax.checkpoint` regions and `shard_map` get no name and are recomputed from others.
    """
    classes = _Aliases(jaxpr, excluded)
    return _tagged(jaxpr, consts, values, classes, ())


class _Aliases:
    """Classes of variables that hold the same elements, by union-find."""

    def __init__(self, jaxpr: Any, excluded: frozenset[str]):
        self._parent: dict[Place, Place] = {}
        named: list[Place] = []
        self._connect(jaxpr, (), excluded, named)
        self._excluded = {self._root(place) for place in named}

    def excludes(self, path: Path, var: Any) -> bool:
        """Whether a variable has an excluded name or is an alias of one that has."""
        return self._root((path, var)) in self._excluded

    def _root(self, place: Place) -> Place:
        while (parent := self._parent.get(place, place)) != place:
            self._parent[place] = self._parent.get(parent, parent)
            place = parent
        return place

    def _union(self, one: Place, other: Place) -> None:
        self._parent[self._root(one)] = self._root(other)

    def _connect(self, jaxpr: Any, path: Path, excluded: frozenset[str], named: list[Place]) -> None:
        for k, eqn in enumerate(jaxpr.eqns):
            name = _jax.checkpoint_name_of(eqn)
            if name is not None or eqn.primitive.name in _ALIASES:
                for one, other in zip(eqn.invars, eqn.outvars, strict=False):
                    if not isinstance(one, _jax.Literal):
                        self._union((path, one), (path, other))
            if name in excluded:
                named.append((path, eqn.outvars[0]))
            for inner, body in _entered(eqn, path, k):
                for one, other in [*_arguments(eqn, body), *zip(eqn.outvars, body.outvars, strict=True)]:
                    if not isinstance(one, _jax.Literal) and not isinstance(other, _jax.Literal):
                        self._union((path, one), (inner, other))
                self._connect(body, inner, excluded, named)


def _entered(eqn: Any, path: Path, k: int) -> Iterator[tuple[Path, Any]]:
    """The bodies of an equation whose values get names, each with its path."""
    primitive = eqn.primitive.name
    if primitive == "cond" or primitive == "scan" or (primitive in ("jit", "pjit") and _jax.is_unspecified_call(eqn)):
        for b, body in enumerate(_jax.sub_jaxprs(eqn)):
            yield (*path, k, b), body


def _arguments(eqn: Any, body: Any) -> list[tuple[Any, Any]]:
    return list(zip(eqn.invars[len(eqn.invars) - len(body.invars) :], body.invars, strict=True))


def _tagged(jaxpr: Any, consts: Sequence[Any], values: Sequence[Any], classes: _Aliases, path: Path) -> list[Any]:
    scope = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _jax.Literal) else scope[atom]

    for k, eqn in enumerate(jaxpr.eqns):
        ins = [read(atom) for atom in eqn.invars]
        inner = list(_entered(eqn, path, k))
        if inner and eqn.primitive.name in ("jit", "pjit"):
            ((own_path, body),) = inner
            with _jax.equation_context(eqn):
                outs = _tagged(body, body.consts, ins, classes, own_path)
        else:
            outs = _jax.bind(eqn, ins, **_tagged_bodies(eqn, inner, classes))
        for var, out in zip(eqn.outvars, outs, strict=True):
            scope[var] = out if classes.excludes(path, var) or not _nameable(out) else checkpoint_name(out, KEPT)
    return [read(atom) for atom in jaxpr.outvars]


def _tagged_bodies(eqn: Any, inner: list[tuple[Path, Any]], classes: _Aliases) -> dict[str, Any]:
    if not inner:
        return {}
    bodies = []
    for own_path, body in inner:

        def run(*values: Any, own_path: Path = own_path, body: Any = body) -> list[Any]:
            return _tagged(body, body.consts, values, classes, own_path)

        bodies.append(_jax.trace_like(run, body))
    return {"branches": tuple(bodies)} if eqn.primitive.name == "cond" else {"jaxpr": bodies[0]}


def _nameable(value: Any) -> bool:
    dtype = getattr(jax.typeof(value), "dtype", None)
    return dtype is not None and not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) and not _jax.is_ref(value)
