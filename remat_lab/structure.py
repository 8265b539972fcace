"""A program in words that say everything about it: two programs with the same words compute the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from remat_lab import _jax
from remat_lab.flatten import Atom, Program
from remat_lab.wording import without_addresses

_LONG = 160  # characters of a parameter that are written out; longer ones by digest

SEMANTICS = ("jax_enable_x64", "jax_threefry_partitionable", "jax_default_prng_impl", "jax_default_matmul_precision")


def semantics() -> dict[str, str]:
    """The settings of JAX that change what a program means."""
    return {name: str(getattr(jax.config, name)) for name in SEMANTICS}


def words(program: Program, *, constants: bool = True) -> list[str]:
    """One line for inputs, constants and outputs, and one for each equation: primitive, operands, types, parameters.

    Args:
        program: with the arrays that it closes over, or kept without them: both say the same.
        constants: whether the types of these are said.
    """
    held = [f"{v}:{program.avals[v]}" for v in program.closed_over if constants]
    lines = [f"inputs {' '.join(_typed(program, program.inputs))}; constants {' '.join(held)}"]
    for q in program.equations:
        params = " ".join(f"{key}={shown(value)}" for key, value in sorted(q.eqn.params.items()))
        lines.append(f"{' '.join(_typed(program, q.outs))} = {q.name} {' '.join(map(_atom, q.ins))} [{params}]")
    return [*lines, f"outputs {' '.join(map(_atom, program.outputs))}"]


def digest(lines: Iterable[str]) -> str:
    """A hash of all lines."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def short(line: str) -> str:
    """Sixteen characters that stand for a line, to find the first that differs."""
    return hashlib.sha256(line.encode()).hexdigest()[:16]


def _typed(program: Program, values: Iterable[int]) -> list[str]:
    return [f"{v}:{_type(program.avals[v])}" for v in values]


def _type(aval: Any) -> str:
    return f"{aval}{'*' if getattr(aval, 'weak_type', False) else ''}"


def _atom(atom: Atom) -> str:
    return str(atom) if isinstance(atom, int) else f"({shown(atom.val)}:{_type(atom.aval)})"


def shown(value: Any) -> str:
    """A value as `plain` has it, or where that is long its beginning and a digest."""
    text = plain(value)
    return text if len(text) <= _LONG else f"{text[:40]}...{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def plain(value: Any) -> str:
    """A parameter's value in words that are the same wherever the value is: without addresses, and with arrays' bytes."""
    if hasattr(value, "eqns"):
        consts = ";".join(plain(const) for const in getattr(value, "consts", ()))
        rules = ";".join(_functions(value))
        return f"{without_addresses(str(value))} {consts} {rules}"
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)  # type: ignore[arg-type]
        array = np.asarray(value)
        return f"{array.dtype}{list(array.shape)} {array.tobytes().hex()}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(plain, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {plain(item)}' for key, item in sorted(value.items(), key=str))}}}"
    if callable(value):
        return getattr(value, "__qualname__", None) or type(value).__qualname__
    return without_addresses(str(value))


def _functions(jaxpr: Any) -> list[str]:
    """Names of primitives inside, for what printing a jaxpr shortens."""
    return [f"{eqn.primitive.name}{[_functions(body) for body in _jax.sub_jaxprs(eqn)] or ''}" for eqn in jaxpr.eqns]
