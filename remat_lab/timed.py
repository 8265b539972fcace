"""Rows timed in alternation, relative to plain JAX."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from remat_lab.comparison import Row
from remat_lab.measure import Compiled, time_alternated
from remat_lab.trial import Entry, Job, References, check_row

_PLAIN = "plain, {} scheduler"


def run_rows(job: Job, entries: Iterable[Entry], rounds: int) -> list[Row]:
    """Runs compiled rows, the first of which is plain JAX: checks each against it, then times all in alternation."""
    references = References(job)
    checked = [check_row(job, entry, references) for entry in entries]
    return time_rows(job, checked, references, rounds)


def time_rows(job: Job, entries: list[Entry], references: References, rounds: int) -> list[Row]:
    """Times all rows in alternation, and fills in what is relative to plain JAX. Rows that are one program share its times."""
    plain = entries[0]
    programs = {entry.row.strategy: entry.compiled for entry in entries if entry.compiled is not None}
    for name, options in job.schedulers.items():
        compiled = references.compiled(options)
        if compiled is not None and compiled is not plain.compiled:
            programs[_PLAIN.format(name)] = compiled
    ratios, seconds = _alternate(job, programs, plain.row.strategy, rounds) if rounds > 0 else ({}, {})
    rows: list[Row] = []
    for entry in entries:
        row, mine = entry.row, ratios.get(entry.row.strategy)
        if mine:
            first, _, third = statistics.quantiles(mine, n=4, method="inclusive") if len(mine) > 1 else mine * 3
            row = replace(
                row,
                step_seconds=statistics.median(seconds[row.strategy]),
                step_time_ratio=statistics.median(mine),
                step_time_ratio_quartiles=(first, third),
            )
        rows.append(row)
    by_scheduler = {name: ratios.get(_PLAIN.format(name)) for name in job.schedulers}
    found = {name: statistics.median(mine) for name, mine in by_scheduler.items() if mine}
    return [replace(rows[0], step_time_ratio_by_scheduler=found), *rows[1:]]


def _alternate(
    job: Job, programs: dict[str, Compiled], plain: str, rounds: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """For each name the sorted ratios to plain JAX in the same round, and the seconds."""
    like = {name: next(other for other in programs if programs[other] is compiled) for name, compiled in programs.items()}
    thunks = {name: partial(programs[name].call, *job.values) for name in dict.fromkeys(like.values())}

    def say(done: int, total: int) -> None:
        job.report.finish()
        if done < total:
            job.report.start(f"time {len(thunks)} programs in alternation, round {done + 1} of {total}")

    job.report.start(f"time {len(thunks)} programs in alternation, round 1 of {rounds}")
    timed = time_alternated(thunks, rounds=rounds, progress=say)
    seconds = {name: timed[first] for name, first in like.items()}
    ratios = {name: sorted(a / b for a, b in zip(mine, seconds[plain], strict=True)) for name, mine in seconds.items()}
    return ratios, seconds
