"""Equations: what they hold, where they come from, and how one runs again."""

from __future__ import annotations

import contextlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import jax
from jax.extend import core as jex
from jax.extend import source_info_util

from remat_lab._jax import names

Literal = jex.Literal
Equation = jex.JaxprEqn


@contextlib.contextmanager
def equation_context(eqn: Equation) -> Iterator[None]:
    """Re-binding `eqn` inside this context gives the new equation its source line, name stack and tracing context."""
    with _source(eqn), names.part(eqn, "ctx", "JaxprEqn.ctx").manager:
        yield


def _source(eqn: Equation) -> contextlib.AbstractContextManager[Any]:
    """The source line and named scopes of an equation; nothing where this JAX has no such context."""
    try:
        stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
        return source_info_util.user_context(eqn.source_info.traceback, name_stack=stack)
    except AttributeError:
        return contextlib.nullcontext()


def bind(eqn: Equation, values: Sequence[Any], **changed: Any) -> list[Any]:
    """Runs one equation on other inputs, with some parameters changed; its results as a list."""
    with equation_context(eqn):
        params = names.part(eqn.primitive, "get_bind_params", "Primitive.get_bind_params")({**eqn.params, **changed})
        results = eqn.primitive.bind(*values, **params)
    return list(results) if eqn.primitive.multiple_results else [results]


_LIBRARIES = ("/flax/", "/optax/", "/haiku/", "/equinox/", "/functools.py", "/contextlib.py", "/remat_lab/")


def source_line(eqn: Equation, calls: Sequence[Equation] = ()) -> str | None:
    """The user's line that made an equation, as `file.py:12 (function)`.

    Frames of JAX and of Python's own library are passed over, and those of Flax and their like while there is a frame of the
    user's own.

    Args:
        eqn: the equation.
        calls: the call equations around it, outermost first; used where it has no user frame itself (a cached trace).
    """
    fallback = None
    for candidate in (eqn, *reversed(calls)):
        traceback = getattr(getattr(candidate, "source_info", None), "traceback", None)
        for frame in getattr(traceback, "frames", ()):
            if _is_internal(frame.file_name):
                continue
            line = f"{frame.file_name}:{frame.line_num} ({frame.function_name.split('.<locals>.')[-1]})"
            if not any(part in frame.file_name for part in _LIBRARIES):
                return line
            fallback = fallback or line
    return fallback


@cache
def _is_internal(file: str) -> bool:
    """Whether a file is JAX's own or Python's own; packages of others lie below Python's own folder, too."""
    jax_folder, python = os.path.dirname(jax.__file__), sysconfig.get_path("stdlib")
    if file.startswith((f"{jax_folder}{os.sep}", f"{os.path.dirname(jax_folder)}{os.sep}jaxlib{os.sep}", "<frozen ")):
        return True
    return file.startswith(f"{python}{os.sep}") and f"{os.sep}site-packages{os.sep}" not in file


def context_key(eqn: Equation) -> Any:
    """Equal for equations traced under the same context (compute type, mesh, metadata): JAX makes one object of equal ones."""
    return getattr(eqn, "ctx", object())


def scopes_of(eqn: Equation) -> str:
    """The `jax.named_scope`s under which an equation was traced; those of the primal equation for what its derivative adds."""
    return str(getattr(getattr(eqn, "source_info", None), "name_stack", ""))


def drop_dead(jaxpr: Any) -> Any:
    """Removes equations, and unused results of loops, that neither an output nor an effect needs. Inputs stay.

    Where this JAX has no such function the jaxpr stays as it is: whole equations that nobody needs go in `flatten` anyway.
    """
    if not names.has(names.DEAD_CODE):
        return jaxpr
    return names.find(names.DEAD_CODE)(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def constants(jaxpr: Any) -> list[tuple[Any, Any]]:
    """Pairs (variable, value) of the arrays that a jaxpr closes over."""
    return list(zip(jaxpr.constvars, names.part(jaxpr, "consts", "jaxpr.consts"), strict=True))


def is_unspecified_call(eqn: Equation) -> bool:
    """Whether a `jit` equation asks for nothing beyond running its body (no shardings)."""
    wanted = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return all(type(s).__name__ == "UnspecifiedValue" for s in wanted)


def sub_jaxprs(eqn: Equation) -> list[Any]:
    """The jaxprs among an equation's parameters (loop bodies, branches)."""
    return list(jex.jaxprs_in_params(eqn.params))


def bodies(eqn: Equation) -> list[Any]:
    """As `sub_jaxprs`, and what an equation of a high-level primitive (JAX_REMAT3) holds."""
    prim: Any = eqn.params.get("_prim")
    return [*sub_jaxprs(eqn), *jex.jaxprs_in_params(getattr(prim, "params", None) or {})]


def scan_operands(eqn: Equation) -> tuple[int, int]:
    """How many constants and carries a `scan` equation has."""
    try:
        consts, carries, _ = eqn.params["ft_in"].unpack()  # trees since jax 0.11
    except (KeyError, AttributeError) as error:
        raise names.missing(names.LOOPS, "parameters of scan") from error
    return len(consts), len(carries)
