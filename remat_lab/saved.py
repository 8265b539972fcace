"""What differentiating a function keeps from the forward pass for the backward pass, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from remat_lab import _compat
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
        if not isinstance(atom, _compat.Literal):
            atom, value = _origin(jaxpr, atom, call.paths_of_values, atom.aval)
            found.setdefault(atom, value)
    return Saved(tuple(found.values()))


def _origin(jaxpr: Any, var: Any, paths: tuple[str, ...], aval: Any) -> tuple[Any, SavedValue]:
    """Where a variable of the outermost jaxpr comes from: through renaming, and into the call that computes it."""
    shape, dtype, size_bytes = tuple(aval.shape), str(aval.dtype), nbytes(aval)
    name, scopes, calls = None, [(jaxpr, None)], ()
    top = var
    while True:
        current, outer = scopes[-1]
        eqn = _producer(current, var)
        if eqn is None and outer is not None:  # an input of a call's body: look at the operand
            scopes.pop()
            calls = calls[:-1]
            operands = outer.invars[len(outer.invars) - len(current.invars) :]
            if var not in current.invars:
                return top, SavedValue(name, "constant", shape, dtype, size_bytes, _compat.source_line(outer))
            var = operands[current.invars.index(var)]
            if isinstance(var, _compat.Literal):
                return top, SavedValue(name, "constant", shape, dtype, size_bytes, _compat.source_line(outer))
        elif eqn is None:
            position = jaxpr.invars.index(var) if var in jaxpr.invars else None
            if position is None:
                return var, SavedValue(name, "constant", shape, dtype, size_bytes, None)
            return var, SavedValue(paths[position], "argument", shape, dtype, size_bytes, None)
        elif (own := _compat.checkpoint_name_of(eqn)) is not None or eqn.primitive.name == "reduce_precision":
            name = name or own
            if len(scopes) == 1:
                top = eqn.invars[0]
            var = eqn.invars[0]
            if isinstance(var, _compat.Literal):
                return top, SavedValue(name, "constant", shape, dtype, size_bytes, _compat.source_line(eqn, calls))
        else:
            body = next((b for b in _compat.bodies(eqn) if len(b.outvars) == len(eqn.outvars)), None)
            inner = None if body is None else body.outvars[list(eqn.outvars).index(var)]
            if inner is None or isinstance(inner, _compat.Literal):
                return top, SavedValue(name, eqn.primitive.name, shape, dtype, size_bytes, _compat.source_line(eqn, calls))
            scopes.append((body, eqn))
            calls = (*calls, eqn)
            var = inner


def _producer(jaxpr: Any, var: Any) -> Any | None:
    return next((eqn for eqn in jaxpr.eqns if var in eqn.outvars), None)
