"""What differs between the program that was planned and the one that stands in its place, in words for a `PlanMismatch`.

The first difference counts, arguments first, then arrays that the function closes over, then equations in their order: what
comes later mostly follows from it. A line of source that has moved is none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from remat_lab.flatten import Program
from remat_lab.outline import Kind, Line, Outline
from remat_lab.wording import shortened, values_apart

_AHEAD = 32  # equations looked ahead for the one that should be here
_ALIKE = 3  # equations in a row that must agree there

_BESIDE = "Something that it reads beside its arguments has changed"


def difference(planned: Outline, found: Outline, names: Sequence[str] = ()) -> str:
    """The first difference, as a clause.

    Args:
        planned: the program that was planned.
        found: the one that there is.
        names: of the arguments.
    """
    known = (
        _inputs(planned, found, names)
        or _constants(planned, found)
        or _equations(planned, found, names)
        or _outputs(planned, found, names)
    )
    return known or "its values are numbered otherwise, as where something is computed that nobody reads"


def other_program(name: str, planned: Program, found: Program, names: Sequence[str]) -> str:
    """The message where a function traces to another program than the one planned.

    Args:
        name: of the function.
        planned: its program when it was planned; arrays that it closed over need not be in it.
        found: its program now.
        names: of the arguments.
    """
    there, here = Outline.of(planned), Outline.of(found)
    todo = "Plan again for such arguments" if there.inputs != here.inputs else f"{_BESIDE}; plan again"
    return f"{name} traces to another program than the one planned: {difference(there, here, names)}. {todo}."


def kinds_apart(planned: Kind, found: Kind) -> str:
    """How a type differs from the one planned for: its shape, dtype, weak type or sharding."""
    said = [
        f"{what} {ours or 'none'} instead of {theirs or 'none'}"
        for what, ours, theirs in (
            ("shape", found.shape, planned.shape),
            ("dtype", found.dtype, planned.dtype),
            ("sharding", found.sharding, planned.sharding),
        )
        if ours != theirs
    ]
    if found.weak != planned.weak:
        said.append(f"a {'weak' if found.weak else 'strong'} type instead of a {'weak' if planned.weak else 'strong'} one")
    return " and ".join(said) or f"type {found.whole} instead of {planned.whole}"


def _inputs(planned: Outline, found: Outline, names: Sequence[str]) -> str:
    for n, (theirs, ours) in enumerate(zip(planned.inputs, found.inputs, strict=False)):
        if ours != theirs:
            return f"{_argument(n, names)} has {kinds_apart(theirs, ours)}"
    return _count("arguments", len(planned.inputs), len(found.inputs))


def _constants(planned: Outline, found: Outline) -> str:
    """Arrays that differ in type. Where their number differs, an equation says more."""
    if len(planned.constants) != len(found.constants):
        return ""
    for n, (theirs, ours) in enumerate(zip(planned.constants, found.constants, strict=True)):
        if ours != theirs:
            reader = next((_who(line) for line in found.lines if f"c{n}" in line.operands), None)
            read = "" if reader is None else f", read by {reader},"
            return f"an array that it closes over{read} has {kinds_apart(theirs, ours)}"
    return ""


def _equations(planned: Outline, found: Outline, names: Sequence[str]) -> str:
    pairs = enumerate(zip(planned.lines, found.lines, strict=False))
    k = next((k for k, (theirs, ours) in pairs if ours.says != theirs.says), None)
    if k is None:
        if len(found.lines) > len(planned.lines):
            return _more(found.lines[len(planned.lines) :])
        return _fewer(planned.lines[len(found.lines) :]) if len(found.lines) < len(planned.lines) else ""
    theirs, ours = planned.lines[k], found.lines[k]
    if ours.name == theirs.name and _file(ours.place) == _file(theirs.place):
        return f"equation {k + 1}, {_who(ours)}, has {_apart(theirs, ours, planned, found, names)}"
    extra, missing = _ahead(found.lines, k, planned.lines[k:]), _ahead(planned.lines, k, found.lines[k:])
    if extra and (not missing or extra <= missing):
        return _more(found.lines[k : k + extra])
    if missing:
        return _fewer(planned.lines[k : k + missing])
    if ours.name == theirs.name:
        return f"equation {k + 1}, {_who(ours)}, has {_apart(theirs, ours, planned, found, names)}"
    return f"equation {k + 1} is {_who(ours)} instead of {_who(theirs)}"


def _outputs(planned: Outline, found: Outline, names: Sequence[str]) -> str:
    for n, (theirs, ours) in enumerate(zip(planned.outputs, found.outputs, strict=False)):
        if ours != theirs:
            return f"result {n + 1} is {_operand(ours, found, names)} instead of {_operand(theirs, planned, names)}"
    return _count("results", len(planned.outputs), len(found.outputs))


def _apart(planned: Line, found: Line, before: Outline, now: Outline, names: Sequence[str]) -> str:
    """How an equation differs from one of the same primitive."""
    for theirs, ours in zip(planned.kinds, found.kinds, strict=False):
        if ours != theirs:
            return kinds_apart(theirs, ours)
    theirs_of, ours_of = dict(planned.params), dict(found.params)
    jaxprs = {key for params in (theirs_of, ours_of) for key, value in params.items() if value.startswith("jaxpr ")}
    for key in sorted({*theirs_of, *ours_of} - jaxprs):
        if theirs_of.get(key) != ours_of.get(key):
            there, here = values_apart(theirs_of.get(key, "none"), ours_of.get(key, "none"))
            return f"parameter {key}={here} instead of {there}"
    for theirs_in, ours_in in zip(planned.bodies, found.bodies, strict=False):
        if ours_in.says != theirs_in.says:
            return f"another body: {difference(theirs_in, ours_in)}"
    for n, (there, here) in enumerate(zip(planned.operands, found.operands, strict=False)):
        if here != there:
            return f"operand {n + 1} {_operand(here, now, names)} instead of {_operand(there, before, names)}"
    return (
        _count("bodies", len(planned.bodies), len(found.bodies))
        or _count("operands", len(planned.operands), len(found.operands))
        or _count("results", len(planned.kinds), len(found.kinds))
        or f"other constants or rules in its parameter {', '.join(sorted(jaxprs))}"
    )


def _ahead(lines: Sequence[Line], k: int, wanted: Sequence[Line]) -> int:
    """How many lines from `k` on stand before what is wanted there; 0 if it is not found."""
    want = [(line.name, line.kinds) for line in wanted[:_ALIKE]]
    for more in range(1, _AHEAD):
        there = [(line.name, line.kinds) for line in lines[k + more : k + more + len(want)]]
        if want and there == want:
            return more
    return 0


def _more(lines: Sequence[Line]) -> str:
    rest = f", and {len(lines) - 1} more," if len(lines) > 1 else ""
    return f"there is {_who(lines[0])}{rest} that the plan does not have"


def _fewer(lines: Sequence[Line]) -> str:
    rest = f", and {len(lines) - 1} more," if len(lines) > 1 else ""
    return f"there is no {_who(lines[0])}{rest} that the plan has"


def _who(line: Line) -> str:
    place = f" at {line.place}" if line.place else ""
    return f"{line.name} {' '.join(kind.whole for kind in line.kinds)}{place}"


def _argument(n: int, names: Sequence[str]) -> str:
    return f"argument {names[n]}" if n < len(names) else f"argument {n + 1}"


def _operand(text: str, outline: Outline, names: Sequence[str]) -> str:
    if text.startswith("="):
        return shortened(text[1:])
    number = int(re.findall(r"\d+", text)[0])
    if text.startswith("i"):
        return _argument(number, names)
    if text.startswith("c"):
        return f"an array that it closes over ({outline.constants[number].whole})"
    return f"the result of {_who(outline.lines[number])}"


def _count(what: str, planned: int, found: int) -> str:
    return "" if planned == found else f"{found} {what} instead of {planned}"


def _file(place: str) -> str:
    return place.rsplit("/", 1)[-1]
