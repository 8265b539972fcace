"""One step of a program by itself: a function to compile, and a key that equal steps share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from remat_lab import _jax
from remat_lab.flatten import Equation
from remat_lab.fuse import Fused, Group
from remat_lab.primitives import COLLECTIVES, UNREPEATABLE

# Running these twice is a risk to results, not to the outside world: they may be timed.
_REPEATABLE_ALONE = frozenset({"rng_bit_generator", "rng_uniform", "random_gamma_grad"})
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, eq=False)
class StepProgram:
    """The equations of one step, apart from the program that they come from.

    Attributes:
        key: equal for steps of equal structure: primitives, parameters, types and data flow. Names of variables and source
            lines do not matter, so that the steps of repeated blocks have one key.
        name: primitive and source line, for messages.
        equations: in order.
        reads: the values that come from outside.
        values: the values that it makes.
        avals: type of each value read.
        made: type of each value made.
    """

    key: str
    name: str
    equations: tuple[Equation, ...]
    reads: tuple[int, ...]
    values: tuple[int, ...]
    avals: tuple[Any, ...]
    made: tuple[Any, ...]

    @property
    def inputs(self) -> list[jax.ShapeDtypeStruct]:
        """What to compile it for: shape and type of each value read."""
        return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self.avals]

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shape and type of each value made."""
        return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in self.made]

    def __call__(self, *arrays: Any) -> list[Any]:
        """Computes the step's values; arrays in the order of `inputs`."""
        env = dict(zip(self.reads, arrays, strict=True))
        for q in self.equations:
            values = [v.val if isinstance(v, _jax.Literal) else env[v] for v in q.ins]
            env.update(zip(q.outs, _jax.bind(q.eqn, values), strict=True))
        return [env[v] for v in self.values]


def step_program(fused: Fused, node: int, texts: dict[int, str] | None = None) -> StepProgram:
    """The step of a node of a graph.

    Args:
        fused: graph and program.
        node: with a step of its own.
        texts: parameters already described, by identity; pass one dictionary for all steps of a program to save time.
    """
    program, group = fused.program, fused.groups[node]
    equations = tuple(program.equations[k] for k in group.equations)
    root = program.equations[group.root]
    return StepProgram(
        key=structural_key(group, equations, program.avals, {} if texts is None else texts),
        name=f"{root.name} at {root.source_line}",
        equations=equations,
        reads=group.reads,
        values=group.values,
        avals=tuple(program.avals[v] for v in group.reads),
        made=tuple(program.avals[v] for v in group.values),
    )


def structural_key(group: Group, equations: Sequence[Equation], avals: Sequence[Any], texts: dict[int, str]) -> str:
    """A hash of what a step computes, the same in every process.

    Values are numbered in the order in which the equations mention them. Parameters count by content; of functions among them
    only the names.
    """
    numbers: dict[int, int] = {}
    digest = hashlib.sha256()
    for q in equations:
        operands = [_literal(v) if isinstance(v, _jax.Literal) else numbers.setdefault(v, len(numbers)) for v in q.ins]
        types = [str(avals[v]) for v in (*q.reads, *q.outs)]
        results = [numbers.setdefault(v, len(numbers)) for v in q.outs]
        digest.update(f"{q.name} {operands} {results} {types} {_parameters(q, texts)}\n".encode())
    digest.update(str([numbers[v] for v in group.values]).encode())
    return digest.hexdigest()


def cannot_run_alone(equations: Iterable[Equation]) -> str | None:
    """Why a step must not be timed by itself; None if it may be. Effects and callbacks would reach the world outside."""
    for eqn in _all_equations([q.eqn for q in equations]):
        name = eqn.primitive.name
        if eqn.effects:
            return f"{name} has effects ({', '.join(sorted(map(str, eqn.effects)))})"
        if name in UNREPEATABLE - _REPEATABLE_ALONE:
            return f"{name} runs code from outside of the program"
        if name in COLLECTIVES:
            return f"{name} needs other devices"
        if any("Ref" in type(v.aval).__name__ for v in eqn.invars):
            return f"{name} reads or writes a reference"
    return None


def _all_equations(equations: Iterable[_jax.Equation]) -> Iterator[_jax.Equation]:
    """These, and those of the bodies among their parameters."""
    todo = list(equations)
    while todo:
        eqn = todo.pop()
        yield eqn
        # A kernel language's Refs are its own memory.
        if eqn.primitive.name != "pallas_call":
            todo.extend(inner for body in _jax.sub_jaxprs(eqn) for inner in body.eqns)


def _literal(atom: Any) -> str:
    return f"{atom.val}:{atom.aval}"


def _parameters(q: Equation, texts: dict[int, str]) -> str:
    """Parameters and tracing context as text. Equations that come from one trace of a block share the dictionary itself."""
    params = q.eqn.params
    if id(params) not in texts:
        texts[id(params)] = f"{_text(params)} {_jax.context_key(q.eqn)}"
    return texts[id(params)]


def _text(value: Any) -> str:
    """A description that says nothing of addresses, and nothing of variables' names."""
    if hasattr(value, "eqns"):
        return _ADDRESS.sub("", str(value))  # printed with names given in order
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(_text, value))})"
    if isinstance(value, np.ndarray | jax.Array):
        return f"array {value.shape} {value.dtype}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", repr(value))
