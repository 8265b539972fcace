"""Claim: under "at most one extra forward" a 16 GB device takes larger batches planned than by plain JAX, held as compiled.

For VGG19, ResNet-50 and MobileNet at 224 x 224 and the U-Net of 416 x 608, the networks of the Checkmate paper (MLSys 2020,
section 6.4): the largest batch whose plan recomputes no more than one forward pass costs and compiles within 16 GB (10^9
bytes), plain JAX's largest, and the paper's. Ours and the paper's count parameters, gradients and the batch itself in the 16
GB, all of them float32. What differs:

- The paper's sizes are those of Keras layers, of which an activation is part; ours are arrays that XLA writes. XLA keeps what a
  ReLU reads and what it writes, two arrays for the paper's one, until a plan drops the second.
- The paper plans one value per layer and trusts the sum of sizes; here the compiled program's own memory is counted: fragments,
  and on the CPU the scratch of convolutions. On GPUs cuDNN's work space is in neither.
- Pooling of 2 x 2 pixels is a maximum over axes here: XLA writes several arrays for the gradient of pooling, cuDNN none.
- The paper counts FLOPs; "flops" does so here, "roofline" charges what is bound by memory too.

Appends to benchmarks/results/max_batch.jsonl what is not there yet; compiles only, nothing is run. Options: --model NAME and
--costs NAME, repeatable; --target NAME (the CPU, or `benchmarks/v100.toml`, with the extra gpu-target); --time-limit SECONDS
for each batch that is tried; --steps rules, where asking a GPU's compiler for each batch takes too long.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from remat_lab.quiet import quiet_without_devices

quiet_without_devices()

import jax  # noqa: E402 - after the above, or JAX looks for devices that are not here

import remat_lab as rl  # noqa: E402
from experiments.models import mobilenet, resnet, vgg, vgg_unet  # noqa: E402
from experiments.models.model import Model  # noqa: E402
from remat_lab.environment import describe  # noqa: E402
from remat_lab.max_batch import Attempt  # noqa: E402
from remat_lab.measure import compile_program  # noqa: E402
from remat_lab.targets import Target  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "max_batch.jsonl"
DEVICE_BYTES = 16_000_000_000
COSTS = ("flops", "roofline")


@dataclass(frozen=True)
class Case:
    """A model of the paper.

    Attributes:
        make: the model at a batch size.
        published: the paper's largest batch.
        start: where the search begins.
    """

    make: Callable[[int], Model]
    published: int
    start: int


CASES = {
    "vgg19": Case(lambda batch: vgg.loss(batch=batch), 289, 128),
    "unet": Case(lambda batch: vgg_unet.loss(batch=batch), 57, 16),
    "mobilenet": Case(lambda batch: mobilenet.loss(batch=batch), 1105, 512),
    "resnet50": Case(lambda batch: resnet.loss(**resnet.RESNET50, batch=batch), 193, 128),
}
Row = dict[str, Any]


def plain(case: Case, target: Target) -> Row:
    """Plain JAX's largest batch: sizes grow evenly with it, so two programs say where to look, and more confirm it."""

    @cache
    def whole(batch: int, scheduler: str) -> int:
        """Bytes of the whole program."""
        model, options = case.make(batch), target.schedulers[scheduler]
        step = jax.value_and_grad(model.loss, model.argnums, model.has_aux)
        return compile_program(step, *model.args, target=target, compiler_options=options).total_bytes

    low, other = case.start // 4, case.start // 8
    scheduler = min(target.schedulers, key=lambda name: whole(low, name))
    slope = (whole(low, scheduler) - whole(other, scheduler)) / (low - other)
    high: int | None = None
    while high is None or high - low > 1:
        guess = max(low + 1, low + int((DEVICE_BYTES - whole(low, scheduler)) / slope))
        guess = guess if high is None else min(guess, high - 1)
        if whole(guess, scheduler) <= DEVICE_BYTES:
            low = guess
        else:
            high = guess
    return {"batch": low, "total_bytes": whole(low, scheduler), "scheduler": scheduler}


def planned(case: Case, target: Target, costs: str, seconds: float, steps: str) -> Row:
    """The largest batch under at most one extra forward pass."""

    def tell(attempt: Attempt) -> None:
        how = "compiled" if attempt.compiled else "planned"
        print(f"  {how} {attempt.batch}: {attempt.reason or f'fits, {attempt.extra_cost_ratio:+.1%}'}"[:400], flush=True)

    found = rl.max_batch(
        case.make,
        DEVICE_BYTES,
        max_extra_cost="forward",
        start=case.start,
        time_limit=seconds,
        costs=costs,
        target=target,
        steps=steps,
        progress=tell,
    )
    row: Row = {"batch": found.batch, "attempts": len(found.attempts), "steps": steps}
    if found.plan is not None:
        graph = found.plan.graph
        forward = sum(graph.nodes[v].cost for v in graph.steps if not graph.nodes[v].backward)
        row |= {
            "total_bytes": found.plan.compiled.total_bytes,
            "temp_bytes": found.plan.compiled_bytes,
            "planned_temp_bytes": found.plan.planned_bytes,
            "extra_cost": found.plan.solution.overhead,
            "extra_forwards": found.plan.solution.overhead * graph.keep_all_cost / forward,
            "extra_flops": found.plan.predicted.extra_flops_ratio,
            "parameters_bytes": found.plan.memory.parameters,
        }
    return row


def as_text(rows: dict[str, Row], name: str) -> str:
    """One line of the table."""
    parts = [f"{name:<10} Checkmate's paper {CASES[name].published:5}"]
    for what, row in rows.items():
        part = f"{what} {row['batch']:5}"
        if "extra_forwards" in row:
            part += f" (+{row['extra_forwards']:.2f} forward, compiled {row['total_bytes'] / 1e9:.2f} GB)"
        parts.append(part)
    return ", ".join(parts)


def main() -> int:
    """Makes the missing rows, prints all that were asked for, and holds them to the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=CASES)
    parser.add_argument("--costs", action="append", choices=COSTS)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--steps", default="auto")
    parser.add_argument("--time-limit", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    target = Target.named(given.target)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = {(row["target"], row["model"], row["what"]): row for row in map(json.loads, lines)}
    found: list[str] = []
    for name in given.model or CASES:
        rows: dict[str, Row] = {}
        for what in ("plain", *(given.costs or COSTS)):
            key = (target.name, name, what)
            if key not in known:
                case = CASES[name]
                made = plain(case, target) if what == "plain" else planned(case, target, what, given.time_limit, given.steps)
                head = {"target": target.name, "model": name, "what": what, "published": case.published}
                known[key] = {**head, "device_bytes": DEVICE_BYTES, **made, "environment": describe()}
                given.out.parent.mkdir(exist_ok=True)
                with given.out.open("a") as file:
                    file.write(json.dumps(known[key]) + "\n")
            rows[what] = known[key]
        print(as_text(rows, name), flush=True)
        for what, row in rows.items():
            if row["batch"] and row["total_bytes"] > DEVICE_BYTES:
                found.append(f"{name}, {what}: {row['total_bytes']} bytes do not fit")
            if what != "plain" and row["batch"] <= rows["plain"]["batch"]:
                found.append(f"{name}, {what}: a batch of {row['batch']}, plain JAX's is {rows['plain']['batch']}")
            if row.get("extra_forwards", 0) > 1 + 1e-9:
                found.append(f"{name}, {what}: recomputes {row['extra_forwards']:.3f} forward passes")
    for miss in found:
        print("FAILS", miss)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
