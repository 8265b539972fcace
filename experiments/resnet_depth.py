"""Memory against depth: residual networks up to 1,001 layers, as in figure 5 of Chen et al. (2016, arXiv:1604.06174).

Batch 32, images of 3 x 224 x 224, bottleneck blocks in the proportions of ResNet-200. The paper trained the pre-activation
networks of He et al. on MXNet, where every operator writes its result; here the steps are those that XLA writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from experiments import growth
from experiments.growth_plot import draw as draw_growth
from experiments.growth_tables import by_size, exponents, limits, paper_table
from experiments.records import Point, Row
from experiments.strategies import DROP, HEURISTICS, PLAIN, SHARED, UNSHARED
from experiments.sweeps import Experiment
from experiments.tables import Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OPTIMAL = ("optimal@0.5", "optimal@0.2", "optimal@0.1")
PLANNED = (UNSHARED, SHARED, "keep all", DROP, *HEURISTICS, *OPTIMAL)
DEEPER = ("keep all", "sqrt(n)", "recursive")  # compiled, for the exponents
COMPILED = (*DEEPER, PLAIN, "optimal@0.2")
THOUSAND = ("sqrt(n)", "optimal@0.1", "recursive", "keep all", PLAIN)  # compiled, the most wanted first
FIT_FROM = 200  # layers; below, what any depth has (the stem, first blocks of stages) is a tenth of keeping all and more


def points(preset: str, target: str | None) -> list[Point]:
    """Planned first; compiled at the end, the deepest network last, since that takes minutes a point."""
    full = {"batch": 32, "image": 224, "width": 64, "classes": 1000}
    if preset == "smoke":
        small = {"batch": 4, "image": 32, "width": 8, "classes": 10}
        few = (UNSHARED, SHARED, "keep all", DROP, "sqrt(n)", "recursive", "optimal@0.5")
        planned = growth.points("resnet", (14, 26, 50), few, "planned", target, time_limit=2.0, **small)
        return planned + growth.points("resnet", (14,), (PLAIN, "sqrt(n)"), "compiled", target, **small)
    if preset == "gpu":
        return _on_a_gpu(target, {**full, "batch": 2048})  # so that memory runs out within depths that compile in a minute
    return [
        *growth.points("resnet", (50, 101, 200, 401), PLANNED, "planned", target, time_limit=60.0, **full),
        *growth.points("resnet", (1001,), PLANNED, "planned", target, time_limit=600.0, **full),
        *growth.points("resnet", (101, 200), COMPILED, "compiled", target, time_limit=60.0, **full),
        *growth.points("resnet", (401,), DEEPER, "compiled", target, time_limit=60.0, **full),
        *growth.points("resnet", (1001,), THOUSAND, "compiled", target, time_limit=600.0, **full),
    ]


def _on_a_gpu(target: str | None, options: Mapping[str, int]) -> list[Point]:
    """Run where there is a device, within 8 minutes; compiled for a target, deeper as well."""
    level, limit = ("run", 20.0) if target is None else ("compiled", 30.0)
    plans = ("sqrt(n)", "optimal@100GB", "optimal@0.5")
    found = growth.points("resnet", (26, 50), (PLAIN, "keep all", *plans), level, target, time_limit=limit, **options)
    found += growth.points("resnet", (101,), plans, level, target, time_limit=limit, **options)
    if target is not None:
        found += growth.points("resnet", (200,), plans, level, target, time_limit=limit, **options)
        found += growth.points("resnet", (101, 200), (PLAIN,), level, target, time_limit=limit, **options)
    return found


def tables(rows: Sequence[Row]) -> list[Section]:
    """Bytes and extra work by depth, exponents, and the deepest network beside the paper's figures."""
    return [*by_size(rows, "layers"), *exponents(rows, "depth", FIT_FROM), *paper_table(rows), *limits(rows, "layers")]


def draw(rows: Sequence[Row]) -> Figure:
    """Both panels."""
    return draw_growth(rows, "layers", "ResNet, bottleneck blocks, depth against memory")


EXPERIMENT = Experiment(
    name="resnet-depth",
    title="Residual networks: memory against depth",
    points=points,
    measure=growth.measure,
    tables=tables,
    draw=draw,
    weight=growth.weight,
)
