"""What a plan's steps are charged: the option `costs` by name.

- "roofline": seconds by the target's arithmetic peak and bandwidth, whichever is slower, and its launch overhead;
- "measured": seconds of each step on the present device, and the workspace that the compiler gives it (see `profile`);
- "flops": floating-point operations;
- a function of (flops, moved_bytes): anything else, in any one unit.
"""

from __future__ import annotations

from dataclasses import replace

from remat_lab.costs import loop_bytes, report_unknown
from remat_lab.errors import InvalidArgument
from remat_lab.flatten import Program
from remat_lab.fuse import CostRule, Fused, fuse
from remat_lab.kernel_fuse import fuse_by_compiler
from remat_lab.profile import Report, profile
from remat_lab.targets import Target, as_target
from solvers.graph import Graph

STEPS = ("auto", "rules", "compiler")
"""Who says what one step is: rules that know no target, or the compiler of the target (all but the CPU, if "auto")."""

COSTS = ("roofline", "measured", "flops")
_RULES: dict[str, CostRule] = {"flops": lambda flops, moved_bytes: flops}


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
    steps: str = "auto",
    progress: Report | None = None,
) -> Fused:
    """Groups a program's equations into steps and charges each.

    Args:
        program: from `flatten`.
        costs: a name of `COSTS`, or a function of (flops, moved_bytes).
        primal_outputs: as for `fuse`.
        target: the device to plan for; the present one if None.
        steps: a name of `STEPS`.
        progress: called while steps are measured.

    Raises:
        InvalidArgument: for an unknown name, or to measure on a device that is not here.

    Warns:
        ProfileWarning: if steps cannot be measured.
        UnknownPrimitiveWarning: once for each primitive whose cost no rule knows, unless steps are measured.
    """
    check_costs(costs)
    if steps not in STEPS:
        raise InvalidArgument(f"steps={steps!r} is unknown: choose one of {', '.join(map(repr, STEPS))}")
    chosen = as_target(target)
    rule = _RULES.get(costs, chosen.machine_for(program).seconds) if isinstance(costs, str) else costs
    if steps == "compiler" or (steps == "auto" and chosen.platform != "cpu"):
        fused = fuse_by_compiler(program, chosen, primal_outputs=primal_outputs, cost=rule)
    else:
        fused = fuse(program, primal_outputs=primal_outputs, cost=rule)
    fused = _per_trip(fused, rule)
    if costs == "measured":
        return profile(fused, target=chosen, progress=progress).apply(fused)
    for group in fused.groups.values():
        for k in group.equations:
            report_unknown(program.equations[k].eqn, program.equations[k].source_line)
    return fused


def _per_trip(fused: Fused, rule: CostRule) -> Fused:
    """Charges loops for what each trip reads and writes, rather than for what goes in at the start and comes out at the end."""
    nodes = list(fused.graph.nodes)
    for v, group in fused.groups.items():
        inside = sum(loop_bytes(fused.program.equations[k].eqn) for k in group.equations)
        if inside > group.moved_bytes:
            nodes[v] = replace(nodes[v], cost=rule(group.flops, inside))
    return replace(fused, graph=Graph(tuple(nodes), fused.graph.outputs))
