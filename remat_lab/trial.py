"""One strategy's program on trial: compiled, run once against plain JAX, and timed beside the others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from remat_lab.comparison import Row
from remat_lab.measure import Compiled, compile_program, device_peak, time_alternated
from remat_lab.plans import Plan
from remat_lab.targets import Target, as_target
from remat_lab.verify import largest_difference

Report = Callable[[str, int, int], None]
Function = Callable[..., Any]


class Reporter:
    """Counts the parts of the work that are done."""

    def __init__(self, progress: Report | None, total: int):
        self._progress, self._total, self._done = progress, total, 0

    def start(self, message: str) -> None:
        """Says what is being done now."""
        if self._progress is not None:
            self._progress(message, self._done, self._total)

    def finish(self) -> None:
        """Counts one part as done."""
        self._done += 1


@dataclass(frozen=True, slots=True)
class Job:
    """What all rows share."""

    loss: Function
    args: tuple[Any, ...]
    real_args: tuple[Any, ...]
    blocks: Callable[[Function], Function] | None
    argnums: int | tuple[int, ...]
    has_aux: bool
    report: Reporter
    target: Target | None = None

    @property
    def schedulers(self) -> dict[str, dict[str, Any]]:
        """Compiler options to try: XLA's CPU backend has two schedulers, others refuse the option."""
        return dict(as_target(self.target).schedulers)

    def compile(self, function: Function, options: Mapping[str, Any]) -> Compiled:
        """A step compiled for the target."""
        return compile_program(function, *self.args, target=self.target, compiler_options=dict(options))

    def differentiate(self, loss: Function) -> Function:
        """The step that every row compiles, for an ordinary loss."""
        return jax.value_and_grad(loss, self.argnums, has_aux=self.has_aux)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row in the making."""

    row: Row
    function: Function | None = None
    plan: Plan | None = None
    compiled: Compiled | None = None


def compile_row(job: Job, entry: Entry, *, everywhere: bool = True) -> Entry:
    """Compiles a row under its own options, and for its temp bytes under each scheduler, unless not `everywhere`."""
    if entry.function is None:
        job.report.finish()
        return entry
    row, options = entry.row, dict(entry.row.compiler_options)
    job.report.start(f"compile {row.strategy}")
    try:
        own = _compiled_before(job, entry) or job.compile(entry.function, options)
        traffic = own.traffic
    except Exception as error:
        if row.family == "plain":
            raise
        return replace(entry, row=failed(row, error), function=None)
    finally:
        job.report.finish()
    temps: dict[str, int | None] = {}
    for name, other in job.schedulers.items():
        if other != options and not everywhere:
            continue
        try:
            found = own if other == options else job.compile(entry.function, other)
            temps[name] = found.temp_bytes
        except Exception:
            temps[name] = None
    row = replace(
        row,
        compiled_temp_bytes=own.temp_bytes,
        compiled_temp_by_scheduler=temps,
        argument_bytes=own.argument_bytes,
        output_bytes=own.output_bytes,
        compiled_flops=own.flops_of_all_trips,
        compile_seconds=own.seconds,
        target=None if job.target is None else job.target.name,
        kernels=None if traffic is None else traffic.kernels,
        kernel_bytes=None if traffic is None else traffic.bytes,
    )
    return replace(entry, row=row, compiled=own)


def _compiled_before(job: Job, entry: Entry) -> Compiled | None:
    """What a plan compiled to keep its promise: for its statistics only, as it takes other arguments than a row is run on."""
    return entry.plan.compiled if entry.plan is not None and entry.plan.rounds and not job.real_args else None


class References:
    """Plain JAX's programs and results, one for each set of compiler options."""

    def __init__(self, job: Job, plain: Entry):
        self._job, self._plain = job, plain
        self._found: dict[str, tuple[Compiled, Any]] = {}

    def under(self, options: Mapping[str, Any]) -> Any:
        """(value, gradients) of plain JAX compiled with these options."""
        key = repr(sorted(options.items()))
        if key not in self._found:
            compiled = self._plain.compiled
            if compiled is None or options != self._plain.row.compiler_options:
                function = self._job.differentiate(self._job.loss)
                compiled = self._job.compile(function, options)
            self._found[key] = compiled, compiled.call(*self._job.real_args)
        return self._found[key][1]

    def compiled(self, options: Mapping[str, Any]) -> Compiled | None:
        """Plain JAX compiled with these options, if a row was compared with it."""
        return self._found.get(repr(sorted(options.items())), (None, None))[0]


def check_row(job: Job, entry: Entry, references: References) -> Entry:
    """Runs a row once and compares it with plain JAX."""
    job.report.start(f"check {entry.row.strategy}")
    try:
        if entry.compiled is None:
            return entry
        run = partial(entry.compiled.call, *job.real_args)
        peak = device_peak(run, as_target(job.target).here())
        value, grads = run()
        expected_value, expected_grads = references.under(entry.row.compiler_options)
        of_grads = largest_difference(expected_grads, grads)
        of_value = largest_difference(expected_value, value)
    except Exception as error:
        if entry.row.family == "plain":
            raise
        return replace(entry, row=failed(entry.row, error), compiled=None)
    finally:
        job.report.finish()
    row = replace(
        entry.row,
        max_grad_difference=_finite(of_grads.absolute),
        max_grad_relative_difference=_finite(of_grads.relative),
        max_value_difference=_finite(of_value.absolute),
        bitwise_equal=of_grads.bitwise and of_value.bitwise,
        device_peak_bytes=peak,
    )
    if row.max_grad_difference is None:
        row = replace(row, reason=f"gradient {of_grads.leaf} is not finite where plain JAX's is, or the other way round")
    return replace(entry, row=row)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def run_rows(job: Job, entries: list[Entry], rounds: int) -> list[Row]:
    """Runs compiled rows, the first of which is plain JAX: checks each against it, then times all in alternation."""
    references = References(job, entries[0])
    checked = [check_row(job, entry, references) for entry in entries]
    return time_rows(job, checked, references, rounds)


def relative_flops(entries: list[Entry]) -> list[Row]:
    """The rows, each with its FLOPs relative to those of the first, plain JAX."""
    base = entries[0].row.compiled_flops
    return [
        replace(entry.row, compiled_extra_flops_ratio=entry.row.compiled_flops / base - 1)
        if entry.row.compiled_flops is not None and base
        else entry.row
        for entry in entries
    ]


def time_rows(job: Job, entries: list[Entry], references: References, rounds: int) -> list[Row]:
    """Times all rows in alternation, and fills in what is relative to plain JAX."""
    plain = entries[0]
    programs = {entry.row.strategy: entry.compiled for entry in entries if entry.compiled is not None}
    for name, options in job.schedulers.items():
        compiled = references.compiled(options)
        if compiled is not None and compiled is not plain.compiled:
            programs[f"plain, {name} scheduler"] = compiled
    thunks = {name: partial(compiled.call, *job.real_args) for name, compiled in programs.items()}

    def say(done: int, total: int) -> None:
        job.report.start(f"time {len(thunks)} programs in alternation, round {done} of {total}")
        job.report.finish()

    job.report.start(f"time {len(thunks)} programs in alternation")
    seconds = time_alternated(thunks, rounds=rounds, progress=say) if rounds > 0 else {}
    ratios = {
        name: sorted(a / b for a, b in zip(mine, seconds[plain.row.strategy], strict=True)) for name, mine in seconds.items()
    }
    rows: list[Row] = []
    for row in relative_flops(entries):
        mine = ratios.get(row.strategy)
        if mine:
            first, _, third = statistics.quantiles(mine, n=4, method="inclusive") if len(mine) > 1 else mine * 3
            row = replace(
                row,
                step_seconds=statistics.median(seconds[row.strategy]),
                step_time_ratio=statistics.median(mine),
                step_time_ratio_quartiles=(first, third),
            )
        rows.append(row)
    by_scheduler = {name: ratios.get(f"plain, {name} scheduler") for name in job.schedulers}
    found = {name: statistics.median(mine) for name, mine in by_scheduler.items() if mine}
    return [replace(rows[0], step_time_ratio_by_scheduler=found), *rows[1:]]


def failed(row: Row, error: Exception) -> Row:
    """The row of a strategy that raised."""
    text = str(error).strip()
    return replace(row, status="failed", reason=f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}")
