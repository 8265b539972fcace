"""What a program's own memory costs: temporaries that the system hands out anew at every run.

An allocator keeps small blocks for the next run, but gives large ones back, so that a program with large temporaries waits for
the system to map and clear each page again where it first writes to it. glibc does so from 32 MiB on at the latest (the upper
limit of its M_MMAP_THRESHOLD). Nothing of it is in the steps by themselves: the memory of their results is there before they
run (`profile_timer`).
"""

from __future__ import annotations

import math
import time
from functools import partial

import jax
import jax.numpy as jnp

LARGE_BYTES = 32 << 20
_RUNS = 5


def fresh_seconds(size: int = 2 * LARGE_BYTES) -> float:
    """Seconds that it takes to get so many bytes from the system, and to clear them.

    What writing a result of this size takes beyond writing it over the one before; the fastest of a few runs each.
    """
    shape, number = jax.ShapeDtypeStruct((size // 4,), jnp.float32), jnp.float32(1)
    fill = partial(jnp.broadcast_to, shape=shape.shape)
    anew = jax.jit(fill).lower(number).compile()
    over = jax.jit(lambda _, value: fill(value), donate_argnums=0, keep_unused=True).lower(shape, number).compile()
    last = jax.block_until_ready(anew(number))
    new, old = math.inf, math.inf
    for _ in range(_RUNS):
        start = time.perf_counter()
        last = jax.block_until_ready(over(last, number))
        old = min(old, time.perf_counter() - start)
        start = time.perf_counter()
        jax.block_until_ready(anew(number))
        new = min(new, time.perf_counter() - start)
    return max(0.0, new - old)
