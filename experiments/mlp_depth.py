"""Memory against depth on the uniform chain of the checkpointing literature: a tanh network of equal layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments import growth
from experiments.growth_plot import draw as draw_growth
from experiments.growth_tables import by_size, exponents
from experiments.records import Point, Row
from experiments.strategies import HEURISTICS, PLAIN, SHARED, UNSHARED
from experiments.sweeps import Experiment
from experiments.tables import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEEPER = (UNSHARED, SHARED, "keep all", *HEURISTICS)
PLANNED = (*DEEPER, "optimal@0.5", "optimal@0.2")
COMPILED = ("keep all", "sqrt(n)", "recursive", PLAIN, "optimal@0.2")
FIT_FROM = 64  # layers


def points(preset: str, target: str | None) -> list[Point]:
    """Planned to 1,024 layers (optimal plans to 256), compiled to 256."""
    if preset == "smoke":
        small = {"batch": 256, "width": 16}
        planned = growth.points("mlp", (8, 16, 32), PLANNED, "planned", target, time_limit=2.0, **small)
        return planned + growth.points("mlp", (8, 16, 32), (PLAIN, "keep all", "sqrt(n)"), "compiled", target, **small)
    full = {"batch": 4096, "width": 128}
    if preset == "gpu":
        return growth.points("mlp", (64, 256), COMPILED, "run", target, time_limit=10.0, **full)
    return [
        *growth.points("mlp", (16, 32, 64, 128, 256), PLANNED, "planned", target, time_limit=8.0, **full),
        *growth.points("mlp", (512, 1024), DEEPER, "planned", target, time_limit=8.0, **full),
        *growth.points("mlp", (64, 128, 256), COMPILED, "compiled", target, time_limit=8.0, **full),
    ]


def tables(rows: Sequence[Row]) -> list[Section]:
    """Bytes and extra work by depth, and exponents."""
    return [*by_size(rows, "layers"), *exponents(rows, "depth", FIT_FROM)]


def draw(rows: Sequence[Row]) -> Figure:
    """Both panels."""
    return draw_growth(rows, "layers", "tanh network of equal layers, depth against memory")


EXPERIMENT = Experiment(
    name="mlp-depth",
    title="Uniform chain: memory against depth",
    points=points,
    measure=growth.measure,
    tables=tables,
    draw=draw,
    weight=growth.weight,
)
