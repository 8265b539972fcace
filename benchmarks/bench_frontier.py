"""Claim: the frontier of plans is nowhere worse than plain JAX, its policies or nn.remat in the same memory as compiled.

For every baseline, under each of the backend's schedulers, some plan must compile to no more memory than the baseline takes
there at no more modelled cost, and some plan at no more FLOPs by XLA's cost analysis (to which loops' later trips are added,
since it counts a body once). A baseline that is better than every schedule is a plan itself; where that happened is said, with
what the schedules alone fall short by. Along the schedules, from the smallest budget up, the compiled memory must not fall.

Appends one JSON line per model to benchmarks/results/frontier.jsonl and draws a picture of each; models that are there already
are only held to the claim, so an interrupted run goes on where it stopped. Compiles only, nothing is run: a busy machine
changes no figure but the plans that the solver finds in time. Options: --model NAME, repeatable; --points N budgets between the
smallest and keeping all; --time-limit SECONDS for each search; --out FILE.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import remat_lab as rl
from experiments.models.resnet import RESNET50
from remat_lab.models import build
from remat_lab.plot_frontier import picture

BUDGETS = {"resnet50": (0.3, 0.5, 0.7, 1.0)}  # where it takes too long to find the smallest: each compilation takes a minute
RESULTS = Path(__file__).parent / "results" / "frontier.jsonl"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet20": ("resnet", {"depth": 20, "batch": 32}),
    "resnet50": ("resnet", RESNET50 | {"batch": 8}),
    "transformer": ("transformer", {"layers": 6, "batch": 8, "length": 512, "width": 512, "vocabulary": 4096}),
    "unet": ("unet", {}),
    "lstm": ("lstm", {"length": 64}),
}


def measure(name: str, points: int, seconds: float, folder: Path) -> dict[str, Any]:
    """The frontier of one model, and its picture."""
    factory, options = MODELS[name]
    made = build(factory, options)
    found = rl.frontier(
        made.loss,
        *made.args,
        blocks=made.blocks,
        argnums=made.argnums,
        has_aux=made.has_aux,
        budgets=BUDGETS.get(name),
        points=points,
        time_limit=seconds,
        title=" ".join([factory, *(f"{key}={value}" for key, value in options.items())]),
        progress=lambda what, done, total: print(f"  [{done}/{total}] {what}", flush=True) if "compile" in what else None,
    )
    data = {"model": name, **found.to_json()}
    picture(data, folder / f"frontier_{name}.png")
    print(found)
    return data


def as_text(model: str, excess: dict[str, Any]) -> str:
    """Where a baseline is better than all plans, and by how much."""
    where = f"{model}: {excess['baseline']} under the {excess['scheduler']} scheduler"
    if excess["plan"] is None:
        return f"{where} takes less memory than any plan"
    return f"{where} has {excess['amount']:.2%} less {excess['measure']} than {excess['plan']}"


def main() -> int:
    """Makes the missing frontiers, then holds all that were asked for to the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--points", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = {row["model"]: row for row in map(json.loads, lines)}
    found: list[str] = []
    for name in given.model or MODELS:
        if name not in known:
            known[name] = measure(name, given.points, given.time_limit, given.out.parent)
            with given.out.open("a") as file:
                file.write(json.dumps(known[name]) + "\n")
        baselines = [row for row in known[name]["rows"] if row["family"] in ("plain", "policy") and row["compiled_temp_bytes"]]
        places = sum(len(row["compiled_temp_by_scheduler"]) for row in baselines)
        missed = [as_text(name, excess) for excess in known[name]["excesses"]]
        made = [row["compiled_temp_bytes"] for row in known[name]["rows"] if row["strategy"].startswith("optimal@")]
        if (temps := [temp for temp in made if temp is not None]) != sorted(temps):
            missed.append(f"{name}: a larger budget compiles to less: {temps}")
        print(f"{name}: {places} points of {len(baselines)} baselines, {len(missed)} worse than claimed", flush=True)
        for excess in known[name]["taken"]:
            print(f"  as a plan itself: {as_text(name, excess)}")
        found += missed
    for miss in found:
        print("FAILS", miss)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
