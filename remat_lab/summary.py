"""Plans and solutions in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from remat_lab.units import near, percent, seconds, size, sparkline
from solvers.graph import Graph
from solvers.simulate import simulate
from solvers.solution import Progress, Solution

if TYPE_CHECKING:
    from remat_lab.plans import Plan
    from remat_lab.promise import Round

_WIDTH = 72  # columns of the timeline
_SHOWN = 6  # recomputed values that are named


def summarise(plan: Plan) -> str:
    """What a plan keeps, recomputes and costs, in about ten lines."""
    predicted, solution = plan.predicted, plan.solution
    once = predicted.flops / (1 + predicted.extra_flops_ratio)
    verdict = "plain JAX, which is within the budget as compiled" if plan.unscheduled else _verdict(solution)
    lines = [
        f"plan of {plan.loss.name}: {verdict}, {seconds(plan.seconds)} s",
        *_memory(plan.budget_bytes, predicted.peak_bytes, predicted.keep_all_peak_bytes),
        *_compiled(plan.rounds),
        f"  with results    {size(predicted.total_bytes)}; arguments come on top",
        f"  extra FLOPs     {percent(predicted.extra_flops_ratio)} of {once:.3g}",
        *_loops(plan, once),
        *_proof(solution),
        *_recomputed(plan.graph, solution),
        *_policy(plan),
    ]
    if plan.compiler_options:
        given = ", ".join(f"{key}={value}" for key, value in plan.compiler_options.items())
        lines.append(f"  compile with    {given}")
    return "\n".join([*lines, *_timeline(predicted.live, predicted.starts_backward)])


def solution_as_text(graph: Graph, solution: Solution, keep_all_peak: int) -> str:
    """A solution of `solve`, in about ten lines.

    Args:
        graph: what was solved.
        solution: the answer.
        keep_all_peak: peak of the given order with everything kept, bytes.
    """
    order = solution.schedule.order
    result = simulate(graph, solution.schedule)
    boundary = next((p for p, v in enumerate(order) if graph.nodes[v].backward), None)
    lines = [
        f"{len(graph)} nodes: {_verdict(solution)}, {seconds(solution.seconds)} s",
        *_memory(solution.budget, solution.peak, keep_all_peak),
        f"  cost            {solution.cost:,.6g}; {solution.keep_all_cost:,.6g} when keeping everything",
        *_proof(solution),
        *_recomputed(graph, solution),
        *_timeline(result.live, boundary),
        *(f"  {key}: {value}" for key, value in solution.notes.items()),
    ]
    return "\n".join(lines)


def solution_as_json(graph: Graph, solution: Solution, keep_all_peak: int) -> dict[str, Any]:
    """A solution of `solve`, ready for JSON."""
    plain = ("solver", "cost", "peak", "peak_total", "keep_all_cost", "lower_bound", "scope", "budget", "seconds", "notes")
    return {
        **{key: getattr(solution, key) for key in plain},
        "status": solution.status.value,
        "gap": solution.gap,
        "overhead": solution.overhead,
        "keep_all_peak": keep_all_peak,
        "nodes": len(graph),
        "schedule": solution.schedule.to_json(),
    }


def describe_progress(what: str, now: Progress) -> str:
    """One report of a solver on one line."""
    if math.isnan(now.cost):
        return f"{what}: {now.solver}"
    if not math.isfinite(now.cost):
        return f"{what}: {now.solver}, no plan yet"
    line = f"{what}: {now.solver}, cost {now.cost:.4g}"
    if now.cost and math.isfinite(now.lower_bound):
        line += f", at most {percent((now.cost - now.lower_bound) / now.cost, sign=False)} above the best"
    return line


def _verdict(solution: Solution) -> str:
    return f"{solution.status.value} ({solution.solver})"


def _memory(budget: int | None, peak: int, keep_all_peak: int) -> list[str]:
    line = f"  planned peak    {size(peak)}"
    if keep_all_peak:
        line += f", {percent(peak / keep_all_peak, sign=False)} of the {size(keep_all_peak)} that keeping everything takes"
    return [f"  budget          {'none' if budget is None else size(budget)}", line]


def _compiled(rounds: tuple[Round, ...]) -> list[str]:
    """How the promise about the compiled program was kept."""
    if not rounds:
        return []
    earlier = ", ".join(size(attempt.compiled_bytes) for attempt in rounds[:-1])
    tried = f", after {earlier} for plans of {', '.join(size(r.planned_bytes) for r in rounds[:-1])}" if earlier else ""
    return [f"  compiled temp   {size(rounds[-1].compiled_bytes)}{tried}"]


def _proof(solution: Solution) -> list[str]:
    base = solution.keep_all_cost
    if not base:
        return []
    found, bound = solution.cost / base - 1, solution.lower_bound / base - 1
    claim = f"  extra cost      {percent(found)}; no plan within the budget is below {percent(bound)}"
    return [claim, f"                  (gap {percent(solution.gap, sign=False, digits=2)}, relative to {solution.scope})"]


def _loops(plan: Plan, once: float) -> list[str]:
    """How loops are differentiated that were replaced by nests."""
    share = [f"  loop            {percent(loop.extra_flops / once)} FLOPs: {near(str(loop))}" for loop in plan.loops[:_SHOWN]]
    more = len(plan.loops) - _SHOWN
    return [*share, *([f"                  and {more} more loops"] if more > 0 else [])]


def _recomputed(graph: Graph, solution: Solution) -> list[str]:
    again = solution.schedule.recomputed
    if not again:
        return ["  recomputed      nothing"]
    freed = sorted(again, key=lambda v: -sum(graph.nodes[w].charge for w in graph.written(v)))
    named = [f"{near(graph.nodes[v].name)}{f' ×{again[v]}' if again[v] > 1 else ''}" for v in freed[:_SHOWN]]
    more = f" and {len(freed) - _SHOWN} more" if len(freed) > _SHOWN else ""
    total = sum(again.values())
    often = f", {total} times in all" if total > len(again) else ""
    lines = [f"  recomputed      {len(again)} of {len(graph.steps)} steps{often}{'; the largest' if more else ''}:"]
    return [*lines, *(f"    {name}" for name in named), *([f"   {more}"] if more else [])]


def _policy(plan: Plan) -> list[str]:
    """What `apply` needs and costs, where it has been asked for."""
    held = plan.__dict__.get("applied_policy")
    if held is None:
        return []
    found = held.plan
    return [
        f"  as a policy     {size(found.peak_bytes)} at {percent(found.extra_flops_ratio)} FLOPs, "
        f"in {max(1, len(found.layout.root.children))} regions with {len(found.layout.names)} named values"
    ]


def _timeline(live: tuple[int, ...], boundary: int | None) -> list[str]:
    bars = sparkline(live, _WIDTH)
    lines = [f"  live bytes over {len(live)} steps, highest {size(max(live, default=0))}", f"  {bars}"]
    if boundary is not None and 0 < boundary < len(live):
        at = boundary * len(bars) // len(live)
        label = "backward pass begins"
        mark = f"{'':{at}}^ {label}" if at + len(label) + 2 <= len(bars) else f"{label} ^".rjust(at + 1)
        lines.append(f"  {mark}")
    return lines
