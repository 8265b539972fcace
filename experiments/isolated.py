"""Calling a function in a process of its own, which may die without taking this one along."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple


class Killed(NamedTuple):
    """The process ended without an answer.

    Attributes:
        reason: how.
        seconds: after how long.
    """

    reason: str
    seconds: float


def call_apart(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of a module in a fresh process.

    Args:
        function: importable by name.
        *args: picklable.

    Returns:
        What the function returns, or `Killed` if the system or a fault ended the process first.
    """
    context = multiprocessing.get_context("spawn")  # forking a process that has threads of JAX may hang
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(there, function, args))
    began = time.perf_counter()
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
        here.close()
    if answer is None:
        code = process.exitcode or 0
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Killed(f"the process was ended by {how}, as the system does when memory runs out", time.perf_counter() - began)
    return answer


def _answer(there: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    there.send(function(*args))
    there.close()
