"""Program → `solvers.Graph` by the compiler's own kernels: exact for a target, at the price of compiling once.

The program is compiled for the target with each equation in a scope of its own name. Every kernel of the optimised program then
says which equations' results leave it, so that a step is what the compiler makes one kernel of: its fusions are kept when the
order is forced between steps, and sizes, traffic and work space are what the compiler really takes. What a step computes, and
what it reads, still follows from the program's own data flow: where the compiler rewrote an expression, the step only computes
it as written.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

from remat_lab.flatten import Program
from remat_lab.kernel_arrays import Traces, arrays_of, step_of
from remat_lab.kernel_tags import Result, TaggedKernel, tagged_kernels
from remat_lab.primitives import FUSIBLE, IN_PLACE, REDUCTIONS, forbids_replay
from remat_lab.steps import CostRule, Fused, Step, assemble, base_values, closure, is_view, last_primal_equation
from remat_lab.targets import Target

_NEAR = 16  # equations that are searched for what became of one of them


def fuse_by_compiler(program: Program, target: Target, *, primal_outputs: int = 0, cost: CostRule | None = None) -> Fused:
    """Groups a program's equations into the kernels that XLA makes of it for a target.

    Args:
        program: from `flatten`.
        target: whose compiler is asked.
        primal_outputs: as for `fuse`.
        cost: cost of a step from its FLOPs and moved bytes; None for the target's roofline.

    Raises:
        TargetUnavailable: if nothing can be compiled for the target here.
    """
    kernels = tagged_kernels(program, target)
    steps = steps_of(program, kernels, last_primal_equation(program, primal_outputs))
    rule = target.machine_for(program).seconds if cost is None else cost
    return assemble(program, steps, primal_outputs=primal_outputs, cost=rule)


def steps_of(program: Program, kernels: Sequence[TaggedKernel], last_primal: int) -> list[Step]:
    """One step for each kernel that writes a value of the program, in an order in which each reads what earlier ones write.

    Args:
        program: what was compiled.
        kernels: its kernels, in the compiled order.
        last_primal: position of the last equation of the forward pass; a kernel that writes values of both passes is two steps.
    """
    traces = _traces(program, kernels)
    owners = _owners(program, traces)
    roots: dict[int, list[int]] = {}
    for k, owner in owners.items():
        roots.setdefault(owner, []).append(k)
    written = [k in owners for k in range(len(program.equations))]
    steps = [tuple(sorted(group)) for group in roots.values()]
    steps += [(k,) for k in _missing(program, written)]
    halves = [tuple(k for k in group if (k <= last_primal) == side) for group in steps for side in (True, False)]
    ordered = _ordered(program, written, [half for half in halves if half])
    arrays = arrays_of(program, kernels, traces, owners)
    return [step_of(program, group, arrays) for group in ordered]


def _traces(program: Program, kernels: Sequence[TaggedKernel]) -> Traces:
    """For each equation the arrays that carry its tag, with the kernels that write them."""
    base, readers = base_values(program), program.readers
    found: dict[int, list[tuple[int, Result]]] = {}
    for i, kernel in enumerate(kernels):
        for result in kernel.results:
            k = result.equation
            if k is None:
                continue
            q = program.equations[k]
            if is_view(q):
                source = program.producer.get(base[q.outs[0]])
                if source is None:
                    continue
                k = source
            elif q.name in FUSIBLE and result.elements < program.elements[q.outs[0]]:
                k = _summed(program, readers, k, result.elements)
            elif q.name in IN_PLACE:
                k = _updated(program, readers, k, kernel.reads)
            found.setdefault(k, []).append((i, result))
    return found


def _owners(program: Program, traces: Traces) -> dict[int, int]:
    """For each written equation the kernel that its result is taken to come from.

    Of several, the first whose array is as large as the result, or larger: a sum in two stages belongs to the kernel of the
    first, which may write other values as well. A heavy equation is a step even if it has none; but the padded result of a
    convolution, which is sliced where it is read, belongs to its reader if there is only one. Of an equation that fuses, a
    smaller array is what algebra made of it.
    """
    readers = program.readers
    owners: dict[int, int] = {}
    padded: list[int] = []
    for k, found in traces.items():
        sizes = {program.elements[v] for v in program.equations[k].outs}
        whole = [i for i, result in found if result.elements >= min(sizes, default=0)]
        light = program.equations[k].name in FUSIBLE
        if whole or not light:
            owners[k] = (whole or [found[-1][0]])[0]
        exact = any(result.elements in sizes for _, result in found)
        if whole and not exact and not light and program.equations[k].name not in REDUCTIONS:
            padded.append(k)
    written = [k in owners for k in range(len(program.equations))]
    leaves = {v for v in program.outputs if isinstance(v, int)}
    for k in reversed(padded):
        if leaves.isdisjoint(program.equations[k].outs) and _takers(program, readers, written, k) == 1:
            written[k] = False
            del owners[k]
    return owners


def _updated(program: Program, readers: Mapping[int, list[int]], k: int, reads: frozenset[int]) -> int:
    """The sum that a scatter of zeros was added into, where the kernel reads the other summand: it updates that in place."""
    (out,) = program.equations[k].outs
    takers = readers.get(out, [])
    if len(takers) != 1 or program.equations[takers[0]].name not in ("add", "add_any"):
        return k
    others = {program.producer.get(v) for v in program.equations[takers[0]].reads} - {k}
    return takers[0] if others and others <= reads else k


def _summed(program: Program, readers: Mapping[int, list[int]], k: int, size: int) -> int:
    """The reduction of equation `k`'s result to `size` elements, if there is one: algebra moved `k` behind it. Else `k`."""
    todo, seen = [k], {k}
    while todo:
        for v in program.equations[todo.pop(0)].outs:
            for c in readers.get(v, ()):
                q = program.equations[c]
                if q.name in REDUCTIONS and program.elements[q.outs[0]] == size:
                    return c
                if q.name in FUSIBLE and c not in seen:
                    seen.add(c)
                    todo.append(c)
        if len(seen) > _NEAR:
            break
    return k


def _missing(program: Program, written: list[bool]) -> list[int]:
    """Equations that no kernel owns up to but that must be steps; `written` is brought up to date.

    Outputs, what must run once, and heavy equations that several steps would otherwise run each for itself. Reductions are not
    among these: the compiler repeats them where that saves reading them (the sum of a softmax, say).
    """
    base = base_values(program)
    leaves = {base[v] for v in program.outputs if isinstance(v, int)}
    readers = program.readers
    found: list[int] = []

    def add(k: int) -> None:
        written[k] = True
        found.append(k)

    for k, q in enumerate(program.equations):
        if not written[k] and not is_view(q) and (forbids_replay(q.eqn) is not None or not leaves.isdisjoint(q.outs)):
            add(k)
    light = FUSIBLE | REDUCTIONS
    for k in reversed(range(len(program.equations))):  # readers first: what they take in decides
        if not written[k] and program.equations[k].name not in light and _takers(program, readers, written, k) > 1:
            add(k)
    return found


def _takers(program: Program, readers: Mapping[int, list[int]], written: Sequence[bool], k: int) -> int:
    """How many steps would compute equation `k` inside themselves."""
    ends: set[int] = set()
    todo, seen = [k], {k}
    while todo:
        for v in program.equations[todo.pop()].outs:
            for c in readers.get(v, ()):
                if written[c]:
                    ends.add(c)
                elif c not in seen:
                    seen.add(c)
                    todo.append(c)
    return len(ends)


def _ordered(program: Program, written: Sequence[bool], steps: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The steps in topological order, as near to the program's as can be. Steps that would read each other are taken apart."""
    pending = list(steps)
    while True:
        reads = [closure(program, written, group)[1] for group in pending]
        owner = {k: s for s, group in enumerate(pending) for k in group}
        before = [{owner[program.producer[v]] for v in values if v in program.producer} for values in reads]
        after: dict[int, list[int]] = {}
        for s, earlier in enumerate(before):
            for other in earlier:
                after.setdefault(other, []).append(s)
        waits = [len(earlier) for earlier in before]
        ready = [(pending[s][-1], s) for s, n in enumerate(waits) if n == 0]
        heapq.heapify(ready)
        done: list[int] = []
        while ready:
            _, s = heapq.heappop(ready)
            done.append(s)
            for other in after.get(s, ()):
                waits[other] -= 1
                if waits[other] == 0:
                    heapq.heappush(ready, (pending[other][-1], other))
        if len(done) == len(pending):
            return [pending[s] for s in done]
        stuck = set(range(len(pending))) - set(done)
        pending = [pending[s] for s in done] + [part for s in stuck for part in ((k,) for k in pending[s])]
