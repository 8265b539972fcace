"""Claim: on the CPU a plan at half of the keep-all peak is no slower than plain JAX, on any of the unrolled models.

Each model is planned at 0.5 as `rl.plan` does by default, held to its budget as compiled, and timed against plain JAX
(`jax.jit(jax.value_and_grad(loss))` with the default compiler options) in alternation. As in training, each timed step follows
one of the same program: right after plain JAX, whose memory takes the place of the plan's in the caches, a plan is slower.
What counts is the median over rounds of the ratio in the same round. With --same-options plain JAX under the options that the
plan is compiled with is timed as well, to tell the scheduler's part from the plan's.

Each model has a process of its own. Part of what plain JAX pays for its memory is that the system hands out large blocks anew
at each step, and a process that has freed much memory before may get them from that instead. With --kept-memory glibc gives
nothing back, so that neither program pays; nothing is claimed of that.

Appends one line per model to benchmarks/results/step_time.jsonl. Options: --model NAME, repeatable; --rounds N, of which short
steps get more, until they were timed for 4 s; --budget FRACTION. Times are wall-clock: run it on a quiet machine. A row
has the load that the machine had before.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import remat_lab as rl
from experiments.isolated import Killed, call_apart
from experiments.models import dropout_mlp, gru, lstm, mlp, resnet, transformer, unet
from experiments.models.model import Model
from experiments.unrolled import loop
from remat_lab.environment import describe
from remat_lab.measure import compile_program, time_alternated

RESULTS = Path(__file__).parent / "results" / "step_time.jsonl"
SOLVER_SECONDS = 10.0
TIMED_SECONDS = 4.0  # of a short step, at least
KEPT_MEMORY = {  # one arena, grown by brk only
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
MODELS: dict[str, Callable[[], Model]] = {
    "resnet20": lambda: resnet.loss(depth=20, batch=32),
    "resnet50": lambda: resnet.loss(**resnet.RESNET50, batch=8),
    "unet": lambda: unet.loss(),
    "transformer2": lambda: transformer.loss(layers=2),
    "transformer6": lambda: transformer.loss(layers=6),
    "mlp": lambda: mlp.loss(),
    "dropout_mlp": lambda: dropout_mlp.loss(),
    "lstm": lambda: lstm.loss(scan=loop, layers=4, hidden=128, length=16, batch=256),
    "gru": lambda: gru.loss(scan=loop, length=32, batch=256),
}


def measure(name: str, budget: float, rounds: int, same_options: bool = False) -> dict[str, Any]:
    """Plans one model and times the plan against plain JAX."""
    model = MODELS[name]()
    plan = rl.plan(
        model.loss, *model.args, argnums=model.argnums, has_aux=model.has_aux, budget=budget, time_limit=SOLVER_SECONDS
    )
    plain = jax.value_and_grad(model.loss, model.argnums, model.has_aux)
    options = plan.compiler_options
    programs = {"plan": plan.compiled, "plain": compile_program(plain, *model.args)}
    if same_options:
        programs["plain, plan's options"] = compile_program(plain, *model.args, compiler_options=options)
    args = model.materialise(0)
    given = dict.fromkeys(programs, args) | {"plan": plan.loss.call(args, {}).values}  # compiled for the traced leaves
    thunks = {title: lambda title=title: programs[title].call(*given[title]) for title in programs}
    load = os.getloadavg()[0]
    once = sum(runs[-1] for runs in time_alternated(thunks, rounds=1).values())
    rounds = max(rounds, int(TIMED_SECONDS / once))
    seconds = time_alternated(thunks, rounds=rounds)
    ratios = [a / b for a, b in zip(seconds["plan"], seconds["plain"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "model": name,
        "budget": budget,
        "budget_bytes": plan.budget_bytes,
        "status": plan.solution.status.value,
        "unscheduled": plan.unscheduled,
        "compiler_options": options,
        "planned_extra_flops_ratio": plan.predicted.extra_flops_ratio,
        "planned_extra_cost_ratio": plan.solution.overhead,
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [low, high],
        "ratio_of_medians": statistics.median(seconds["plan"]) / statistics.median(seconds["plain"]),
        "programs": {
            title: {"temp_bytes": p.temp_bytes, "flops": p.flops, "median_seconds": statistics.median(seconds[title])}
            for title, p in programs.items()
        },
        "rounds": rounds,
        "load": load,
        "seconds": seconds,
        "environment": describe(),
    }


def as_text(row: dict[str, Any]) -> str:
    """One line of the table."""
    times = ", ".join(f"{title} {p['median_seconds'] * 1e3:.1f} ms" for title, p in row["programs"].items())
    low, high = row["ratio_quartiles"]
    plan, plain = row["programs"]["plan"]["temp_bytes"], row["programs"]["plain"]["temp_bytes"]
    kind = "plain step" if row["unscheduled"] else f"{row['planned_extra_flops_ratio']:+.1%} FLOPs"
    return (
        f"{row['model']:<13} {row['ratio']:6.1%} of plain JAX's time ({low:.1%} to {high:.1%}); {times}; "
        f"{plan / 1e6:.1f} MB against {plain / 1e6:.1f} MB; {kind}; load {row['load']:.1f}"
    )


def main() -> int:
    """Measures what is asked for, each model in a process of its own, then holds it to the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS, help="only this model")
    parser.add_argument("--budget", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--same-options", action="store_true", help="time plain JAX under the plan's compiler options, too")
    parser.add_argument("--kept-memory", action="store_true", help="let the allocator keep all that it got from the system")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where to append")
    options = parser.parse_args()
    if options.kept_memory:
        os.environ |= KEPT_MEMORY  # glibc reads it where a process starts
    slow = []
    for name in options.model or MODELS:
        row = call_apart(measure, name, options.budget, options.rounds, options.same_options)
        if isinstance(row, Killed):
            raise SystemExit(f"{name}: {row.reason}")
        row |= {"kept_memory": options.kept_memory}
        options.out.parent.mkdir(exist_ok=True)
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(as_text(row), flush=True)
        if row["ratio"] > 1:
            slow.append(name)
    print("slower than plain JAX: " + ", ".join(slow) if slow else "no plan is slower than plain JAX")
    return 1 if slow and not options.kept_memory else 0


if __name__ == "__main__":
    raise SystemExit(main())
