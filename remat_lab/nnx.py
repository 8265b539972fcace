"""`remat` for `flax.nnx`: modules, methods and functions of modules, whose state is updated exactly once.

A Module is split into its structure and its state before the region and merged again inside it, and what the call changed is
merged into the caller's objects afterwards: `jax.checkpoint` on a Module would compute the new state and lose it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from flax import nnx

from remat_lab.call import Call, Static
from remat_lab.subclass import rebound, subclass
from remat_lab.trace import Loss

_TAG = "remat_lab.remat"


def is_module_class(cls: type) -> bool:
    """Whether `remat` treats instances of a class as nnx Modules."""
    return issubclass(cls, nnx.Module)


def decorate_class(cls: type, wrap: Callable[..., Any], methods: tuple[str, ...]) -> type:
    """A class of the same name whose `methods` are decorated."""
    return subclass(cls, wrap, methods)


def decorate_instance(module: Any, wrap: Callable[..., Any], methods: tuple[str, ...]) -> Any:
    """The same Module, with the same variables, whose `methods` are decorated; `module` itself is not changed."""
    return rebound(module, subclass(type(module), wrap, methods))


def holds_nodes(tree: Any) -> bool:
    """Whether a pytree holds Modules, Variables or streams."""
    return any(_is_node(leaf) for leaf in jax.tree.leaves(tree, is_leaf=_is_node))


def _is_node(value: Any) -> bool:
    return isinstance(value, nnx.Pytree | nnx.Variable)


def call(decorated: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a decorated function with Modules, Variables or streams among its arguments."""
    outer = decorated.split(args, kwargs, _is_node)
    nodes = [leaf for leaf in outer.leaves if _is_node(leaf)]
    with nnx.update_context(_TAG):
        with nnx.split_context(_TAG) as context:
            structure, state = context.split(nodes)
        states = Loss(_states).split((state,), {})
        own = len(states.values)

        def body(*values: Any) -> Any:
            (state,), _ = states.rebuild(values[:own])
            with nnx.merge_context(_TAG, inner=True) as context:
                inside = context.merge(structure, state)
            args, kwargs = _with_nodes(outer, inside).rebuild(values[own:])
            leaves, tree = jax.tree.flatten(decorated.fun(*args, **kwargs), is_leaf=_is_node)
            made = [leaf for leaf in leaves if _is_node(leaf)]
            rest = [_NODE if _is_node(leaf) else leaf for leaf in leaves]
            with nnx.split_context(_TAG) as context:
                new_structure, new_state = context.split((inside, made))
            return new_state, rest, Static((new_structure, tree))

        new_state, rest, structures = decorated.run(body, states, outer)
        new_structure, tree = structures.value
        with nnx.merge_context(_TAG, inner=False) as context:
            _, made = context.merge(new_structure, new_state)
    results = iter(made)
    return jax.tree.unflatten(tree, [next(results) if leaf is _NODE else leaf for leaf in rest])


_NODE = object()


def _with_nodes(call: Call, nodes: list[Any]) -> Call:
    inside = iter(nodes)
    return replace(call, leaves=tuple(next(inside) if _is_node(leaf) else leaf for leaf in call.leaves))


def _states(state: Any) -> None:
    """Its signature names the state of all Modules, for messages."""
