"""`remat` for `flax.linen`: classes, instances and methods, with the names, streams and collections they have without it.

Built on `flax.core.lift.pack`, as `nn.remat` is, which turns a scope's variables and random streams into arguments and results.
Unlike `nn.remat` it keeps the class's name, from which Flax derives parameter paths and, from these, random streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax.core.lift import pack
from flax.linen import Module
from flax.linen.module import _context
from flax.linen.transforms import decorator_lift_transform

from remat_lab.errors import InvalidArgument
from remat_lab.subclass import rebound, subclass
from remat_lab.trace import Loss


def is_module_class(cls: type) -> bool:
    """Whether `remat` treats instances of a class as linen Modules."""
    return issubclass(cls, Module)


def is_bound(value: Any) -> bool:
    """Whether a value is a linen Module with variables."""
    return isinstance(value, Module) and value.scope is not None


def decorate_class(cls: type, wrap: Callable[..., Any], methods: tuple[str, ...]) -> type:
    """A class of the same name whose `methods` are decorated."""
    return subclass(cls, wrap, methods)


def decorate_instance(module: Module, wrap: Callable[..., Any], methods: tuple[str, ...]) -> Module:
    """The same Module, with the same scope and name, whose `methods` are decorated; `module` itself is not changed."""
    return rebound(module, subclass(type(module), wrap, methods))


def call_method(decorated: Any, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a decorated method of a bound Module."""
    fun = decorated.fun
    if getattr(wrapper, "compact", False) and not hasattr(fun, "compact"):  # @nn.compact stands above @rl.remat
        fun.compact = True
    plan = not args[0].is_initializing()  # initialization is not differentiated, and its random numbers need room of their own
    return decorator_lift_transform(_lifted, fun, decorated=decorated, plan=plan)(*args, **kwargs)


@contextlib.contextmanager
def no_leaks(name: str) -> Iterator[None]:
    """While a plain function is traced inside a Module: raises if it changes variables of a Module that it closes over.

    Flax does not look for that, and the variables would hold tracers of a trace that has ended.
    """
    roots = {id(m.scope.root): m.scope.root for m in _context.module_stack if m is not None and m.scope is not None}

    def tracers() -> set[int]:
        variables = [root.variables() for root in roots.values()]
        return {id(leaf) for leaf in jax.tree.leaves(variables) if isinstance(leaf, jax.core.Tracer)}

    before = tracers()
    yield
    if not tracers() <= before:
        raise InvalidArgument(
            f"{name} creates or changes variables of a linen Module that it closes over, which would leave tracers in them: "
            "pass the Module as its first argument, as in rl.remat(lambda module, x: module(x))(module, x)"
        )


def _lifted(core_fn: Callable[..., Any], *, decorated: Any, plan: bool) -> Callable[..., Any]:
    def inner(
        scope_fn: Callable[..., Any], repack_fn: Callable[..., Any], variables: Any, rngs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        groups = Loss(_groups).split((variables, rngs), {})
        call = decorated.split((None, *args), kwargs)  # None stands for self, which is argument 0
        own = len(groups.values)

        def body(*values: Any) -> Any:
            (variables, rngs), _ = groups.rebuild(values[:own])
            (_, *args), kwargs = call.rebuild(values[own:])
            scope = scope_fn(variables, rngs)
            result = core_fn(scope, *args, **kwargs)
            return result, repack_fn(scope)

        return decorated.run(body, groups, call, plan=plan)

    return pack(inner, (True,), (True,), (True,), name="remat", enable_kwargs=True)


def _groups(variables: Any, rngs: Any) -> None:
    """Its signature names what a scope holds, for messages."""
