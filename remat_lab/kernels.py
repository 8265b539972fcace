"""What a compiled program's kernels read and write: the memory traffic behind its step time.

A kernel is an instruction of the entry computation that does something (not a view, a tuple or a constant). It reads its
operands and writes its results; an operand that it only slices, and a result that it updates in place, count as what is really
touched. Kernels inside a loop count once per trip where the compiler knows how often it runs, else once; of a branch's sides
the one that moves more counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from remat_lab.hlo import Computation, Instruction, Module, parse

NOT_KERNELS = frozenset(
    "parameter constant tuple get-tuple-element bitcast opt-barrier after-all partition-id replica-id "
    "add-dependency domain async-done async-update copy-done send-done recv-done "
    "all-gather-done all-reduce-done collective-permute-done".split()
)
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a compiled program.

    Attributes:
        name: the instruction's.
        opcode: the instruction's.
        read_bytes: bytes of its operands, in one execution.
        written_bytes: bytes of its results.
        scratch_bytes: bytes of results that nobody reads: work space that a library asked for.
        times: how often it runs; inside a loop of unknown length 1.
        counted: whether `times` is known.
    """

    name: str
    opcode: str
    read_bytes: int
    written_bytes: int
    scratch_bytes: int = 0
    times: int = 1
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Traffic:
    """Kernels of a program, summed up.

    Attributes:
        kernels: how many are started.
        read_bytes: bytes that they read.
        written_bytes: bytes that they write.
        exact: False where a loop's number of trips is not known, and its body counts once.
    """

    kernels: int
    read_bytes: int
    written_bytes: int
    exact: bool

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes


def traffic(compiled: Any) -> Traffic | None:
    """Sums up the kernels of what `jax.stages.Lowered.compile` returns; None where the backend does not show its program."""
    text = program_text(compiled)
    return None if text is None else summed(kernels(parse(text)))


def program_text(compiled: Any) -> str | None:
    """The optimised program; None where the backend does not show it."""
    try:
        return compiled.as_text() or None
    except (NotImplementedError, RuntimeError):
        return None


def summed(found: list[Kernel]) -> Traffic:
    """The sums of a list of kernels."""
    return Traffic(
        kernels=sum(k.times for k in found),
        read_bytes=sum(k.times * k.read_bytes for k in found),
        written_bytes=sum(k.times * k.written_bytes for k in found),
        exact=all(k.counted for k in found),
    )


def kernels(module: Module, computation: str | None = None) -> list[Kernel]:
    """The kernels of a computation, by default the entry's, in order; those of loops, branches and calls follow in place."""
    body = module.computations[computation or module.entry]
    found: list[Kernel] = []
    for i in body.instructions:
        if i.opcode in NOT_KERNELS:
            continue
        if i.opcode == "while":
            known = trips(i)
            inner = [k for name in i.called("condition", "body") for k in kernels(module, name)]
            found += [replace(k, times=k.times * (known or 1), counted=k.counted and known is not None) for k in inner]
        elif i.opcode == "conditional":
            branches = i.called("branch_computations", "true_computation", "false_computation")
            sides = [kernels(module, name) for name in branches]
            found += sides[max(range(len(sides)), key=lambda side: summed(sides[side]).bytes)]
        elif i.opcode == "call":
            found += [k for name in i.called("to_apply") for k in kernels(module, name)]
        elif i.opcode == "async-start":
            found += [k for name in i.called("calls") for k in kernels(module, name)]
        else:
            found.append(kernel_of(module, body, i))
    return found


def trips(loop: Instruction) -> int | None:
    """How often a loop runs; None where the compiler does not know."""
    known = _TRIPS.search(loop.text)
    return int(known.group(1)) if known else None


def kernel_of(module: Module, body: Computation, i: Instruction) -> Kernel:
    """One instruction as a kernel: a loop or call as a whole."""
    called = i.called("calls")
    fused = module.computations.get(called[0]) if i.opcode == "fusion" and called else None
    written, scratch = _written(body, i)
    read = 0
    if i.opcode == "dynamic-update-slice":  # in place
        update = body.by_name[i.operands[1]].bytes
        return Kernel(i.name, i.opcode, update, update)
    if i.opcode in _SLICES:
        indices = sum(body.by_name[n].bytes for n in i.operands[1:] if n in body.by_name)
        return Kernel(i.name, i.opcode, i.bytes + indices, i.bytes)
    for position, name in enumerate(i.operands):
        operand = body.by_name.get(name)
        if operand is None:
            continue
        touched = operand.bytes if fused is None else _touched(fused, position, operand.bytes)
        read += touched
    if fused is not None:
        written -= _not_rewritten(fused)
    if i.opcode.endswith("-start"):
        written = max((array.bytes for array in i.arrays), default=0)
    return Kernel(i.name, i.opcode, read, written, scratch)


def _written(body: Computation, i: Instruction) -> tuple[int, int]:
    """Bytes of results, and of those of a library call that nobody reads."""
    if i.opcode != "custom-call" or not i.is_tuple or i.is_root:
        return i.bytes, 0
    read = set()
    for user in body.users.get(i.name, []):
        if user.opcode != "get-tuple-element":
            return i.bytes, 0
        if user.is_root or body.users.get(user.name):
            read.add(int(user.attribute(r"index=(\d+)") or 0))
    used = sum(array.bytes for k, array in enumerate(i.arrays) if k in read)
    return used, i.bytes - used


def _touched(fused: Computation, position: int, whole: int) -> int:
    """Bytes that a fusion reads of one operand: less than all where it only takes slices or overwrites a part."""
    parameter = fused.parameters.get(position)
    if parameter is None:
        return whole
    total, todo, seen = 0, [parameter.name], set[str]()
    while todo:
        name = todo.pop()
        for user in fused.users.get(name, []):
            if user.opcode in _SLICES and user.operands[0] == name:
                total += user.bytes if user.name not in seen else 0
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == name and name not in user.operands[1:]:
                pass
            elif user.opcode == "bitcast" and not user.is_root:
                if user.name not in seen:
                    todo.append(user.name)
            else:
                return whole
            seen.add(user.name)
    return min(total, whole)


def _not_rewritten(fused: Computation) -> int:
    """Bytes of a fusion's results that it leaves as they are, because it updates a slice in place."""
    roots = [fused.by_name[n] for n in fused.root.operands] if fused.root.opcode == "tuple" else [fused.root]
    kept = 0
    for root in roots:
        while root.opcode == "bitcast":
            root = fused.by_name[root.operands[0]]
        if root.opcode == "dynamic-update-slice":
            kept += max(0, root.bytes - fused.by_name[root.operands[1]].bytes)
    return kept
