"""Reading an emitted step back: which step of the plan each equation runs, and which instance of a value it reads.

What a plan promises is simulated; this reads the program that was emitted instead, so that the two can be compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from remat_lab import _jax
from remat_lab.plans import Plan
from solvers.schedule import Compute


@dataclass(frozen=True)
class Emitted:
    """The jaxpr of a plan's step, walked beside its schedule.

    Attributes:
        plan: what was emitted.
        jaxpr: of `plan.value_and_grad()`.
    """

    plan: Plan
    jaxpr: Any

    @classmethod
    def of(cls, plan: Plan, *args: Any) -> Emitted:
        """Traces the step of a plan; its arguments may be shapes."""
        return cls(plan, jax.make_jaxpr(plan.value_and_grad())(*args))

    @cached_property
    def equations(self) -> list[Any]:
        """All but the one that forbids differentiation."""
        guard, *equations = self.jaxpr.eqns
        _expect("custom_jvp_call", guard)
        return equations

    def count(self, primitive: str) -> int:
        """How many equations have this primitive."""
        return sum(eqn.primitive.name == primitive for eqn in self.equations)

    @cached_property
    def lifetimes(self) -> list[tuple[int, int, int]]:
        """For each instance of a written value: its node, the computation that writes it and the last one that reads it.

        Computations are counted in the order of the schedule; what the step returns is read after the last one.

        Raises:
            ValueError: if another equation stands where one is planned.
        """
        origin: dict[Any, Any] = {}

        def root(atom: Any) -> Any:
            while atom in origin:
                atom = origin[atom]
            return atom

        fused, equations, at = self.plan.fused, self.equations, 0
        node_of: dict[Any, int] = {}
        writer: dict[Any, int] = {}
        last: dict[Any, int] = {}

        def read(atoms: Any, position: int) -> None:
            for atom in atoms:
                if not isinstance(atom, _jax.Literal) and root(atom) in writer:
                    last[root(atom)] = position

        order = [step.node for step in self.plan.schedule.steps if isinstance(step, Compute)]
        for position, node in enumerate(order):
            at = _skip_barrier(equations, at, origin)
            made: dict[int, Any] = {}
            for k in fused.groups[node].equations:
                planned, eqn = fused.program.equations[k], equations[at]
                if not planned.reads and eqn.primitive.name != planned.name:
                    continue  # a conversion of a literal, done while tracing
                if planned.name == "select_and_scatter_add":  # one of two forms by platform, with zeros from behind a barrier
                    _expect("optimization_barrier", eqn)
                    _expect("platform_index", equations[at + 1])
                    at += 2
                    eqn = equations[at]
                    if planned.name not in str(eqn.params["branches"]):
                        raise ValueError(f"no form of {eqn.primitive.name} is the {planned.name} that is planned")
                else:
                    _expect(planned.name, eqn)
                read(eqn.invars, position)
                made.update(zip(planned.outs, eqn.outvars, strict=True))
                at += 1
            for value in fused.groups[node].values:
                node_of[made[value]] = fused.node_of[value]
                writer[made[value]] = last[made[value]] = position
            while _by_platform(equations, at) and not _waits(equations, at):  # a result in its final layout
                origin[equations[at + 1].outvars[0]] = equations[at + 1].invars[-1]
                at += 2
        for eqn in equations[at:]:  # views of results
            origin.update(zip(eqn.outvars, eqn.invars[:1], strict=True))
        read(self.jaxpr.outvars, len(order))
        return [(node_of[var], start, last[var]) for var, start in writer.items()]

    @property
    def live(self) -> tuple[int, ...]:
        """Budgeted bytes live during each computation, by the lifetimes of the emitted values."""
        graph, order = self.plan.graph, self.plan.schedule.order
        timeline = [graph.nodes[v].workspace for v in order]
        for node, start, end in self.lifetimes:
            for p in range(start, min(end + 1, len(order))):
                timeline[p] += graph.nodes[node].charge
        return tuple(timeline)

    def crossing(self, position: int) -> Counter[int]:
        """The nodes with an instance that is written before a computation and read at or after it."""
        return Counter(node for node, start, end in self.lifetimes if start < position <= end)


def planned_crossing(plan: Plan, position: int) -> Counter[int]:
    """The nodes that a schedule keeps over a boundary: live before that computation, by the schedule's own frees."""
    live: set[int] = set()
    computed = 0
    for step in plan.schedule.steps:
        if isinstance(step, Compute):
            if computed == position:
                break
            computed += 1
            live.update(plan.graph.written(step.node))
        else:
            live.remove(step.node)
    return Counter(live)


def _expect(name: str, eqn: Any) -> None:
    if eqn.primitive.name != name:
        raise ValueError(f"{eqn.primitive.name} at {_jax.source_line(eqn)} stands where {name} is planned")


def _skip_barrier(equations: Any, at: int, origin: dict[Any, Any]) -> int:
    """Where a step's own equations begin, after a barrier and the keys taken apart and put together around it."""
    if _waits(equations, at):
        origin.update(zip(equations[at + 1].outvars, equations[at + 1].invars[1:], strict=False))
        return at + 2
    barrier = at
    while equations[barrier].primitive.name == "random_unwrap":
        barrier += 1
    if equations[barrier].primitive.name != "optimization_barrier":
        return at
    for eqn in equations[at : barrier + 1]:
        origin.update(zip(eqn.outvars, eqn.invars, strict=True))
    words = {var for eqn in equations[at:barrier] for var in eqn.outvars}
    after = barrier + 1
    while equations[after].primitive.name == "random_wrap" and origin.get(equations[after].invars[0]) in words:
        origin[equations[after].outvars[0]] = equations[after].invars[0]
        after += 1
    return after


def _by_platform(equations: Any, at: int) -> bool:
    """Whether something in several forms by platform comes next."""
    return at < len(equations) and equations[at].primitive.name == "platform_index"


def _waits(equations: Any, at: int) -> bool:
    """Whether that is a barrier, whose forms differ in what is transposed before and what after it."""
    return _by_platform(equations, at) and "optimization_barrier" in str(equations[at + 1].params["branches"])
