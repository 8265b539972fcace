"""Primitives of the toolkit's own: what they compute, and what JAX's transformations make of them.

Rules are given when a module that defines primitives is imported. Where this JAX lacks a table of rules, that primitive has
none, and `require` says so when it is to be used: not before, as a plan without loops needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend import core as jex

from remat_lab._jax import names
from remat_lab.errors import UnsupportedJax

_unusable: dict[Any, UnsupportedJax] = {}


def primitive(name: str) -> Any:
    """A new primitive with several results."""
    made: Any = jex.Primitive(name)
    made.multiple_results = True
    return made


def register(
    own: Any,
    run: Callable[..., Any],
    *,
    abstract: Callable[..., Any],
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
    batch: Callable[..., Any] | None = None,
    axis_batch: Callable[..., Any] | None = None,
    static: Sequence[str] = (),
) -> None:
    """Gives a primitive its rules.

    Args:
        own: from `primitive`.
        run: from arrays and parameters to a list of arrays.
        abstract: from types and parameters to types and effects.
        jvp: from primals, tangents and parameters to results and their tangents; see `is_zero`.
        transpose: from cotangents, operands and parameters to cotangents of the operands.
        batch: from values, mapped dimensions and parameters to results and their mapped dimensions.
        axis_batch: as `batch`, with what is known of the axis before (see `MappedAxis`); instead of it.
        static: names of the parameters, for `jax.jit`.
    """
    jitted = jax.jit(run, static_argnames=tuple(static))
    own.def_impl(jitted)
    own.to_lojax = jitted  # under JAX_REMAT3, where a named value in the body makes it a "high" primitive
    own.def_effectful_abstract_eval(abstract)
    rules = {names.JVPS: jvp, names.TRANSPOSES: transpose, names.BATCHERS: batch, names.AXIS_BATCHERS: axis_batch}
    try:
        names.find(names.ZERO)
        for where, rule in rules.items():
            if rule is not None:
                names.find(where)[own] = rule
        names.find(names.LOWERING)(own, names.find(names.LOWER_FUN)(run, multiple_results=True))
    except UnsupportedJax as error:
        _unusable[own] = error


def require(own: Any) -> None:
    """Raises the error that says why a primitive has no rules on this JAX, if it has none."""
    if own in _unusable:
        raise _unusable[own]


def is_zero(tangent: Any) -> bool:
    """Whether a tangent is known to be zero, or its value has none."""
    return is_symbolic_zero(tangent) or jax.typeof(tangent).dtype == jax.dtypes.float0


def is_symbolic_zero(value: Any) -> bool:
    """Whether a tangent or cotangent is one that JAX knows to be zero without making an array."""
    return type(value) is names.find(names.ZERO)


def zero_of(value: Any) -> Any:
    """The zero tangent of a value."""
    return names.find(names.ZERO)(jax.typeof(value).to_tangent_aval())


@dataclass(frozen=True)
class MappedAxis:
    """How a batching rule is to map: dimension of each operand, and what `jax.vmap` was told."""

    dims: tuple[int | None, ...]
    size: int
    name: Any
    spmd_name: Any

    @classmethod
    def of(cls, axis: Any, dims: Sequence[Any]) -> MappedAxis:
        """From what a batching rule gets."""
        return cls(tuple(dims), axis.size, axis.name, axis.spmd_name)  # a name that means none means it to jax.vmap, too

    def with_dims(self, dims: tuple[int | None, ...]) -> MappedAxis:
        """The same axis for other operands."""
        return replace(self, dims=dims)

    def vmap(self, fun: Any) -> Any:
        """The mapped function; all its results have the axis in front."""
        return jax.vmap(fun, self.dims, axis_name=self.name, axis_size=self.size, spmd_axis_name=self.spmd_name)
