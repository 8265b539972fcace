"""Parts of a portfolio at work side by side, in as many processes as there are workers."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from solvers.graph import Graph
from solvers.part import Answer, Part
from solvers.pool import Pool
from solvers.solution import Options, Progress
from solvers.view import Small, View, best_order

_MARGIN = 0.3  # seconds that a child takes to start and to answer
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """A solver to run.

    Attributes:
        name: in the registry.
        share: of the whole time limit, at most.
        exact: whether it keeps to an order of first computations and its bounds count; it then starts from the best order.
        small: what it does about small values.
        all_workers: whether it takes all workers that are free, rather than one.
        refines: whether it is worth a try only once the same solver is done with small values free.
        scope: what the bounds that it reports while it runs hold for; None if that is not known beforehand.
    """

    name: str
    share: float
    exact: bool = False
    small: Small = "decided"
    all_workers: bool = False
    refines: bool = False
    scope: str | None = None


class Search(Protocol):
    """What a team works for."""

    pool: Pool
    options: Options
    excluded: bool
    settled: set[tuple[str, Small, tuple[int, ...]]]

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        ...

    def take(self, answer: Answer, job: Job, view: View) -> None:
        """Takes over an answer."""
        ...

    def hear(self, progress: Progress, job: Job, view: View) -> None:
        """Takes over a report."""
        ...

    def beat(self) -> None:
        """Tells the caller that the search goes on."""
        ...

    def run_inline(self, job: Job, seconds: float) -> None:
        """Runs a job in this process."""
        ...


def view_for(job: Job, graph: Graph, pool: Pool) -> View:
    """What a job that starts now works on."""
    return View.of(graph, pool.budget, best_order(pool) if job.exact else graph.steps, job.small)


class Team:
    """Child processes, and the jobs still to be started, in order."""

    def __init__(self, search: Search, workers: int, jobs: list[Job]):
        self.search, self.workers, self.jobs = search, workers, jobs
        self._messages: queue.Queue[tuple[Part, Progress | Answer]] = queue.Queue()
        self._running: dict[Part, tuple[Job, int, View]] = {}

    def run(self) -> None:
        """Runs all jobs until the best schedule is proven, or time is over, and leaves no process behind."""
        try:
            while self.search.left > 0 and not self.search.pool.closed:
                if self.search.excluded:
                    self._give_up_exact()
                self._start_jobs()
                if not self._running:
                    return
                self._listen(_POLL_SECONDS)
                self.search.beat()
        finally:
            self._stop()

    def _give_up_exact(self) -> None:
        """Drops the exact jobs: nothing fits in the order that they keep to."""
        self.jobs = [job for job in self.jobs if not job.exact]
        for part, (job, _, _) in self._running.items():
            if job.exact:
                part.ask_to_stop()

    def _start_jobs(self) -> None:
        free = self.workers - sum(used for _, used, _ in self._running.values())
        while self.jobs and free > 0 and self.search.left > 2 * _MARGIN:
            job = self.jobs.pop(0)
            if self._is_worth_a_try(job):
                free -= self._start(job, free if job.all_workers else 1)

    def _is_worth_a_try(self, job: Job) -> bool:
        """Whether an exact job was not proved optimal before, for this order; and, if it refines another one, that one was."""
        if not job.exact:
            return True
        firsts, settled = best_order(self.search.pool), self.search.settled
        return (job.name, job.small, firsts) not in settled and (not job.refines or (job.name, "free", firsts) in settled)

    def _start(self, job: Job, workers: int) -> int:
        """Starts one job; returns how many workers it takes."""
        search = self.search
        seconds = min(search.left - _MARGIN, max(1.0, job.share * search.options.time_limit))
        view = view_for(job, search.pool.graph, search.pool)
        options = replace(
            search.options,
            time_limit=seconds,
            workers=workers,
            starts=view.starts(search.pool, confined=job.exact),
            progress=None,
        )
        tell: Callable[[Part, Progress | Answer], None] = lambda part, message: self._messages.put((part, message))  # noqa: E731
        try:
            part = Part(job.name, view.graph, search.pool.budget, options, tell)
        except OSError:  # no processes on this system
            search.run_inline(job, seconds)
            return 0
        self._running[part] = job, workers, view
        return workers

    def _listen(self, seconds: float) -> bool:
        """Waits for one message and handles it; False if none came."""
        try:
            part, message = self._messages.get(timeout=max(0.01, seconds))
        except queue.Empty:
            return False
        job, _, view = self._running[part]
        if isinstance(message, Progress):
            self.search.hear(message, job, view)
        else:
            del self._running[part]
            part.kill()
            self.search.take(message, job, view)
        return True

    def _stop(self) -> None:
        """Asks all that still run for the best that they have, waits a moment, and ends them."""
        for part in self._running:
            part.ask_to_stop()
        until = time.monotonic() + _MARGIN
        while self._running and time.monotonic() < until:
            self._listen(until - time.monotonic())
        for part in self._running:
            part.kill()
