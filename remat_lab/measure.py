"""What a program really needs: compiled memory by class, FLOPs, and step times measured in alternation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from remat_lab.hlo import parse
from remat_lab.hlo_flops import repeated_flops
from remat_lab.kernels import Traffic, program_text, traffic
from remat_lab.targets import CPU_SCHEDULERS, Target, as_target

SCHEDULERS = CPU_SCHEDULERS


@dataclass(frozen=True)
class Compiled:
    """A compiled program and its statistics.

    Attributes:
        executable: what `jax.stages.Lowered.compile` returns.
        seconds: time of tracing, lowering and compiling.
        temp_bytes: XLA's temporaries: what a budget is about.
        argument_bytes: the arguments.
        output_bytes: the results.
        alias_bytes: results that reuse the memory of donated arguments, counted in both of the above.
        flops: by XLA's cost analysis, which counts a loop body once; None where the backend has none (CUDA).
    """

    executable: Any
    seconds: float
    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    flops: float | None

    @property
    def total_bytes(self) -> int:
        """Arguments, results and temporaries together, donated memory counted once."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes

    @cached_property
    def traffic(self) -> Traffic | None:
        """Its kernels, and what they read and write, from the optimised program; None where the backend does not show it."""
        return traffic(self.executable)

    @cached_property
    def flops_of_all_trips(self) -> float | None:
        """`flops`, with those of loops' later trips (`hlo_flops`); None where either is not known."""
        text = None if self.flops is None else program_text(self.executable)
        if self.flops is None or text is None:
            return None
        repeated = repeated_flops(parse(text)) if " while(" in text else 0.0
        return None if repeated is None else self.flops + repeated

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program and waits for its results."""
        return jax.block_until_ready(self.executable(*args, **kwargs))


def compile_program(
    fun: Callable[..., Any],
    *args: Any,
    target: Target | str | None = None,
    compiler_options: Mapping[str, str] | None = None,
    static_argnums: tuple[int, ...] = (),
    static_argnames: tuple[str, ...] = (),
    **kwargs: Any,
) -> Compiled:
    """Compiles a function without running it.

    Args:
        fun: any function of arrays.
        args: arrays or `jax.ShapeDtypeStruct`.
        target: a device to compile for, which need not be here; None for the one that JAX uses.
        compiler_options: XLA options, such as an entry of `SCHEDULERS`.
        static_argnums: as for `jax.jit`.
        static_argnames: as for `jax.jit`.
        kwargs: further arguments.

    Raises:
        TargetUnavailable: if nothing can be compiled for the target here, with what to install.
    """
    chosen = as_target(target)
    options = dict(compiler_options or {}) or None
    jitted = chosen.jit(fun, static_argnums=static_argnums, static_argnames=static_argnames, compiler_options=options)
    placed = [arg if i in static_argnums else chosen.place(arg) for i, arg in enumerate(args)]
    named = {key: arg if key in static_argnames else chosen.place(arg) for key, arg in kwargs.items()}
    return compile_jitted(jitted, *placed, **named)


def compile_jitted(jitted: Any, *args: Any, **kwargs: Any) -> Compiled:
    """Compiles what `jax.jit` returned, for later calls too, without running it."""
    start = time.perf_counter()
    lowered = jitted.lower(*args, **kwargs)
    return compile_lowered(lowered, seconds=time.perf_counter() - start)


def compile_lowered(lowered: Any, options: Mapping[str, Any] | None = None, *, seconds: float = 0.0) -> Compiled:
    """Compiles what was traced and lowered before; in any thread, since neither the user's function nor JAX's contexts matter.

    Args:
        lowered: a `jax.stages.Lowered`.
        options: XLA options, beside those given to `jax.jit`.
        seconds: what tracing and lowering took.
    """
    start = time.perf_counter()
    executable = lowered.compile(compiler_options=dict(options or {}) or None)
    seconds += time.perf_counter() - start
    memory: Any = executable.memory_analysis()
    costs: Any = executable.cost_analysis()
    return Compiled(
        executable=executable,
        seconds=seconds,
        temp_bytes=memory.temp_size_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        flops=costs.get("flops") if costs else None,
    )


def device_peak(call: Callable[[], Any], device: Any) -> int | None:
    """Runs something once and asks the device's allocator how much memory it took beyond what was in use before.

    The allocator remembers one peak for the whole process, so a program is seen only if it raises that: measure the largest
    last, or each in a process of its own.

    Args:
        call: runs one program and waits for it; its results must not be kept.
        device: where it runs.

    Returns:
        Bytes of results and temporaries at their peak; None if the device keeps no statistics (the CPU), or if an earlier
        program's peak hides this one's.
    """
    before = device.memory_stats()
    if not before or "peak_bytes_in_use" not in before:
        return None
    call()
    after = device.memory_stats()
    if after["peak_bytes_in_use"] <= before["peak_bytes_in_use"]:
        return None
    return int(after["peak_bytes_in_use"] - before["bytes_in_use"])


def time_alternated(
    thunks: Mapping[str, Callable[[], Any]], *, rounds: int = 7, progress: Callable[[int, int], None] | None = None
) -> dict[str, list[float]]:
    """Times several programs in turn, so that drifts of the machine meet all of them alike.

    Each runs once more, untimed, right before each timed run. In training a step follows its like; the first one after another
    program finds the caches and the allocator as that left them.

    Args:
        thunks: each runs one program and waits for it.
        rounds: how often each is timed.
        progress: called with the number of rounds done and of all rounds.

    Returns:
        For each name the seconds of every round. Compare within rounds: ratios are paired.
    """
    seconds: dict[str, list[float]] = {name: [] for name in thunks}
    for done in range(rounds):
        for name, thunk in thunks.items():
            thunk()
            start = time.perf_counter()
            thunk()
            seconds[name].append(time.perf_counter() - start)
        if progress is not None:
            progress(done + 1, rounds)
    return seconds
