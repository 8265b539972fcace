"""Tables of memory against size, made from rows alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.records import Row
from experiments.strategies import DROP, HEURISTICS, PLAIN, SHARED, UNSHARED
from experiments.tables import Section, exponent
from remat_lab.units import NOTHING, megabytes, percent, seconds

ORDER = (UNSHARED, SHARED, PLAIN, "keep all", DROP, *HEURISTICS)
_SHARES = (("planned", "planned_bytes"), ("compiled", "temp_bytes"))

# Chen et al. (2016, arXiv:1604.06174), abstract and section 5.
PAPER = {"layers": 1000, "before": 48e9, "after": 7e9, "extra": 0.30}


def strategies(rows: Sequence[Row]) -> list[str]:
    """The strategies of the rows: the named ones in their order, then optimal plans, fractions from large on."""
    found = {row["point"]["strategy"] for row in rows}
    named = [name for name in ORDER if name in found]
    return named + sorted(found - set(named), key=_by_budget)


def _by_budget(name: str) -> tuple[float, str]:
    try:
        return -float(name.partition("@")[2] or 0), name
    except ValueError:  # bytes
        return -math.inf, name


def model_of(row: Row) -> str:
    """The model of a row, with the device that it was planned or compiled for."""
    target = row["point"].get("target")
    return f"{row['point']['model']}, {target}" if target else str(row["point"]["model"])


def models(rows: Sequence[Row]) -> list[str]:
    """The models of the rows, as they come."""
    return list(dict.fromkeys(map(model_of, rows)))


def value(rows: Sequence[Row], model: str, strategy: str, size: int, key: str) -> float | None:
    """A figure of one point, from whichever of its rows has it; compiled rows come last and count."""
    found = None
    for row in rows:
        point = row["point"]
        if (model_of(row), point["strategy"], point["size"]) == (model, strategy, size):
            found = row["result"].get(key, found)
    return found


def curve(rows: Sequence[Row], model: str, strategy: str, key: str) -> list[tuple[int, float]]:
    """(size, figure), rising in size."""
    sizes = sorted({row["point"]["size"] for row in rows if model_of(row) == model})
    found = [(size, value(rows, model, strategy, size, key)) for size in sizes]
    return [(size, figure) for size, figure in found if figure is not None]


def by_size(rows: Sequence[Row], unit: str) -> list[Section]:
    """For each model: planned and compiled megabytes and extra work, a column for each size."""
    sections: list[Section] = []
    for model in models(rows):
        mine = [row for row in rows if model_of(row) == model]
        sizes = sorted({row["point"]["size"] for row in mine})
        for heading, key, show in (
            ("planned temporaries (MB)", "planned_bytes", megabytes),
            ("temporaries as compiled (MB)", "temp_bytes", megabytes),
            ("arguments, results and temporaries as compiled (MB)", "total_bytes", megabytes),
            ("peak by the device's allocator (MB)", "device_peak_bytes", megabytes),
            ("step time (s)", "step_seconds", seconds),
            ("extra FLOPs, planned", "extra_flops", percent),
            ("extra cost by the planner's model", "extra_cost", percent),
            ("how far from optimal a plan may be, proven, of its cost", "gap", percent),
        ):
            lines = []
            for strategy in strategies(mine):
                if key == "gap" and not strategy.startswith("optimal"):
                    continue
                cells = [value(mine, model, strategy, size, key) for size in sizes]
                if any(cell is not None for cell in cells):
                    lines.append([strategy, *(NOTHING if cell is None else show(cell) for cell in cells)])
            if lines:
                sections.append(Section(f"{model}: {heading}", [unit, *(f"{size:,}" for size in sizes)], lines))
    return sections


def exponents(rows: Sequence[Row], what: str, start: int) -> list[Section]:
    """Fitted exponents of temporaries, planned and compiled, over the sizes from `start` up; nothing for fewer than three."""
    lines = []
    for model in models(rows):
        for strategy in strategies([row for row in rows if model_of(row) == model]):
            cells = []
            for _, key in _SHARES:
                points = [(x, y) for x, y in curve(rows, model, strategy, key) if x >= start]
                fit = exponent(points)
                cells.append(NOTHING if fit is None else f"{fit:.3f} ({len(points)} points)")
            if any(cell != NOTHING for cell in cells):
                lines.append([f"{model}, {strategy}", *cells])
    heading = f"Exponent of temporaries in {what}, fitted from {start} up (least squares on logarithms)"
    notes = ("Results of the step (gradients) are not counted. Three sizes at least.",)
    return [Section(heading, ["", *(name for name, _ in _SHARES)], lines, notes)] if lines else []


def limits(rows: Sequence[Row], unit: str) -> list[Section]:
    """Where memory ran out on a device: for each strategy the largest size that ran, and the smallest that did not.

    Where the device was compiled for only, whatever needs more than its memory counts as not fitting.
    """
    sections: list[Section] = []
    for model in models(rows):
        mine = [row for row in rows if model_of(row) == model and row["point"]["level"] != "planned"]
        capacity = next((row["result"]["device_bytes"] for row in mine if row["result"].get("device_bytes")), None)
        lines = []
        for strategy in strategies(mine):
            here = [row for row in mine if row["point"]["strategy"] == strategy]
            fits = [row for row in here if row["status"] == "ok" and row["result"]["total_bytes"] <= (capacity or 0)]
            ran = [row["point"]["size"] for row in fits]
            over = [row["point"]["size"] for row in here if row not in fits and row["status"] in ("ok", "out of memory")]
            lines.append(
                [strategy, *(f"{found:,}" if found else NOTHING for found in (max(ran, default=0), min(over, default=0)))]
            )
        if capacity and lines:
            heading = f"{model}: {unit} within {capacity / 1e9:.0f} GB of device memory"
            sections.append(Section(heading, ("", "largest that fits", "smallest that does not"), lines))
    return sections


def below_sharing(rows: Sequence[Row], base: str, unit: str) -> list[Section]:
    """How many times less each compiled step takes than liveness analysis alone of the model `base`, by size."""
    shared = dict(curve(rows, base, SHARED, "planned_bytes"))
    lines = []
    for model in models(rows):
        for strategy in strategies([row for row in rows if model_of(row) == model]):
            found = dict(curve(rows, model, strategy, "temp_bytes"))
            cells = [f"{shared[size] / found[size]:.1f}" if size in found else NOTHING for size in shared]
            if any(cell != NOTHING for cell in cells):
                lines.append([f"{model}, {strategy}", *cells])
    heading = f"Times below {SHARED} of {base}: that as planned, the step as compiled"
    notes = ("Chen et al. (2016), section 5.3: more than 4 times, at the same sizes, against liveness analysis alone.",)
    return [Section(heading, [unit, *(f"{size:,}" for size in shared)], lines, notes)] if lines else []


def paper_table(rows: Sequence[Row]) -> list[Section]:
    """The deepest network beside the figures of Chen et al.; nothing below 1,000 layers."""
    sizes = [row["point"]["size"] for row in rows if row["point"]["size"] >= PAPER["layers"]]
    if not sizes:
        return []
    size, lines = max(sizes), []
    for strategy in strategies(rows):
        cells = [value(rows, models(rows)[0], strategy, size, key) for key in ("planned_bytes", "temp_bytes", "total_bytes")]
        if any(cell is not None for cell in cells):
            shown = [NOTHING if cell is None else f"{cell / 1e9:.1f} GB" for cell in cells]
            work = [percent(value(rows, models(rows)[0], strategy, size, key)) for key in ("extra_flops", "extra_cost")]
            lines.append([strategy, *shown, *work])
    paper = [
        [f"paper, {name}", f"{PAPER[key] / 1e9:.0f} GB", NOTHING, NOTHING, work, NOTHING]
        for name, key, work in (
            ("in-place + sharing", "before", NOTHING),
            ("sublinear plan", "after", f"{PAPER['extra']:.0%} of time"),
        )
    ]
    columns = ("", "temporaries, planned", "compiled", "whole step, compiled", "extra FLOPs", "extra cost")
    notes = (
        "The paper: pre-activation bottleneck blocks of He et al. (2016), 1,000 layers, on MXNet, which writes the result of",
        "every operator, batch norm being one; feature maps alone; its 30 % is measured time. Here: post-activation bottleneck",
        "blocks in the proportions of ResNet-200, float32, all temporaries of both passes. The first two rows: an",
        "executor that writes the result of every JAX equation (batch norm is a dozen); all others: the steps that XLA writes.",
    )
    return [Section(f"{size:,} layers, batch 32, 224 x 224, beside Chen et al. (2016)", columns, lines + paper, notes)]
