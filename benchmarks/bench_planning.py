"""Claim: planning is fast. On two cores ResNet-20 at half its memory is planned end to end in under 30 s, and a ResNet of 326
layers is traced and grouped in under 15 s.

Appends one line per run to benchmarks/results/planning.jsonl. Times are wall-clock: run it on a quiet machine.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import remat_lab as rl
from experiments.models import resnet
from remat_lab.api import analyse
from remat_lab.environment import describe
from remat_lab.trace import Loss

RESULTS = Path(__file__).parent / "results" / "planning.jsonl"
SOLVER_SECONDS = 20.0


def plan_resnet20() -> dict[str, object]:
    """Trace, fuse and solve at half the keep-all peak."""
    model = resnet.loss(depth=20, batch=32)
    plan = rl.plan(model.loss, *model.args, has_aux=True, budget=0.5, time_limit=SOLVER_SECONDS)
    return {
        "name": "plan ResNet-20 at 0.5",
        "seconds": plan.seconds,
        "status": plan.solution.status.value,
        "gap": plan.solution.gap,
        "overhead": plan.solution.overhead,
        "nodes": len(plan.graph),
    }


def analyse_resnet326() -> dict[str, object]:
    """Trace and fuse only."""
    model = resnet.loss(depth=326, batch=32)
    loss = Loss(model.loss, has_aux=True)
    start = time.perf_counter()
    fused = analyse(loss, loss.call(model.args, {}))
    return {
        "name": "trace and fuse ResNet-326",
        "seconds": time.perf_counter() - start,
        "equations": len(fused.program.equations),
        "nodes": len(fused.graph),
    }


def main() -> None:
    """Runs both, records them, then holds them to the claim."""
    rows = [analyse_resnet326(), plan_resnet20()]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        for row in rows:
            file.write(json.dumps({**row, "environment": describe()}) + "\n")
            print(
                ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
            )
    assert float(str(rows[0]["seconds"])) < 15, "tracing and grouping 326 layers took 15 s or more"
    assert float(str(rows[1]["seconds"])) < 30, "planning ResNet-20 took 30 s or more"


if __name__ == "__main__":
    main()
