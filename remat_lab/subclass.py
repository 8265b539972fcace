"""Subclasses that differ from a class only in decorated methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat_lab.errors import InvalidArgument


def subclass(cls: Any, wrap: Callable[..., Any], methods: tuple[str, ...]) -> Any:
    """A subclass with the name, module and documentation of `cls`, some of whose methods are decorated.

    Args:
        cls: a class.
        wrap: from a function to its `Decorated`.
        methods: names of the methods.

    Raises:
        InvalidArgument: if there is no such method.
    """
    namespace: dict[str, Any] = {key: getattr(cls, key) for key in ("__module__", "__qualname__", "__doc__")}
    for name in methods:
        method = getattr(cls, name, None)
        if not callable(method):
            raise InvalidArgument(f"{cls.__name__} has no method {name} to decorate: choose others with methods=")
        namespace[name] = wrap(method).function()
    return type(cls)(cls.__name__, (cls,), namespace)


def rebound(instance: Any, cls: Any) -> Any:
    """A shallow copy of an instance, of another class. Whatever the instance refers to, variables among it, is shared."""
    copy = object.__new__(cls)
    vars(copy).update(vars(instance))
    return copy
