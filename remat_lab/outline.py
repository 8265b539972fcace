"""A program in parts that can be compared one by one and kept in a file: what `mismatch` puts two programs side by side by.

`structure.words` says whether two programs are the same; an outline says the same in pieces, so that what differs has a name.
Everything in it is a text or a tuple of such, which JSON holds as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from remat_lab import _jax
from remat_lab.flatten import Program
from remat_lab.structure import plain, shown

_FEW = 8  # elements of an array that are written out


class Kind(NamedTuple):
    """The type of an array.

    Attributes:
        dtype: its name.
        shape: in brackets.
        weak: "weak" if it promotes like a Python number, else empty.
        sharding: how it is laid out over which mesh, where types say so; else empty.
        whole: all of it as JAX writes it.
    """

    dtype: str
    shape: str
    weak: str
    sharding: str
    whole: str

    @classmethod
    def of(cls, aval: Any) -> Kind:
        """The type of a traced value."""
        sharding: Any = getattr(aval, "sharding", None)
        mesh: Any = getattr(sharding, "mesh", None)
        return cls(
            dtype=str(getattr(aval, "dtype", "")),
            shape=str(list(getattr(aval, "shape", ()))),
            weak="weak" if getattr(aval, "weak_type", False) else "",
            sharding="" if mesh is None or mesh.empty else f"{sharding.spec} over {dict(mesh.shape)}",
            whole=str(aval),
        )


class Line(NamedTuple):
    """An equation.

    Attributes:
        name: of its primitive.
        place: the user's line; empty if it is not known.
        operands: each as "i2", input 2; "c0", constant 0; "e7.1", result 1 of equation 7; or "=" and a literal.
        kinds: types of its results.
        params: names and values in words; of jaxprs only that they are some, and a digest.
        bodies: the programs among its parameters.
    """

    name: str
    place: str
    operands: tuple[str, ...]
    kinds: tuple[Kind, ...]
    params: tuple[tuple[str, str], ...]
    bodies: tuple[Outline, ...]

    @property
    def says(self) -> tuple[Any, ...]:
        """Everything but where it was written."""
        return self.name, self.operands, self.kinds, self.params, tuple(body.says for body in self.bodies)


class Outline(NamedTuple):
    """A program.

    Attributes:
        inputs: types of its arguments.
        constants: types of the arrays that it closes over, in the order in which they were found.
        lines: its equations.
        outputs: what it returns, as operands.
    """

    inputs: tuple[Kind, ...]
    constants: tuple[Kind, ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]

    @property
    def says(self) -> tuple[Any, ...]:
        """Everything but where its lines were written."""
        return self.inputs, self.constants, tuple(line.says for line in self.lines), self.outputs

    @classmethod
    def of(cls, program: Program) -> Outline:
        """The outline of a flat program; one that is kept without its constants will do."""
        constants = program.closed_over
        refs = _refs(program.inputs, constants, [q.outs for q in program.equations])
        avals = program.avals

        def operands(atoms: Sequence[Any]) -> tuple[str, ...]:
            return tuple(refs[v] if isinstance(v, int) else _literal(v) for v in atoms)

        return cls(
            tuple(Kind.of(avals[v]) for v in program.inputs),
            tuple(Kind.of(avals[v]) for v in constants),
            tuple(_line(q.eqn, q.name, q.known_line, operands(q.ins), [avals[v] for v in q.outs]) for q in program.equations),
            operands(program.outputs),
        )

    @classmethod
    def of_jaxpr(cls, jaxpr: Any) -> Outline:
        """The outline of a program inside an equation."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        refs = _refs(inner.invars, inner.constvars, [eqn.outvars for eqn in inner.eqns])

        def operands(atoms: Sequence[Any]) -> tuple[str, ...]:
            return tuple(_literal(v) if isinstance(v, _jax.Literal) else refs[v] for v in atoms)

        def line(eqn: Any) -> Line:
            name, kinds = eqn.primitive.name, [v.aval for v in eqn.outvars]
            return _line(eqn, name, _jax.source_line(eqn), operands(eqn.invars), kinds)

        return cls(
            tuple(Kind.of(v.aval) for v in inner.invars),
            tuple(Kind.of(v.aval) for v in inner.constvars),
            tuple(map(line, inner.eqns)),
            operands(inner.outvars),
        )


def _refs(inputs: Sequence[Any], constants: Sequence[Any], results: Sequence[Sequence[Any]]) -> dict[Any, str]:
    refs = {v: f"c{n}" for n, v in enumerate(constants)} | {v: f"i{n}" for n, v in enumerate(inputs)}
    return refs | {v: f"e{k}.{n}" for k, outs in enumerate(results) for n, v in enumerate(outs)}


def _line(eqn: Any, name: str, place: str | None, operands: tuple[str, ...], avals: Sequence[Any]) -> Line:
    params = tuple((key, _param(value)) for key, value in sorted(eqn.params.items()))
    bodies = tuple(map(Outline.of_jaxpr, _jax.sub_jaxprs(eqn)))
    return Line(name, place or "", operands, tuple(map(Kind.of, avals)), params, bodies)


def _literal(atom: Any) -> str:
    return f"={np.asarray(atom.val).tolist()} ({atom.aval})"


def _param(value: Any) -> str:
    if _holds_jaxpr(value):
        return f"jaxpr {hashlib.sha256(plain(value).encode()).hexdigest()[:16]}"
    if isinstance(value, np.ndarray | np.generic) and value.size <= _FEW:
        return f"{value.tolist()} ({value.dtype})"
    return shown(value)


def _holds_jaxpr(value: Any) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return hasattr(value, "eqns") or any(map(_holds_jaxpr, inner))


def pack(outline: Outline) -> dict[str, Any]:
    """An outline for JSON: every text once, and numbers in their places; of files only the names."""
    texts: dict[str, int] = {}

    def packed(value: Any) -> Any:
        if isinstance(value, str):
            return texts.setdefault(value, len(texts))
        if isinstance(value, Line):
            value = value._replace(place=value.place.rsplit("/", 1)[-1])
        return [packed(part) for part in value]

    return {"outline": packed(outline), "texts": list(texts)}


def unpack(row: Mapping[str, Any]) -> Outline:
    """What `pack` was given.

    Raises:
        LookupError, TypeError or ValueError: if it is damaged.
    """
    texts: list[str] = row["texts"]

    def several[T](read: Callable[[Any], T], values: Any) -> tuple[T, ...]:
        return tuple(map(read, values))

    def text(value: int) -> str:
        return str(texts[value])

    def kind(value: Any) -> Kind:
        return Kind(*several(text, value))

    def line(value: Any) -> Line:
        name, place, operands, kinds, params, bodies = value
        pairs = tuple((text(key), text(said)) for key, said in params)
        return Line(text(name), text(place), several(text, operands), several(kind, kinds), pairs, several(whole, bodies))

    def whole(value: Any) -> Outline:
        inputs, constants, lines, outputs = value
        return Outline(several(kind, inputs), several(kind, constants), several(line, lines), several(text, outputs))

    return whole(row["outline"])
