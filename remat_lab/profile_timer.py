"""How long steps take by themselves on the present device.

Every step is compiled alone, and all are timed in turn, round after round, so that a slow moment of the machine falls on one
round of all steps rather than on all rounds of one. In each round a step's inputs are made, it runs untimed until its code and
memory are in place, then timed, and everything is freed before the next step: no more than one step's arrays exist at a time.
A run writes its results over those of the run before (donated buffers): in a program their memory is there already, where alone
each run would have it mapped and cleared by the system anew, one page after another.

Before a step, a training step has just run others: the threads of the device are awake. Alone, waking them takes as long as a
small step. So runs are queued one behind the other, and what a longer queue takes beyond one of a single run is divided among
them. What an empty program takes in such a queue is subtracted, and the median over rounds is the result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from remat_lab.measure import Compiled, compile_jitted
from remat_lab.profile_step import StepProgram
from remat_lab.targets import Target, as_target

_QUEUED = 6  # runs in the longer queue beyond the first
_TRIES = 3  # of each queue in a round, of which the fastest counts
_LEAST = 0.1  # of what was timed a step takes at least this part: an empty program, or a single run, may be no quicker


@dataclass(frozen=True, slots=True)
class Timing:
    """What timing a step gave.

    Attributes:
        seconds: of one run, without the launch of a program of its own.
        spread: interquartile range of the rounds, over their median.
    """

    seconds: float
    spread: float


def compile_step(step: StepProgram, target: Target | None = None) -> Compiled:
    """Compiles a step by itself, without running it, as the whole program would be compiled.

    The compiled program takes two lists of arrays: like `step.results`, which it writes over, and like `step.inputs`.
    """
    chosen = as_target(target)
    return compile_jitted(_overwriting(step, chosen), chosen.place(step.results), chosen.place(step.inputs))


def _overwriting(fun: Callable[..., Sequence[Any]], target: Target) -> Any:
    """A function of arrays, to be compiled as one that writes its results into others, which it takes first."""

    def run(_: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
        return list(fun(*arrays))

    return target.jit(run, donate_argnums=0, keep_unused=True, compiler_options=target.compiler_options or None)


def time_steps(
    steps: Sequence[tuple[StepProgram, Compiled]],
    *,
    rounds: int = 7,
    progress: Callable[[int, int], None] | None = None,
) -> list[Timing]:
    """Times compiled steps in alternation.

    Args:
        steps: what to time, compiled for the device that JAX uses.
        rounds: how often each is visited.
        progress: called with the number of rounds done and of all rounds.
    """
    number = [jax.ShapeDtypeStruct((), jnp.float32)]
    empty = run_of(lambda x: [x + 1], number)
    samples: list[list[float]] = [[] for _ in steps]
    for done in range(rounds):
        launch = _time(empty)
        for (step, program), found in zip(steps, samples, strict=True):
            whole = _time(Run(program, *_arrays(step.results, step.inputs, seed=done)))
            found.append(max(whole - launch, _LEAST * whole))
        if progress is not None:
            progress(done + 1, rounds)
    return [_timing(found) for found in samples]


def make_inputs(shapes: Sequence[jax.ShapeDtypeStruct], seed: int = 0) -> list[jax.Array]:
    """Arrays to time a step with.

    Floats lie in [0.5, 1.5): tiny or undefined numbers may take another path. Integers and booleans are zero, which is valid as
    an index and as a mask. Random keys come from the seed.
    """
    draw = np.random.default_rng(seed)
    return [_array(draw, shape, seed) for shape in shapes]


def _array(draw: np.random.Generator, shape: jax.ShapeDtypeStruct, seed: int) -> jax.Array:
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        key = jax.random.key(seed, impl=_implementation(shape))
        return jax.random.split(key, shape.shape) if shape.shape else key
    if not jnp.issubdtype(shape.dtype, jnp.inexact):
        return jnp.zeros(shape.shape, shape.dtype)
    # One block of numbers, repeated: drawing gigabytes would take longer than timing.
    size = int(np.prod(shape.shape))
    block = draw.uniform(0.5, 1.5, min(size, 1 << 16)).astype(np.float32)
    return jax.device_put(np.resize(block, shape.shape).astype(shape.dtype))


def _implementation(shape: jax.ShapeDtypeStruct) -> Any:
    """The generator that keys of this type belong to, which JAX tells of a key but not of its type."""
    found: list[Any] = []
    jax.eval_shape(lambda key: found.append(jax.random.key_impl(key)), shape)
    return found[0]


class Run:
    """A compiled step and its arrays.

    Attributes:
        program: what is run.
        results: of the last run; the next writes over them.
    """

    def __init__(self, program: Compiled, results: list[jax.Array], arrays: list[jax.Array]) -> None:
        self.program, self.results = program, results
        self._arrays = arrays

    def seconds(self, runs: int = 1) -> float:
        """Runs it so many times, each queued behind the one before."""
        start = time.perf_counter()
        for _ in range(runs):
            self.results = self.program.executable(self.results, self._arrays)
        jax.block_until_ready(self.results)
        return time.perf_counter() - start


def run_of(fun: Callable[..., Sequence[Any]], inputs: Sequence[jax.ShapeDtypeStruct]) -> Run:
    """A function of arrays that returns a list of them, compiled as steps are, and what to run it on."""
    results = jax.eval_shape(fun, *inputs)
    return Run(compile_jitted(_overwriting(fun, Target.present()), results, inputs), *_arrays(results, inputs))


def _arrays(
    results: Sequence[jax.ShapeDtypeStruct], inputs: Sequence[jax.ShapeDtypeStruct], seed: int = 0
) -> tuple[list[jax.Array], list[jax.Array]]:
    made = jax.block_until_ready(make_inputs([*results, *inputs], seed))
    return made[: len(results)], made[len(results) :]


def _time(run: Run) -> float:
    """Seconds of a run behind others. One queue before is not timed."""
    run.seconds(2)
    tries = [(run.seconds(), run.seconds(1 + _QUEUED)) for _ in range(_TRIES)]
    single, several = map(min, zip(*tries, strict=True))
    return max(several - single, _LEAST * several) / _QUEUED


def _timing(found: Sequence[float]) -> Timing:
    middle = statistics.median(found)
    if len(found) < 2:
        return Timing(middle, 0.0)
    low, _, high = statistics.quantiles(found, n=4)
    return Timing(middle, (high - low) / middle if middle else 0.0)
