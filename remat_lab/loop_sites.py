"""The loops of a program that gradients flow through, and the program with other loops in their place.

Both work on the program before it is differentiated. Calls that only run their body (`jax.jit`) are opened; what stands inside
`jax.checkpoint`, branches, other loops and the user's own derivative rules is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from remat_lab import _jax
from remat_lab.errors import PlanMismatch
from remat_lab.flatten import Atom, Program, flatten
from remat_lab.loop import Loop, PlannedLoop
from remat_lab.loop_primitives import run_loop
from remat_lab.mismatch import kinds_apart
from remat_lab.outline import Kind
from remat_lab.primitives import PLAIN_CALLS


@dataclass(frozen=True)
class Site:
    """A loop that gradients flow through.

    Attributes:
        number: its place among all scans of the program, which finds it again in another trace.
        loop: the loop.
        moving: which operands gradients are taken with respect to, or flow through.
        source_line: the user's line.
    """

    number: int
    loop: Loop
    moving: tuple[bool, ...]
    source_line: str


def find_sites(program: Program, differentiated: Sequence[int], losses: int | None = None) -> list[Site]:
    """The scans that tangents of some inputs reach and that some outputs depend on.

    Args:
        program: a function before differentiation, from `flatten(..., calls=PLAIN_CALLS, merge=False)`.
        differentiated: positions of the inputs that gradients are taken of.
        losses: gradients come from the first this many outputs; None for all.
    """
    moved = {program.inputs[i] for i in differentiated}
    for q in program.equations:
        if q.name != "stop_gradient" and not moved.isdisjoint(q.reads):
            moved.update(v for v in q.outs if _is_smooth(program.avals[v]))
    wanted = {v for v in program.outputs[:losses] if isinstance(v, int)}
    for q in reversed(program.equations):
        if q.name != "stop_gradient" and not wanted.isdisjoint(q.outs):
            wanted.update(q.reads)
    found: list[Site] = []
    for number, q in enumerate(q for q in program.equations if q.name == "scan"):
        through = not moved.isdisjoint(q.outs) and not wanted.isdisjoint(q.outs)
        loop = Loop.from_equation(q.eqn)
        if through and loop.length > 0 and not q.eqn.effects:
            moving = tuple(isinstance(v, int) and v in moved for v in q.ins)
            found.append(Site(number, loop, moving, q.source_line))
    return found


def run_with(
    run: Callable[..., Sequence[Any]], values: Sequence[Any], loops: Mapping[int, PlannedLoop], name: str
) -> list[Any]:
    """Runs a flat function with some of its scans run in another way.

    Args:
        run: from arrays to a sequence of arrays.
        values: its arguments.
        loops: by the scan's number, the plan of its loop.
        name: of the user's function, for messages.

    Raises:
        PlanMismatch: if a scan of that number is missing or is another one than the loop planned for.
    """
    program = traced(run, values)
    env: dict[int, Any] = {**program.constants, **dict(zip(program.inputs, values, strict=True))}
    left, number = set(loops), 0
    for q in program.equations:
        planned = None
        if q.name == "scan":
            planned = loops.get(number)
            number += 1
        if planned is None:
            operands = [v.val if isinstance(v, _jax.Literal) else env[v] for v in q.ins]
            results = _jax.bind(q.eqn, operands)
        else:
            left.discard(number - 1)
            loop = Loop.from_equation(q.eqn)
            _check_same(planned.loop, loop, name, q.source_line)
            if _same_body(planned.loop.body, loop.body):
                loop = replace(loop, body=planned.loop.body)  # what is known of a body is remembered by its identity
            with _jax.equation_context(q.eqn):
                results = run_loop(replace(planned, loop=loop), [_array(v, env) for v in q.ins])
        env.update(zip(q.outs, results, strict=True))
    if left:
        raise PlanMismatch(f"{name} has fewer loops than it was planned with. Plan again.")
    return [_array(v, env) for v in program.outputs]


def _array(atom: Atom, env: Mapping[int, Any]) -> Any:
    if not isinstance(atom, _jax.Literal):
        return env[atom]
    aval: Any = atom.aval
    return jnp.asarray(atom.val, aval.dtype)


def traced(run: Callable[..., Sequence[Any]], values: Sequence[Any]) -> Program:
    """The program of a flat function before it is differentiated, calls opened."""
    return flatten(jax.make_jaxpr(run)(*values), calls=PLAIN_CALLS, merge=False, barriers=True)


def _check_same(planned: Loop, found: Loop, name: str, line: str) -> None:
    ways = {False: "forwards", True: "backwards"}
    what = ""
    if found.length != planned.length:
        what = f"another length than the one planned for, {found.length} instead of {planned.length}"
    elif found.reverse != planned.reverse:
        what = f"another direction than the one planned for, {ways[found.reverse]} instead of {ways[planned.reverse]}"
    elif len(found.in_avals) != len(planned.in_avals):
        what = f"{len(found.in_avals)} operands, planned were {len(planned.in_avals)}"
    for n, (ours, theirs) in enumerate(zip(found.in_avals, planned.in_avals, strict=False), 1):
        if not what and str(ours) != str(theirs):
            what = f"another operand {n} than planned for, {kinds_apart(Kind.of(theirs), Kind.of(ours))}"
    if what:
        raise PlanMismatch(f"the loop at {line} in {name} has {what}: plan again.")


def _same_body(one: Any, other: Any) -> bool:
    """Whether two jaxprs are known to compute the same, as far as their text can tell: it hides functions and long arrays."""
    if getattr(one, "consts", ()) or getattr(other, "consts", ()):
        return False
    text = str(one)
    return text == str(other) and not any(hidden in text for hidden in ("custom_", "callback", "..."))


def _is_smooth(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jnp.inexact))
