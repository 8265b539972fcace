"""What differentiating a function keeps from the forward pass for the backward pass, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from remat_lab import _jax
from remat_lab.keep import INTERNAL_NAMES
from remat_lab.primitives import nbytes
from remat_lab.trace import Loss
from remat_lab.units import size


@dataclass(frozen=True, slots=True)
class SavedValue:
    """One array that is kept for the backward pass.

    Attributes:
        name: the user's `checkpoint_name`, the argument's path, or None.
        primitive: what computed it; "argument" or "constant" if nothing in the function did.
        shape: its shape; in a loop, with the number of steps in front.
        dtype: its type.
        bytes: its size.
        source: the user's line, as `file.py:12 (function)`, if known.
    """

    name: str | None
    primitive: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    source: str | None


@dataclass(frozen=True, slots=True)
class Saved:
    """All arrays that are kept for the backward pass; iterate over it, or print it as a table."""

    values: tuple[SavedValue, ...]

    @property
    def bytes(self) -> int:
        """Total size, arguments and constants included."""
        return sum(value.bytes for value in self.values)

    def __iter__(self) -> Iterator[SavedValue]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __str__(self) -> str:
        rows = [("bytes", "type", "primitive", "name", "source")]
        for value in sorted(self.values, key=lambda v: -v.bytes):
            kind = f"{value.dtype}[{','.join(map(str, value.shape))}]"
            rows.append((size(value.bytes), kind, value.primitive, value.name or "", value.source or ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, f"{size(self.bytes)} in {len(self)} arrays"])


def saved(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Saved:
    """Lists what differentiating `fun` would keep from the forward pass. Nothing is compiled or run.

    Args:
        fun: any function of pytrees, decorated or not.
        *args: its arguments; arrays or `jax.ShapeDtypeStruct`.
        **kwargs: more of them.

    Returns:
        The arrays, each once, in the order of the program.

    Example:
        >>> import jax.numpy as jnp, remat_lab as rl
        >>> f = rl.remat(lambda x: jnp.sin(jnp.sin(x)))
        >>> [value.primitive for value in rl.saved(f, jnp.ones(8))]
        ['argument']
    """
    call = Loss(fun).split(args, kwargs)

    def forward(*values: Any) -> list[Any]:
        args, kwargs = call.rebuild(values)
        return [leaf for leaf in jax.tree.leaves(fun(*args, **kwargs)) if isinstance(leaf, jax.Array)]

    jaxpr = jax.make_jaxpr(lambda *values: jax.vjp(forward, *values)[1])(*call.values)
    found: dict[Any, SavedValue] = {}
    for atom in jaxpr.outvars:
        if not isinstance(atom, _jax.Literal):
            atom, value = _origin(jaxpr, atom, call.paths_of_values)
            found.setdefault(atom, value)
    return Saved(tuple(found.values()))


def _origin(jaxpr: Any, var: Any, paths: tuple[str, ...]) -> tuple[Any, SavedValue]:
    """Where a variable of the outermost jaxpr comes from: looked for through renaming, and inside the call that computes it.

    Returns:
        The variable of the outermost jaxpr that it renames, and what it is.
    """
    aval, top, name = var.aval, var, None
    calls: list[tuple[Any, Any]] = []  # the calls that we are inside of, each with the body around it

    def describe(primitive: str, eqn: Any = None) -> tuple[Any, SavedValue]:
        source = None if eqn is None else _jax.source_line(eqn, [call for call, _ in calls])
        shown = paths[jaxpr.invars.index(var)] if primitive == "argument" else name
        return top, SavedValue(shown, primitive, tuple(aval.shape), str(aval.dtype), nbytes(aval), source)

    body = jaxpr
    while True:
        if not calls:
            top = var
        eqn = next((eqn for eqn in body.eqns if var in eqn.outvars), None)
        if isinstance(var, _jax.Literal):
            return describe("constant")
        if eqn is None and not calls:
            return describe("argument" if var in jaxpr.invars else "constant")
        if eqn is None:  # an input of a body: look at the operand of the call
            call, outside = calls.pop()
            if var not in body.invars:
                return describe("constant", call)
            var, body = call.invars[len(call.invars) - len(body.invars) + body.invars.index(var)], outside
            if var.aval.shape != aval.shape:
                return describe(call.primitive.name, call)  # a loop's carry in every step, which no operand is
        elif (own := _jax.checkpoint_name_of(eqn)) is not None or eqn.primitive.name == "reduce_precision":
            if own is not None and not own.startswith(INTERNAL_NAMES):
                name = name or own
            var = eqn.invars[0]
        else:
            inside = next((b for b in _jax.bodies(eqn) if len(b.outvars) == len(eqn.outvars)), None)
            if inside is None:
                return describe(eqn.primitive.name, eqn)
            calls.append((eqn, body))
            var, body = inside.outvars[list(eqn.outvars).index(var)], inside
