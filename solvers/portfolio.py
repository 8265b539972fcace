"""`auto`: cheap strategies first, then improvement and exact solvers side by side, seeded with the best so far.

1. Keeping everything, which is optimal where it fits; the classic strategies, greedy eviction with a few rules, and the
   caller's starts, repaired where they exceed the budget.
2. Blocks composed by a dynamic program (`hierarchical`), with a bound for any order; on a deep network that is all.
3. On a small graph, a short run of `intervals`, which often ends it there.
4. In child processes (`team`), as many as there are workers: `chain` where the graph is one, the searches of `greedy` and
   `knapsack` and a first try of `events`, `improve`, then `events` and `intervals` from the best few schedules. On a small
   graph the exact ones come first. Whoever proves the best schedule optimal ends all of it. With one worker they take turns.

The exact solvers keep to one order of first computations: that of the best schedule at that moment, or the given one if a
schedule in it costs no more. `events` first takes small values to be free, so that its bound holds for the whole problem, and
so does `frontier`; `intervals` keeps them, so that its schedules fit (`essentials`).

The bound returned is the highest that applies to the returned schedule, and `Solution.scope` says for what order, how many
copies and which values it holds. A schedule in another order may cost less than any in the given order; nothing that was
proven for the given order is then claimed for it. `notes` names the parts that gave schedule and bound, and how each ended.

A search ends when cost and bound differ by less than a millionth of the cost of keeping everything, to which solvers in whole
numbers may round; that is called optimal.

With a work limit the parts run one after another in this process, each by amounts of work instead of seconds, so that a run is
repeatable as long as `time_limit` is not reached. Optimal, relative to `scope`, where the status says so.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace

from solvers.bounds import cost_floor, describe_scope, minimum_budget
from solvers.errors import InfeasibleBudget, SolverError
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.orders import peak_of
from solvers.part import Answer, run_here
from solvers.pool import Claim, Pool, whole_bound
from solvers.portfolio_jobs import BLOCKS, HIERARCHICAL, INTERVALS, jobs_for
from solvers.portfolio_turns import take_turns
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import ANY_SCHEDULE, Options, Progress, Solution, Status, make_solution
from solvers.team import Job, Team, view_for
from solvers.trim import trim
from solvers.turn_bound import turn_bound
from solvers.view import Small, View

CLASSIC = ("sqrt", "chen", "recursive")

_SMALL = 120  # steps; a graph for which a short exact run is worth a try
_SMALL_SECONDS, _SMALL_SHARE = 3.0, 0.1
_DEEP = 3000  # steps; a graph for which neither exact search nor eviction pays
_QUICK_SHARE = 0.02  # of the time limit, for each quick step
_FIRST_SHARE = 0.3  # of the time limit, at most, for a first schedule that fits
_RULES = 3  # of greedy eviction, tried at first
_NO_TIME = 1.0  # seconds in which no part is worth starting


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The best schedule that any part finds, and the best bound that applies to it.

    Raises:
        InfeasibleBudget: if no part finds one; proven only if some part's floor proves it.
    """
    began = time.monotonic()
    if budget is None or simulate(graph, Schedule.from_order(graph, graph.steps)).peak <= budget:
        notes = {"schedule": "keep_all", "bound": "computing each node once"}
        seconds = time.monotonic() - began
        return make_solution(graph, graph.steps, solver="auto", budget=budget, seconds=seconds, notes=notes)
    search = _Search(graph, budget, options, began)
    interrupted = False
    try:
        search.run()
    except KeyboardInterrupt:
        if search.pool.best is None:
            raise
        interrupted = True
    return search.solution(interrupted)


class _Search:
    """One run of the portfolio."""

    def __init__(self, graph: Graph, budget: int, options: Options, began: float):
        self.graph, self.budget, self.options, self.began = graph, budget, options, began
        self.pool = Pool(graph, budget)
        self.excluded = False  # whether it is proven that nothing fits in the order that the exact parts keep to
        self.settled: set[tuple[str, Small, tuple[int, ...]]] = set()  # exact jobs that ended with a proof, and their orders
        self.ends: dict[str, str] = {}
        self.heard = graph.keep_all_cost  # the highest bound of a part that still runs, for reports only
        self.told = (math.inf, -math.inf)

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return self.options.time_limit - (time.monotonic() - self.began)

    @property
    def repeatable(self) -> bool:
        """Whether only amounts of work may decide what is done."""
        return self.options.work_limit is not None

    def run(self) -> None:
        """All parts, until something is proven or time is over."""
        deep = len(self.graph.steps) > _DEEP
        if not deep:
            self.try_classic()
        if self.budget < (floor := minimum_budget(self.graph).bytes):
            if min(self.pool.peaks, default=math.inf) > floor:
                self.find_smallest_budget()
            return
        if deep:
            self.try_fitting_starts()
        self.try_blocks(HIERARCHICAL if deep else BLOCKS)
        if deep and self.pool.best is not None:
            return
        self.try_starts()
        self.try_quick_greedy()
        if math.isfinite(least := cost_floor(self.graph, self.budget)):
            self.claim(least, describe_scope("given"), self.graph.steps, "knapsack of the fullest moments")
        if not self.done and self.repeatable:
            take_turns(self)
        if not self.done and not self.repeatable and len(self.graph.steps) <= _SMALL:
            self.run_inline(INTERVALS, min(_SMALL_SECONDS, _SMALL_SHARE * self.options.time_limit))
        if not self.done and not self.repeatable:
            workers = self.options.workers or os.cpu_count() or 1
            Team(
                self,
                workers,
                jobs_for(self.graph, workers, small=len(self.graph.steps) <= _SMALL, fits=self.pool.best is not None),
            ).run()

    @property
    def done(self) -> bool:
        """Whether nothing is left to find, or no time."""
        return self.pool.closed or self.left <= 0

    def try_blocks(self, job: Job) -> None:
        """Blocks composed by a dynamic program: a start, and for deep networks the answer. The bound holds for any order."""
        self.claim(turn_bound(self.graph, self.budget), ANY_SCHEDULE, None, "what must be missing at the turn")
        if not self.done:
            self.run_inline(job, job.share * self.left)

    def try_classic(self) -> None:
        """Strategies that take milliseconds."""
        self.pool.offer(self.graph.steps, "keep_all")
        limit = math.inf if self.repeatable else max(0.5, _QUICK_SHARE * self.options.time_limit)
        for name in CLASSIC:
            if self.left > 0:
                self._run_here(Job(name, 1.0), Options(time_limit=limit, seed=self.options.seed))

    def find_smallest_budget(self) -> None:
        """Looks for the smallest budget that works: greedy reports the lowest peak that it reaches."""
        limit = math.inf if self.repeatable else min(self.left, max(1.0, 2 * _QUICK_SHARE * self.options.time_limit))
        self._run_here(Job("greedy", 1.0), Options(time_limit=limit, seed=self.options.seed))

    def try_fitting_starts(self) -> None:
        """The caller's orders that are within the budget: on a deep network repair would take too long."""
        for k, order in enumerate(self.options.starts):
            if self.left > 0 and peak_of(self.graph, order) <= self.budget:
                self.offer(order, f"start {k}")

    def try_starts(self) -> None:
        """The caller's orders, repaired where they exceed the budget."""
        deadline = math.inf if self.repeatable else time.monotonic() + 2 * _QUICK_SHARE * self.options.time_limit
        for k, order in enumerate(self.options.starts):
            self._offer_repaired(order, f"start {k}", deadline)

    def try_quick_greedy(self) -> None:
        """Greedy eviction from the given order by the first rules; where nothing fits, longer and from leaner orders."""
        from solvers.evicted import by_each_rule, on_leaner_order

        for order, source in by_each_rule(self.graph, self.budget, self._deadline(_QUICK_SHARE), most=_RULES):
            self.offer(order, source)
        if self.pool.best is None:
            found = on_leaner_order(self.graph, self.budget, self.options.seed, self._deadline(_FIRST_SHARE))
            if found is not None:
                self.offer(*found)

    def _deadline(self, share: float) -> float:
        return math.inf if self.repeatable else time.monotonic() + share * self.options.time_limit

    def run_inline(self, job: Job, seconds: float) -> None:
        """Runs a job in this process."""
        self._run_here(job, replace(self.options, time_limit=max(0.01, seconds)))

    def _run_here(self, job: Job, options: Options) -> None:
        view = view_for(job, self.graph, self.pool)
        starts = view.starts(self.pool, confined=job.exact)
        options = replace(options, starts=starts, progress=lambda progress: self.hear(progress, job, view))
        self.take(run_here(job.name, view.graph, self.budget, options), job, view)

    def take(self, answer: Answer, job: Job, view: View) -> None:
        """Takes over what a part found, proved, or failed to find."""
        self.ends[job.name if job.small != "free" else f"{job.name} with small values free"] = answer.status
        if answer.order is not None:
            self._take_order(view.back(answer.order), job)
        if job.exact and answer.status == Status.OPTIMAL.value:
            self.settled.add((job.name, job.small, view.firsts))
        if job.exact and math.isfinite(answer.bound):
            self.claim(answer.bound, view.scope(answer.scope), view.firsts, job.name)
        if answer.infeasible is not None:
            self.pool.fail(view.error(answer.infeasible), known=view.small != "free")
            self.excluded |= answer.infeasible.proven and job.scope is not None and self.pool.best is None

    def _take_order(self, order: tuple[int, ...], job: Job) -> None:
        try:
            self._offer_repaired(order, job.name, self.began + self.options.time_limit)
        except SolverError as error:
            self.ends[job.name] = f"returned an invalid schedule: {error}"

    def _offer_repaired(self, order: Sequence[int], source: str, deadline: float) -> None:
        """Offers an order, repaired if it exceeds the budget."""
        from solvers.repair import repair

        if simulate(self.graph, Schedule.from_order(self.graph, order)).peak <= self.budget:
            self.offer(order, source)
            return
        repaired = repair(self.graph, order, self.budget, cost_limit=self.pool.cost, deadline=deadline)
        if repaired is not None:
            self.offer(repaired, f"{source}, repaired")

    def offer(self, order: Sequence[int], source: str) -> None:
        """Takes an order that fits, without its unnecessary recomputations."""
        self.pool.offer(trim(self.graph, order, self.budget), source)
        self.report()

    def claim(self, bound: float, scope: str, firsts: tuple[int, ...] | None, source: str) -> None:
        """Takes a bound, rounded up to what costs can add up to."""
        costs = [self.graph.nodes[v].cost for v in self.graph.steps if self.graph.may_recompute(v)]
        self.pool.claim(Claim(whole_bound(costs, self.graph.keep_all_cost, bound), scope, firsts, source))
        self.report()

    def hear(self, progress: Progress, job: Job, view: View) -> None:
        """Passes on the report of a part that runs; the cost only if all values count in it."""
        if job.scope is not None and math.isfinite(progress.lower_bound):
            self.claim(progress.lower_bound, view.scope(job.scope), view.firsts, job.name)
        if job.exact and view.firsts == self.graph.steps and progress.lower_bound <= self.pool.cost:
            self.heard = max(self.heard, progress.lower_bound)
        self.report(math.inf if job.small == "free" else progress.cost)

    def report(self, cost: float = math.inf) -> None:
        """Tells the caller where the search is, if it has moved."""
        best = min(cost, self.pool.cost, self.told[0])
        bound = max(self.pool.strongest.bound, self.heard)
        now = best, min(best, bound)
        if now != self.told:
            self.told = now
            self.beat()

    def beat(self) -> None:
        """Tells the caller that the search goes on, and so lets it end the search."""
        if self.options.progress is not None:
            self.options.progress(Progress("auto", time.monotonic() - self.began, *self.told))

    def solution(self, interrupted: bool) -> Solution:
        """The result.

        Raises:
            InfeasibleBudget: if there is none.
        """
        best, strongest = self.pool.best, self.pool.strongest
        if best is None:
            return self._without_schedule()
        notes = {"schedule": best.source, "bound": strongest.source}
        notes.update((f"part {name}", end) for name, end in self.ends.items())
        return make_solution(
            self.graph,
            best.order,
            solver="auto",
            budget=self.budget,
            seconds=time.monotonic() - self.began,
            status=self._status(interrupted),
            lower_bound=strongest.bound,
            scope=strongest.scope,
            notes=notes,
        )

    def _without_schedule(self) -> Solution:
        """Where nothing was found: the smallest schedule known, if that only time was missing for; else the reason."""
        error = self.pool.error()
        if not error.proven and self.left < _NO_TIME:
            try:  # without time even cheap strategies may not have had their turn
                seconds = time.monotonic() - self.began
                late = Status.TIME_LIMIT
                return stopped(
                    self.graph, self.budget, solver="auto", status=late, seconds=seconds, known_peaks=self.pool.peaks
                )
            except InfeasibleBudget:
                pass
        for name, end in self.ends.items():
            error.add_note(f"{name}: {end}")
        raise error

    def _status(self, interrupted: bool) -> Status:
        if self.pool.closed:
            return Status.OPTIMAL
        if interrupted:
            return Status.INTERRUPTED
        return Status.TIME_LIMIT if self.left < _NO_TIME else Status.FEASIBLE
