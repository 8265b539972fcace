"""What a command shows on the error stream while it works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, int, int], None]
_PAUSE = 2.0  # seconds between two lines of the same part of the work, where lines cannot be rewritten


@contextmanager
def shown(title: str) -> Iterator[Report]:
    """Yields a function of (what is being done, parts done, parts in all).

    On a terminal one line with a bar, the time and the present stage is rewritten in place. Elsewhere each stage is a line
    of its own, so that a log shows how far the work has come.
    """
    if sys.stderr.isatty():
        with _bar(title) as report:
            yield report
    else:
        yield _lines()


@contextmanager
def _bar(title: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[title]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, title=title)

        def report(message: str, done: int, total: int) -> None:
            bar.update(task, description=message, completed=done, total=total)

        yield report


def _lines() -> Report:
    began, latest, stage = time.monotonic(), 0.0, ""

    def report(message: str, done: int, total: int) -> None:
        nonlocal latest, stage
        now, new = time.monotonic(), message.partition(":")[0].partition(",")[0]
        if new == stage and now - latest < _PAUSE:
            return
        latest, stage = now, new
        sys.stderr.write(f"[{now - began:6.1f} s, {done}/{total}] {message}\n")
        sys.stderr.flush()

    return report
