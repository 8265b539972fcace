"""A loss and one set of arguments → the jaxpr of its value and gradient, and the way back to the user's pytrees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from remat_lab.errors import InvalidArgument, InvalidLoss, PlanMismatch

_NUMBERS = (int, float, complex)


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
        kinds = tuple(_array_type(leaf) if i in traced else _static_key(leaf) for i, leaf in enumerate(self.leaves))
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
            raise PlanMismatch(
                f"the arguments have another structure than those planned for: {self.tree} instead of {planned.tree}. "
                "Plan again."
            )
        for path, ours, theirs in zip(self.paths, self.signature[1], planned.signature[1], strict=True):
            if ours != theirs:
                raise PlanMismatch(
                    f"{path} is {_show(ours)}, but the plan was made for {_show(theirs)}. Plan again for this one."
                )
        raise PlanMismatch("other leaves are differentiated than those planned for. Plan again.")


@dataclass(frozen=True)
class Traced:
    """A traced value-and-gradient program.

    Attributes:
        call: the arguments it was traced with.
        jaxpr: from the traced leaves to loss, traced leaves of aux, gradients of the differentiated leaves.
        primal_outputs: number of outputs before the gradients.
    """

    call: Call
    jaxpr: Any
    primal_outputs: int
    has_aux: bool
    aux_tree: Any
    aux_leaves: tuple[Any, ...]
    single_argnum: bool

    def unflatten(self, outputs: Sequence[Any]) -> tuple[Any, Any]:
        """The program's outputs as `jax.value_and_grad` would return them.

        Leaves of a differentiated argument that have no gradient get what `allow_int=True` gives: float0 zeros for integers,
        None for what is not an array.
        """
        loss, grads = outputs[0], dict(zip(self.call.differentiated, outputs[self.primal_outputs :], strict=True))
        aux_values = iter(outputs[1 : self.primal_outputs])
        aux = [next(aux_values) if leaf is _TRACED else leaf for leaf in self.aux_leaves]
        traced = set(self.call.traced)
        leaves = [
            grads[i] if i in grads else np.zeros(np.shape(leaf), jax.dtypes.float0) if i in traced else None
            for i, leaf in enumerate(self.call.leaves)
        ]
        args, _ = jax.tree.unflatten(self.call.tree, range(len(leaves)))
        picked = [jax.tree.map(lambda i: leaves[i], args[n]) for n in self.call.argnums]
        gradient = picked[0] if self.single_argnum else tuple(picked)
        value = (loss, jax.tree.unflatten(self.aux_tree, aux)) if self.has_aux else loss
        return value, gradient


_TRACED = object()


@dataclass(frozen=True)
class Loss:
    """A user's loss and how to call it: the options of `jax.value_and_grad` and `jax.jit` that change its meaning."""

    fun: Callable[..., Any]
    argnums: int | tuple[int, ...] = 0
    has_aux: bool = False
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.fun, "__name__", None) or type(self.fun).__name__

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Splits arguments into traced and static leaves, as `split` does, and finds what is differentiated.

        Raises:
            InvalidArgument: if argnums or a static argument does not exist.
            InvalidLoss: if no differentiated leaf is a floating-point or complex array.
        """
        call = self.split(args, kwargs)
        wanted = (self.argnums,) if isinstance(self.argnums, int) else tuple(self.argnums)
        for n in wanted:
            if not -len(args) <= n < len(args):
                raise InvalidArgument(
                    f"argnums={self.argnums} names argument {n} of {self.name}, but {len(args)} were passed by position"
                )
        wanted = tuple(n % len(args) for n in wanted)
        leaves, traced, paths = call.leaves, call.traced, call.paths
        positional, _ = call.tree.children()
        starts = np.cumsum([0, *(argument.num_leaves for argument in positional.children())])
        candidates = [i for n in wanted for i in range(int(starts[n]), int(starts[n + 1]))]
        differentiated = tuple(i for i in candidates if i in set(traced) and _is_inexact(leaves[i]))
        if not differentiated:
            found = (
                ", ".join(f"{paths[i]}: {_show(_array_type(leaves[i]))}" for i in candidates if i in set(traced)) or "no arrays"
            )
            raise InvalidLoss(
                f"{self.name} has nothing to differentiate: argnums={self.argnums} selects no floating-point array ({found}). "
                "Choose other argnums or pass floating-point parameters."
            )
        return replace(call, differentiated=differentiated, argnums=wanted)

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_leaf: Callable[[Any], bool] | None = None) -> Call:
        """Splits arguments into traced and static leaves; nothing of the call is differentiated.

        Numbers and arrays are traced; booleans, strings, functions and whatever `static_argnums` or `static_argnames` name
        are static, whether passed by position, by keyword or left to their default.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            is_leaf: says which nodes of the arguments to leave whole, as for `jax.tree.flatten`.

        Raises:
            InvalidArgument: if a static argument does not exist.
        """
        marked = self._mark_static(args, kwargs)
        with_paths, tree = jax.tree_util.tree_flatten_with_path(marked, is_leaf)
        parameters = self.parameters
        paths = tuple(_path(parameters, path) for path, _ in with_paths)
        leaves = tuple(leaf for _, leaf in with_paths)
        traced = tuple(i for i, leaf in enumerate(leaves) if is_traced(leaf))
        return Call(tree, leaves, traced, (), (), paths)

    def trace(self, call: Call) -> Traced:
        """Traces `jax.value_and_grad` of the loss; allocates nothing of the arguments' size.

        Raises:
            InvalidLoss: if the loss does not return a real scalar (and aux, if `has_aux`).
        """
        found: list[tuple[Any, tuple[Any, ...]]] = []

        def step(*values: Any) -> list[Any]:
            position = {i: p for p, i in enumerate(call.traced)}

            def loss_of(differentiated: list[Any]) -> tuple[Any, list[Any]]:
                filled = list(values)
                for i, value in zip(call.differentiated, differentiated, strict=True):
                    filled[position[i]] = value
                args, kwargs = call.rebuild(filled)
                loss, aux = self._split(self.fun(*args, **kwargs))
                aux_leaves, aux_tree = jax.tree.flatten(aux)
                found.append((aux_tree, tuple(_TRACED if is_traced(leaf) else leaf for leaf in aux_leaves)))
                return loss, [leaf for leaf in aux_leaves if is_traced(leaf)]

            diff = [values[position[i]] for i in call.differentiated]
            (loss, aux), grads = jax.value_and_grad(loss_of, has_aux=True)(diff)
            return [loss, *aux, *grads]

        jaxpr = jax.make_jaxpr(step)(*call.values)
        aux_tree, aux_leaves = found[-1]
        primal = 1 + sum(leaf is _TRACED for leaf in aux_leaves)
        return Traced(call, jaxpr, primal, self.has_aux, aux_tree, aux_leaves, isinstance(self.argnums, int))

    def _split(self, out: Any) -> tuple[Any, Any]:
        aux = None
        if self.has_aux:
            if not (isinstance(out, tuple) and len(out) == 2):
                raise InvalidLoss(f"with has_aux=True {self.name} must return (loss, aux), but it returned {_show_output(out)}")
            out, aux = out
        if not (is_traced(out) and np.shape(out) == ()):
            hint = " Did you mean has_aux=True?" if isinstance(out, tuple) and len(out) == 2 and not self.has_aux else ""
            raise InvalidLoss(
                f"{self.name} must return one scalar loss, but it returned {_show_output(out)}. "
                f"Reduce it, with jnp.mean or jnp.sum for example.{hint}"
            )
        if not np.issubdtype(_dtype(out), np.floating) and not jax.dtypes.issubdtype(_dtype(out), np.floating):
            raise InvalidLoss(f"{self.name} must return a real floating-point loss, but it returned {_show_output(out)}")
        return out, aux

    def _mark_static(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self.static_argnums and not self.static_argnames:
            return tuple(args), dict(kwargs)
        parameters = self.parameters
        names = set(self.static_argnames)
        for n in self.static_argnums:
            if not -len(parameters) <= n < len(parameters) and not 0 <= n < len(args):
                raise InvalidArgument(
                    f"static_argnums names argument {n} of {self.name}, which takes {len(parameters)}: {parameters}"
                )
            names.add(parameters[n] if -len(parameters) <= n < len(parameters) else f"*{n}")
        unknown = names - set(parameters) - set(kwargs) - {f"*{n}" for n in self.static_argnums}
        if unknown:
            raise InvalidArgument(f"static_argnames names {sorted(unknown)}, but {self.name} takes {parameters}")
        marked = tuple(
            Static(a) if (parameters[n] if n < len(parameters) else f"*{n}") in names else a for n, a in enumerate(args)
        )
        return marked, {key: Static(value) if key in names else value for key, value in kwargs.items()}

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that can be passed by name or position, in order; none if it has no signature."""
        try:
            return [
                name
                for name, p in inspect.signature(self.fun).parameters.items()
                if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            ]
        except (TypeError, ValueError):
            return []


def _path(parameters: list[str], path: tuple[Any, ...]) -> str:
    (kind, first, *rest) = path
    if kind.idx == 1:
        root = str(first.key)
    else:
        root = parameters[first.idx] if first.idx < len(parameters) else f"argument {first.idx}"
    return root + jax.tree_util.keystr(tuple(rest))


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


def _dtype(leaf: Any) -> Any:
    return jax.typeof(leaf).dtype if not isinstance(leaf, jax.ShapeDtypeStruct) else leaf.dtype


def _is_inexact(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(_dtype(leaf), np.inexact))


def _array_type(leaf: Any) -> tuple[Any, ...]:
    return (tuple(np.shape(leaf)), _dtype(leaf))


def _static_key(leaf: Any) -> Any:
    value = leaf.value if isinstance(leaf, Static) else leaf
    try:
        hash(value)
    except TypeError:
        return ("static", id(value))
    return ("static", type(value), value)


def _show(kind: tuple[Any, ...]) -> str:
    if kind and kind[0] == "static":
        return f"the static value {kind[-1]!r}"
    shape, dtype = kind
    return f"{dtype}[{','.join(map(str, shape))}]"


def _show_output(out: Any) -> str:
    if isinstance(out, tuple | list):
        return f"a {type(out).__name__} of {len(out)}"
    return _show(_array_type(out)) if is_traced(out) else f"a {type(out).__name__}"
