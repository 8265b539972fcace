"""Claim: on two cores `auto` plans published graphs of networks to within proven percents of optimal, most to the optimum.

Every graph of ../shared/graphs at several fractions of the peak of its given order, 60 seconds and 2 workers each, and a unit
training chain of 32 layers at budget 14. A row is recorded as soon as it is measured; what is recorded is not measured again,
unless --fresh is given, and failures are rows. A budget below the smallest possible one counts as solved if that is proven.

    python benchmarks/bench_solvers.py [--graphs NAME ...] [--budgets 0.9 0.5] [--time-limit 60] [--fresh]

Appends to benchmarks/results/solvers.jsonl. Run it on a quiet machine: it measures seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from remat_lab.environment import describe
from solvers import Graph, InfeasibleBudget, Progress, Schedule, SolverError, simulate, solve, training_chain

GRAPHS = Path(__file__).resolve().parents[2] / "shared" / "graphs"
RESULTS = Path(__file__).parent / "results" / "solvers.jsonl"
BUDGETS = (0.9, 0.8, 0.65, 0.5, 0.35)
CHAIN, CHAIN_BUDGET = "training_chain_32", 14
WORKERS = 2

Row = dict[str, Any]


def main() -> None:
    """Measures what is not recorded yet, prints the table, and holds it to the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", help="names of files, without .json; default all, and the chain")
    parser.add_argument("--budgets", nargs="+", type=float, default=BUDGETS, help="fractions of the given order's peak")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each")
    parser.add_argument("--fresh", action="store_true", help="measure again what is recorded")
    options = parser.parse_args()
    if not GRAPHS.is_dir():
        raise SystemExit(f"the planning graphs are not here: this benchmark reads {GRAPHS}/*.json")
    known = {} if options.fresh else {key_of(row): row for row in recorded()}
    rows: list[Row] = []
    environment = describe()
    for name, graph, budget, fraction in instances(options.graphs, options.budgets):
        key = (name, budget, options.time_limit)
        if key not in known:
            known[key] = {**measure(name, graph, budget, options.time_limit), "fraction": fraction, "environment": environment}
            RESULTS.parent.mkdir(exist_ok=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
            print(line_of(known[key]), flush=True)
        rows.append(known[key])
    print()
    print(HEADING)
    for row in rows:
        print(line_of(row))
    check(rows)


def instances(names: list[str] | None, fractions: tuple[float, ...]) -> Iterator[tuple[str, Graph, int, float | None]]:
    """Name, graph, budget in bytes, and which fraction of the given order's peak that is."""
    files = sorted(GRAPHS.glob("*.json"), key=lambda path: (path.stat().st_size, path.stem))
    unknown = set(names or ()) - {path.stem for path in files} - {CHAIN}
    if unknown:
        raise SystemExit(f"no graph named {', '.join(sorted(unknown))} in {GRAPHS}")
    if names is None or CHAIN in names:
        yield CHAIN, training_chain(32), CHAIN_BUDGET, None
    for path in files:
        if names is None or path.stem in names:
            graph = Graph.load(path)
            peak = simulate(graph, Schedule.from_order(graph, graph.steps)).peak
            for fraction in fractions:
                yield path.stem, graph, int(fraction * peak), fraction


def measure(name: str, graph: Graph, budget: int, time_limit: float) -> Row:
    """One row."""
    reports: list[tuple[float, float]] = []  # seconds, cost
    began = time.perf_counter()
    row: Row = {"graph": name, "nodes": len(graph), "budget": budget, "time_limit": time_limit, "workers": WORKERS}

    def listen(progress: Progress) -> None:
        if math.isfinite(progress.cost):
            reports.append((time.perf_counter() - began, progress.cost))

    try:
        solution = solve(graph, budget, "auto", time_limit=time_limit, workers=WORKERS, progress=listen)
    except InfeasibleBudget as error:
        status = "infeasible, proven" if error.proven else "nothing found"
        facts = {"minimum": error.minimum, "floor": error.lower_bound, "scope": error.relative_to}
        return {**row, **facts, "status": status, "seconds": time.perf_counter() - began}
    except SolverError:
        return {**row, "status": "failed", "seconds": time.perf_counter() - began, "error": traceback.format_exc()}
    seconds = time.perf_counter() - began
    near = solution.cost * 1.01
    return {
        **row,
        "status": solution.status.value,
        "cost_ratio": solution.cost / graph.keep_all_cost,
        "bound_ratio": solution.lower_bound / graph.keep_all_cost,
        "gap": solution.gap,
        "peak": solution.peak,
        "seconds_to_first": next((t for t, _ in reports), seconds),
        "seconds_to_1_percent": next((t for t, cost in reports if cost <= near), seconds),
        "seconds": seconds,
        "scope": solution.scope,
        "notes": solution.notes,
    }


def recorded() -> list[Row]:
    """All rows of the file."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def key_of(row: Row) -> tuple[str, int, float]:
    """What makes two rows the same measurement."""
    return row["graph"], row["budget"], row["time_limit"]


HEADING = f"{'graph':22} {'budget':>6} {'status':18} {'cost':>9} {'bound':>9} {'gap':>8} {'first':>6} {'1 %':>6} {'end':>6}"


def line_of(row: Row) -> str:
    """A line of the table; cost, bound and gap in percent of the cost of keeping everything."""
    budget = row["budget"] if row.get("fraction") is None else row["fraction"]
    text = f"{row['graph']:22} {budget:>6} {row['status']:18}"
    if "cost_ratio" in row:
        cost, bound, gap = 100 * (row["cost_ratio"] - 1), 100 * (row["bound_ratio"] - 1), 100 * row["gap"]
        text += f" {cost:+8.3f}% {bound:+8.3f}% {gap:7.3f}% {row['seconds_to_first']:6.1f} {row['seconds_to_1_percent']:6.1f}"
        return f"{text} {row['seconds']:6.1f}  {row['scope']}"
    return f"{text} {'':9} {'':9} {'':8} {'':6} {'':6} {row['seconds']:6.1f}  {row.get('scope', '')}"


def check(rows: list[Row]) -> None:
    """Holds the rows to what was reached when this was written; what is missing in them is not checked."""
    small = ("vgg16_b256", "vgg19_b256", "fcn_8_vgg_b32", "segnet_b32", "vgg_unet_b32", CHAIN)
    for row in rows:
        what = f"{row['graph']} at {row['budget']}"
        assert row["status"] != "failed", f"{what}: {row['error']}"
        if row["time_limit"] < 60:
            continue
        if row["graph"] in small:
            assert row["status"] in ("optimal", "infeasible, proven"), f"{what} is {row['status']}"
    chain = next((row for row in rows if row["graph"] == CHAIN), None)
    if chain is not None:
        assert round(64 * chain["cost_ratio"]) - 64 == 19


if __name__ == "__main__":
    main()
