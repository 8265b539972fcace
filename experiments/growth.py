"""Memory against the size of a model: every strategy planned, compiled or run at every depth or length.

A point says how far to go: "planned" predicts, "compiled" compiles as well, "run" runs the step on the device and asks its
allocator.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from experiments.models import lstm, mlp, resnet
from experiments.models.model import Model
from experiments.records import Point
from experiments.strategies import PLAIN, SHARED, UNSHARED, Subject, executed_bytes
from experiments.unrolled import loop
from remat_lab.measure import Compiled, device_peak, time_alternated
from remat_lab.plans import Plan
from remat_lab.targets import as_target

_ROUNDS = 5

Factory = Callable[..., Model]


def stages(depth: int) -> tuple[int, int, int, int]:
    """Bottleneck blocks in each stage of a residual network of `depth` layers, in the proportions of ResNet-200 (3, 24, 36, 3).

    Raises:
        ValueError: if the depth is not three layers a block and two more.
    """
    blocks, rest = divmod(depth - 2, 3)
    if rest or blocks < 4:
        raise ValueError(f"depth={depth} is not 3n + 2 with n >= 4: bottleneck blocks have three layers each")
    counts = [max(1, round(blocks * share / 66)) for share in (3, 24, 36, 3)]
    counts[2] += blocks - sum(counts)
    return counts[0], counts[1], counts[2], counts[3]


def _resnet(size: int, **options: Any) -> Model:
    return resnet.loss(stages=stages(size), bottleneck=True, stem="imagenet", **options)


def _mlp(size: int, **options: Any) -> Model:
    return mlp.loss(layers=size, **options)


def _lstm(size: int, **options: Any) -> Model:
    return lstm.loss(length=size, **options)


def _lstm_unrolled(size: int, **options: Any) -> Model:
    return lstm.loss(length=size, scan=loop, **options)


FACTORIES: Mapping[str, Factory] = {"resnet": _resnet, "mlp": _mlp, "lstm": _lstm, "lstm unrolled": _lstm_unrolled}


def points(
    model: str,
    sizes: Iterable[int],
    strategies: Sequence[str],
    level: str,
    target: str | None,
    *,
    time_limit: float = 20.0,
    **options: Any,
) -> list[Point]:
    """Points of one model: every strategy at every size, sizes first."""
    fixed = {"target": target, "time_limit": time_limit, "options": options}
    return [
        {"model": model, "size": size, "strategy": strategy, "level": level, **fixed}
        for size in sizes
        for strategy in strategies
    ]


def weight(point: Point) -> float:
    """Compiling takes some ten times as long as planning."""
    return float(point["size"]) * (1 if point["level"] == "planned" else 10)


def measure(point: Point) -> dict[str, Any]:
    """One strategy at one size: bytes, and extra work relative to computing everything once.

    Raises:
        InfeasibleBudget: if the strategy's budget is too small.
    """
    subject = _subject(point["model"], point["size"], point["target"], tuple(sorted(point["options"].items())))
    strategy, level = point["strategy"], point["level"]
    program = subject.planner.fused.program
    fixed = {
        "argument_bytes": sum(program.bytes[v] for v in program.inputs),
        "equations": len(program.equations),
        "steps": len(subject.planner.fused.graph.steps),
    }
    if strategy in (UNSHARED, SHARED):
        return {**fixed, "planned_bytes": executed_bytes(program)[strategy]}
    plan = None if strategy == PLAIN else subject.plan(strategy, time_limit=point["time_limit"])
    result = {**fixed, **({} if plan is None else _planned(plan))}
    if level != "planned":
        compiled = subject.compile(plan)
        result |= {**_compiled(compiled), "device_bytes": _device_bytes(point["target"])}
        if level == "run":
            result |= _run(subject, plan, compiled)
    return result


@cache
def _traced(model: str, size: int, target: str | None, options: tuple[tuple[str, Any], ...]) -> Subject:
    return Subject.of(FACTORIES[model](size, **dict(options)), target)


def _subject(model: str, size: int, target: str | None, options: tuple[tuple[str, Any], ...]) -> Subject:
    """The traced model; only the latest is kept, since deep ones are large."""
    if (model, size, target, options) != _latest.get("key"):
        _traced.cache_clear()
        _latest["key"] = model, size, target, options
    return _traced(model, size, target, options)


_latest: dict[str, Any] = {}


def _planned(plan: Plan) -> dict[str, Any]:
    predicted, solution = plan.predicted, plan.solution
    return {
        "planned_bytes": predicted.peak_bytes,
        "planned_total_bytes": predicted.total_bytes + sum(plan.program.bytes[v] for v in plan.program.inputs),
        "keep_all_bytes": predicted.keep_all_peak_bytes,
        "extra_cost": solution.overhead,
        "extra_flops": predicted.extra_flops_ratio,
        "gap": solution.gap,
        "status": solution.status.value,
        "solver": solution.solver,
        "plan_seconds": plan.solution.seconds,
    }


def _compiled(compiled: Compiled) -> dict[str, Any]:
    return {
        "temp_bytes": compiled.temp_bytes,
        "total_bytes": compiled.total_bytes,
        "output_bytes": compiled.output_bytes,
        "compiled_flops": compiled.flops,
        "compile_seconds": compiled.seconds,
    }


def _device_bytes(target: str | None) -> int | None:
    """The memory of the device that a step is compiled for; None where nothing is known, as for the CPU."""
    chosen = as_target(target)
    if target is not None:
        return None if chosen.facts is None else chosen.facts.memory_bytes
    device = chosen.here()
    stats = None if device is None else device.memory_stats()
    return int(stats["bytes_limit"]) if stats and "bytes_limit" in stats else None


def _run(subject: Subject, plan: Plan | None, compiled: Compiled) -> dict[str, Any]:
    """Runs on the device that is here: real peak and step time."""
    args = subject.made.materialise()
    if plan is not None:
        args = plan.loss.call(args, {}).values  # the compiled step of a plan takes arrays, not the trees they are in
    peak = device_peak(lambda: compiled.call(*args), as_target(subject.planner.target).here())
    seconds = time_alternated({"step": lambda: compiled.call(*args)}, rounds=_ROUNDS)["step"]
    return {"device_peak_bytes": peak, "step_seconds": statistics.median(seconds), "step_seconds_all": seconds}
