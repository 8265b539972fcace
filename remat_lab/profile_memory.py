"""What a program's own memory costs: temporaries that the system hands out anew at every run, and that leave the caches.

An allocator keeps small blocks for the next run, but gives large ones back, so that a program with large temporaries waits for
the system to map and clear each page again where it first writes to it. glibc does so from 32 MiB on at the latest (the upper
limit of its M_MMAP_THRESHOLD). And what is kept for long has left the caches when it is read. Neither is in the steps by
themselves, which find the memory of their results in place and their inputs just used (`profile_timer`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from remat_lab.measure import compile_jitted, time_alternated
from remat_lab.profile_timer import run_of

LARGE_BYTES = 32 << 20
_ROUNDS = 15
_PARTS = 32  # arrays that the kept bytes are split into


def memory_seconds(size: int) -> float:
    """Seconds that temporaries of so many bytes take beyond the steps that write and read them."""
    return _fresh_seconds(size) + _cold_seconds(size)


def _fresh_seconds(size: int) -> float:
    """Seconds that it takes longer to write a result of so many bytes anew than over the one before."""

    def fill(value: jax.Array) -> list[jax.Array]:
        return [jnp.broadcast_to(value, size // 4)]

    number = jax.ShapeDtypeStruct((), jnp.float32)
    anew, value = compile_jitted(jax.jit(fill), number), jnp.float32(1)
    return _longer(lambda: anew.call(value), run_of(fill, [number]).seconds)


def _cold_seconds(size: int) -> float:
    """Seconds that it takes longer to write and read so many bytes where all are kept until they are read.

    The same steps forward and back once keep each result and once read the last one only. What is kept lies in memory that is
    there already.
    """
    part = jax.ShapeDtypeStruct((size // _PARTS // 4,), jnp.float32)
    return _longer(*(run_of(partial(_there_and_back, kept), [part]).seconds for kept in (_PARTS, 1)))


def _there_and_back(kept: int, x: jax.Array) -> list[jax.Array]:
    """A chain of steps each way. So many of the last results of the way forward are read in turn on the way back."""
    step = jax.lax.optimization_barrier
    results = []
    for _ in range(_PARTS):
        x = step(x * 0.5 + 0.5)
        results.append(x)
    results = results[-kept:]
    for k in reversed(range(_PARTS)):
        x = step(x * 0.5 + results[k % kept])
    return [*results, jnp.sum(x)]


def _longer(more: Callable[[], Any], less: Callable[[], Any]) -> float:
    """How much longer one takes than the other: the median over rounds."""
    seconds = time_alternated({"more": more, "less": less}, rounds=_ROUNDS)
    return max(0.0, statistics.median(a - b for a, b in zip(seconds["more"], seconds["less"], strict=True)))
