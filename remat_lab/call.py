"""The arguments of one call, split into what JAX traces and what only Python sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from remat_lab.errors import PlanMismatch
from remat_lab.wording import shortened, values_apart, without_addresses

_NUMBERS = (int, float, complex)
_FEW = 3  # leaves that a message names


@dataclass(frozen=True, slots=True)
class Static:
    """Marks an argument that is not traced; a leaf of the argument tree."""

    value: Any


@dataclass(frozen=True)
class Call:
    """One set of arguments, split into what is traced and what is not.

    Attributes:
        tree: structure of `(args, kwargs)`.
        leaves: all leaves; traced ones may be arrays, tracers or `jax.ShapeDtypeStruct`.
        traced: positions of the leaves that are arrays or numbers.
        differentiated: positions of the floating-point leaves of the arguments named by `argnums`.
        argnums: positions of the differentiated arguments, none negative.
        paths: each leaf's name, for messages.
    """

    tree: Any
    leaves: tuple[Any, ...]
    traced: tuple[int, ...]
    differentiated: tuple[int, ...]
    argnums: tuple[int, ...]
    paths: tuple[str, ...]

    @property
    def values(self) -> list[Any]:
        """The traced leaves."""
        return [self.leaves[i] for i in self.traced]

    @property
    def paths_of_values(self) -> tuple[str, ...]:
        """The names of the traced leaves."""
        return tuple(self.paths[i] for i in self.traced)

    def rebuild(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with other values for the traced leaves."""
        leaves = [leaf.value if isinstance(leaf, Static) else leaf for leaf in self.leaves]
        for i, value in zip(self.traced, values, strict=True):
            leaves[i] = value
        return jax.tree.unflatten(self.tree, leaves)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal and hashable for calls that may share a plan."""
        traced = set(self.traced)
        kinds = tuple(array_type(leaf) if i in traced else _static_key(leaf) for i, leaf in enumerate(self.leaves))
        return (self.tree, kinds, self.differentiated)

    @property
    def weak_types(self) -> tuple[bool, ...]:
        """Which traced leaves promote like Python numbers; programs traced with others may differ."""
        return tuple(bool(getattr(jax.typeof(value), "weak_type", False)) for value in self.values)

    def abstract(self) -> Call:
        """The same call with shapes in place of arrays, so that whoever keeps it keeps neither arrays nor tracers alive."""
        leaves = list(self.leaves)
        for i in self.traced:
            leaves[i] = _shape_of(leaves[i])
        return replace(self, leaves=tuple(leaves))

    def check_same(self, planned: Call) -> None:
        """Raises `PlanMismatch`, naming the first difference, unless a plan for `planned` fits this call."""
        if self.signature == planned.signature:
            return
        if self.tree != planned.tree:
            raise PlanMismatch(f"the arguments have another structure than those planned for: {_structures(self, planned)}.")
        for i, (ours, theirs) in enumerate(zip(self.signature[1], planned.signature[1], strict=True)):
            if ours != theirs:
                raise PlanMismatch(_leaf(self.paths[i], _words(self, i, ours), _words(planned, i, theirs)))
        raise PlanMismatch("other leaves are differentiated than those planned for. Plan again.")


def _structures(call: Call, planned: Call) -> str:
    """Which leaves there are and were; where these are the same, what they are in."""
    extra = [path for path in call.paths if path not in planned.paths]
    missing = [path for path in planned.paths if path not in call.paths]
    said = [
        f"{what} {', '.join(paths[:_FEW])}{f' and {len(paths) - _FEW} more' if len(paths) > _FEW else ''}"
        for what, paths in (("there is", extra), ("there is no", missing))
        if paths
    ]
    if not said:
        there, here = values_apart(str(planned.tree), str(call.tree))
        said = [f"{here} instead of {there}"]
    return f"{' and '.join(said)}. Plan again"


def _words(call: Call, i: int, kind: tuple[Any, ...]) -> tuple[str, str]:
    """A leaf as a kind of thing and its type or value."""
    return ("", show_type(kind)) if i in call.traced else ("the static value ", show_static(call.leaves[i]))


def _leaf(path: str, ours: tuple[str, str], theirs: tuple[str, str]) -> str:
    if ours == theirs:
        return (
            f"{path} is {ours[0]}{shortened(ours[1])}, as when the plan was made, but it is another object: a static value is "
            "the same if it can be hashed and is equal, or else only if it is the same object. Pass that one, or one that can "
            "be hashed (a tuple or a frozen dataclass, say), or plan again for this one."
        )
    there, here = values_apart(theirs[1], ours[1])
    return f"{path} is {ours[0]}{here}, but the plan was made for {theirs[0]}{there}. Plan again for this one."


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    kind: Any = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(
        kind.shape,
        kind.dtype,
        weak_type=kind.weak_type,
        sharding=None if kind.sharding.mesh.empty else kind.sharding,
    )


def is_traced(leaf: Any) -> bool:
    """Whether a leaf is an array or a number, rather than something that only Python sees."""
    if isinstance(leaf, bool | str | Static):
        return False
    return isinstance(leaf, (*_NUMBERS, np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)) or hasattr(
        leaf, "__jax_array__"
    )


def dtype_of(leaf: Any) -> Any:
    """The dtype of a traced leaf."""
    return jax.typeof(leaf).dtype if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf.dtype


def array_type(leaf: Any) -> tuple[Any, ...]:
    """The shape and dtype of a traced leaf, and how it is laid out over mesh axes of explicit type; empty if it is not."""
    spec: Any = jax.typeof(leaf).sharding.spec
    return (tuple(np.shape(leaf)), dtype_of(leaf), str(spec) if any(part is not None for part in spec) else "")


def _static_key(leaf: Any) -> Any:
    value = leaf.value if isinstance(leaf, Static) else leaf
    try:
        hash(value)
    except TypeError:
        return ("static", id(value))
    return ("static", type(value), value)


def show_static(leaf: Any) -> str:
    """The value of a static leaf as Python writes it, without addresses."""
    value = leaf.value if isinstance(leaf, Static) else leaf
    try:
        return without_addresses(repr(value))
    except Exception:  # of the user's own class
        return f"an object of type {type(value).__qualname__}"


def show_type(kind: tuple[Any, ...]) -> str:
    """The type of a traced leaf, as `array_type` has it, in words."""
    shape, dtype, spec = kind
    return f"{dtype}[{','.join(map(str, shape))}]{f' sharded {spec}' if spec else ''}"
