"""Memory against length: backpropagation through time, written out and as a scan, as in section 5.3 of Chen et al. (2016).

Four layers of 1,024, batch 64, inputs of 50 and 5,000 classes, as in the paper. Chen et al. report more than 4 times less than
with liveness analysis alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments import growth
from experiments.growth_plot import draw as draw_growth
from experiments.growth_tables import below_sharing, by_size, exponents
from experiments.records import Point, Row
from experiments.strategies import HEURISTICS, PLAIN, SHARED, UNSHARED
from experiments.sweeps import Experiment
from experiments.tables import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WRITTEN_OUT = (UNSHARED, SHARED, "keep all", *HEURISTICS, "optimal@0.5", "optimal@0.2")
QUICK = (UNSHARED, SHARED, "keep all", "sqrt(n)")  # planned in seconds at any length
COMPILED = (PLAIN, "keep all", "sqrt(n)", "optimal@0.5")
SCAN = (PLAIN, "keep all", "optimal@0.5", "optimal@0.2", "optimal@0.1")
FIT_FROM = 32  # steps


def points(preset: str, target: str | None) -> list[Point]:
    """Written out, all strategies; as a scan, those that nest loops."""
    if preset == "smoke":
        small = {"layers": 1, "hidden": 16, "batch": 4, "inputs": 8, "classes": 20}
        return [
            *growth.points("lstm unrolled", (4, 8, 16), WRITTEN_OUT, "planned", target, time_limit=2.0, **small),
            *growth.points("lstm", (32,), (PLAIN, "optimal@0.5"), "compiled", target, time_limit=2.0, **small),
        ]
    full = {"layers": 4, "hidden": 1024, "batch": 64, "inputs": 50, "classes": 5000}
    if preset == "gpu":
        return [
            *growth.points("lstm unrolled", (16, 64), COMPILED, "run", target, time_limit=10.0, **full),
            *growth.points("lstm", (64, 256, 1024), SCAN, "run", target, time_limit=10.0, **full),
        ]
    return [
        *growth.points("lstm unrolled", (16, 32, 64, 128), WRITTEN_OUT, "planned", target, time_limit=60.0, **full),
        *growth.points("lstm unrolled", (256,), QUICK, "planned", target, time_limit=60.0, **full),
        *growth.points("lstm", (64, 256, 1024), SCAN, "compiled", target, time_limit=10.0, **full),
        *growth.points("lstm unrolled", (16, 32, 64), COMPILED, "compiled", target, time_limit=8.0, **full),
    ]


def tables(rows: Sequence[Row]) -> list[Section]:
    """Bytes and extra work by length, exponents, and how far below liveness analysis alone the compiled steps are."""
    return [*by_size(rows, "steps"), *exponents(rows, "length", FIT_FROM), *below_sharing(rows, "lstm unrolled", "steps")]


def draw(rows: Sequence[Row]) -> Figure:
    """Both panels."""
    return draw_growth(rows, "steps", "LSTM, unrolled length against memory")


EXPERIMENT = Experiment(
    name="lstm-length",
    title="LSTM: memory against length",
    points=points,
    measure=growth.measure,
    tables=tables,
    draw=draw,
    weight=growth.weight,
)
