"""Loops of a plan, read back from a file: nests are numbers, and the loops themselves are those of the function given again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remat_lab.call import Call
from remat_lab.errors import PlanMismatch
from remat_lab.loop import PlannedLoop
from remat_lab.loop_loss import sites_of, with_loops
from remat_lab.loop_plan import NestedLoop
from remat_lab.trace import Loss
from solvers.nest import Nest, Replay, check, keep_all
from solvers.nest_search import Choice


def stored_loop(row: Mapping[str, Any]) -> NestedLoop:
    """A loop of a plan, from what `dataclasses.asdict` and JSON made of it.

    Raises:
        InvalidNest: if its nest is none.
    """
    nest = row["choice"]["nest"]
    made = None if nest is None else _nest(nest)
    return NestedLoop(**{**row, "choice": Choice(**{**row["choice"], "nest": made})})


def nested_again(loss: Loss, call: Call, loops: Sequence[NestedLoop]) -> Loss:
    """A loss whose loops are differentiated as a plan says.

    Args:
        loss: the user's own.
        call: the arguments planned for.
        loops: of the plan.

    Raises:
        PlanMismatch: if gradients flow through other loops than the plan has.
    """
    sites = {site.number: site for site in sites_of(loss, call)}
    planned: dict[int, PlannedLoop] = {}
    for loop in loops:
        if loop.number not in sites:
            raise PlanMismatch(
                f"{loss.name} has no loop where the plan has one: {loop.source_line}, scan number {loop.number}. Plan again."
            )
        found = sites[loop.number].loop
        nest = keep_all(found.length, direct=True) if loop.choice.nest is None else loop.choice.nest
        planned[loop.number] = PlannedLoop(found, nest, loop.tier)
    return with_loops(loss, planned)


def _nest(row: Mapping[str, Any]) -> Nest:
    backward = tuple(Replay(**{**replay, "stores": tuple(replay["stores"])}) for replay in row["backward"])
    blocks, forward = tuple(row["blocks"]), tuple(row["forward"])
    nest = Nest(**{**row, "blocks": blocks, "forward": forward, "backward": backward})
    check(nest)
    return nest
