"""Claim: backpropagation through time in the memory that its nest says, and in as much compile time for 4096 steps as for 64.

A 4-layer LSTM of 1,024 units with a softmax over 5,000 classes at every step, batch 64, compiled for the CPU and not run. Per
form and length: compiled temporaries under both schedulers, what the planner predicts, extra forward passes with every trip
counted, and the processor time of tracing and compiling. Appends to benchmarks/results/loops.jsonl what is not there yet;
with an argument, only forms whose name contains it. `--target h200` compiles for a GPU that need not be here (extra
gpu-target); what is predicted is then still the plan's own account of bytes, which knows nothing of the device.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax import lax

import remat_lab as rl
from experiments.models import lstm
from remat_lab.environment import describe
from remat_lab.loop import Loop, PlannedLoop
from remat_lab.loop_costs import pass_costs
from remat_lab.loop_measure import Measured, measure
from remat_lab.loops import choose
from remat_lab.targets import Target, as_target
from solvers import nest as nests
from solvers.nest import Nest

RESULTS = Path(__file__).parent / "results" / "loops.jsonl"
LENGTHS = (64, 256, 1024, 4096)
MODEL = {"layers": 4, "hidden": 1024, "batch": 64, "inputs": 50, "classes": 5000}
BUDGETS = ("150MB", "200MB", "300MB", "450MB", "1GB", "4GB")
PLANNED_AT = 1024


def each_step(length: int) -> Nest:
    """Every carry kept, every step run once more."""
    return nests.keep_all(length, direct=True)


def binomial(length: int) -> Nest:
    """Sixteen carries, single steps."""
    return nests.binomial(length, 16)


def halving(length: int) -> Nest:
    """Recursive halving down to single steps."""
    return nests.halving(length)


NESTS: dict[str, tuple[Callable[[int], Nest], float]] = {
    "each step": (each_step, math.inf),
    "two-level, all residuals": (nests.two_level, -1.0),
    "two-level": (nests.two_level, 0.0),
    "two-level, carries only": (nests.two_level, math.inf),
    "three-level": (lambda n: nests.levels(n, 3), 0.0),
    "halving": (halving, 0.0),
    "binomial": (binomial, 0.0),
}


def hand_written(length: int, form: str) -> Callable[..., Any]:
    """A scan as people nest it by hand with jax.checkpoint."""
    if form == "plain":
        return lax.scan
    if form == "each step":
        return lambda f, init, xs: lax.scan(jax.checkpoint(f, prevent_cse=False), init, xs)
    block = math.isqrt(length)

    def scan(f: Any, init: Any, xs: Any) -> Any:
        inner = jax.checkpoint(lambda carry, x: lax.scan(f, carry, x), prevent_cse=False)
        xs = jax.tree.map(lambda x: x.reshape(length // block, block, *x.shape[1:]), xs)
        carry, ys = lax.scan(inner, init, xs)
        return carry, jax.tree.map(lambda y: y.reshape(length, *y.shape[2:]), ys)

    return scan


def measured_at(length: int) -> Measured:
    """What the planner knows of the loop."""
    model = lstm.loss(**MODEL, length=length)
    jaxpr = jax.make_jaxpr(model.loss)(*model.args)
    loop = next(Loop.from_equation(eqn) for eqn in jaxpr.eqns if eqn.primitive.name == "scan")
    xs = len(loop.in_avals) - loop.consts - loop.carries
    return measure(loop, (*[True] * (loop.consts + loop.carries), *[False] * xs))


def compiled(scan: Callable[..., Any], length: int, target: Target) -> dict[str, Any]:
    """Temporaries under each scheduler of the target, and processor seconds."""
    model = lstm.loss(**MODEL, length=length, scan=scan)
    start = time.process_time()
    lowered = target.jit(jax.value_and_grad(model.loss)).lower(*target.place(model.args))
    row: dict[str, Any] = {"trace_seconds": time.process_time() - start}
    for scheduler, options in target.schedulers.items():
        start = time.process_time()
        memory: Any = lowered.compile(compiler_options=options or None).memory_analysis()
        row[f"{scheduler}_temp"] = memory.temp_size_in_bytes
        row[f"{scheduler}_compile_seconds"] = time.process_time() - start
    return row


def planned_row(measured: Measured, planned: PlannedLoop, scan: Callable[..., Any], target: Target) -> dict[str, Any]:
    """A row with what the plan promises: bytes, and FLOPs over those of the loop as it is."""
    plain = PlannedLoop(measured.loop, nests.keep_all(measured.loop.length, direct=True), -1.0)
    once, total = (sum(pass_costs(p, measured.body.moving)) for p in (plain, planned))
    forward = pass_costs(plain, measured.body.moving)[0]
    return {
        "predicted_temp": measured.peak_bytes(planned),
        "extra_forwards": (total - once) / forward,
        "nest": str(planned.nest),
        "tier": planned.tier,
        **compiled(scan, measured.loop.length, target),
    }


def tasks(target: Target) -> Iterator[tuple[str, int, Callable[[], dict[str, Any]]]]:
    """All rows: name, length, and what measures it."""
    for length in LENGTHS:
        for form in ("plain", "each step", "two-level"):
            yield f"by hand: {form}", length, lambda n=length, form=form: compiled(hand_written(n, form), n, target)
        for name, (nest, tier) in NESTS.items():

            def own(n: int = length, nest: Callable[[int], Nest] = nest, tier: float = tier) -> dict[str, Any]:
                measured = measured_at(n)
                scan = functools.partial(rl.scan, nest=nest, keep=tier)
                return planned_row(measured, PlannedLoop(measured.loop, nest(n), tier), scan, target)

            yield name, length, own
    for budget in BUDGETS:

        def at(budget: str = budget) -> dict[str, Any]:
            measured = measured_at(PLANNED_AT)
            planned = measured.planned(choose(measured, budget))
            return planned_row(measured, planned, functools.partial(rl.scan, budget=budget), target)

        yield f"budget {budget}", PLANNED_AT, at


def exponent(temps: dict[int, int]) -> float:
    """The power of the length that temporaries grow with, from differences, so that constants drop out."""
    steps = [temps[b] - temps[a] for a, b in itertools.pairwise(LENGTHS)]
    return math.log(steps[-1] / steps[0]) / math.log(LENGTHS[-1] / LENGTHS[1])


def check(rows: list[dict[str, Any]]) -> None:
    """Holds the rows to the claim."""
    temps: dict[str, dict[int, int]] = {}
    for row in rows:
        temps.setdefault(row["name"], {})[row["length"]] = row["default_temp"]
    for name, low, high in (("by hand: plain", 0.95, 1.05), ("two-level", 0.42, 0.58), ("each step", 0.95, 1.05)):
        power = exponent(temps[name])
        print(f"{name}: temporaries grow with the length to the power {power:.2f}")
        assert low <= power <= high, name
    doublings = [temps["halving"][n] for n in LENGTHS]
    growth = [b - a for a, b in itertools.pairwise(doublings)]
    print(f"halving: {[f'{g / 2e6:.1f}' for g in growth]} MB per doubling")
    assert max(growth) <= 1.25 * min(growth), "halving does not grow by a constant per doubling"
    for row in rows:
        if "predicted_temp" in row:
            error = row["predicted_temp"] / row["default_temp"] - 1
            assert abs(error) < 0.1, f"{row['name']} at {row['length']}: predicted {error:+.1%}"
    best = min(row["default_temp"] for row in rows if row["length"] == PLANNED_AT and row.get("extra_forwards", 9) < 1.01)
    print(f"{PLANNED_AT} steps at one extra forward pass: {best / 1e6:.0f} MB")
    assert best <= 450e6, "1024 steps take more than 450 MB at one extra forward pass"
    for name in ("two-level", "halving"):
        seconds = {r["length"]: r["trace_seconds"] + r["default_compile_seconds"] for r in rows if r["name"] == name}
        assert seconds[LENGTHS[-1]] < 2 * seconds[LENGTHS[0]], f"{name}: compile time grows with the length"


def main() -> None:
    """Measures what is missing, and holds the CPU's rows to the claim once none is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("form", nargs="?", default="", help="only forms whose name contains it")
    parser.add_argument("--target", default="cpu", help="device to compile for: cpu, h200, ...")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="no more steps than these")
    chosen = parser.parse_args()
    target = as_target(chosen.target)
    RESULTS.parent.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    rows = [row for row in rows if row.get("target", "cpu") == target.name]
    known = {(row["name"], row["length"]) for row in rows}
    for name, length, run in tasks(target):
        if (name, length) in known or chosen.form not in name or length > chosen.longest:
            continue
        row = {"name": name, "length": length, "target": target.name, **run(), "environment": describe()}
        rows.append(row)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {k: f"{v / 1e6:.1f} MB" if "temp" in k else f"{v:.3g}" if isinstance(v, float) else v for k, v in row.items()}
        print({k: v for k, v in shown.items() if k != "environment"}, flush=True)
    if target.name == "cpu" and not chosen.form and chosen.longest == LENGTHS[-1]:
        check(rows)


if __name__ == "__main__":
    main()
