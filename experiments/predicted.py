"""Predicted against compiled memory, over models, budgets and targets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.figures import line_styles, plain_numbers, tidy
from experiments.models.sizes import SMALL
from experiments.records import Point, Row
from experiments.strategies import Subject
from experiments.sweeps import Experiment
from experiments.tables import Section
from remat_lab.models import build
from remat_lab.units import MEGABYTE, megabytes, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINEAR = 10.0  # percent: errors are drawn to scale up to here, then by their logarithm


def points(preset: str, target: str | None) -> list[Point]:
    """Every model, keeping all and under three budgets."""
    models: dict[str, dict[str, Any]]
    if preset == "smoke":
        models, limit = {"mlp": {"layers": 6, "batch": 512}, "gru": {"length": 16}}, 1.0
        strategies = ["keep all", "optimal@0.6"]
    else:
        models, limit = SMALL, 8.0
        strategies = ["keep all", "optimal@0.7", "optimal@0.5", "optimal@0.35"]
    return [
        {"model": model, "strategy": strategy, "target": target, "time_limit": limit, "options": options}
        for model, options in models.items()
        for strategy in strategies
    ]


def measure(point: Point) -> dict[str, Any]:
    """Plans without compiling, then compiles."""
    subject = Subject.of(build(point["model"], dict(point["options"])), point["target"])
    plan = subject.plan(point["strategy"], time_limit=point["time_limit"])
    predicted, compiled = plan.predicted.temp_bytes, plan.compiled.temp_bytes
    return {"predicted_bytes": predicted, "compiled_bytes": compiled, "ratio": compiled / predicted}


def tables(rows: Sequence[Row]) -> list[Section]:
    """Every plan, and the distribution of errors."""
    good = [row for row in rows if row["status"] == "ok"]
    lines = [
        [
            f"{row['point']['model']}, {row['point']['strategy']}",
            row["point"]["target"] or "here",
            megabytes(row["result"]["predicted_bytes"]),
            megabytes(row["result"]["compiled_bytes"]),
            percent(row["result"]["ratio"] - 1),
        ]
        for row in good
    ]
    found = [Section("Temporaries", ("plan", "target", "predicted, MB", "compiled, MB", "difference"), lines)]
    errors = sorted(row["result"]["ratio"] - 1 for row in good)
    if errors:
        sizes = sorted(map(abs, errors))
        cells = [
            ["plans", str(len(errors))],
            ["median difference", percent(statistics.median(errors))],
            ["median size of it", percent(statistics.median(sizes), sign=False)],
            ["nine in ten within", percent(sizes[max(0, -(-9 * len(sizes) // 10) - 1)], sign=False)],
            ["largest above, below", f"{percent(max(errors))}, {percent(min(errors))}"],
        ]
        found.append(Section("Errors", ("", ""), cells))
    return found


def draw(rows: Sequence[Row]) -> Figure:
    """The scatter, and the errors in order."""
    from matplotlib.figure import Figure

    good = [row for row in rows if row["status"] == "ok"]
    models = list(dict.fromkeys(row["point"]["model"] for row in good))
    styles = line_styles(models)
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for model in models:
        mine = [row["result"] for row in good if row["point"]["model"] == model]
        x, y = [one["predicted_bytes"] / MEGABYTE for one in mine], [one["compiled_bytes"] / MEGABYTE for one in mine]
        left.plot(x, y, styles[model].marker, color=styles[model].color, markerfacecolor="none", markersize=7, label=model)
    ends = [row["result"]["predicted_bytes"] / MEGABYTE for row in good] or [1.0]
    left.axline((min(ends), min(ends)), (2 * max(ends), 2 * max(ends)), color="black", linewidth=0.9, linestyle=":")
    left.set(xscale="log", yscale="log", xlabel="predicted peak (MB)", ylabel="compiled temporaries (MB)")
    plain_numbers(left)
    left.legend(frameon=False, fontsize=8.5)
    tidy(left)
    ordered = sorted(good, key=lambda row: row["result"]["ratio"])
    for k, row in enumerate(ordered):
        style = styles[row["point"]["model"]]
        share, error = 100 * (k + 0.5) / len(ordered), 100 * (row["result"]["ratio"] - 1)
        right.plot(share, error, style.marker, color=style.color, markersize=5)
    right.axhline(0, color="black", linewidth=0.9, linestyle=":")
    right.set(
        xlabel="share of plans (%)", ylabel=f"compiled over predicted (%), logarithmic beyond {_LINEAR:g} %", xlim=(-2, 102)
    )
    right.set_yscale("symlog", linthresh=_LINEAR)
    right.yaxis.set_major_formatter(lambda value, _: f"{value:+g}" if value else "0")
    right.set_title("Errors in order", fontsize=9.5, loc="left")
    left.set_title("Each plan (dotted: equal)", fontsize=9.5, loc="left")
    tidy(right)
    return figure


EXPERIMENT = Experiment(
    name="predicted-vs-compiled",
    title="Predicted against compiled memory",
    points=points,
    measure=measure,
    tables=tables,
    draw=draw,
)
