"""What a plan's file says of its program, and what differs where another one is given.

Since version 2 of the file that is a hash, which decides, an outline, for the message, and the static values in words. Version
1 has a hash of each line instead: it is read as well, but the message can say no more than where the first difference is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remat_lab.call import Call, show_static
from remat_lab.flatten import Program
from remat_lab.mismatch import difference
from remat_lab.outline import Outline, pack, unpack
from remat_lab.structure import digest, short, shown, words
from remat_lab.wording import values_apart


def stored_program(program: Program) -> dict[str, Any]:
    """A program for JSON."""
    return {"hash": digest(words(program)), **pack(Outline.of(program))}


def static_values(call: Call) -> dict[str, str]:
    """Arguments that are not traced, by name, in words; where these are long, their beginning and a digest."""
    return {path: shown(show_static(call.leaves[i])) for i, path in enumerate(call.paths) if i not in call.traced}


def mismatch_of(planned: Mapping[str, Any], static: Mapping[str, str], program: Program, call: Call) -> str:
    """What differs from what a file says; empty if nothing does.

    Args:
        planned: from `stored_program`, or the same of version 1.
        static: from `static_values`; empty in version 1.
        program: traced here.
        call: the arguments here.

    Raises:
        LookupError, TypeError or ValueError: if what the file says is damaged.
    """
    first_version = "outline" not in planned
    if digest(words(program, constants=not first_version)) == planned["hash"]:
        return ""
    if first_version:
        return _first_difference(planned, program)
    here = unpack(pack(Outline.of(program)))  # as in a file: without folders
    return f"{difference(unpack(planned), here, call.paths_of_values)}{_other_static(static, call)}"


def _other_static(planned: Mapping[str, str], call: Call) -> str:
    """A static value that is another one: the likely cause of a program that is."""
    for path, here in static_values(call).items():
        if planned.get(path, here) != here:
            there, here = values_apart(planned[path], here)
            return f"; the static value {path} is {here} instead of {there}"
    return ""


def _first_difference(planned: Mapping[str, Any], program: Program) -> str:
    """Of version 1, which has a hash and a place for each line."""
    lines = [short(line) for line in words(program, constants=False)]
    names = [f"{q.name} at {q.source_line.rsplit('/', 1)[-1]}" for q in program.equations]
    for k, (ours, theirs) in enumerate(zip(lines, planned["lines"], strict=False)):
        if ours != theirs and 1 <= k <= min(len(names), len(planned["names"])):
            return f"equation {k} is {names[k - 1]}, planned was {planned['names'][k - 1]}, or one with other operands or types"
    return f"{len(names)} equations instead of {len(planned['names'])}, or other inputs or outputs"
