"""The rows of a comparison on one target, in the order of the table: each is told of as soon as it is compiled and checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from remat_lab.comparison import Row
from remat_lab.entries import Maker
from remat_lab.envelope import Outcome
from remat_lab.plans import Plan
from remat_lab.strategies import Strategy
from remat_lab.targets import as_target
from remat_lab.timed import time_rows
from remat_lab.trial import Entry, References, check_row, compile_row, with_temps
from solvers.errors import InfeasibleBudget

_AHEAD = 2  # rows that are traced, and begun to be compiled, before the first of them is finished


class Rows:
    """Makes rows: plain JAX, policies and heuristics first, then the plans under a budget.

    A row is compiled while the next ones are traced. Beside the searches for plans is compiled what no row waits for: programs
    under the schedulers that are not a row's own, of which only temp bytes are shown.
    """

    def __init__(self, maker: Maker, tell: Callable[[Row], None]):
        self._maker, self._job, self._tell = maker, maker.job, tell
        self._runs = as_target(maker.job.target).is_present
        self._entries: list[Entry] = []
        self._references = References(self._job)

    def make(self, chosen: Sequence[Strategy], *, strict: bool, rounds: int) -> list[Row]:
        """All rows, with times if there are rounds and the target is here.

        Args:
            chosen: the strategies, those under a budget last.
            strict: raise `InfeasibleBudget` before anything is compiled, instead of making a row of it.
            rounds: how often each row is timed.
        """
        optimal = [strategy for strategy in chosen if strategy.family == "optimal"]
        quick = [strategy for strategy in chosen if strategy.family != "optimal"]
        with self._job.programs, self._job.errands:
            if strict:
                plans = self._maker.plans(optimal)
                if refused := next((p for p in plans.values() if isinstance(p, InfeasibleBudget)), None):
                    raise refused
                self._add(quick, {})
            else:
                self._add(quick, {})
                self._begin_all_temps()
                plans = self._plans(optimal)
            self._add(optimal, plans)
            self._begin_all_temps()
            self._job.report.start("compile all rows under each scheduler")
            entries = [with_temps(self._job, entry) for entry in self._entries]
            rows = time_rows(self._job, entries, self._references, rounds) if self._runs else [entry.row for entry in entries]
        for row in rows:
            self._tell(row)
        return rows

    def _plans(self, optimal: Sequence[Strategy]) -> dict[int, Outcome]:
        if self._maker.planner.has_loops:
            return self._maker.plans(optimal)
        return self._maker.plans_at_once(optimal, self._begin_temps)

    def _add(self, strategies: Iterable[Strategy], plans: Mapping[int, Outcome]) -> None:
        """Makes rows, each compiled in another thread while the next ones are made."""
        begun: deque[Entry] = deque()
        for strategy in strategies:
            entry = self._maker.entry(strategy, plans)
            if entry.program is not None:
                self._job.programs.begin(entry.program.step, entry.row.compiler_options)
            begun.append(entry)
            if len(begun) > _AHEAD or strategy.family == "plain":  # the first row at once
                self._finish(begun.popleft())
        for entry in begun:
            self._finish(entry)

    def _finish(self, entry: Entry) -> None:
        entry = compile_row(self._job, entry, self._entries[0].row if self._entries else None)
        if self._runs:
            entry = check_row(self._job, entry, self._references)
        self._entries.append(entry)
        self._tell(entry.row)
        if len(self._entries) == 1:
            self._begin_temps(entry)  # the reference of rows with other options

    def _begin_all_temps(self) -> None:
        for entry in self._entries:
            self._begin_temps(entry)

    def _begin_temps(self, made: Entry | Plan) -> None:
        """Begins to compile a step under the schedulers that are not its own, for `with_temps`."""
        if isinstance(made, Plan):
            step, own = made.on_leaves, made.compiler_options
        elif made.program is None:
            return
        else:
            step, own = made.program.step, dict(made.row.compiler_options)
        for options in self._job.schedulers.values():
            if options != own:
                self._job.programs.begin(step, options)
