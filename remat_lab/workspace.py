"""Bytes that a step needs only while it runs, beyond its inputs and results: the copies that XLA:CPU makes.

Each rule was read off compiled steps (jax 0.12); `profile` learns what no rule knows by compiling each step alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_lab import _jax
from remat_lab.flatten import Equation, Program
from remat_lab.primitives import REDUCTIONS, VIEWS, nbytes

_INDEX_BYTES = 4

# Computed once for each element: a kernel that repeats the result reads it.
_COSTLY = frozenset(
    "acos asin atan atan2 cbrt cos cosh div erf exp exp2 expm1 log log1p logistic pow rem rsqrt sin sinh sqrt tan tanh".split()
)


def step_copies(program: Program, equations: Sequence[int]) -> int:
    """Bytes of the copies that a step makes.

    Args:
        program: what the step is of.
        equations: positions of all equations of the step, in order.
    """
    own = max((copies(program.equations[k].eqn) for k in equations), default=0)
    return max(own, _written_operand(program, equations))


def copies(eqn: _jax.Equation) -> int:
    """Bytes of the copies that one equation makes; 0 if there is no rule for it."""
    rule = _RULES.get(eqn.primitive.name)
    return 0 if rule is None else rule(eqn)


def convolution_copies(eqn: _jax.Equation) -> int:
    """Transposed copies of a convolution's operands and result.

    The kernels want batch, space, channels (input and output) and space, input channels, output channels (kernel). The
    gradient with respect to the kernel contracts over the batch, and so is a convolution in another layout. That of a depthwise
    convolution is computed for each pair of channels, of which those of a channel with itself are selected and summed up.
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
    groups, (x, gradient, written) = eqn.params["batch_group_count"], [atom.aval for atom in atoms]
    if groups > 1 and groups == _length(x, numbers.lhs_spec[0]) == _length(gradient, numbers.rhs_spec[0]):
        pairs = groups * nbytes(written)
        return max(left + right + pairs, 2 * pairs)
    # The result in its first layout is written while the buffer of the last is free for one of the others.
    return max(left + right, result)


def _length(aval: Any, dimension: int) -> int:
    return int(aval.shape[dimension])


def _ranked(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=lambda role: order[role])


def dot_copies(eqn: _jax.Equation) -> int:
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


def pooling_copies(eqn: _jax.Equation) -> int:
    """Index arrays of the gradient of a max pooling, which finds each maximum again and remembers its place.

    One for each dimension, as large as what was pooled; those of the results fit into the step's own result.
    """
    source, operand = (tuple(map(int, getattr(atom.aval, "shape", ()))) for atom in eqn.invars[:2])
    return _INDEX_BYTES * (len(operand) * math.prod(operand) + math.prod(source))


def random_bits_copies(eqn: _jax.Equation) -> int:
    """The counters and words that threefry2x32 works on, unrolled into loops over whole arrays."""
    return 3 * nbytes(eqn.outvars[0].aval)


def _written_operand(program: Program, equations: Sequence[int]) -> int:
    """What a step writes first, to reduce, join or repeat it.

    Arithmetic is done inside of a reduction's kernel, a selection is not. Joining reads only what was written.
    """
    inside = {v: program.equations[k] for k in equations for v in program.equations[k].outs}
    largest = sum(program.bytes[v] for v, q in inside.items() if _is_costly(q) and _is_repeated_within(program, inside, v))
    for k in equations:
        q = program.equations[k]
        if q.name in REDUCTIONS:
            largest += sum(program.bytes[v] * _arrays_before(program, inside, q, v) for v in q.reads)
        elif q.name == "concatenate":
            largest = max(largest, max((program.bytes[v] for v in q.reads if _computed(inside, v)), default=0))
    return largest


def _arrays_before(program: Program, inside: Mapping[int, Equation], reduction: Equation, value: int) -> int:
    """How many arrays as long as an operand of a reduction are written for it inside of its step.

    That is one for whatever selects among its elements. Unless rows are reduced, it is also one for each smaller array that is
    repeated to that length elsewhere, too: the compiler makes one array of both, where the order of steps does not forbid it,
    and kernels of reductions repeat only what is theirs alone.
    """
    length, rank = program.elements[value], len(getattr(program.avals[value], "shape", ()))
    in_rows = rank - 1 in reduction.eqn.params.get("axes", ())
    path, smaller, todo = {id(reduction)}, set[int](), [value]
    selects = False
    while todo:
        q = inside.get(todo.pop())
        if q is None or id(q) in path:
            continue
        path.add(id(q))
        if q.name == "select_n":
            selects = True
            continue
        todo += [u for u in q.reads if program.elements[u] == length]
        smaller.update(u for u in q.reads if 1 < program.elements[u] < length)
    return selects + (0 if in_rows else sum(_is_repeated_elsewhere(program, u, length, path) for u in smaller))


def _is_repeated_elsewhere(program: Program, value: int, length: int, path: set[int]) -> bool:
    """Whether equations outside of a path make an array of this length of a value, or read one that the path makes of it."""
    todo, seen = [value], {value}
    while todo:
        v = todo.pop()
        for k in program.readers.get(v, ()):
            q = program.equations[k]
            made = [o for o in q.outs if program.elements[o] == length]
            if id(q) in path:
                todo += [o for o in made if o not in seen]
                seen.update(made)
            elif made or v != value:
                return True
    return False


def _is_costly(q: Equation) -> bool:
    return q.name in _COSTLY and not (q.name == "div" and isinstance(q.ins[1], _jax.Literal))


def _is_repeated_within(program: Program, inside: Mapping[int, Equation], value: int) -> bool:
    """Whether a step repeats the elements of a value, or of what little it makes of that first."""
    length, todo, seen = program.elements[value], [value], set[int]()
    while todo:
        for k in program.readers.get(todo.pop(), ()):
            q = program.equations[k]
            if k in seen:
                continue
            seen.add(k)
            if any(o in inside and program.elements[o] > length > 1 for o in q.outs) and q.name == "broadcast_in_dim":
                return True
            todo += [o for o in q.outs if o in inside and program.elements[o] == length and not _is_costly(q)]
    return False


def _computed(inside: Mapping[int, Equation], value: int) -> bool:
    while value in inside and inside[value].name in VIEWS and inside[value].reads:
        value = inside[value].reads[0]
    return value in inside and bool(inside[value].reads)


def _moves(aval: Any, order: Sequence[int]) -> bool:
    """Whether bringing the dimensions into this order moves anything: those of length one do not count."""
    places = [d for d in order if aval.shape[d] > 1]
    return places != sorted(places)


_RULES: dict[str, Callable[[_jax.Equation], int]] = {
    "conv_general_dilated": convolution_copies,
    "dot_general": dot_copies,
    "select_and_scatter_add": pooling_copies,
    "random_bits": random_bits_copies,
    "threefry2x32": random_bits_copies,
}
