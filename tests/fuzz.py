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
from fuzzing import OPTIONS, ULPS, Outcome, check
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


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What shards show, as data for a results file. Differences are relative to the tolerance that `fuzzing` states."""
    found = [o for row in rows for o in row["outcomes"]]
    stable = [o for o in found if not o["unstable"]]
    return {
        "seeds": sorted(row["seed"] for row in rows),
        "programs": sum(row["programs"] for row in rows),
        "steps_of_a_program": STEPS,
        "failures": [failure for row in rows for failure in row["failures"]],
        "recomputed_by_the_exact_schedule": sum(o["recomputed"] > 0 for o in found),
        "in_several_regions": sum(o["regions"] > 1 for o in found),
        "bitwise_equal": sum(bool(o["bitwise"]) for o in found),
        "largest_difference_of_tolerance": {form: max((o[form] for o in stable), default=0.0) for form in ("exact", "applied")},
        "compared_with_plain_jax_from_itself": len(found) - len(stable),
        "budgets": 2 * len(found),
        "budgets_refused_and_the_named_one_used": sum(o["refused"] for o in found),
        "plans_compiled": sum(o["rounds"] for o in found),
        "largest_temp_bytes_of_budget": max((max(o["compiled"], o["compiled_applied"]) for o in found), default=0.0),
        "cpu_seconds": round(sum(row["seconds"] for row in rows)),
        "versions": sorted({f"jax {row['jax']}, hypothesis {row['hypothesis']}" for row in rows}),
        "compiler_options": OPTIONS,
        "units_in_the_last_place_allowed": ULPS,
    }


def report(rows: list[dict[str, Any]]) -> str:
    """The same in a few lines."""
    found = summarise(rows)
    worst, seeds = max(found["largest_difference_of_tolerance"].values()), found["seeds"]
    refused = found["budgets_refused_and_the_named_one_used"]
    return "\n".join(
        [
            f"{found['programs']} programs, seeds {seeds[0]} to {seeds[-1]}: {len(found['failures'])} failures",
            f"  recomputed by the exact schedule {found['recomputed_by_the_exact_schedule']}, in several regions "
            f"{found['in_several_regions']}, bitwise equal {found['bitwise_equal']}",
            f"  of {found['budgets']} budgets {refused} refused, and the one named used instead; "
            f"{found['plans_compiled']} plans compiled; largest temp bytes over the budget "
            f"{found['largest_temp_bytes_of_budget']:.4f}",
            f"  largest difference {worst:.2g} of the tolerance; compared with plain JAX's own noise "
            f"{found['compared_with_plain_jax_from_itself']}",
        ]
    )


def main() -> int:
    """Runs the shards that the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop before a shard that would begin later")
    parser.add_argument("--out", type=Path, default=Path("fuzz.jsonl"))
    parser.add_argument("--summary", type=Path, help="write what all shards of the file show here, as JSON")
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
    sys.stdout.write(f"{report(rows) if rows else 'no shards'}\n")
    if wanted.summary is not None:
        wanted.summary.write_text(f"{json.dumps(summarise(rows), indent=1)}\n")
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
