"""Values that are transposed for a dot: how they pass a barrier on the CPU.

XLA:CPU's fast kernels for dots want their operands in one order of dimensions. Where it sees how an operand was transposed, it
writes that order at once. Behind a barrier it sees an array of unknown origin in the wrong order: it copies it, transposes the
copy inside of the dot, and takes a kernel that is several times slower. So such a value waits as it was before the transpose,
which takes the same memory, and is transposed by the step that reads it. So does a gradient that is also summed up, as for a
bias: it would be written in the transposed order once more than anyone reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax

from remat_lab.barriers import barrier
from remat_lab.flatten import Program
from remat_lab.primitives import ELEMENTWISE, REDUCTIONS

Held = tuple[int, Any]
"""A value of a program and its array."""


def wait(program: Program, tied: Sequence[Held], pending: Sequence[Held]) -> list[Any]:
    """The arrays of `tied`, available only once those of `pending` are, too."""
    before, after = [x for _, x in tied], [x for _, x in pending]
    turns, others = [_turn(program, v) for v, _ in tied], [_turn(program, v) for v, _ in pending]
    if not any((*turns, *others)):
        return barrier(before, after)

    def as_computed(tied: list[Any], pending: list[Any]) -> list[Any]:
        held = barrier(list(map(_back, tied, turns)), list(map(_back, pending, others)))
        return [x if turn is None else lax.transpose(x, turn) for x, turn in zip(held, turns, strict=True)]

    return lax.platform_dependent(before, after, cpu=as_computed, default=barrier)


def _turn(program: Program, value: int) -> tuple[int, ...] | None:
    """The transpose that made a value which only dots, or dots and reductions, read; None for any other.

    It may have been scaled since, or changed in another way that looks at one element and numbers alone.
    """
    if value in [v for v in program.outputs if isinstance(v, int)]:
        return None
    readers = {program.equations[reader].name for reader in program.readers.get(value, ())}
    if "dot_general" not in readers or not readers <= {"dot_general", *REDUCTIONS}:
        return None
    made = program.producer.get(value)
    while made is not None and (q := program.equations[made]).name != "transpose":
        arrays = [v for v in q.reads if program.elements[v] > 1]
        if q.name not in ELEMENTWISE or len(arrays) != 1:
            return None
        made = program.producer.get(arrays[0])
    return None if made is None else tuple(program.equations[made].eqn.params["permutation"])


def _back(x: Any, turn: tuple[int, ...] | None) -> Any:
    return x if turn is None else lax.transpose(x, sorted(range(len(turn)), key=turn.__getitem__))
