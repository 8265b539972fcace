"""jaxpr → `Program`: one flat list of equations over numbered values, calls inlined, common subexpressions merged.

Inlining a call is safe here only because the jaxpr is already differentiated: before that it would throw away the rules of
`jax.custom_jvp` and `jax.custom_vjp`. Merging undoes recomputation that the user asked for by hand (`jax.checkpoint`), so
that what is recomputed is one decision, made by the planner.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from remat_lab import _jax
from remat_lab.primitives import CALLS, STATEFUL, nbytes

Atom = int | _jax.Literal


@dataclass(frozen=True, slots=True)
class Equation:
    """An equation over numbered values.

    Attributes:
        eqn: the traced equation: primitive, parameters, source line.
        ins: what it reads, value numbers or literals.
        outs: the values it makes.
        calls: the call equations that it was inlined from, outermost first.
    """

    eqn: _jax.Equation
    ins: tuple[Atom, ...]
    outs: tuple[int, ...]
    calls: tuple[_jax.Equation, ...] = ()

    @property
    def name(self) -> str:
        """The primitive's name; "name" for `checkpoint_name` under JAX_REMAT3 too, where another primitive stands for it."""
        name = self.eqn.primitive.name
        return "name" if name == "call_hi_primitive" and _jax.checkpoint_name_of(self.eqn) is not None else name

    @property
    def reads(self) -> tuple[int, ...]:
        """The values among `ins`."""
        return tuple(v for v in self.ins if isinstance(v, int))

    @property
    def source_line(self) -> str:
        """The user's line that made it."""
        return self.known_line or "unknown source line"

    @property
    def known_line(self) -> str | None:
        """The same; None where JAX does not know it."""
        return _jax.source_line(self.eqn, self.calls)


@dataclass(frozen=True)
class Program:
    """A flat program.

    Attributes:
        avals: type of each value, by number.
        inputs: the arguments.
        constants: the arrays that the program closes over, by value number; empty in a program that is kept with a plan.
        equations: in order of execution.
        outputs: what the program returns.
    """

    avals: tuple[Any, ...]
    inputs: tuple[int, ...]
    constants: dict[int, Any]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]

    @cached_property
    def producer(self) -> dict[int, int]:
        """For each value made by an equation, the equation's position."""
        return {v: k for k, q in enumerate(self.equations) for v in q.outs}

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """For each value that equations read, their positions."""
        found: dict[int, list[int]] = {}
        for k, q in enumerate(self.equations):
            for v in dict.fromkeys(q.reads):
                found.setdefault(v, []).append(k)
        return found

    @cached_property
    def bytes(self) -> tuple[int, ...]:
        """Bytes of each value."""
        return tuple(map(nbytes, self.avals))

    @cached_property
    def elements(self) -> tuple[int, ...]:
        """How many elements each value has."""
        return tuple(math.prod(getattr(aval, "shape", ())) for aval in self.avals)

    @cached_property
    def closed_over(self) -> tuple[int, ...]:
        """The arrays that it closes over and reads: known of a program that is kept without them, too."""
        read = {v for q in self.equations for v in q.reads} | {v for v in self.outputs if isinstance(v, int)}
        return tuple(sorted(read.difference(self.producer, self.inputs)))

    def abstract(self) -> Program:
        """The same program without the arrays that it closes over, so that whoever keeps it does not keep them alive."""
        return replace(self, constants={})

    @cached_property
    def fingerprint(self) -> str:
        """Equal for programs with the same primitives, types and data flow; parameters and constants may differ."""
        digest = hashlib.sha256()
        for q in self.equations:
            ins = [v if isinstance(v, int) else f"literal {v.aval}" for v in q.ins]
            digest.update(f"{q.name} {ins} {[str(self.avals[o]) for o in q.outs]}\n".encode())
        digest.update(str([v if isinstance(v, int) else "literal" for v in self.outputs]).encode())
        return digest.hexdigest()


def flatten(jaxpr: Any, *, calls: frozenset[str] = CALLS, merge: bool = True, barriers: bool = False) -> Program:
    """Flattens a jaxpr.

    Args:
        jaxpr: what `jax.make_jaxpr` returns.
        calls: primitives to inline. Before differentiation only `PLAIN_CALLS` may be.
        merge: whether to merge equal equations. Without it recomputation stays as written.
        barriers: whether optimization barriers stay; they change no values, and order nothing that is planned anew.

    Returns:
        The program. Equations whose results nobody reads are gone unless they have effects.
    """
    builder = _Builder(calls, merge, barriers)
    jaxpr = _jax.drop_dead(jaxpr)
    inputs = tuple(builder.new(var.aval) for var in jaxpr.invars)
    scope: dict[Any, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
    outputs = builder.inline(jaxpr, scope)
    equations = _live(builder.equations, outputs)
    return Program(tuple(builder.avals), inputs, builder.constants, tuple(equations), tuple(outputs))


class _Builder:
    def __init__(self, calls: frozenset[str], merge: bool, barriers: bool) -> None:
        self.calls, self.merge, self.barriers = calls, merge, barriers
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[Equation] = []
        self.known: dict[Any, tuple[int, ...]] = {}
        self.constant_ids: dict[int, int] = {}

    def new(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def inline(self, jaxpr: Any, scope: dict[Any, Atom], calls: tuple[_jax.Equation, ...] = ()) -> list[Atom]:
        """Appends the equations of `jaxpr`, whose input variables `scope` already maps; what it returns."""
        for var, value in _jax.constants(jaxpr):
            if id(value) not in self.constant_ids:
                number = self.constant_ids[id(value)] = self.new(var.aval)
                self.constants[number] = value
            scope[var] = self.constant_ids[id(value)]

        def read(atom: Any) -> Atom:
            return atom if isinstance(atom, _jax.Literal) else scope[atom]

        for eqn in jaxpr.eqns:
            ins = tuple(map(read, eqn.invars))
            body = _call_body(eqn, self.calls)
            if body is not None:
                results = self.inline(body, dict(zip(body.invars, ins, strict=True)), (*calls, eqn))
                scope.update(zip(eqn.outvars, results, strict=True))
            elif not self.barriers and eqn.primitive.name == "optimization_barrier":
                scope.update(zip(eqn.outvars, ins, strict=True))
            else:
                scope.update(zip(eqn.outvars, self.append(eqn, ins, calls), strict=True))
        return list(map(read, jaxpr.outvars))

    def append(self, eqn: _jax.Equation, ins: tuple[Atom, ...], calls: tuple[_jax.Equation, ...]) -> tuple[int, ...]:
        merge = self.merge and not eqn.effects and eqn.primitive.name not in STATEFUL
        key = _merge_key(eqn, ins) if merge else None
        if key is not None and key in self.known:
            return self.known[key]
        outs = tuple(self.new(var.aval) for var in eqn.outvars)
        self.equations.append(Equation(eqn, ins, outs, calls))
        if key is not None:
            self.known[key] = outs
        return outs


def _call_body(eqn: _jax.Equation, calls: frozenset[str]) -> Any | None:
    if eqn.primitive.name == "call_hi_primitive" and "checkpoint" in calls:
        return _jax.remat_traced_body(eqn)
    if eqn.primitive.name not in calls:
        return None
    if eqn.primitive.name in ("jit", "pjit") and not _jax.is_unspecified_call(eqn):
        return None
    return next((eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params), None)


def _merge_key(eqn: _jax.Equation, ins: Sequence[Atom]) -> Any | None:
    """Equations with equal keys compute equal results; None if that cannot be told."""
    operands = tuple(v if isinstance(v, int) else (np.asarray(v.val).tobytes(), str(v.aval)) for v in ins)
    key = (eqn.primitive, tuple(sorted(eqn.params.items(), key=lambda item: item[0])), operands, _jax.context_key(eqn))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _live(equations: Sequence[Equation], outputs: Sequence[Atom]) -> list[Equation]:
    needed = {v for v in outputs if isinstance(v, int)}
    kept: list[Equation] = []
    for q in reversed(equations):
        if q.eqn.effects or not needed.isdisjoint(q.outs):
            kept.append(q)
            needed.update(q.reads)
    return kept[::-1]
