"""One strategy's program on trial: compiled, and run once against plain JAX."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from remat_lab.api import as_loss
from remat_lab.call import Call
from remat_lab.comparison import Row
from remat_lab.environment import cores
from remat_lab.errands import Errands
from remat_lab.measure import Compiled, device_peak
from remat_lab.programs import LossStep, Program, Programs
from remat_lab.targets import Target, as_target
from remat_lab.trace import Loss
from remat_lab.verify import largest_difference

_PLANS_AT_ONCE = 2  # a search rarely finds anything in the second half of its time

Report = Callable[[str, int, int], None]
Function = Callable[..., Any]


class Reporter:
    """Counts the parts of the work that are done, and says what is being done: one thing, and what goes on beside it."""

    def __init__(self, progress: Report | None, total: int):
        self._progress, self._total, self._done = progress, total, 0
        self._now, self._beside = "", dict[str, str]()

    def start(self, message: str) -> None:
        """Says what is being done now; nothing, if the message is empty."""
        self._now = message
        self._say()

    def beside(self, what: str, message: str) -> None:
        """Says what is new about something that goes on at the same time; nothing, if it has ended."""
        if self._beside.get(what) != message:
            self._beside[what] = message
            self._say()

    def finish(self) -> None:
        """Counts one part as done."""
        self._done, self._now = self._done + 1, ""

    def _say(self) -> None:
        beside = [message for _, message in sorted(self._beside.items())]
        messages = [message for message in (self._now, *beside) if message]
        if self._progress is not None and messages:
            self._progress("; ".join(messages), self._done, self._total)


@dataclass(frozen=True)
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

    @cached_property
    def call(self) -> Call:
        """The arguments, as every row's program takes them."""
        return self._call(self.args)

    @cached_property
    def values(self) -> list[Any]:
        """What programs are run on."""
        return self._call(self.real_args).values

    @cached_property
    def programs(self) -> Programs:
        """Where all programs are compiled."""
        return Programs(self.call, self.target, self.errands)

    @cached_property
    def errands(self) -> Errands:
        """What threads that make plans ask of this one."""
        return Errands(min(_PLANS_AT_ONCE, cores()))

    @cached_property
    def plain(self) -> Program:
        """Plain JAX."""
        return self.differentiate(self.loss)

    @cached_property
    def unflatten(self) -> Callable[..., Any]:
        """The leaves of a planned step's results, as (value, gradients)."""
        return self._loss.trace(self.call).unflatten

    def differentiate(self, loss: Function) -> Program:
        """The step of an ordinary loss."""
        step = LossStep(loss, self.call, self.argnums, self.has_aux)
        return Program(step, step.unflatten)

    def _call(self, args: tuple[Any, ...]) -> Call:
        return self._loss.call(args, {})

    @property
    def _loss(self) -> Loss:
        return as_loss(self.loss, self.argnums, self.has_aux, (), ())


@dataclass(frozen=True, slots=True)
class Entry:
    """A row in the making."""

    row: Row
    program: Program | None = None
    compiled: Compiled | None = None


def compile_row(job: Job, entry: Entry, plain: Row | None = None) -> Entry:
    """Compiles a row under its own options.

    Args:
        job: what all rows share.
        entry: the row.
        plain: the row of plain JAX, which FLOPs are relative to; None if this is it.
    """
    row = entry.row
    if entry.program is None:
        job.report.finish()
        return entry
    job.report.start(f"compile {row.strategy}")
    try:
        own = job.programs.compile(entry.program.step, row.compiler_options)
        traffic = own.traffic
    except Exception as error:
        if row.family == "plain":
            raise
        return Entry(failed(row, error))
    finally:
        job.report.finish()
    row = replace(
        row,
        compiled_temp_bytes=own.temp_bytes,
        compiled_temp_by_scheduler={
            name: own.temp_bytes for name, other in job.schedulers.items() if other == row.compiler_options
        },
        argument_bytes=own.argument_bytes,
        output_bytes=own.output_bytes,
        compiled_flops=own.flops_of_all_trips,
        compile_seconds=own.seconds,
        kernels=None if traffic is None else traffic.kernels,
        kernel_bytes=None if traffic is None else traffic.bytes,
    )
    base = (row if plain is None else plain).compiled_flops
    if row.compiled_flops is not None and base:
        row = replace(row, compiled_extra_flops_ratio=row.compiled_flops / base - 1)
    return replace(entry, row=row, compiled=own)


def with_temps(job: Job, entry: Entry) -> Entry:
    """The row with its temp bytes under each scheduler."""
    if entry.program is None:
        return entry
    temps: dict[str, int | None] = {}
    for name, options in job.schedulers.items():
        try:
            temps[name] = job.programs.compile(entry.program.step, options).temp_bytes
        except Exception:
            temps[name] = None
    return replace(entry, row=replace(entry.row, compiled_temp_by_scheduler=temps))


class References:
    """Plain JAX's programs and results, one for each set of compiler options."""

    def __init__(self, job: Job):
        self._job = job
        self._found: dict[str, tuple[Compiled, Any]] = {}

    def under(self, options: Mapping[str, Any]) -> Any:
        """(value, gradients) of plain JAX compiled with these options."""
        key = repr(sorted(options.items()))
        if key not in self._found:
            plain = self._job.plain
            compiled = self._job.programs.compile(plain.step, options)
            self._found[key] = compiled, plain.unflatten(compiled.call(*self._job.values))
        return self._found[key][1]

    def compiled(self, options: Mapping[str, Any]) -> Compiled | None:
        """Plain JAX compiled with these options, if a row was compared with it."""
        return self._found.get(repr(sorted(options.items())), (None, None))[0]


def check_row(job: Job, entry: Entry, references: References) -> Entry:
    """Runs a row once and compares it with plain JAX."""
    job.report.start(f"check {entry.row.strategy}")
    try:
        if entry.compiled is None or entry.program is None:
            return entry
        run = partial(entry.compiled.call, *job.values)
        peak = device_peak(run, as_target(job.target).here())
        value, grads = entry.program.unflatten(run())
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


def failed(row: Row, error: Exception) -> Row:
    """The row of a strategy that raised."""
    text = str(error).strip()
    return replace(row, status="failed", reason=f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}")
