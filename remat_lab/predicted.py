"""What a schedule promises, by simulation."""

from __future__ import annotations

from dataclasses import dataclass

from remat_lab.fuse import Fused
from remat_lab.overwrites import overwrites
from solvers.lending import lend
from solvers.placement import place
from solvers.schedule import Schedule
from solvers.simulate import keep_all_peak, simulate
from solvers.spans import spans


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a plan promises, by simulation.

    Attributes:
        peak_bytes: peak of temporaries, each in memory of its own: what solvers keep within the budget.
        temp_bytes: what the program should compile to: the memory in which temporaries find a place (`solvers.placement`),
            but for those that XLA puts into buffers of results that are not yet written (`solvers.lending`), where it does.
        total_bytes: peak with the program's results counted as well; arguments are in neither.
        keep_all_peak_bytes: peak of temporaries if every value is kept until its last use.
        flops: of the whole step.
        extra_flops_ratio: FLOPs of recomputation over those of computing everything once.
        live: bytes of temporaries live during each computation of the schedule.
        starts_backward: position of the first backward computation among them.
    """

    peak_bytes: int
    temp_bytes: int
    total_bytes: int
    keep_all_peak_bytes: int
    flops: float
    extra_flops_ratio: float
    live: tuple[int, ...]
    starts_backward: int


def predict(fused: Fused, schedule: Schedule, plain: Fused, *, lends: bool) -> Predicted:
    """Simulates a schedule.

    Args:
        fused: what is scheduled.
        schedule: a valid schedule of its graph.
        plain: the user's own step, which recomputation is relative to.
        lends: whether the target's compiler puts temporaries into buffers of results (`Target.lends_results`).
    """
    graph, order = fused.graph, schedule.order
    result = simulate(graph, schedule)
    scratch = {v: group.scratch for v, group in fused.groups.items() if group.scratch}
    left = lend(graph, schedule).left if lends else tuple(span for span in spans(graph, schedule) if not span.external)
    once, flops = plain.flops(plain.graph.steps), fused.flops(order)
    return Predicted(
        peak_bytes=result.peak,
        temp_bytes=place(graph, left, overwrites(fused), scratch).total,
        total_bytes=result.peak_total,
        keep_all_peak_bytes=keep_all_peak(plain.graph),
        flops=flops,
        extra_flops_ratio=(flops - once) / once if once else 0.0,
        live=result.live,
        starts_backward=next((p for p, v in enumerate(order) if graph.nodes[v].backward), len(order)),
    )
