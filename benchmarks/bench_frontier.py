"""Frontiers of memory and work as compiled: nowhere worse than plain JAX or its policies in the same memory?

Appends one JSON line per model to benchmarks/results/frontier.jsonl and draws a picture of each; models that are there already
are skipped, so an interrupted run goes on where it stopped. Compiles only; nothing is run.

    python benchmarks/bench_frontier.py [--model NAME ...] [--points 5] [--time-limit 10]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import remat_lab as rl
from remat_lab.models import build
from remat_lab.plot_frontier import picture

RESULTS = Path(__file__).parent / "results"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet20": ("resnet", {"depth": 20, "batch": 32}),
    "resnet50": (
        "resnet",
        {
            "stages": (3, 4, 6, 3),
            "bottleneck": True,
            "stem": "imagenet",
            "image": 224,
            "width": 64,
            "classes": 1000,
            "batch": 8,
        },
    ),
    "transformer": ("transformer", {"layers": 6, "batch": 8, "length": 512, "width": 512, "vocabulary": 4096}),
    "unet": ("unet", {}),
    "lstm": ("lstm", {"length": 64}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--points", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=10.0)
    given = parser.parse_args()
    path = RESULTS / "frontier.jsonl"
    done = {json.loads(line)["model"] for line in path.read_text().splitlines()} if path.exists() else set()
    for name in given.model or MODELS:
        if name in done:
            print(f"{name}: already in {path.name}")
            continue
        factory, options = MODELS[name]
        made = build(factory, options)
        found = rl.frontier(
            made.loss,
            *made.args,
            blocks=made.blocks,
            argnums=made.argnums,
            has_aux=made.has_aux,
            points=given.points,
            time_limit=given.time_limit,
            title=" ".join([factory, *(f"{key}={value}" for key, value in options.items())]),
            progress=lambda what, done, total: print(f"  [{done}/{total}] {what}", flush=True) if "compiles" in what else None,
        )
        data = found.to_json()
        with path.open("a") as file:
            file.write(json.dumps({"model": name, **data}) + "\n")
        picture(data, RESULTS / f"frontier_{name}.svg")
        print(found)
        for excess in data["excesses"]:
            print(f"  worse than {excess['baseline']} ({excess['scheduler']}): {excess}")


if __name__ == "__main__":
    main()
