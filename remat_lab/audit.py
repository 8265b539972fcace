"""`rl.audit`: a claim about training memory, checked: what is in it, for how long, at what price, and is the result right.

The seven questions: (1) which classes of memory, (2) how long large values live and whose buffers they are in, (3) what would
happen if an equation ran again, (4) planned against compiled, and a device's own count where there is one, (5) the price,
(6) on which workload and machine, (7) whether loss and gradients are those of plain JAX.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from remat_lab import environment
from remat_lab.arguments import is_concrete, materialise
from remat_lab.device_memory import Reserved, classify
from remat_lab.measure import Compiled, compile_program
from remat_lab.plans import Plan
from remat_lab.primitives import VIEWS, forbids_replay
from remat_lab.replay import Replay
from remat_lab.replay import classify as replay_class
from remat_lab.targets import as_target
from remat_lab.verify import largest_difference
from solvers.schedule import Compute

FORMAT, VERSION = "remat_lab audit", 1
SCHEMA = Path(__file__).with_name("audit.schema.json")

Json = dict[str, Any]


@dataclass(frozen=True)
class Audit:
    """The answers; print it, or use `markdown`, `to_json` and `save`.

    Attributes:
        data: all of them, as `audit.schema.json` describes them.
    """

    data: Json

    def __str__(self) -> str:
        from remat_lab.audit_report import as_text

        return as_text(self.data)

    def markdown(self) -> str:
        """The same page as Markdown."""
        from remat_lab.audit_report import as_markdown

        return as_markdown(self.data)

    def to_json(self) -> Json:
        """The answers as data."""
        return self.data

    def save(self, path: str | Path) -> None:
        """Writes the page: Markdown for `.md`, JSON for `.json`, text for anything else."""
        path = Path(path)
        forms = {".json": lambda: json.dumps(self.data, indent=1), ".md": self.markdown}
        path.write_text(forms.get(path.suffix, lambda: str(self))() + "\n")


def audit(
    fun: Callable[..., Any],
    *args: Any,
    plan: Plan | None = None,
    reserved: Reserved = 0,
    real_args: tuple[Any, ...] | None = None,
    seed: int = 0,
    run: bool = True,
    top: int = 8,
    **options: Any,
) -> Audit:
    """Answers seven questions about the memory of a loss's value-and-gradient step.

    Args:
        fun: the loss.
        *args: its arguments; arrays or `jax.ShapeDtypeStruct`.
        plan: what to audit; by default everything is kept.
        reserved: what else lies on the device: an optimizer (optax) or its state, bytes, or a mapping from names to these.
        real_args: arguments to run with; by default `args`, made up from `seed` where they are only shapes.
        seed: of made-up arguments.
        run: whether to run plan and plain JAX once each, to compare their results; otherwise nothing is allocated.
        top: how many values and steps to name.
        **options: of `plan`, such as `argnums` or `has_aux`, if no plan is given.

    Returns:
        The answers.
    """
    from remat_lab.api import plan as make_plan

    if plan is None:
        plan = make_plan(fun, *args, budget=None, check="planned", **options)
    values = plan.call.values
    loss = plan.loss if plan.plain is None else plan.plain[0]

    def plain_step(*values: Any) -> list[Any]:
        traced = loss.trace(plan.call)
        return jax.core.eval_jaxpr(traced.jaxpr, traced.jaxpr.consts, *values)

    target, compiler_options = as_target(plan.target), plan.compiler_options
    plain = compile_program(plain_step, *values, target=target, compiler_options=compiler_options)
    equality = None
    if run and target.is_present:
        given = args if real_args is None else real_args
        made = given if is_concrete(given) else materialise(given, seed)
        equality = _equivalence(plan, plain, loss.call(made, {}).values, seed)
    return Audit(
        {
            "format": FORMAT,
            "version": VERSION,
            "memory": _memory(plan, reserved),
            "lifetimes": _lifetimes(plan, top),
            "replay": _replay(plan, top),
            "peaks": _peaks(plan, plain),
            "price": _price(plan, top),
            "workload": _workload(plan),
            "equivalence": equality,
        }
    )


def _memory(plan: Plan, reserved: Reserved) -> list[Json]:
    temporaries, kept = plan.compiled_bytes, _retained(plan)
    classes = classify(plan.fused, plan.call, reserved or dict(plan.reserved), temporaries)
    rows = [{"name": name, "bytes": count} for name, count in classes.rows() if name != "temporaries"]
    rows += [
        {"name": "retained activations", "bytes": min(kept, temporaries)},
        {"name": "workspace and transient values", "bytes": max(0, temporaries - kept)},
    ]
    stats = _device_stats()
    if stats is not None:
        rows.append({"name": "allocator reserve", "bytes": max(0, stats["pool_bytes"] - stats["bytes_in_use"])})
    return rows


def _retained(plan: Plan) -> int:
    """The most bytes of the forward pass's values that are live at once between two steps, beside arguments and results."""
    nodes, live, most = plan.graph.nodes, 0, 0
    for step in plan.schedule.steps:
        if isinstance(step, Compute):
            most = max(most, live)
            live += sum(nodes[v].charge for v in plan.graph.written(step.node) if not nodes[v].backward)
        elif not nodes[step.node].backward:
            live -= nodes[step.node].charge
    return max(most, live)


def _device_stats() -> dict[str, int] | None:
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return stats if stats and "pool_bytes" in stats else None


def _lifetimes(plan: Plan, top: int) -> list[Json]:
    graph, order, program = plan.graph, plan.schedule.order, plan.program
    names = [node.name for node in graph.nodes]
    value_of = {node: value for value, node in plan.fused.node_of.items()}
    first, last, reader, times = dict[int, int](), dict[int, int](), dict[int, int](), Counter[int]()
    for p, v in enumerate(order):
        for u in graph.nodes[v].deps:
            last[u], reader[u] = p, v
        for w in graph.written(v):
            first.setdefault(w, p)
            times[w] += 1
    views = Counter(_base(program, q.ins[0]) for q in program.equations if q.name in VIEWS and isinstance(q.ins[0], int))
    rows = []
    for v in sorted(range(len(graph)), key=lambda v: -graph.nodes[v].size)[:top]:
        node = graph.nodes[v]
        rows.append(
            {
                "value": node.name,
                "bytes": node.size,
                "first_step": first.get(v, 0),
                "last_step": len(order) if v in graph.outputs else last.get(v, first.get(v, 0)),
                "last_reader": "the caller" if v in graph.outputs else names[reader[v]] if v in reader else "nobody",
                "times_computed": times[v],
                "buffer": "a result of the step" if node.external else "temporary",
                "views": views[value_of[v]] if v in value_of else 0,
            }
        )
    return rows


def _base(program: Any, value: int) -> int:
    while (k := program.producer.get(value)) is not None and program.equations[k].name in VIEWS:
        operand = program.equations[k].ins[0]
        if not isinstance(operand, int):
            break
        value = operand
    return value


def _replay(plan: Plan, top: int) -> Json:
    equations, again = plan.program.equations, plan.schedule.recomputed
    counts = Counter(replay_class(q.eqn) for q in equations)
    repeated = Counter(replay_class(equations[k].eqn) for v in again for k in plan.fused.groups[v].equations)
    forbidden = [
        {"equation": q.name, "source": q.source_line, "reason": reason}
        for k, q in enumerate(equations)
        if (reason := forbids_replay(q.eqn) or plan.fused.once.get(k)) is not None
    ]
    return {
        "classes": [
            {"name": kind.name.lower(), "meaning": kind.value, "equations": counts[kind], "recomputed": repeated[kind]}
            for kind in Replay
            if counts[kind]
        ],
        "forbidden": forbidden[:top],
        "forbidden_count": len(forbidden),
    }


def _peaks(plan: Plan, plain: Compiled) -> Json:
    stats = _device_stats()
    return {
        "budget_bytes": plan.budget_bytes,
        "planned_bytes": plan.planned_bytes,
        "compiled_bytes": plan.compiled_bytes,
        "plain_compiled_bytes": plain.temp_bytes,
        "keep_all_planned_bytes": plan.predicted.keep_all_peak_bytes,
        "compiler_options": dict(plan.compiler_options),
        "device_peak_bytes": stats.get("peak_bytes_in_use") if stats is not None else None,
    }


def _price(plan: Plan, top: int) -> Json:
    graph, schedule, groups = plan.graph, plan.schedule, plan.fused.groups
    again = schedule.recomputed
    once, moved = (sum(groups[v].moved_bytes for v in order) for order in (graph.steps, schedule.order))
    dearest: dict[str, tuple[int, float]] = {}
    for v, count in again.items():
        times, share = dearest.get(graph.nodes[v].name, (0, 0.0))
        dearest[graph.nodes[v].name] = times + count, share + _share(plan, v)
    by_cost = sorted(dearest.items(), key=lambda row: -row[1][1])
    return {
        "recomputed_steps": len(again),
        "steps": len(graph.steps),
        "extra_flops_ratio": plan.predicted.extra_flops_ratio,
        "extra_moved_bytes_ratio": moved / once - 1 if once else 0.0,
        "extra_cost_ratio": plan.solution.overhead,
        "critical_path_ratio": _critical_path(plan, schedule.order) / (_critical_path(plan, graph.steps) or 1.0),
        "dearest": [{"step": name, "times": times, "cost_ratio": share} for name, (times, share) in by_cost[:top]],
    }


def _share(plan: Plan, v: int) -> float:
    total = plan.solution.keep_all_cost
    return plan.schedule.recomputed[v] * plan.graph.nodes[v].cost / total if total else 0.0


def _critical_path(plan: Plan, order: tuple[int, ...]) -> float:
    """Cost of the longest chain of steps that wait for each other's results, each reading the latest instance."""
    graph, ends = plan.graph, dict[int, float]()
    longest = 0.0
    for v in order:
        end = max((ends[u] for u in graph.nodes[v].deps), default=0.0) + graph.nodes[v].cost
        ends.update(dict.fromkeys(graph.written(v), end))
        longest = max(longest, end)
    return longest


def _workload(plan: Plan) -> Json:
    solution = plan.solution
    leaves = [f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in plan.call.values]
    return {
        "loss": plan.loss.name,
        "arguments": len(leaves),
        "largest_arguments": sorted(set(leaves), key=leaves.index)[:4],
        "equations": len(plan.program.equations),
        "solver": solution.solver,
        "status": solution.status.value,
        "gap": solution.gap,
        "check": plan.check,
        "environment": environment.describe(),
    }


def _equivalence(plan: Plan, plain: Compiled, values: list[Any], seed: int) -> Json:
    """Loss and gradients of both programs under the same compiler options, output by output."""
    expected, found = plain.call(*values), plan.compiled.call(*values)
    primal = len(expected) - len(plan.call.differentiated)
    names = [
        "loss",
        *(f"aux {i}" for i in range(1, primal)),
        *(f"gradient of {plan.call.paths[i]}" for i in plan.call.differentiated),
    ]
    rows = [largest_difference(a, b) for a, b in zip(expected, found, strict=True)]
    worst = max(range(len(rows)), key=lambda i: rows[i].absolute)
    scale = max(float(jax.numpy.max(jax.numpy.abs(x), initial=0)) for x in expected[primal:])
    equal = all(row.bitwise for row in rows)
    atom = plan.program.outputs[worst]
    maker = plan.program.producer.get(atom) if isinstance(atom, int) else None
    where = None if equal or maker is None else plan.program.equations[maker]
    return {
        "seed": seed,
        "bitwise": equal,
        "outputs": len(rows),
        "outputs_bitwise": sum(row.bitwise for row in rows),
        "loss_difference": rows[0].absolute,
        "largest_absolute": rows[worst].absolute,
        "largest_relative": rows[worst].absolute / scale if scale else rows[worst].absolute,
        "differs_most": None if equal else names[worst],
        "made_by": None if where is None else f"{where.name} at {where.source_line}",
    }
