"""Claim: `remat-lab compare` shows its first row within 20 s, and is done within 150 s, on two cores.

Runs the command once in a process of its own, as `make compare` does after the install, and notes when each row first stands on
either stream, what was done in between (the stages that the command itself reports), and what JAX says of its work: seconds of
tracing, lowering and compiling, and the number of compilations. The record of a label replaces the last one in
benchmarks/results/first_minutes.jsonl; against that of "before", if there is one, the figures of all rows are compared.

    python benchmarks/bench_first_minutes.py                   # what is installed, as "after"
    PYTHONPATH=OTHER python benchmarks/bench_first_minutes.py --label before    # the sources in another folder

Wall-clock: run it on a quiet machine. The load at the start is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from remat_lab.environment import describe
from remat_lab.report import read_comparison

RESULTS = Path(__file__).parent / "results" / "first_minutes.jsonl"
FIRST_SECONDS, WHOLE_SECONDS = 20.0, 150.0
TOLERANCE = 0.02  # of a figure, between two labels: where a search stops at its time limit, plans differ from run to run
FIGURES = ("compiled_temp_bytes", "compiled_flops", "cost")
LARGE_SECONDS = 0.5  # compilations that take longer are those of steps, not of single operations

STAGE = re.compile(r"\[ *(?P<seconds>[\d.]+) s, \d+/\d+\] (?P<message>.*)")
WORK = {
    "trace": re.compile(r"Finished tracing .* in ([\d.e-]+) sec"),
    "lower": re.compile(r"Finished jaxpr to MLIR module conversion .* in ([\d.e-]+) sec"),
    "compile": re.compile(r"Finished XLA compilation of .* in ([\d.e-]+) sec"),
}


def run(folder: str) -> tuple[list[tuple[float, str]], float, float]:
    """Runs the command: lines of both streams with the seconds at which they came, wall-clock seconds, and CPU seconds."""
    lines: list[tuple[float, str]] = []
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "remat_lab.cli", "compare"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "JAX_LOG_COMPILES": "1", "PYTHONUNBUFFERED": "1"},
    )

    def read(stream: IO[str] | None) -> None:
        lines.extend((time.perf_counter() - began, line.rstrip("\n")) for line in stream or ())

    readers = [threading.Thread(target=read, args=(stream,)) for stream in (process.stdout, process.stderr)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert process.wait() == 0, "\n".join(text for _, text in lines[-20:])
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return lines, seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def first_shown(lines: list[tuple[float, str]], names: list[str]) -> dict[str, float]:
    """For each row the seconds at which a line first began with its name; the table breaks a long name after an underscore."""
    found: dict[str, float] = {}
    for seconds, line in lines:
        stage = STAGE.match(line)
        text = line if stage is None else stage["message"]
        word = re.split(r"[ :]", text, maxsplit=1)[0]
        for name in names:
            if word == name or (word.endswith("_") and name.startswith(word) and word not in names):
                found.setdefault(name, round(seconds, 1))
    return found


def stages(lines: list[tuple[float, str]], whole: float, names: list[str]) -> dict[str, float]:
    """Seconds by what the command said that it was doing; waiting for plans under a budget is "solve"."""
    found: dict[str, float] = {"start": 0.0}
    stage, since = "start", 0.0
    for seconds, line in lines:
        match = STAGE.match(line)
        if match is None or match["message"].split(":")[0] in names:
            continue
        message = match["message"]
        found[stage] = found.get(stage, 0.0) + seconds - since
        stage, since = "solve" if message.startswith("plan optimal") else message.split(" ")[0], seconds
    found[stage] = found.get(stage, 0.0) + whole - since
    return {key: round(value, 1) for key, value in found.items()}


def measure(label: str) -> dict[str, Any]:
    """One run of the command."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        lines, whole, cpu = run(folder)
        rows = read_comparison(Path(folder) / "compare.json")["rows"]
    names = [row["strategy"] for row in rows]
    work = {kind: [float(m[1]) for _, line in lines if (m := pattern.search(line))] for kind, pattern in WORK.items()}
    return {
        "label": label,
        "load": round(load, 1),
        "seconds": round(whole, 1),
        "cpu_seconds": round(cpu, 1),
        "first_shown": first_shown(lines, names),
        "stages": stages(lines, whole, names),
        "seconds_by_jax": {kind: round(sum(seconds), 1) for kind, seconds in work.items()},
        "steps_compiled": sum(seconds > LARGE_SECONDS for seconds in work["compile"]),
        "rows": [
            {
                key: row[key]
                for key in ("strategy", *FIGURES, "max_grad_difference", "bitwise_equal", "step_time_ratio", "status")
            }
            for row in rows
        ],
        "environment": describe(),
    }


def compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Holds the figures of two runs to each other."""
    assert [row["strategy"] for row in before["rows"]] == [row["strategy"] for row in after["rows"]]
    for old, new in zip(before["rows"], after["rows"], strict=True):
        for key in FIGURES:
            a, b = old[key], new[key]
            assert a == b or abs(a - b) <= TOLERANCE * a, f"{new['strategy']}: {key} is {b}, and was {a}"
        assert old["bitwise_equal"] == new["bitwise_equal"], f"{new['strategy']}: gradients"


def main() -> None:
    """Runs the command, records it, then holds it to the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--label", default="after")
    label = parser.parse_args().label
    found = measure(label)
    known = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    known = sorted([*(row for row in known if row["label"] != label), found], key=lambda row: row["label"], reverse=True)
    RESULTS.write_text("".join(json.dumps(row) + "\n" for row in known))
    print(json.dumps({key: value for key, value in found.items() if key not in ("rows", "environment")}, indent=1))
    if label == "before":
        return
    first = min(found["first_shown"].values())
    assert first < FIRST_SECONDS, f"the first row came after {first} s"
    assert found["seconds"] < WHOLE_SECONDS, f"all took {found['seconds']} s"
    for before in known:
        if before["label"] == "before":
            compare(before, found)


if __name__ == "__main__":
    main()
