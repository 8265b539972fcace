"""Steps → `solvers.Graph`: whatever decided which equations' results are written, the nodes and the way back are made here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from remat_lab import costs
from remat_lab.choices import ONCE, settle
from remat_lab.flatten import Equation, Program
from remat_lab.primitives import VIEWS, forbids_replay
from solvers.graph import Graph, Node

_HERE = str(Path(__file__).parent)

CostRule = Callable[[float, int], float]
"""Cost of a step from its FLOPs and the bytes it moves."""


@dataclass(frozen=True, slots=True)
class Group:
    """The equations of one step.

    Attributes:
        root: position of the equation whose results the step writes; of several the last.
        equations: positions of all equations that the step runs, in order; `root` is the last.
        values: the values it writes, in the order of its nodes.
        reads: the written values, arguments and constants that it reads.
        flops: of all its equations.
        moved_bytes: bytes read and written.
        scratch: bytes of each array that it needs only while it runs; empty where no more than their sum is known.
    """

    root: int
    equations: tuple[int, ...]
    values: tuple[int, ...]
    reads: tuple[int, ...]
    flops: float
    moved_bytes: int
    scratch: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fused:
    """A graph and the way back to the program.

    Attributes:
        program: what was fused.
        graph: one node per written value, in the program's order.
        groups: for each node with a step of its own, its equations.
        node_of: the node of each written value.
        forward_nodes: nodes before this position belong to the forward pass.
        once: why equations must not run twice, where that is not in the equation itself.
        exact: values that everyone must read from memory, as their very bits are compared.
    """

    program: Program
    graph: Graph
    groups: dict[int, Group]
    node_of: dict[int, int]
    forward_nodes: int
    once: Mapping[int, str] = field(default_factory=dict[int, str])
    exact: frozenset[int] = frozenset()

    def root(self, node: int) -> Equation:
        """The equation whose result a node is."""
        return self.program.equations[self.groups[self.graph.step_of(node)].root]

    def flops(self, order: tuple[int, ...]) -> float:
        """FLOPs of an order of computations."""
        return sum(self.groups[v].flops for v in order)


@dataclass(frozen=True, slots=True)
class Step:
    """What is to become one step.

    Attributes:
        roots: positions of the equations whose results it writes, ascending.
        workspace: bytes needed only while it runs.
        moved_bytes: bytes that it reads and writes; None to take those of its values.
        sizes: bytes of values that take other than their type's (padding).
        scratch: the arrays that its workspace is made of, where they are known.
    """

    roots: tuple[int, ...]
    workspace: int = 0
    moved_bytes: int | None = None
    sizes: Mapping[int, int] = field(default_factory=dict)
    scratch: tuple[int, ...] = ()


def assemble(program: Program, steps: Sequence[Step], *, primal_outputs: int, cost: CostRule) -> Fused:
    """Makes the graph.

    Args:
        program: what the steps are of.
        steps: in an order in which each reads only what earlier ones write.
        primal_outputs: the first this many outputs belong to the forward pass.
        cost: cost of a step from its FLOPs and moved bytes.
    """
    base = base_values(program)
    last_primal = last_primal_equation(program, primal_outputs)
    settled = settle(program, base, [step.roots for step in steps], last_primal)
    steps = [Step(roots) if n is None else replace(steps[n], roots=roots) for roots, n in settled.steps]
    written = [False] * len(program.equations)
    for step in steps:
        for k in step.roots:
            written[k] = True
    external = {base[v] for v in program.outputs if isinstance(v, int)}
    nodes: list[Node] = []
    groups: dict[int, Group] = {}
    node_of: dict[int, int] = {}
    last_effect: tuple[int, ...] = ()
    for step in steps:
        group = _group(program, written, step, settled.again)
        lead = len(nodes)
        deps = {node_of[v] for v in group.reads if v in node_of}
        has_effects = any(program.equations[k].eqn.effects for k in step.roots)
        if has_effects:
            deps.update(last_effect)  # what the effects of two steps are to each other is not in the data flow
        recomputable = settled.once.isdisjoint(group.equations)
        recomputable &= all(forbids_replay(program.equations[e].eqn) is None for e in group.equations)
        for i, (k, part, v) in enumerate(_results(program, step)):
            q = program.equations[k]
            nodes.append(
                Node(
                    name=f"{q.name}{part} {'effect' if v is None else program.avals[v]}{_place(program, k, group)}",
                    cost=0.0 if i else cost(group.flops, group.moved_bytes),
                    size=0 if v is None else step.sizes.get(v, program.bytes[v]),
                    deps=() if i else tuple(sorted(deps)),
                    workspace=0 if i else step.workspace,
                    recomputable=recomputable,
                    backward=primal_outputs > 0 and step.roots[-1] > last_primal,
                    part_of=lead if i else None,
                    external=v in external,
                )
            )
            if v is not None:
                node_of[v] = lead + i
        groups[lead] = group
        if has_effects:
            last_effect = (min(range(lead, len(nodes)), key=lambda v: nodes[v].size),)
    outputs = tuple(node_of[v] for v in external if v in node_of)
    forward = next((v for v, node in enumerate(nodes) if node.backward), len(nodes))
    once = dict.fromkeys(settled.once, ONCE)
    return Fused(program, Graph(tuple(nodes), outputs), groups, node_of, forward, once, settled.exact)


def _place(program: Program, root: int, group: Group) -> str:
    """Where a step's result is made: the user's line, of its equation or else of those around it; empty if none is known."""
    made = [program.producer[v] for v in group.reads if v in program.producer]
    for text, near in ((" at", (root, *reversed(group.equations))), (" of what is made at", made)):
        for e in near:
            line = program.equations[e].known_line
            if line is not None and not line.startswith(_HERE):
                return f"{text} {line}"
    return ""


def base_values(program: Program) -> list[int]:
    """For each value, the value whose bytes it is: itself unless it is a view."""
    base = list(range(len(program.avals)))
    for q in program.equations:
        if is_view(q):
            base[q.outs[0]] = base[q.ins[0]]  # type: ignore[index]
    return base


def is_view(q: Equation) -> bool:
    """Whether an equation only renames a value's bytes."""
    return q.name in VIEWS and isinstance(q.ins[0], int)


def last_primal_equation(program: Program, primal_outputs: int) -> int:
    """Position of the last equation that the first outputs need; -1 if they need none."""
    base = base_values(program)
    found = (base[v] for v in program.outputs[:primal_outputs] if isinstance(v, int))
    return max((program.producer[v] for v in found if v in program.producer), default=-1)


def closure(
    program: Program, written: Sequence[bool], roots: Sequence[int], again: Mapping[int, frozenset[int]] | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The equations that computing `roots` from written values takes, in order, and the values read.

    `again` holds, for some equations, others that are computed with them although their results are written.
    """
    inside: set[int] = set()
    reads: dict[int, None] = {}
    todo, own = list(roots), set(roots)
    while todo:
        k = todo.pop()
        if k in inside:
            continue
        inside.add(k)
        own.update((again or {}).get(k, ()))
        for v in program.equations[k].reads:
            p = program.producer.get(v)
            if p is None or (written[p] and p not in own):
                reads[v] = None
            else:
                todo.append(p)
    return tuple(sorted(inside)), tuple(v for v in reads if program.producer.get(v) not in inside)


def _group(program: Program, written: Sequence[bool], step: Step, again: Mapping[int, frozenset[int]]) -> Group:
    equations, reads = closure(program, written, step.roots, again)
    values = tuple(v for k in step.roots for v in program.equations[k].outs)
    moved = step.moved_bytes
    return Group(
        root=step.roots[-1],
        equations=equations,
        values=values,
        reads=reads,
        flops=sum(costs.flops(program.equations[k].eqn) for k in equations),
        moved_bytes=sum(program.bytes[v] for v in (*reads, *values)) if moved is None else moved,
        scratch=step.scratch,
    )


def _results(program: Program, step: Step) -> list[tuple[int, str, int | None]]:
    """For each value that a step writes, its equation, which of its results it is, and the value; for none, one effect."""
    found: list[tuple[int, str, int | None]] = []
    for k in step.roots:
        outs = program.equations[k].outs
        found += [(k, f".{i}" if len(outs) > 1 else "", v) for i, v in enumerate(outs)] or [(k, "", None)]
    return found
