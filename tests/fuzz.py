"""The long run of the fuzzer: `make fuzz`. Shards of programs, each from its own seed; each appends a line of JSON.

A run continues where the file ends: shards that are in it are skipped. Failures are recorded with the program that fails, ready
to be pasted into `test_fuzz.py`, and the exit status says whether there were any.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")

import hypothesis
from fuzzing import Outcome, check
from programs import Program, programs

from remat_lab import environment

SHARD = 25  # programs
STEPS = (3, 10)


def run_shard(seed: int) -> dict[str, Any]:
    """Checks the programs of one seed."""
    outcomes: list[Outcome] = []
    failures: list[dict[str, str]] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=SHARD,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs(min_steps=STEPS[0], max_steps=STEPS[1]))
    def run(program: Program) -> None:
        try:
            outcomes.append(check(program))
        except Exception as error:
            failures.append({"program": repr(program), "error": f"{type(error).__name__}: {str(error)[:400]}"})

    start = time.process_time()
    run()
    return {
        "seed": seed,
        "programs": len(outcomes) + len(failures),
        "failures": failures,
        "seconds": round(time.process_time() - start, 1),
        "outcomes": [{key: round(value, 5) for key, value in asdict(o).items()} for o in outcomes],
        "hypothesis": hypothesis.__version__,
        "jax": environment.describe()["versions"]["jax"],
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """What a file of shards shows, in a few lines."""
    found = [o for row in rows for o in row["outcomes"]]
    count, failed = sum(row["programs"] for row in rows), sum(len(row["failures"]) for row in rows)
    worst = max((max(o["exact"], o["applied"]) for o in found if not o["unstable"]), default=0.0)
    seeds = sorted(row["seed"] for row in rows)
    return "\n".join(
        [
            f"{count} programs, seeds {seeds[0]} to {seeds[-1]}: {failed} failures",
            f"  recomputed by the exact schedule {sum(o['recomputed'] > 0 for o in found)}, in several regions "
            f"{sum(o['regions'] > 1 for o in found)}, bitwise equal {sum(o['bitwise'] for o in found)}",
            f"  budgets refused, and the one named used instead, {sum(o['refused'] for o in found)}; plans compiled "
            f"{sum(o['rounds'] for o in found)} for {2 * len(found)}; largest temp bytes over the budget "
            f"{max(max(o['compiled'], o['compiled_applied']) for o in found):.4f}",
            f"  largest difference {worst:.2g} of the tolerance; compared with plain JAX's own noise "
            f"{sum(o['unstable'] for o in found)}",
        ]
    )


def main() -> int:
    """Runs the shards that the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop before a shard that would begin later")
    parser.add_argument("--out", type=Path, default=Path("fuzz.jsonl"))
    wanted = parser.parse_args()
    warnings.simplefilter("error")
    rows = [json.loads(line) for line in wanted.out.read_text().splitlines()] if wanted.out.exists() else []
    done, start = {row["seed"] for row in rows}, time.monotonic()
    for seed in range(wanted.first_seed, wanted.first_seed + -(-wanted.programs // SHARD)):
        if seed in done:
            continue
        if time.monotonic() - start > 60 * wanted.minutes:
            break
        row = run_shard(seed)
        rows.append(row)
        with wanted.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        for failure in row["failures"]:
            sys.stderr.write(f"seed {seed}: {failure['error']}\n  {failure['program']}\n")
    sys.stdout.write(f"{summary(rows) if rows else 'no shards'}\n")
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
