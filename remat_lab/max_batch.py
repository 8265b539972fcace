"""The largest batch that fits a device: searched by planning, confirmed by compiling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from remat_lab.api import plan
from remat_lab.budget import parse_budget
from remat_lab.device_memory import Reserved
from remat_lab.errors import InvalidArgument
from remat_lab.plans import Plan
from solvers.errors import InfeasibleBudget, InvalidBudget

Make = Callable[[int], Any]
FORWARD = "forward"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One batch that was tried.

    Attributes:
        batch: its size.
        fits: whether a plan was found.
        extra_cost_ratio: cost of recomputation over that of the step; None without a plan.
        reason: why it does not fit; None if it does.
        compiled: whether the plan was held to the device's memory as compiled, or only planned.
    """

    batch: int
    fits: bool
    extra_cost_ratio: float | None
    reason: str | None
    compiled: bool


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """What `max_batch` found.

    Attributes:
        batch: the largest batch that fits; 0 if none does.
        plan: its plan; None if none fits.
        attempts: everything that was tried, in order.
    """

    batch: int
    plan: Plan | None
    attempts: tuple[Attempt, ...]


def max_batch(
    make: Make,
    device_memory: int | str,
    *,
    reserved: Reserved = 0,
    max_extra_cost: float | str | None = None,
    start: int = 1,
    limit: int = 1 << 20,
    precision: float = 0.01,
    check: str = "compiled",
    time_limit: float = 5.0,
    progress: Callable[[Attempt], None] | None = None,
    **options: Any,
) -> MaxBatch:
    """Finds the largest batch whose step, planned, fits a device.

    Batches are doubled until one does not fit, then halved in between. These plans trust their predictions; the largest is then
    held to the device's memory as compiled, and gives way to smaller ones until one is. Each batch is traced anew, which takes
    about a second: sizes grow with the batch, but the compiler's work space and what is worth writing need not.

    Args:
        make: from a batch size to `(loss, args)` or to an object with `loss`, `args`, and optionally `argnums` and `has_aux`.
            `args` may be shapes: nothing is allocated.
        device_memory: bytes of the whole device, or a string with a unit.
        reserved: what lies on it beside the step, as for `plan`.
        max_extra_cost: most that recomputation may cost: a fraction of the step's cost, "forward" for as much as one more
            forward pass, None for no limit.
        start: first batch to try.
        limit: no batch above this is tried.
        precision: the search ends when the smallest batch known not to fit is at most this much larger, or larger by one.
        check: as for `plan`.
        time_limit: seconds for each plan that is tried.
        progress: called after each attempt.
        **options: further options of `plan`.

    Returns:
        The largest batch found, its plan, and all attempts. Feasibility need not be monotone in the batch, and a plan not found
        in time need not be impossible: no larger batch is excluded by proof.

    Raises:
        InvalidArgument: for an option out of range.
        InvalidBudget: if the device's memory is not a number of bytes.
    """
    if start < 1 or limit < start or not precision >= 0:
        raise InvalidArgument(f"start={start}, limit={limit}, precision={precision}: 1 <= start <= limit, precision at least 0")
    if not (max_extra_cost is None or max_extra_cost == FORWARD or isinstance(max_extra_cost, int | float)):
        raise InvalidArgument(f'max_extra_cost={max_extra_cost!r}: a fraction of the step\'s cost, "forward", or None')
    if isinstance(device_memory, str):
        parse_budget(device_memory, 0)  # whether it is one: before the work, not in the middle
    attempts: list[Attempt] = []
    plans: dict[int, Plan] = {}

    def fits(batch: int, how: str = "planned") -> bool:
        found, attempt = _try(make, batch, device_memory, reserved, max_extra_cost, how, time_limit=time_limit, **options)
        attempts.append(attempt)
        if progress is not None:
            progress(attempt)
        if found is not None:
            plans[batch] = found
        return attempt.fits

    low, high = _bracket(fits, start, limit)
    low, high = _bisect(fits, low, high, precision)
    if check == "compiled":
        plans.clear()
        low = _confirm(lambda batch: fits(batch, "compiled"), low, precision)
    return MaxBatch(low, plans.get(low), tuple(attempts))


def _bracket(fits: Callable[[int], bool], start: int, limit: int) -> tuple[int, int]:
    """A batch that fits, or 0, and the smallest tried that does not, or one above the limit."""
    low, high, batch = 0, limit + 1, start
    while low < batch < high:
        if fits(batch):
            low, batch = batch, min(2 * batch, limit)
        else:
            high, batch = batch, batch // 2 if low == 0 else batch
    return low, high


def _bisect(fits: Callable[[int], bool], low: int, high: int, precision: float) -> tuple[int, int]:
    while high - low > max(1, int(low * precision)):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def _confirm(fits: Callable[[int], bool], batch: int, precision: float) -> int:
    """The largest batch up to this one that fits as compiled, or 0: down in steps that double, then halved in between."""
    if batch == 0 or fits(batch):
        return batch
    step, low, high = max(1, int(batch * precision)), 0, batch
    while low == 0 and high > 1:
        trial = max(1, high - step)
        if fits(trial):
            low = trial
        else:
            high, step = trial, 2 * step
    return _bisect(fits, low, high, precision)[0] if low else 0


def _try(
    make: Make,
    batch: int,
    device_memory: int | str,
    reserved: Reserved,
    max_extra_cost: float | str | None,
    check: str,
    **options: Any,
) -> tuple[Plan | None, Attempt]:
    made = make(batch)
    loss, args = (made[0], made[1]) if isinstance(made, tuple) else (made.loss, made.args)
    options = {**{name: getattr(made, name) for name in ("argnums", "has_aux") if hasattr(made, name)}, **options}
    compiled = check == "compiled"
    try:
        found = plan(loss, *args, device_memory=device_memory, reserved=reserved, check=check, **options)
    except (InfeasibleBudget, InvalidBudget) as error:
        return None, Attempt(batch, False, None, str(error), compiled)
    ratio, allowed = found.solution.overhead, _allowed(found, max_extra_cost)
    if ratio > allowed:
        return None, Attempt(batch, False, ratio, f"recomputation costs {ratio:.1%} of the step, above {allowed:.1%}", compiled)
    return found, Attempt(batch, True, ratio, None, compiled)


def _allowed(found: Plan, max_extra_cost: float | str | None) -> float:
    """The largest extra cost, as a fraction of the step's."""
    if max_extra_cost is None:
        return float("inf")
    if max_extra_cost != FORWARD:
        return float(max_extra_cost)
    graph = found.graph
    return sum(graph.nodes[v].cost for v in graph.steps if not graph.nodes[v].backward) / graph.keep_all_cost
