"""The loops of a loss, and the loss with other loops in their place."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from remat_lab.applied import forward_function, result_of
from remat_lab.call import Call
from remat_lab.loop import PlannedLoop
from remat_lab.loop_sites import Site, find_sites, run_with, traced
from remat_lab.trace import Loss


def sites_of(loss: Loss, call: Call) -> list[Site]:
    """The loops of a loss that its gradient flows through."""
    run, _ = forward_function(loss, call)
    position = {leaf: p for p, leaf in enumerate(call.traced)}
    return find_sites(traced(run, call.values), [position[leaf] for leaf in call.differentiated], losses=1)


def with_loops(loss: Loss, loops: Mapping[int, PlannedLoop]) -> Loss:
    """The loss with some of its scans run in another way.

    Args:
        loss: the loss.
        loops: by the scan's number, the plan of its loop.

    Returns:
        A loss of the same signature and result.

    Raises (when traced):
        PlanMismatch: if a scan of that number is missing or is another one than the loop planned for.
    """
    if not loops:
        return loss
    plain = loss.fun

    @functools.wraps(plain, updated=())
    def rewritten(*args: Any, **kwargs: Any) -> Any:
        call = loss.split(args, kwargs)
        run, rebuilt = forward_function(loss, call)
        return result_of(rebuilt, run_with(run, call.values, loops, loss.name))

    return replace(loss, fun=rewritten)
