"""`plan` and `value_and_grad`: a loss, its arguments and a budget → a schedule."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from remat_lab.budget import parse_budget
from remat_lab.call import Call
from remat_lab.device_memory import Reserved, reserved_bytes, temp_budget
from remat_lab.errors import InvalidArgument, InvalidLoss
from remat_lab.flatten import flatten
from remat_lab.fuse import CostRule, Fused
from remat_lab.planner import Planner
from remat_lab.plans import Plan
from remat_lab.pricing import check_costs, fuse_priced
from remat_lab.profile import Report
from remat_lab.selection import Selection, keep_always
from remat_lab.targets import Target, as_target
from remat_lab.trace import Loss
from solvers.solution import Progress


def plan(
    fun: Callable[..., Any],
    *args: Any,
    budget: int | float | str | None = None,
    device_memory: int | str | None = None,
    reserved: Reserved = 0,
    solver: str = "auto",
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    costs: str | CostRule = "roofline",
    must_save: Selection = (),
    must_recompute: Selection = (),
    check: str = "compiled",
    target: Target | str | None = None,
    steps: str = "auto",
    time_limit: float = 20.0,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    **kwargs: Any,
) -> Plan:
    """Plans the value-and-gradient step of a loss under a memory budget.

    Args:
        fun: scalar loss of pytrees, as for `jax.value_and_grad`.
        *args: its arguments; arrays or `jax.ShapeDtypeStruct`, nothing is allocated.
        budget: largest temp bytes of the compiled step: int bytes, a string with a unit ("2GiB"), or a fraction of the keep-all
            peak; None for no limit. Arguments and results of the step are not in it.
        device_memory: bytes of the whole device, or a string with a unit: the budget is then what arguments, results and
            `reserved` leave of it (the smaller one, if `budget` is given too).
        reserved: what lies on the device beside the step: bytes, an optimizer with `init`, a pytree of arrays or shapes, or a
            mapping from names to these.
        solver: a name from `solvers.available()`; "auto" proves as much as it can within `time_limit`.
        argnums: which arguments to differentiate.
        has_aux: whether the loss returns `(value, aux)`.
        static_argnums: arguments not to trace, by position. Booleans, strings and functions are never traced.
        static_argnames: the same by name.
        costs: what recomputation is charged: "roofline" (seconds by the device's peak and bandwidth), "measured" (each distinct
            step is compiled and timed on the present device, once for all plans: see `profile`), "flops", or a function of
            (flops, moved_bytes).
        must_save: values never to recompute, as the user's checkpoint names or a predicate of `selection.Candidate`. In exact
            schedules this is about values that are written; others are computed inside the step that reads them.
        must_recompute: values that `Plan.apply` never keeps, likewise; exact schedules keep what pays.
        check: "compiled" holds the plan to its budget as compiled: the step is compiled with the plan's `compiler_options`,
            and where XLA needs more than was predicted the plan is made again for less; plain JAX is the plan if as compiled it
            is within the budget and the schedule would recompute something. "planned" trusts the prediction.
        target: the device to plan for, by name ("h200", "v5e", a .toml file; see `remat-lab targets`), which need not be here:
            costs, steps and the promise are then that device's. None for the one that JAX uses.
        steps: "compiler" compiles once for the target and takes its kernels for steps, "rules" knows no target and compiles
            nothing; "auto" asks the compiler of every target but the CPU.
        time_limit: seconds for the solver, for each plan that is tried.
        seed: of the solver.
        workers: threads of the solver; None for all cores.
        progress: called while steps are measured, and by the solver from time to time.
        **kwargs: further arguments of the loss, not differentiated.

    Returns:
        The plan: schedule, predictions, and the scheduled function.

    Raises:
        InvalidLoss: if the loss cannot be differentiated.
        InvalidBudget: if the budget is not one, or the device is too small for arguments and results alone.
        InfeasibleBudget: if it cannot be met, with the smallest that can and the source line that stands in the way; or, with
            what the smallest plan compiles to, if none keeps it as compiled.
        InvalidArgument: for an unknown solver or option.
    """
    loss = as_loss(fun, argnums, has_aux, static_argnums, static_argnames)
    limits: dict[str, Any] = {"time_limit": time_limit, "seed": seed, "workers": workers, "progress": progress, "check": check}
    wanted: dict[str, Any] = {"must_save": must_save, "must_recompute": must_recompute, "solver": solver, "costs": costs}
    wanted |= {"target": None if target is None else as_target(target), "steps": steps}
    memory: dict[str, Any] = {"budget": budget, "device_memory": device_memory, "reserved": reserved}
    return _plan(loss, loss.call(args, kwargs), **memory, **wanted, **limits)


def _plan(
    loss: Loss,
    call: Call,
    *,
    budget: int | float | str | None,
    costs: str | CostRule = "roofline",
    must_save: Selection = (),
    must_recompute: Selection = (),
    device_memory: int | str | None = None,
    reserved: Reserved = 0,
    target: Target | None = None,
    steps: str = "auto",
    **options: Any,
) -> Plan:
    start = time.perf_counter()
    wanted: dict[str, Any] = {"must_save": must_save, "must_recompute": must_recompute, "target": target, "steps": steps}
    tell: Callable[[Progress], None] | None = options.get("progress")

    def report(message: str, done: int, total: int) -> None:
        if tell is not None:
            tell(Progress(f"{message} ({done} of {total})", time.perf_counter() - start, math.nan, math.nan))

    planner = planner_for(loss, call, costs=costs, report=report, **wanted)
    limits = [] if device_memory is None else [temp_budget(planner.fused, call, device_memory, reserved)]
    limits += [] if budget is None else [parse_budget(budget, planner.keep_all_peak_bytes)]
    made = planner.plan(min(limits, default=None), seconds=time.perf_counter() - start, **options)
    return made.amended(reserved=reserved_bytes(reserved, call))


def planner_for(
    loss: Loss,
    call: Call,
    *,
    costs: str | CostRule = "roofline",
    must_save: Selection = (),
    must_recompute: Selection = (),
    target: Target | None = None,
    steps: str = "auto",
    report: Report | None = None,
) -> Planner:
    """Traces and groups a loss once, for plans under any number of budgets; `report` hears of steps that are measured."""

    def again(other: Loss) -> Fused:
        return keep_always(analyse(other, call, costs=costs, target=target, steps=steps, report=report), must_save)

    wanted: dict[str, Any] = {"must_save": must_save, "must_recompute": must_recompute, "target": target}
    return Planner(loss, call, again(loss), costs=costs, analyse=again, **wanted)


def analyse(
    loss: Loss,
    call: Call,
    *,
    costs: str | CostRule = "roofline",
    as_written: bool = False,
    target: Target | None = None,
    steps: str = "auto",
    report: Report | None = None,
) -> Fused:
    """Traces a loss and groups its step: everything of planning that comes before solving.

    Args:
        loss: what to trace.
        call: its arguments.
        costs: as for `plan`.
        as_written: whether equal computations stay apart, as the recomputation of a user's `jax.checkpoint` must.
        target: the device planned for; None for the one that JAX uses.
        steps: as for `plan`.
        report: called while steps are measured.
    """
    check_costs(costs)
    traced = loss.trace(call)
    program = flatten(traced.jaxpr, merge=not as_written).abstract()
    if not program.equations:
        raise InvalidLoss(f"{loss.name} computes nothing from its arguments, so there is nothing to plan")
    return fuse_priced(program, costs, primal_outputs=traced.primal_outputs, target=target, steps=steps, progress=report)


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    budget: int | float | str,
    **options: Any,
) -> Callable[..., Any]:
    """`jax.value_and_grad` under a memory budget: plans on the first call for each set of shapes and static values.

    The result may be called inside or outside `jax.jit`. On the CPU give the outermost `jax.jit` the compiler options
    `remat_lab.measure.SCHEDULERS["memory"]`, without which XLA:CPU does not keep to the planned peak.

    Args:
        fun: scalar loss of pytrees.
        argnums: which arguments to differentiate.
        has_aux: whether the loss returns `(value, aux)`.
        budget: as for `plan`.
        **options: further options of `plan`, such as `solver` or `static_argnames`.

    Returns:
        A function with the signature of `fun`. Its attribute `plans` maps call signatures to plans.
    """
    statics = {key: options.pop(key, ()) for key in ("static_argnums", "static_argnames")}
    return PlannedFunction(as_loss(fun, argnums, has_aux, **statics), {"budget": budget, **options})


class PlannedFunction:
    """What `value_and_grad` returns."""

    def __init__(self, loss: Loss, options: dict[str, Any]):
        self._loss = loss
        self._options = options
        self.plans: dict[Any, Plan] = {}
        self._lock = threading.RLock()  # a second thread waits for the plan instead of making it again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Value and gradient, planned for these shapes."""
        call = self._loss.call(args, kwargs)
        signature = (call.signature, call.weak_types)
        with self._lock:
            if signature not in self.plans:
                self.plans[signature] = _plan(self._loss, call, **self._options)
        return self.plans[signature].value_and_grad()(*args, **kwargs)


def as_loss(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool,
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
) -> Loss:
    """A user's loss with its options, checked."""
    if not callable(fun):
        raise InvalidArgument(f"the first argument is the loss, a function; got {type(fun).__name__}")
    return Loss(fun, _as_ints(argnums), has_aux, _as_tuple(static_argnums), _as_tuple(static_argnames))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, int | str) else tuple(value)


def _as_ints(argnums: int | Sequence[int]) -> int | tuple[int, ...]:
    return argnums if isinstance(argnums, int) else tuple(argnums)
