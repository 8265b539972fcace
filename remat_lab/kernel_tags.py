"""Which equations' results a compiled program's kernels write, found by giving every equation a scope of its own name."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax

from remat_lab import _jax
from remat_lab.emit import run_equation
from remat_lab.flatten import Program
from remat_lab.hlo import Array, Computation, Instruction, Module, parse
from remat_lab.kernels import NOT_KERNELS, Kernel, kernel_of
from remat_lab.measure import compile_program
from remat_lab.targets import Target

_TAG = re.compile(r"(?:^|/)eqn(\d+)_(?:/|$)")
_CONTAINERS = ("fusion", "call", "async-start")


@dataclass(frozen=True, slots=True)
class Result:
    """An array that a kernel writes.

    Attributes:
        equation: position of the equation whose result it is; None if that cannot be told.
        bytes: what it takes as laid out.
        elements: how many it has.
    """

    equation: int | None
    bytes: int
    elements: int


@dataclass(frozen=True, slots=True)
class TaggedKernel:
    """A kernel of a compiled program.

    Attributes:
        kernel: its traffic.
        results: what it writes.
        reads: the equations whose results it reads.
        taken: the arrays that other kernels write and it reads.
    """

    kernel: Kernel
    results: tuple[Result, ...]
    reads: frozenset[int]
    taken: tuple[Result, ...] = ()


def tagged_kernels(program: Program, target: Target) -> list[TaggedKernel]:
    """Compiles a program for a target and reads its kernels, in the compiled order.

    Args:
        program: from `flatten`; what it closes over becomes an argument.
        target: what to compile for, with the options that the target's plans are compiled with.

    Raises:
        TargetUnavailable: if nothing can be compiled for the target here.
    """
    made = {*program.inputs, *program.producer}
    read = (v for q in program.equations for v in q.reads)
    arguments = (*program.inputs, *dict.fromkeys(v for v in read if v not in made))

    def tagged(*values: Any) -> list[Any]:
        env = dict(zip(arguments, values, strict=True))
        for k, q in enumerate(program.equations):
            with jax.named_scope(f"eqn{k}_"):
                run_equation(q, env, env)
        return [v.val if isinstance(v, _jax.Literal) else env[v] for v in program.outputs]

    shapes = [_jax.shape_of(program.avals[v]) for v in arguments]
    compiled = compile_program(tagged, *shapes, target=target, compiler_options=target.compiler_options)
    return list(kernels_of(parse(compiled.executable.as_text())))


def kernels_of(module: Module) -> Iterator[TaggedKernel]:
    """The kernels of a program whose equations are tagged, in order."""
    body = module.computations[module.entry]
    arrays: dict[str, list[Result]] = {}
    for i in body.instructions:
        if i.opcode == "get-tuple-element":
            found, index = arrays.get(i.operands[0], []), int(i.attribute(r"index=(\d+)") or 0)
            arrays[i.name] = found[index : index + 1]
            continue
        taken = [array for name in i.operands for array in arrays.get(name, [])]
        if i.opcode in NOT_KERNELS:
            arrays[i.name] = taken
            continue
        written = [Result(tag, array.bytes, math.prod(array.dims)) for tag, array in _results(module, i)]
        reads = frozenset(array.equation for array in taken if array.equation is not None)
        if len(reads) == len(written) == 1 and written[0].equation is None and _leaves(body, i):
            written = [replace(written[0], equation=min(reads))]  # a result in the layout that the caller wants
        arrays[i.name] = written
        results = tuple(array for array in written if array.bytes)
        yield TaggedKernel(kernel_of(module, body, i), results, reads, tuple({id(array): array for array in taken}.values()))


def _leaves(body: Computation, i: Instruction) -> bool:
    """Whether an instruction's result leaves the program and is read nowhere in it."""
    users = body.users.get(i.name, [])
    while len(users) == 1 and users[0].opcode == "bitcast":
        users = body.users.get(users[0].name, [])
    return [user.opcode for user in users] == ["tuple"] and users[0].is_root


def _results(module: Module, i: Instruction) -> list[tuple[int | None, Array]]:
    """The equation behind each array that an instruction writes."""
    called = i.called("calls", "to_apply") if i.opcode in _CONTAINERS else []
    if not called or called[0] not in module.computations:
        tag = _tag(i)
        return [(tag, array) for array in i.arrays]
    inner = module.computations[called[0]]
    roots = [inner.by_name[name] for name in inner.root.operands] if inner.root.opcode == "tuple" else [inner.root]
    if len(roots) != len(i.arrays):  # a root that makes several arrays itself
        found = [pair for root in roots for pair in _results(module, root)]
        return found if len(found) == len(i.arrays) else [(_tag(i), array) for array in i.arrays]
    return [(_origin(module, inner, root, _tag(i)), array) for root, array in zip(roots, i.arrays, strict=True)]


def _origin(module: Module, body: Computation, root: Instruction, default: int | None) -> int | None:
    """The equation that a root computes; what only renames bytes passes the question on."""
    while root.opcode in ("bitcast", "get-tuple-element") or (_tag(root) is None and len(root.operands) == 1):
        if not root.operands or root.operands[0] not in body.by_name:
            break
        root = body.by_name[root.operands[0]]
    if root.opcode in _CONTAINERS:
        inner = _results(module, root)
        if len(inner) == 1 and inner[0][0] is not None:
            return inner[0][0]
    tag = _tag(root)
    return default if tag is None else tag


def _tag(i: Instruction) -> int | None:
    match = _TAG.search(i.op_name)
    return int(match.group(1)) if match else None
