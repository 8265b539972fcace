"""Which results XLA may write over an operand that is read for the last time: those computed from it element by element."""

from __future__ import annotations

from remat_lab.flatten import Equation
from remat_lab.primitives import ELEMENTWISE, FUSIBLE
from remat_lab.steps import Fused, Group

_SAME = frozenset({"name", "pvary", "sharding_constraint", "stop_gradient"})  # the operand itself, in its own shape


def overwrites(fused: Fused) -> dict[int, tuple[int, ...]]:
    """For each node that may be written over what its step reads, the nodes that it may be written over.

    They are of its shape and type, and all that the step does with them is done element by element. A step that also runs a
    kernel of its own, a dot say, has that kernel's result in the place of its own until the end.
    """
    found = {}
    for node, group in fused.groups.items():
        fusible = all(fused.program.equations[k].name in FUSIBLE for k in group.equations)
        if fusible and len(group.values) == 1 and (able := _able(fused, group)):
            found[node] = able
    return found


def _able(fused: Fused, group: Group) -> tuple[int, ...]:
    program, (result,) = fused.program, group.values
    readers: dict[int, list[Equation]] = {}
    for k in group.equations:
        for v in program.equations[k].reads:
            readers.setdefault(v, []).append(program.equations[k])
    kinds = (v for v in group.reads if v in fused.node_of and program.avals[v] == program.avals[result])
    return tuple(fused.node_of[v] for v in kinds if _stays(v, result, readers))


def _stays(value: int, result: int, readers: dict[int, list[Equation]]) -> bool:
    """Whether a step computes its result from a value element by element, and nothing else."""
    todo, seen = [value], {value}
    while todo:
        for q in readers.get(todo.pop(), ()):
            if q.name not in ELEMENTWISE and q.name not in _SAME:
                return False
            todo += (o for o in q.outs if o not in seen)
            seen.update(q.outs)
    return result in seen
