"""Program → `solvers.Graph`: one node for each value that XLA would write to memory, and the map back to equations.

XLA computes most equations inside the kernel that reads them. A value is taken as written if

- its equation is heavy (a dot, convolution, reduction, gather, sort, loop, custom call), or must not run twice;
- or a heavy equation other than a reduction reads it;
- or it leaves the program;
- or it is a partial result of a long sum (`running_sums`);
- or it is large, and recomputing it inside each of its n readers would read more bytes than writing it once and reading it
  back: `n * read > read + own + n * own`, where `own` is its size and `read` the size of the written values behind it.

Views (a reshape, say) are never written: whoever reads one reads the value that it renames. Two kinds of values are written in
the buffer of the one step that reads them, and so are no nodes of their own: what a scatter or an update changes in place, and
the result of a heavy equation that is only changed element by element (a dot and its bias, say).
"""

from __future__ import annotations

from remat_lab import _jax, costs
from remat_lab.flatten import Equation, Program, flatten
from remat_lab.in_place import accumulates, body_peak, dying_operands, is_filled, only_carried, reused
from remat_lab.loop_costs import PASSES, written_out
from remat_lab.primitives import ELEMENTWISE, FUSIBLE, IN_PLACE, REDUCTIONS, forbids_replay
from remat_lab.running_sums import running_sums
from remat_lab.steps import CostRule as CostRule
from remat_lab.steps import Fused as Fused
from remat_lab.steps import Group as Group
from remat_lab.steps import Step, assemble, base_values, closure, is_view
from remat_lab.workspace import step_copies

_LARGE_BYTES = 100_000


def fuse(
    program: Program,
    *,
    primal_outputs: int = 0,
    cost: CostRule = costs.CPU.seconds,
    owned: bool = False,
    masks: bool = True,
) -> Fused:
    """Groups a program's equations into the steps that a schedule may order.

    Args:
        program: from `flatten`.
        primal_outputs: the first this many outputs belong to the forward pass; everything after the last equation that they
            need is backward and is never recomputed. 0 if the program has no backward pass.
        cost: cost of a step from its FLOPs and moved bytes.
        owned: whether inputs may be written over where they are read last, as in the body of a loop.
        masks: whether large truth values read by several kernels are written. They are where barriers keep the kernels apart;
            left alone, XLA compares again in each of them, unless a policy keeps them by name.

    Returns:
        The graph and its map. Program outputs are `external`: their bytes lie in the caller's buffers.
    """
    base = base_values(program)
    readers = _readers(program, base)
    written = _written(program, base, readers, owned, masks)
    shared, free = reused(program, base, readers, owned=owned)
    steps: list[Step] = []
    for k, is_root in enumerate(written):
        if is_root:
            inside, _ = closure(program, written, (k,))
            workspace = max(step_copies(program, inside), *(_workspace(program, base, readers, e) for e in inside))
            sizes = dict.fromkeys(free.intersection(program.equations[k].outs), 0)
            steps.append(Step((k,), workspace=max(0, workspace - shared.get(k, 0)), sizes=sizes))
    return assemble(program, steps, primal_outputs=primal_outputs, cost=cost)


def _readers(program: Program, base: list[int]) -> dict[int, list[int]]:
    """For each value, the equations that read its bytes."""
    readers: dict[int, list[int]] = {}
    for k, q in enumerate(program.equations):
        if not is_view(q):
            for v in dict.fromkeys(base[u] for u in q.reads):
                readers.setdefault(v, []).append(k)
    return readers


def _written(program: Program, base: list[int], readers: dict[int, list[int]], owned: bool, masks: bool) -> list[bool]:
    """For each equation, whether its results are written to memory."""
    equations, producer = program.equations, program.producer
    leaves = {base[v] for v in program.outputs if isinstance(v, int)}
    heavy = [q.name not in FUSIBLE or forbids_replay(q.eqn) is not None for q in equations]

    def forces(k: int, value: int) -> bool:
        q = equations[k]
        if q.name in IN_PLACE and isinstance(q.ins[0], int) and base[q.ins[0]] == value and readers[value] == [k]:
            return sum(isinstance(u, int) and base[u] == value for u in q.ins) > 1
        if only_carried(program, base, k, value):
            return not is_filled(program, value)
        return heavy[k] and q.name not in REDUCTIONS

    written = [
        not is_view(q) and (heavy[k] or any(o in leaves or any(forces(c, o) for c in readers.get(o, ())) for o in q.outs))
        for k, q in enumerate(equations)
    ]
    for k in running_sums(program, base, readers, heavy):
        written[k] = True
    # Written readers of each unwritten value, through the fusible equations between.
    ends: list[set[int]] = [set() for _ in equations]
    for k in reversed(range(len(equations))):
        for o in equations[k].outs:
            for c in readers.get(o, ()):
                ends[k].update((c,) if written[c] else ends[c])
    compared = frozenset() if masks else _compared(program)
    large = min(_LARGE_BYTES, sum(sum(program.bytes[o] for o in q.outs) for q in equations) // 2000)
    behind: list[dict[int, int]] = [{} for _ in equations]
    for k, q in enumerate(equations):
        if is_view(q):
            continue
        for v in dict.fromkeys(base[u] for u in q.reads):
            if v in producer:
                p = producer[v]
                behind[k].update({v: program.bytes[v]} if written[p] else behind[p])
        own, read, n = sum(program.bytes[o] for o in q.outs), sum(behind[k].values()), len(ends[k])
        if not written[k] and k not in compared and own >= large and n * read > read + own + n * own:
            written[k] = True
    _merge_epilogues(program, readers, leaves, heavy, written, owned)
    return written


def _compared(program: Program) -> frozenset[int]:
    """Equations that make truth values that nobody gave a name: what a policy keeps has one."""
    named = {v for q in program.equations if q.name == "name" for v in q.reads}
    return frozenset(
        k
        for k, q in enumerate(program.equations)
        if q.outs and named.isdisjoint(q.outs) and str(getattr(program.avals[q.outs[0]], "dtype", "")) == "bool"
    )


def _merge_epilogues(
    program: Program, readers: dict[int, list[int]], leaves: set[int], heavy: list[bool], written: list[bool], owned: bool
) -> None:
    """Takes back the writing of heavy results that a single later step changes element by element, at most one for each step.

    Reading them there costs no memory: the step's result takes their buffer.
    """
    equations = program.equations
    taken: set[int] = set()
    for k in reversed(range(len(equations))):
        q = equations[k]
        if not heavy[k] or len(q.outs) != 1 or q.outs[0] in leaves or q.eqn.effects or q.name in REDUCTIONS:
            continue
        size, passed, todo, ends = program.elements[q.outs[0]], set[int](), [q.outs[0]], set[int]()
        while todo and len(ends) < 2:
            for c in readers.get(todo.pop(), ()):
                reader = equations[c]
                keeps_place = reader.name in ELEMENTWISE or _transposes_matrix(q, reader)
                if heavy[c] or not keeps_place or program.elements[reader.outs[0]] != size:
                    ends |= {-1, -2}
                elif written[c]:
                    ends.add(c)
                elif c not in passed:
                    passed.add(c)
                    todo.append(reader.outs[0])
        if (
            len(ends) == 1
            and (end := ends.pop()) not in taken
            and program.bytes[q.outs[0]] == program.bytes[equations[end].outs[0]]
            and not (owned and accumulates(program, end))
        ):
            taken.add(end)
            written[k] = False


def _transposes_matrix(dot: Equation, reader: Equation) -> bool:
    """Whether `reader` transposes the matrix that a dot makes, which XLA does by swapping the dot's operands."""
    return reader.name == "transpose" and dot.name == "dot_general" and len(reader.eqn.params["permutation"]) == 2


def _workspace(program: Program, base: list[int], readers: dict[int, list[int]], k: int) -> int:
    """Bytes that an equation needs while it runs: the peak of a loop's or branch's body."""
    eqn = program.equations[k].eqn
    if eqn.primitive.name in PASSES:
        body = flatten(written_out(eqn))
        return body_peak(fuse(body, owned=True), dying_operands(program, base, readers, k))
    bodies = [flatten(body) for body in _jax.sub_jaxprs(eqn)]
    return max((body_peak(fuse(body, owned=True)) for body in bodies if body.equations), default=0)
