"""Claim: deep networks are planned in seconds, near the proven bound for any order, and planning grows no worse than n log n.

Parts, each a function below, run in a process of its own; `--parts` chooses some:

- depth: ResNets of 110, 326 and 1,001 layers at three tenths of their memory: seconds of tracing, grouping and planning; not
  polished, which takes what time it is given.
- curve: the 1,001-layer network (bottlenecks in stages of 10, 100, 213 and 10; 32 images of 224 x 224) from 12 to 1.6 GB.
- language: a GPT-like network of 48 unrolled layers, and one of 96 layers in one scan.
- emission: programs of growing numbers of steps, traced and lowered.
- small: networks for which exact solvers prove optima: what the blocks cost beside the best known.
- published: planning graphs of ../shared, where these are.
- compiled: points of the curve as compiled on this CPU, not run: minutes each. Only if named (`make bench-thousand`).

Memory is that of temporaries: results, 1.27 GB of gradients among them, are not in it. Costs are FLOPs. Seconds are those of
the processor, which other work on the machine hardly changes; planning uses one core unless said otherwise.

Appends a line per row to benchmarks/results/hierarchical.jsonl. What is recorded is not measured again without --fresh.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax

from experiments.isolated import Killed, call_apart
from experiments.models import resnet, scan_transformer, transformer, unet
from experiments.models.model import Model
from remat_lab.api import analyse
from remat_lab.environment import describe
from remat_lab.flatten import flatten
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from remat_lab.pricing import fuse_priced
from remat_lab.trace import Loss
from solvers import Graph, solve
from solvers.lending import lend
from solvers.simulate import keep_all_peak

RESULTS = Path(__file__).parent / "results" / "hierarchical.jsonl"
SHARED = Path(__file__).resolve().parents[2] / "shared" / "graphs"
THOUSAND: dict[str, Any] = {"stages": (10, 100, 213, 10), "bottleneck": True, "stem": "imagenet", "image": 224, "width": 64}
THOUSAND |= {"classes": 1000, "batch": 32}
GPT: dict[str, Any] = {"batch": 8, "length": 1024, "width": 1024, "heads": 16, "vocabulary": 8192}
CURVE = (12.0, 8.0, 6.5, 4.5, 3.3, 2.8, 2.4, 2.0, 1.6)  # GB
COMPILED = (6.5, 4.5, 3.3, 2.4)
SMALL: dict[str, Callable[[], Model]] = {
    "ResNet-20": lambda: resnet.loss(depth=20),
    "ResNet-32": lambda: resnet.loss(depth=32),
    "ResNet-56": lambda: resnet.loss(depth=56),
    "transformer, 6 layers": lambda: transformer.loss(layers=6),
    "U-Net": unet.loss,
}
PUBLISHED = (("resnet50_b256", 0.9), ("resnet50_b256", 0.8), ("resnet50_b256", 0.5), ("random_layered_1000", 0.8))
SECONDS = {"depth": 90, "curve": 90, "language": 60}
MEMORY_GB = 4
CLAIMS = {3.3: 0.25, 2.4: 0.45}  # GB: extra FLOPs at most
OVER_BOUND = 0.01  # at 6.5 GB
LIMITS: dict[str, Any] = {"work_limit": 0.5, "time_limit": 600.0}  # some windows polished, however busy the machine is
UNPOLISHED = 0.001  # work
PATIENT: dict[str, Any] = {"work_limit": 10.0, "time_limit": 3600.0, "workers": 1}
PROVING: dict[str, Any] = {**PATIENT, "work_limit": 40.0}
BRISK: dict[str, Any] = {**PATIENT, "work_limit": 4.0}  # some 20 s for graphs of some hundred steps
Row = dict[str, Any]
Task = tuple[str, float, Callable[[], Row]]  # of one row: name, budget, and how it is measured


class Clock:
    """Processor seconds of this process since the last look."""

    def __init__(self) -> None:
        self.at = time.process_time()

    def __call__(self) -> float:
        """Looks."""
        now = time.process_time()
        seconds, self.at = now - self.at, now
        return seconds


def memory_gb() -> float:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def analysed(model: Model) -> tuple[Planner, Row]:
    """A model traced and grouped, as `rl.plan` does it, with the seconds of each."""
    loss = Loss(model.loss, has_aux=model.has_aux)
    call, clock = loss.call(model.args, {}), Clock()
    traced = loss.trace(call)
    seconds = {"trace_seconds": clock()}
    fused = fuse_priced(flatten(traced.jaxpr).abstract(), "flops", primal_outputs=traced.primal_outputs)
    planner = Planner(loss, call, fused, costs="flops", analyse=lambda other: analyse(other, call, costs="flops"))
    return planner, {**seconds, "fuse_seconds": clock()}


@cache
def thousand() -> tuple[Planner, Row]:
    """The network of 1,001 layers."""
    return analysed(resnet.loss(**THOUSAND))


def planned(planner: Planner, budget: int, *, solver: str = "hierarchical", **limits: Any) -> tuple[Plan, Row]:
    """A plan for one budget, and what is to be said about it."""
    clock = Clock()
    plan = planner.plan(budget, solver=solver, check="planned", **{**LIMITS, **limits})
    solution = plan.solution
    return plan, {
        "nodes": len(plan.graph),
        "steps": len(solution.schedule.order),
        "budget_gb": budget / 1e9,
        "planned_gb": solution.peak / 1e9,
        "overhead": solution.overhead,
        "bound": solution.lower_bound / solution.keep_all_cost - 1,
        "scope": solution.scope,
        "plan_seconds": clock(),
        "memory_gb": memory_gb(),
        "notes": solution.notes,
    }


def depth() -> Iterator[Task]:
    """ResNets of growing depth."""

    def measure(arguments: dict[str, Any]) -> Row:
        planner, seconds = thousand() if arguments is THOUSAND else analysed(resnet.loss(**arguments))
        row = planned(planner, int(0.3 * planner.keep_all_peak_bytes), work_limit=UNPOLISHED)[1]
        return {**seconds, **row}

    for layers, arguments in ((110, {"depth": 110}), (326, {"depth": 326}), (1001, THOUSAND)):
        yield f"ResNet-{layers}", 0.3, partial(measure, arguments)


def curve() -> Iterator[Task]:
    """Memory against work for 1,001 layers."""

    def measure(gb: float) -> Row:
        planner, seconds = thousand()
        return {**seconds, **planned(planner, int(gb * 1e9))[1]}

    yield from (("ResNet-1001", gb, partial(measure, gb)) for gb in CURVE)


def compiled() -> Iterator[Task]:
    """Points of the curve as compiled: plans for so much that what they are predicted to compile to is within the budget."""

    def measure(gb: float) -> Row:
        budget = asked = int(gb * 1e9)
        while True:
            plan, row = planned(thousand()[0], asked)
            row |= {"budget_gb": gb, "asked_gb": asked / 1e9, "predicted_gb": plan.predicted.temp_bytes / 1e9}
            print(f"asked for {asked / 1e9:.3f} GB: predicted {row['predicted_gb']:.3f} GB", flush=True)
            if plan.predicted.temp_bytes <= budget:
                break
            asked = min(asked, plan.planned_bytes) - (plan.predicted.temp_bytes - budget)
        clock = Clock()
        return {**row, "compiled_gb": plan.compiled_bytes / 1e9, "compile_seconds": clock()}

    yield from (("ResNet-1001", gb, partial(measure, gb)) for gb in COMPILED)


def placed() -> Iterator[Task]:
    """What is predicted where XLA's block of memory has holes: a network that compiles in a minute."""

    def measure(share: float) -> Row:
        planner, _ = analysed(resnet.loss(**{**THOUSAND, "stages": (3, 16, 32, 3)}))
        plan, row = planned(planner, int(share * planner.keep_all_peak_bytes))
        live = max(lend(plan.graph, plan.schedule).live)
        return {
            **row,
            "live_gb": live / 1e9,
            "predicted_gb": plan.predicted.temp_bytes / 1e9,
            "compiled_gb": plan.compiled_bytes / 1e9,
        }

    yield from (("ResNet-164", share, partial(measure, share)) for share in (0.25, 0.15, 0.1))


def language() -> Iterator[Task]:
    """Language models, unrolled and as a scan beside unrolled code, by `auto`."""

    def measure(make: Callable[..., Model], layers: int) -> Row:
        began = time.perf_counter()
        planner, seconds = analysed(make(layers=layers, **GPT))
        limits = {"work_limit": None, "time_limit": 30.0}
        row = planned(planner, int(0.2 * planner.keep_all_peak_bytes), solver="auto", **limits)[1]
        return {**seconds, **row, "wall_seconds": time.perf_counter() - began}

    yield "GPT-like, 48 layers", 0.2, partial(measure, transformer.loss, 48)
    yield "GPT-like, scan of 96 layers", 0.2, partial(measure, scan_transformer.loss, 96)


def emission() -> Iterator[Task]:
    """Lowering of emitted programs."""

    def measure(layers: int) -> Row:
        model = resnet.loss(depth=layers, batch=8)
        planner, _ = analysed(model)
        plan, row = planned(planner, int(0.5 * planner.keep_all_peak_bytes), work_limit=UNPOLISHED)
        clock = Clock()
        jax.jit(plan.value_and_grad()).lower(*model.args)
        return {"steps": row["steps"], "lower_seconds": clock(), "memory_gb": memory_gb()}

    yield from ((f"ResNet-{layers}", 0.5, partial(measure, layers)) for layers in (326, 656, 1304))


def small() -> Iterator[Task]:
    """Blocks beside what `intervals` proves, or the best that it finds."""

    def measure(name: str, share: float) -> Row:
        graph = analysed(SMALL[name]())[0].fused.graph
        return beside(graph, int(share * keep_all_peak(graph)), PATIENT, "intervals", **PROVING)

    for name in SMALL:
        for share in (0.7, 0.5, 0.35):
            yield name, share, partial(measure, name, share)


def published() -> Iterator[Task]:
    """Graphs that others plan, too."""

    def measure(path: Path, share: float) -> Row:
        graph = Graph.load(path)
        return beside(graph, int(share * keep_all_peak(graph)), BRISK, "auto", workers=2, time_limit=60.0)

    for name, share in PUBLISHED:
        path = SHARED / f"{name}.json"
        if path.exists():
            yield name, share, partial(measure, path, share)
        else:
            print(f"{path.name} is not there: no row", flush=True)


def beside(graph: Graph, budget: int, own: dict[str, Any], other: str, **limits: Any) -> Row:
    """`hierarchical` with limits of its own, and another solver that starts from its schedule."""
    clock, began = Clock(), time.perf_counter()
    found = solve(graph, budget, "hierarchical", **own)
    row = {
        "steps": len(graph.steps),
        "overhead": found.overhead,
        "bound": found.lower_bound / found.keep_all_cost - 1,
        "plan_seconds": clock(),
        "wall_seconds": time.perf_counter() - began,
        "notes": found.notes,
    }
    best = solve(graph, budget, other, starts=[found.schedule.order], **limits)
    facts = {"best_overhead": best.overhead, "best_bound": best.lower_bound / best.keep_all_cost - 1}
    return {
        **row,
        "best_by": other,
        **facts,
        "best_status": best.status.value,
        "best_scope": best.scope,
        "best_notes": best.notes,
    }


PARTS = {part.__name__: part for part in (depth, curve, placed, language, emission, small, published, compiled)}


def recorded() -> dict[tuple[str, str, float], Row]:
    """The rows of the file, the last of each kind."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {(row["part"], row["name"], row["at"]): row for row in rows}


def run(part: str, fresh: bool, only: list[float] | None) -> bool:
    """Measures and records a part's rows."""
    known = {} if fresh else recorded()
    for name, at, measure in PARTS[part]():
        if (part, name, at) not in known and (only is None or at in only):
            row = {"part": part, "name": name, "at": at, **measure()}
            RESULTS.parent.mkdir(exist_ok=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps({**row, "environment": describe()}) + "\n")
            print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    return True


def check(rows: dict[tuple[str, str, float], Row]) -> None:
    """Holds what is recorded to the claims."""
    for (part, name, at), row in rows.items():
        what = f"{part}: {name} at {at}"
        if "planned_gb" in row:
            assert row["planned_gb"] <= row["budget_gb"], f"{what} exceeds its budget"
        if part == "small" and row["best_status"] == "optimal":
            assert 1 + row["overhead"] <= 1.03 * (1 + row["best_overhead"]), f"{what} costs over 3 % more than the optimum"
        if part == "published" and name != "random_layered_1000":
            assert 1 + row["overhead"] <= 1.05 * (1 + row["best_overhead"]), f"{what} costs over 5 % more than the best known"
            assert row["plan_seconds"] < 30, f"{what} took {row['plan_seconds']:.0f} s"
        if part in ("depth", "curve", "language"):
            seconds = row["trace_seconds"] + row["fuse_seconds"] + row["plan_seconds"]
            assert seconds < SECONDS[part], f"{what} took {seconds:.0f} s"
            assert row["memory_gb"] < MEMORY_GB, f"planning {what} took {row['memory_gb']:.1f} GB"
        if part == "curve":
            most = CLAIMS.get(at, row["bound"] + OVER_BOUND if at == 6.5 else math.inf)
            assert row["overhead"] <= most, f"{what} recomputes {row['overhead']:.1%}"
        if part == "compiled":
            expected = row.get("predicted_gb", row["planned_gb"])
            assert abs(row["compiled_gb"] / expected - 1) <= 0.05, f"{what} compiles to {row['compiled_gb']:.2f} GB"
            assert row["overhead"] <= CLAIMS.get(at, math.inf), f"{what} recomputes {row['overhead']:.1%}"
    for part, first, last, key in (
        *(("depth", "ResNet-110", "ResNet-1001", f"{key}_seconds") for key in ("trace", "fuse", "plan")),
        ("emission", "ResNet-326", "ResNet-1304", "lower_seconds"),
    ):
        pair = [row for (p, name, _), row in rows.items() if p == part and name in (first, last)]
        if len(pair) == 2:
            few, many = (row[key] / (row["steps"] * math.log(row["steps"])) for row in sorted(pair, key=lambda r: r["steps"]))
            assert many <= 2 * few, f"{part}: {key} grows faster than n log n: {few:.2e} and {many:.2e} for each"


def main() -> None:
    """Runs the parts, then holds all that is recorded to the claims."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[part for part in PARTS if part != "compiled"])
    parser.add_argument("--at", type=float, nargs="+", help="only these budgets, in GB or shares as the part has them")
    parser.add_argument("--fresh", action="store_true", help="measure again what is recorded")
    options = parser.parse_args()
    for part in options.parts:
        answer = call_apart(run, part, options.fresh, options.at)
        if isinstance(answer, Killed):
            raise SystemExit(f"{part}: {answer.reason}")
    check(recorded())


if __name__ == "__main__":
    main()
