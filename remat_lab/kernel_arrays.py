"""Whose the arrays are that a compiled program's kernels write: a value's, or the work space of whoever makes or reads them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from remat_lab import _jax
from remat_lab.flatten import Program
from remat_lab.kernel_tags import Result, TaggedKernel
from remat_lab.primitives import FUSIBLE
from remat_lab.steps import Step

Traces = Mapping[int, Sequence[tuple[int, Result]]]
"""For each equation the arrays that carry its tag, with the positions of the kernels that write them."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Whose the arrays are that kernels write.

    Attributes:
        kernels: the program's.
        traces: for each equation the arrays that carry its tag.
        owners: for each written equation its kernel.
        values: for each equation the arrays that are its results, by value.
        prepared: identities of those that are made for the kernels that read them.
    """

    kernels: Sequence[TaggedKernel]
    traces: Traces
    owners: Mapping[int, int]
    values: Mapping[int, Mapping[int, Result]]
    prepared: frozenset[int]


def arrays_of(program: Program, kernels: Sequence[TaggedKernel], traces: Traces, owners: Mapping[int, int]) -> Arrays:
    """Says of each array whose it is."""
    values = {k: _values_of(program, k, owners.get(k), found) for k, found in traces.items()}
    return Arrays(kernels, traces, owners, values, _prepared(program, kernels, traces, values))


def _prepared(
    program: Program, kernels: Sequence[TaggedKernel], traces: Traces, values: Mapping[int, Mapping[int, Result]]
) -> frozenset[int]:
    """Arrays that are read in the place of a value: padded, or in another layout. Kept apart, each reader makes its own."""
    taken = {id(array) for kernel in kernels for array in kernel.taken}
    found = {id(array) for kernel in kernels for array in kernel.taken if array.equation is None}
    for k, arrays in traces.items():
        q = program.equations[k]
        if q.name in FUSIBLE and len(q.outs) == 1:
            own = program.elements[q.outs[0]]
            others = [r for _, r in arrays if r.elements > own or (r.elements == own and _is_none_of(r, values[k].values()))]
            found.update(taken.intersection(map(id, others)))
    return frozenset(found)


def step_of(program: Program, roots: tuple[int, ...], arrays: Arrays) -> Step:
    """The step with the traffic and work space of all kernels that carry its tags."""
    kernels, owners = arrays.kernels, arrays.owners
    owned = set(owners.values())
    mine = {owners[k] for k in roots if k in owners}
    carried = mine | {i for k in roots for i, _ in arrays.traces.get(k, ()) if i not in owned}
    scratch = [kernels[i].kernel.scratch_bytes for i in mine]
    alone = {owners[k] for k in roots if k in owners and not _jax.sub_jaxprs(program.equations[k].eqn)}
    scratch += [array.bytes for i in alone for array in kernels[i].taken if id(array) in arrays.prepared]
    leaves = {v for v in program.outputs if isinstance(v, int)}
    sizes: dict[int, int] = {}
    for k in roots:
        found, values = arrays.traces.get(k, ()), arrays.values.get(k, {})
        padded = {v: array for v, array in values.items() if array.bytes > program.bytes[v]}
        if _jax.sub_jaxprs(program.equations[k].eqn):
            sizes |= {v: array.bytes for v, array in padded.items()}
            continue  # what is filled before a loop are the buffers of its results
        others = [(i, r) for i, r in found if _is_none_of(r, values.values()) and id(r) not in arrays.prepared]
        scratch += [r.bytes for i, r in others if i != owners.get(k) or values]
        if padded and _joined(program, k, arrays.traces):
            continue
        for v, array in padded.items():
            fixed = program.equations[k].name in FUSIBLE or v in leaves
            if array.elements <= program.elements[v] or not fixed:
                sizes[v] = array.bytes
            elif id(array) not in arrays.prepared:
                scratch.append(array.bytes)  # what the caller's buffer has no room for
    moved = sum(kernels[i].kernel.read_bytes + kernels[i].kernel.written_bytes for i in carried)
    return Step(roots, sum(scratch), moved_bytes=moved or None, sizes=sizes, scratch=tuple(filter(None, scratch)))


def _values_of(program: Program, k: int, owner: int | None, found: Sequence[tuple[int, Result]]) -> dict[int, Result]:
    """The arrays that are the results of an equation: of its owner, or of other kernels if those have their sizes.

    A product or sum in stages has larger arrays before it.
    """
    outs = program.equations[k].outs
    left, chosen = sorted(found, key=lambda pair: pair[0] != owner), dict[int, Result]()
    for v in outs:
        own = program.elements[v]
        exact = [r for _, r in left if r.elements == own]
        of_owner = [r for i, r in left if i == owner and len(outs) == 1]
        if exact or of_owner:
            chosen[v] = (exact or of_owner)[0]
            left = [(i, r) for i, r in left if r is not chosen[v]]
    return chosen


def _is_none_of(array: Result, others: Collection[Result]) -> bool:
    """Whether it is another array, be it equal to one of them or not."""
    return all(array is not other for other in others)


def _joined(program: Program, k: int, traces: Traces) -> bool:
    """Whether the array of a dot also holds the results of other dots of its operands, which have no kernels of their own.

    Steps are dots apart, so that each of them is charged for its own result only.
    """
    q = program.equations[k]
    if q.name != "dot_general":
        return False
    readers, own = program.readers, program.elements[q.outs[0]]
    beside = {c for v in q.reads for c in readers[v] if program.equations[c].name == "dot_general" and c not in traces}
    extra = max(result.elements - own for _, result in traces[k])
    return bool(beside) and extra <= sum(program.elements[program.equations[c].outs[0]] for c in beside)
