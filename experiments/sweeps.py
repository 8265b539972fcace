"""Experiments: points measured one after the other into a file, from which alone tables and pictures are made.

    run(experiment, path, preset="cpu")     # measures what the file lacks
    text(experiment, read(path).rows)       # a table
    experiment.draw(read(path).rows)        # a picture

A point that fails, cannot be planned or runs out of memory is a row that says so. Stopped at any time, the next run goes on
behind the last finished point.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.isolated import Killed, call_apart
from experiments.records import SCHEMA, Point, Row, append, key_of, read
from experiments.tables import Section, as_text
from remat_lab import environment
from remat_lab.errors import InvalidArgument
from solvers.errors import InfeasibleBudget

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRESETS = ("smoke", "cpu", "gpu")

Result = dict[str, Any]
Report = Callable[[str, int, int], None]  # what is being done, parts done, parts in all


def _equal(point: Point) -> float:
    return 1.0


def _on_a_gpu(preset: str, target: str | None) -> bool:
    return preset == "gpu" and target is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is measured, and how it is shown.

    Attributes:
        name: on the command line, and of the file.
        title: one line.
        points: the points of a preset, for a target (None for the device that JAX uses), in the order of measuring.
        measure: measures one point.
        tables: sections of a table, from rows.
        draw: a picture, from rows. This and the other functions can be imported by name, for processes of their own.
        weight: about how long a point takes relative to others; for the time left.
        apart: whether a preset, for a target or None, measures each point in a process of its own, where the peak that a
            device's allocator remembers is that point's alone and running out of memory ends nothing else.
    """

    name: str
    title: str
    points: Callable[[str, str | None], list[Point]]
    measure: Callable[[Point], Result]
    tables: Callable[[Sequence[Row]], list[Section]]
    draw: Callable[[Sequence[Row]], Figure]
    weight: Callable[[Point], float] = _equal
    apart: Callable[[str, str | None], bool] = _on_a_gpu

    def run(
        self,
        path: str | Path,
        *,
        preset: str = "smoke",
        target: str | None = None,
        retry: bool = False,
        report: Report | None = None,
    ) -> list[str]:
        """Measures the points that the file lacks; see `run`."""
        return run(self, path, preset=preset, target=target, retry=retry, report=report)

    def read(self, path: str | Path) -> tuple[list[Row], list[str]]:
        """This experiment's rows in a file, and what was skipped.

        Raises:
            InvalidArgument: if the file cannot be read or has no row of it.
        """
        rows, problems = read(path)
        mine = [row for row in rows if row["experiment"] == self.name]
        if not mine:
            raise InvalidArgument(f"{path} has no row of the experiment {self.name!r}")
        return mine, problems

    def text(self, rows: Sequence[Row], width: int = 150) -> str:
        """The table as text."""
        return as_text(self.title, self.tables(rows), width, [*_settings(rows), *_failures(rows)])


def run(
    experiment: Experiment,
    path: str | Path,
    *,
    preset: str = "smoke",
    target: str | None = None,
    retry: bool = False,
    report: Report | None = None,
) -> list[str]:
    """Measures the points of a preset that a file lacks, and appends a row for each.

    Args:
        experiment: what to measure.
        path: the file; made if it is not there.
        preset: one of `PRESETS`.
        target: a device to plan and compile for; None for the one that JAX uses.
        retry: whether points whose row says that they failed are measured again.
        report: called before each point, with the time left as far as it is known.

    Returns:
        What was wrong with the file's lines.

    Raises:
        InvalidArgument: for an unknown preset.
        OSError: if the file cannot be written.
    """
    if preset not in PRESETS:
        raise InvalidArgument(f"there is no preset {preset!r}: choose one of {', '.join(PRESETS)}")
    points = experiment.points(preset, target)
    rows, problems = read(path) if Path(path).exists() else ([], [])
    known = {key_of(row["point"]): row["status"] for row in rows if row["experiment"] == experiment.name}
    todo = [point for point in points if key_of(point) not in known or (retry and known[key_of(point)] == "failed")]
    skipped, weights = len(points) - len(todo), [experiment.weight(point) for point in todo]
    began = time.monotonic()
    for k, point in enumerate(todo):
        if report is not None:
            ahead = _left(time.monotonic() - began, sum(weights[:k]), sum(weights[k:]))
            report(f"{_label(point)}{ahead}", skipped + k, len(points))
        row = call_apart(_measured, experiment, preset, point) if experiment.apart(preset, target) else None
        if isinstance(row, Killed):
            row = _row(experiment, preset, point, "out of memory", row.reason, {}, row.seconds)
        append(path, _measured(experiment, preset, point) if row is None else row)
    return problems


def _measured(experiment: Experiment, preset: str, point: Point) -> Row:
    """One point's row, whatever becomes of it."""
    began = time.perf_counter()
    status, reason, result = "ok", None, Result()
    try:
        result = experiment.measure(point)
    except InfeasibleBudget as error:
        status, reason = "infeasible", _portable(str(error))
        result = {"minimum_bytes": error.minimum, "lower_bound_bytes": error.lower_bound}
    except MemoryError as error:
        status, reason = "out of memory", _first_line(error)
    except Exception as error:
        exhausted = "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()
        status, reason = "out of memory" if exhausted else "failed", _first_line(error)
    row = _row(experiment, preset, point, status, reason, result, time.perf_counter() - began)
    return {**row, "environment": environment.describe()}


def _row(
    experiment: Experiment, preset: str, point: Point, status: str, reason: str | None, result: Result, seconds: float
) -> Row:
    return {
        "schema": SCHEMA,
        "experiment": experiment.name,
        "preset": preset,
        "point": dict(point),
        "status": status,
        "reason": reason,
        "result": result,
        "seconds": round(seconds, 3),
    }


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return _portable(f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}")


def _portable(text: str) -> str:
    """The text without the folder that the packages lie in, which says nothing on another machine."""
    return text.replace(f"{Path(__file__).resolve().parent.parent}{os.sep}", "")


def _label(point: Point) -> str:
    """What changes from point to point, in few words."""
    return ", ".join(str(value) for value in point.values() if isinstance(value, str | int | float))


def _left(spent: float, done: float, ahead: float) -> str:
    if not done:
        return ""
    seconds = spent / done * ahead
    return f": about {seconds:.0f} s left" if seconds < 100 else f": about {seconds / 60:.0f} min left"


def _settings(rows: Sequence[Row]) -> list[str]:
    """Where the rows were measured, once for each machine."""
    found: dict[str, None] = {}
    for row in rows:
        where = row.get("environment")
        if where:
            jax = where["versions"].get("jax", "?")
            found[f"On {where['cores']} cores of {where['processor']} ({where['device']}), jax {jax}."] = None
    return list(found)


def _failures(rows: Sequence[Row]) -> list[str]:
    return [f"{_label(row['point'])}: {row['status']}, {row['reason']}" for row in rows if row["status"] != "ok"]
