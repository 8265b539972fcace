"""The ways to train a deep network in less memory that the depth and length experiments set side by side.

The first two are those of graph executors that write the result of every equation, as MXNet did for Chen et al. (2016,
arXiv:1604.06174); all others order the steps that XLA writes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax

from remat_lab.api import as_loss, planner_for
from remat_lab.flatten import Program
from remat_lab.measure import Compiled, compile_program
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from remat_lab.primitives import ELEMENTWISE, VIEWS
from remat_lab.targets import as_target
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph, Node
from solvers.liveness import MayOverwrite, assign, unshared
from solvers.replay import replay
from solvers.segments import Forward, flat
from solvers.solution import make_solution

UNSHARED, SHARED, PLAIN, DROP = "no optimisation", "in-place + sharing", "plain JAX", "drop bn-relu"
HEURISTICS = {"sqrt(n)": "sqrt", "Algorithm 3": "chen", "recursive": "recursive"}
_DEEP = 2500  # steps above which the portfolio would spend the time limit on parts that find nothing
_LINEAR = ("conv_general_dilated", "dot_general")


@dataclass(frozen=True)
class Subject:
    """A loss traced once, for any number of strategies.

    Attributes:
        made: the model.
        planner: plans of it.
    """

    made: Any
    planner: Planner

    @classmethod
    def of(cls, made: Any, target: str | None) -> Subject:
        """Traces a model."""
        loss = as_loss(made.loss, made.argnums, made.has_aux, (), ())
        place = None if target is None else as_target(target)
        return cls(made, planner_for(loss, loss.call(tuple(made.args), {}), target=place))

    def plan(self, strategy: str, *, time_limit: float) -> Plan:
        """The plan of a strategy: a name of `HEURISTICS`, `DROP`, "keep all", or "optimal@FRACTION".

        Raises:
            InfeasibleBudget: if the fraction of the keep-all peak is too small.
            ValueError: for any other name.
        """
        planner = self.planner
        if strategy in HEURISTICS:
            return planner.plan(None, solver=HEURISTICS[strategy], check="planned", time_limit=time_limit)
        if strategy.startswith("optimal@"):
            budget = planner.bytes_of(strategy.removeprefix("optimal@"))
            return self._cheapest(budget, time_limit)
        kept = planner.plan(None, solver="keep_all", check="planned")
        if strategy == "keep all":
            return kept
        if strategy == DROP:
            graph = kept.graph
            solution = make_solution(graph, keep_linear_order(kept), solver="keep convolutions", budget=None, seconds=0.0)
            return kept.amended(solution=solution)
        raise ValueError(f"no strategy {strategy!r}")

    def _cheapest(self, budget: int | None, time_limit: float) -> Plan:
        """The better plan of the portfolio and of the solver for deep networks, each with half of the time."""
        deep = len(self.planner.fused.graph.steps) > _DEEP
        found: list[Plan] = []
        refused: list[InfeasibleBudget] = []
        solvers = ("hierarchical",) if deep else ("hierarchical", "auto")
        for solver in solvers:
            limit = time_limit / len(solvers)
            try:
                found.append(self.planner.plan(budget, solver=solver, check="planned", time_limit=limit, workers=2))
            except InfeasibleBudget as error:
                refused.append(error)
        if not found:
            raise min(refused, key=lambda error: error.minimum)
        return min(found, key=lambda plan: plan.solution.cost)

    def compile(self, plan: Plan | None) -> Compiled:
        """The step of a plan, or plain JAX under the compiler options that plans need."""
        if plan is not None:
            return plan.compiled
        made, target = self.made, as_target(self.planner.target)
        step = jax.value_and_grad(made.loss, made.argnums, has_aux=made.has_aux)
        return compile_program(step, *made.args, target=target, compiler_options=target.compiler_options)


def keep_linear_order(plan: Plan) -> list[int]:
    """Keeps the results of convolutions and dots, and whatever else crosses from one to the next; recomputes the rest.

    What lies between two of them (batch norm, ReLU, additions) is run again piece by piece as the backward pass gets there.
    """
    forward = Forward.of(plan.graph)
    names = {v: {plan.program.equations[k].name for k in plan.fused.groups[v].equations} for v in forward.steps}
    cuts = [q + 1 for q, v in enumerate(forward.steps) if names[v].intersection(_LINEAR)]
    return replay(forward, flat(forward, cuts))


def executed_graph(program: Program) -> tuple[Graph, MayOverwrite]:
    """The graph of an executor that writes the result of every equation, and where it may do so in place.

    Returns:
        One node for each value. Program outputs are external. The rule says yes where an elementwise equation, or one that only
        renames, reads a value of the same bytes.
    """
    leaves = {v for v in program.outputs if isinstance(v, int)}
    node_of: dict[int, int] = {}
    nodes: list[Node] = []
    local: set[int] = set()
    for q in program.equations:
        lead = len(nodes)
        deps = tuple(sorted({node_of[v] for v in q.reads if v in node_of}))
        for k, v in enumerate(q.outs):
            node_of[v] = len(nodes)
            node = Node(q.name, 1, program.bytes[v], deps, external=v in leaves)
            nodes.append(node if not k else replace(node, cost=0, deps=(), part_of=lead))
        if q.name in ELEMENTWISE or q.name in VIEWS:
            local.add(lead)
    ends = tuple(node_of[v] for v in leaves if v in node_of)
    graph = Graph(tuple(nodes), ends)
    return graph, lambda step, operand: step in local and nodes[operand].size == nodes[step].size


def executed_bytes(program: Program) -> dict[str, int]:
    """Feature-map bytes of an executor without any optimisation, and of one with liveness analysis (`solvers.liveness`)."""
    graph, in_place = executed_graph(program)
    return {UNSHARED: unshared(graph), SHARED: assign(graph, in_place=in_place).total}
