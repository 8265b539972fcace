"""Running a library's solver in a thread, so that Ctrl-C is noticed while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

_POLL_SECONDS = 0.05


def run_in_background[T](
    work: Callable[[], T], stop: Callable[[], bool], watch: Callable[[], None] | None = None
) -> tuple[T | None, bool]:
    """Waits for `work`, which must release the interpreter's lock.

    Args:
        work: the call.
        stop: asks it to end, again and again until it does; false if it cannot, and then its thread is left to run out its time
            limit.
        watch: called from time to time; a KeyboardInterrupt that it raises counts like one from the keyboard.

    Returns:
        What it returned, None if it was left, and whether a KeyboardInterrupt came.
    """
    results: list[T] = []
    ended = threading.Event()  # Thread.is_alive and join cannot be relied on after an interrupt during join (CPython 3.12)

    def run() -> None:
        try:
            results.append(work())
        finally:
            ended.set()

    interrupted = False
    threading.Thread(target=run, daemon=True).start()
    while not ended.is_set():
        try:
            if interrupted and not stop():
                break
            if not ended.wait(_POLL_SECONDS) and watch is not None and not interrupted:
                watch()
        except KeyboardInterrupt:
            interrupted = True
    return (results[0] if results else None), interrupted
