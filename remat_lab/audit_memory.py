"""What is in a step's memory, and for how long: the first, second and fourth question of an audit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax

from remat_lab.device_memory import Reserved, classify
from remat_lab.kept import kept_bytes
from remat_lab.measure import Compiled
from remat_lab.plans import Plan
from remat_lab.primitives import VIEWS

Json = dict[str, Any]


def classes(plan: Plan, reserved: Reserved) -> list[Json]:
    """The classes of memory and their bytes (question 1)."""
    temporaries, kept = plan.compiled_bytes, kept_bytes(plan.graph, plan.schedule)
    found = classify(plan.fused, plan.call, reserved or dict(plan.reserved), temporaries)
    rows = [{"name": name, "bytes": count} for name, count in found.rows() if name != "temporaries"]
    rows += [
        {"name": "retained activations", "bytes": min(kept, temporaries)},
        {"name": "workspace and transient values", "bytes": max(0, temporaries - kept)},
    ]
    stats = _device_stats()
    if stats is not None:
        rows.append({"name": "allocator reserve", "bytes": max(0, stats["pool_bytes"] - stats["bytes_in_use"])})
    return rows


def lifetimes(plan: Plan, top: int) -> list[Json]:
    """The largest values, each with what makes it, when it is there, and who reads it last (question 2)."""
    graph, order, program = plan.graph, plan.schedule.order, plan.program
    value_of = {node: value for value, node in plan.fused.node_of.items()}
    spans: dict[int, list[list[int]]] = {}
    reader: dict[int, int] = {}
    for p, v in enumerate(order):
        for u in graph.nodes[v].deps:
            spans[u][-1][1], reader[u] = p, v
        for w in graph.written(v):
            spans.setdefault(w, []).append([p, p])
    for o in graph.outputs:
        spans[o][-1][1] = len(order)
    views = Counter(_base(program, q.ins[0]) for q in program.equations if q.name in VIEWS and isinstance(q.ins[0], int))
    rows = []
    for v in sorted(spans, key=lambda v: (-graph.nodes[v].size, spans[v]))[:top]:
        node = graph.nodes[v]
        last = graph.nodes[reader[v]].name if v in reader else "nobody"
        rows.append(
            {
                "value": node.name,
                "bytes": node.size,
                "spans": spans[v],
                "last_reader": "the caller" if v in graph.outputs else last,
                "times_computed": len(spans[v]),
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


def peaks(plan: Plan, plain: Compiled) -> Json:
    """Planned against compiled, and a device's own count where there is one (question 4)."""
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


def _device_stats() -> dict[str, int] | None:
    stats = jax.devices()[0].memory_stats() if jax.default_backend() != "cpu" else None
    return stats if stats and "pool_bytes" in stats else None
