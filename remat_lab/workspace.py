"""Bytes that a step needs only while it runs, beyond its inputs and results: the copies that XLA:CPU makes.

Each rule was read off compiled steps (jax 0.12); `profile` learns what no rule knows by compiling each step alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_lab import _compat
from remat_lab.flatten import Equation, Program
from remat_lab.primitives import REDUCTIONS, VIEWS, nbytes

_INDEX_BYTES = 4


def step_copies(program: Program, equations: Sequence[int]) -> int:
    """Bytes of the copies that a step makes.

    Args:
        program: what the step is of.
        equations: positions of all equations of the step, in order.
    """
    own = max((copies(program.equations[k].eqn) for k in equations), default=0)
    return max(own, _written_operand(program, equations))


def copies(eqn: _compat.Equation) -> int:
    """Bytes of the copies that one equation makes; 0 if there is no rule for it."""
    rule = _RULES.get(eqn.primitive.name)
    return 0 if rule is None else rule(eqn)


def convolution_copies(eqn: _compat.Equation) -> int:
    """Transposed copies of a convolution's operands and result.

    The kernels want batch, space, channels (input and output) and space, input channels, output channels (kernel). The
    gradient with respect to the kernel contracts over the batch, and so is a convolution in another layout.
    """
    numbers = eqn.params["dimension_numbers"]
    last = len(numbers.lhs_spec) - 1
    space = tuple(range(1, last))
    image, kernel = (0, last, *space), (last, last - 1, *range(last - 1))
    atoms, specs = (*eqn.invars, eqn.outvars[0]), (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    left, right, result = (
        nbytes(atom.aval) if _moves(atom.aval, [spec[role] for role in _ranked(order)]) else 0
        for atom, spec, order in zip(atoms, specs, (image, kernel, image), strict=True)
    )
    # The result in its first layout is written while the buffer of the last is free for one of the others.
    return max(left + right, result)


def _ranked(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda role: order[role])


def dot_copies(eqn: _compat.Equation) -> int:
    """Transposed copies of a dot's operands.

    Its kernels want batch, rows, contracted (left) and batch, contracted, columns (right), and take either matrix transposed
    where it has one dimension each way. A gradient with respect to the weights contracts over what was batch and length: its
    left operand is copied.
    """
    contracted, batch = eqn.params["dimension_numbers"]
    return sum(
        nbytes(atom.aval)
        for atom, inner, outer, inner_first in zip(eqn.invars, contracted, batch, (False, True), strict=True)
        if _needs_copy(atom.aval, outer, inner, inner_first)
    )


def _needs_copy(aval: Any, batch: Sequence[int], contracted: Sequence[int], contracted_first: bool) -> bool:
    free = [d for d in range(len(aval.shape)) if d not in contracted and d not in batch]
    wanted, swapped = [*batch, *free, *contracted], [*batch, *contracted, *free]
    if contracted_first:
        wanted, swapped = swapped, wanted
    long = [sum(aval.shape[d] > 1 for d in group) for group in (free, contracted)]
    return _moves(aval, wanted) and (max(long) > 1 or _moves(aval, swapped))


def pooling_copies(eqn: _compat.Equation) -> int:
    """Index arrays of the gradient of a max pooling, which finds each maximum again and remembers its place.

    One for each dimension, as large as what was pooled; those of the results fit into the step's own result.
    """
    source, operand = (tuple(map(int, getattr(atom.aval, "shape", ()))) for atom in eqn.invars[:2])
    return _INDEX_BYTES * (len(operand) * math.prod(operand) + math.prod(source))


def random_bits_copies(eqn: _compat.Equation) -> int:
    """The counters and words that threefry2x32 works on, unrolled into loops over whole arrays."""
    return 3 * nbytes(eqn.outvars[0].aval)


def _written_operand(program: Program, equations: Sequence[int]) -> int:
    """What a step writes first, to reduce or join it.

    Arithmetic is done inside of a reduction's kernel, a selection is not. Joining reads only what was written.
    """
    inside = {v: program.equations[k] for k in equations for v in program.equations[k].outs}
    largest = 0
    for k in equations:
        q = program.equations[k]
        if q.name in REDUCTIONS:
            largest += sum(program.bytes[v] * _arrays_before(program, inside, q, v) for v in q.reads)
        elif q.name == "concatenate":
            largest = max(largest, max((program.bytes[v] for v in q.reads if _computed(inside, v)), default=0))
    return largest


def _arrays_before(program: Program, inside: Mapping[int, Equation], reduction: Equation, value: int) -> int:
    """How many arrays as long as an operand of a reduction are written for it inside of its step.

    That is one for whatever selects among its elements, and, unless rows are reduced, one for each smaller array that is
    repeated: the kernels that reduce other dimensions read their operands whole.
    """
    length, rank = _elements(program, value), len(getattr(program.avals[value], "shape", ()))
    in_rows = rank - 1 in reduction.eqn.params.get("axes", ())
    selects, repeated, todo, seen = False, 0, [(value, False)], {(value, False)}
    while todo:
        v, behind = todo.pop()
        q = inside.get(v)
        if q is None:
            continue
        selects |= q.name == "select_n"
        repeated += not (behind or in_rows) and q.name == "broadcast_in_dim" and any(_elements(program, u) > 1 for u in q.reads)
        for u in q.reads:
            step = (u, behind or q.name == "select_n")
            if step not in seen and _elements(program, u) == length:
                seen.add(step)
                todo.append(step)
    return selects + repeated


def _computed(inside: Mapping[int, Equation], value: int) -> bool:
    while value in inside and inside[value].name in VIEWS and inside[value].reads:
        value = inside[value].reads[0]
    return value in inside and bool(inside[value].reads)


def _elements(program: Program, value: int) -> int:
    return math.prod(getattr(program.avals[value], "shape", ()))


def _moves(aval: Any, order: Sequence[int]) -> bool:
    """Whether bringing the dimensions into this order moves anything: those of length one do not count."""
    places = [d for d in order if aval.shape[d] > 1]
    return places != sorted(places)


_RULES: dict[str, Callable[[_compat.Equation], int]] = {
    "conv_general_dilated": convolution_copies,
    "dot_general": dot_copies,
    "select_and_scatter_add": pooling_copies,
    "random_bits": random_bits_copies,
    "threefry2x32": random_bits_copies,
}
