"""What a plan's steps are charged: the option `costs` by name.

- "roofline": seconds by the target's arithmetic peak and bandwidth, whichever is slower, and its launch overhead;
- "measured": seconds of each step on the present device, and the workspace that the compiler gives it (see `profile`);
- "flops": floating-point operations;
- a function of (flops, moved_bytes): anything else, in any one unit.
"""

from __future__ import annotations

from remat_lab.errors import InvalidArgument
from remat_lab.flatten import Program
from remat_lab.fuse import CostRule, Fused, fuse
from remat_lab.profile import Report, profile
from remat_lab.targets import Target, as_target

COSTS = ("roofline", "measured", "flops")


def check_costs(costs: str | CostRule) -> None:
    """Raises InvalidArgument for a name that is none of `COSTS`."""
    if isinstance(costs, str) and costs not in COSTS:
        raise InvalidArgument(f"costs={costs!r} is unknown: choose one of {', '.join(map(repr, COSTS))}, or pass a function")


def fuse_priced(
    program: Program,
    costs: str | CostRule = "roofline",
    *,
    primal_outputs: int = 0,
    target: Target | str | None = None,
    progress: Report | None = None,
) -> Fused:
    """Groups a program's equations into steps and charges each.

    Args:
        program: from `flatten`.
        costs: a name of `COSTS`, or a function of (flops, moved_bytes).
        primal_outputs: as for `fuse`.
        target: the device to plan for; the present one if None.
        progress: called while steps are measured.

    Raises:
        InvalidArgument: for an unknown name, or to measure on a device that is not here.

    Warns:
        ProfileWarning: if steps cannot be measured.
    """
    check_costs(costs)
    if not isinstance(costs, str):
        return fuse(program, primal_outputs=primal_outputs, cost=costs)
    if costs == "flops":
        return fuse(program, primal_outputs=primal_outputs, cost=lambda flops, moved_bytes: flops)
    chosen = as_target(target)
    fused = fuse(program, primal_outputs=primal_outputs, cost=chosen.machine_for(program).seconds)
    return profile(fused, target=chosen, progress=progress).apply(fused) if costs == "measured" else fused
