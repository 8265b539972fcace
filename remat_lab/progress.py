"""What a command shows on the error stream while it works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from remat_lab.report import reasons, row_as_line, rows_so_far

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.segment import Segment

    from remat_lab.comparison import Row

Report = Callable[[str, int, int], None]
_PAUSE = 2.0  # seconds between two lines of the same part of the work, where lines cannot be rewritten
_PER_SECOND = 2  # how often a screen is drawn again
_BELOW = 5  # lines below the table, at most: the bar, and what is being done


class Screen(NamedTuple):
    """What a command tells: what is being done, parts done, parts in all; and rows as they become known."""

    report: Report
    row: Callable[[Row], None]


@contextmanager
def shown(title: str) -> Iterator[Report]:
    """Yields a function of (what is being done, parts done, parts in all), which shows how far a command has come."""
    with shown_with_rows(title, timed=False) as screen:
        yield screen.report


@contextmanager
def shown_with_rows(title: str, *, timed: bool) -> Iterator[Screen]:
    """Shows how far a command has come, and the rows of a comparison as they become known.

    On a terminal a bar, the time and the present stage are rewritten in place, below a table of the rows so far. Elsewhere each
    stage and each new row is a line of its own, so that a log shows how far the work has come.

    Args:
        title: what the command is about.
        timed: whether rows will be timed in the end.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        live = _Live(title, timed)
        console = Console(stderr=True)
        with Live(live, console=console, refresh_per_second=_PER_SECOND, transient=True, redirect_stdout=False):
            yield Screen(live.report, live.row)
    else:
        lines = _Lines()
        yield Screen(lines.report, lines.row)


class _Live:
    """The table of the rows so far, and below it a bar and what is being done."""

    def __init__(self, title: str, timed: bool):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._bar.add_task(title, total=None)
        self._message, self._timed = "", timed
        self._rows: dict[tuple[str | None, str], dict[str, Any]] = {}
        self._told = 0
        self._drawn: tuple[tuple[int, ...], list[list[Segment]]] = (), []  # the table's lines, and what they were drawn for

    def report(self, message: str, done: int, total: int) -> None:
        self._bar.update(self._task, completed=done, total=total)
        self._message = message

    def row(self, row: Row) -> None:
        self._rows[row.target, row.strategy] = asdict(row)
        self._told += 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment
        from rich.text import Text

        now = self._told, console.width, console.height
        if self._drawn[0] != now:  # a table takes longer to draw than all else, and programs are timed meanwhile
            self._drawn = now, self._draw(console, options)
        for line in self._drawn[1]:
            yield from (*line, Segment.line())
        yield self._bar
        yield Text(self._message, style="dim")

    def _draw(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        """Lines of the table of the last rows that fit on the screen."""
        from rich.console import Group
        from rich.text import Text

        rows = list(self._rows.values())
        while rows:
            why = [Text(reason, overflow="ellipsis", no_wrap=True) for reason in reasons(rows)]
            lines = console.render_lines(Group(rows_so_far(rows, self._timed), *why, ""), options, pad=False)
            if len(rows) == 1 or len(lines) <= console.height - _BELOW:
                return lines
            rows.pop(0)
        return []


class _Lines:
    """A line for each stage and row."""

    def __init__(self) -> None:
        self._began, self._latest, self._stage, self._message = time.monotonic(), 0.0, "", ""
        self._done = (0, 0)
        self._rows = set[tuple[str | None, str]]()

    def report(self, message: str, done: int, total: int) -> None:
        self._done = done, total
        now, new = time.monotonic(), message.partition(":")[0].partition(",")[0]
        if message == self._message or (new == self._stage and now - self._latest < _PAUSE):
            return
        self._latest, self._stage, self._message = now, new, message
        self._write(message)

    def row(self, row: Row) -> None:
        if (row.target, row.strategy) not in self._rows:
            self._rows.add((row.target, row.strategy))
            self._write(row_as_line(asdict(row)))

    def _write(self, text: str) -> None:
        done, total = self._done
        sys.stderr.write(f"[{time.monotonic() - self._began:6.1f} s, {done}/{total}] {text}\n")
        sys.stderr.flush()
