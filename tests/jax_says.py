"""What JAX itself says of a function: what it keeps for the backward pass, and how often it compiles."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.ad_checkpoint import print_saved_residuals


def saved_residuals(fun: Callable[..., Any], *args: Any) -> Counter[str]:
    """The types of what JAX keeps of a function, its arguments left out, as in `type_of`."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_saved_residuals(fun, *args)
    lines = text.getvalue().splitlines()
    return Counter(line.partition(" ")[0] for line in lines if "the argument" not in line)


def type_of(shape: tuple[int, ...], dtype: Any) -> str:
    """A type in JAX's short form, such as f32[3,4]."""
    return jax.core.ShapedArray(shape, dtype).str_short(short_dtypes=True)


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Yields a list to which an event is appended for each program that is compiled inside."""
    events: list[str] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        del seconds
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
