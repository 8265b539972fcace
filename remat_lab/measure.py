"""What a program really needs: compiled memory by class, FLOPs, and step times measured in alternation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

SCHEDULERS: dict[str, dict[str, str]] = {
    "default": {},
    "memory": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
}
"""XLA:CPU's two instruction schedulers, as compiler options. The default assumes that steps may run concurrently."""


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
        flops: by XLA's cost analysis, which counts a loop body once; None where the backend has none.
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

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program and waits for its results."""
        return jax.block_until_ready(self.executable(*args, **kwargs))


def compile_program(
    fun: Callable[..., Any],
    *args: Any,
    compiler_options: Mapping[str, str] | None = None,
    static_argnums: tuple[int, ...] = (),
    static_argnames: tuple[str, ...] = (),
    **kwargs: Any,
) -> Compiled:
    """Compiles a function for the present backend without running it.

    Args:
        fun: any function of arrays.
        args: arrays or `jax.ShapeDtypeStruct`.
        compiler_options: XLA options, such as an entry of `SCHEDULERS`.
        static_argnums: as for `jax.jit`.
        static_argnames: as for `jax.jit`.
        kwargs: further arguments.
    """
    start = time.perf_counter()
    jitted = jax.jit(fun, static_argnums=static_argnums, static_argnames=static_argnames)
    executable = jitted.lower(*args, **kwargs).compile(compiler_options=dict(compiler_options or {}) or None)
    seconds = time.perf_counter() - start
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


def time_alternated(
    thunks: Mapping[str, Callable[[], Any]], *, rounds: int = 7, progress: Callable[[int, int], None] | None = None
) -> dict[str, list[float]]:
    """Times several programs in turn, so that drifts of the machine meet all of them alike.

    Args:
        thunks: each runs one program and waits for it.
        rounds: how often each is timed, after one run that is not.
        progress: called with the number of rounds done and of all rounds.

    Returns:
        For each name the seconds of every round. Compare within rounds: ratios are paired.
    """
    for thunk in thunks.values():
        thunk()
    seconds: dict[str, list[float]] = {name: [] for name in thunks}
    for done in range(rounds):
        for name, thunk in thunks.items():
            start = time.perf_counter()
            thunk()
            seconds[name].append(time.perf_counter() - start)
        if progress is not None:
            progress(done + 1, rounds)
    return seconds
