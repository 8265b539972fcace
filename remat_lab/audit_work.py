"""What a step computes again, what it must not, and at what price: the third and fifth question of an audit."""

from __future__ import annotations

from collections import Counter
from typing import Any

from remat_lab.plans import Plan
from remat_lab.primitives import forbids_replay
from remat_lab.replay import Replay, classify

Json = dict[str, Any]


def semantics(plan: Plan, top: int) -> Json:
    """The classes of equations, and which of them run once for what reason (question 3)."""
    equations, again = plan.program.equations, plan.schedule.recomputed
    counts = Counter(classify(q.eqn) for q in equations)
    repeated = Counter(classify(equations[k].eqn) for v in again for k in plan.fused.groups[v].equations)
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


def price(plan: Plan, top: int) -> Json:
    """Steps, FLOPs, bytes and critical path of the recomputation (question 5)."""
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
