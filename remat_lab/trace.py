"""A loss and one set of arguments → the jaxpr of its value and gradient, and the way back to the user's pytrees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from remat_lab.call import Call, Static, array_type, dtype_of, is_traced, show_type
from remat_lab.errors import InvalidArgument, InvalidLoss


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
                ", ".join(f"{paths[i]}: {show_type(array_type(leaves[i]))}" for i in candidates if i in set(traced))
                or "no arrays"
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
        if not np.issubdtype(dtype_of(out), np.floating) and not jax.dtypes.issubdtype(dtype_of(out), np.floating):
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


def _is_inexact(leaf: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype_of(leaf), np.inexact))


def _show_output(out: Any) -> str:
    if isinstance(out, tuple | list):
        return f"a {type(out).__name__} of {len(out)}"
    return show_type(array_type(out)) if is_traced(out) else f"a {type(out).__name__}"
