"""What a program's own memory costs: temporaries that the system hands out anew at every run.

An allocator keeps small blocks for the next run, but gives large ones back, so that a program with large temporaries waits for
the system to map and clear each page again where it first writes to it. glibc does so from 32 MiB on at the latest (the upper
limit of its M_MMAP_THRESHOLD). Nothing of it is in the steps by themselves, as their results are smaller.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

LARGE_BYTES = 32 << 20
_PIECES = 4
_RUNS = 5


def fresh_seconds(size: int = 2 * LARGE_BYTES) -> float:
    """Seconds that it takes to get so many bytes from the system rather than from the allocator's store.

    What writing one large result takes beyond writing the same bytes as several smaller ones; the fastest of a few runs each.
    """
    whole, piece = _filled(size), _filled(size // _PIECES)
    large = min(_seconds(whole, 1) for _ in range(_RUNS))
    small = min(_seconds(piece, _PIECES) for _ in range(_RUNS))
    return max(0.0, large - small)


def _filled(size: int) -> Any:
    fill = jax.jit(lambda value: jnp.broadcast_to(value, (size // 4,)))
    program = fill.lower(jax.ShapeDtypeStruct((), jnp.float32)).compile()
    for _ in range(2):  # the allocator learns what it is asked for
        jax.block_until_ready(program(jnp.float32(1)))
    return program


def _seconds(program: Any, times: int) -> float:
    value = jax.block_until_ready(jnp.float32(1))
    start = time.perf_counter()
    for _ in range(times):
        jax.block_until_ready(program(value))
    return time.perf_counter() - start
