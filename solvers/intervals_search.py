"""The state of one `intervals` run: the best schedule, the bound, what is left of the limits, and how one model is solved."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from solvers.bounds import describe_scope
from solvers.cpsat import Limits, Outcome, run
from solvers.graph import Graph
from solvers.greedy import RULES, greedy_order
from solvers.intervals_model import IntervalModel, Slot
from solvers.orders import cost_of, peak_of
from solvers.prune import Event, count_moments, events_of, every_moment, useful_moments
from solvers.solution import Options, Progress
from solvers.trim import trim
from solvers.units import Units

# While a schedule exceeds the budget, getting rid of all of the excess is worth this many times the cost of keep-all.
_EXCESS_WEIGHT = 20
# How often a step may be computed if the caller leaves that open: to begin with, and when nothing that fits is found with that.
_COPIES, _MOST_COPIES = 2, 5
# Where greedy eviction finds nothing that fits, a schedule for a somewhat larger budget is a good one to start from.
_LARGER_BUDGETS = (1.03, 1.06, 1.1, 1.15)


class Search:
    """The best schedule so far, and a current one that models start from.

    The current schedule is one that the model can express. It exceeds the budget while nothing that fits is known.

    Attributes:
        order: the best order that fits, or None.
        cost: its cost; infinite while there is none.
        current: the current schedule as numbers of events, in order.
        excess: bytes by which the current schedule exceeds the budget.
        moments: what the numbers of events mean.
        complete: whether the moments leave out nothing useful.
        lower_bound: proven, relative to `scope`.
        closed: whether nothing in `scope` is cheaper than the best order (or fits, if there is none).
        interrupted: whether a KeyboardInterrupt arrived.
        peaks: of the orders that were simulated, bytes.
    """

    def __init__(self, graph: Graph, budget: int | None, options: Options, *, copies: int | None, most_moments: int):
        self.began = time.perf_counter()
        self.graph, self.options = graph, options
        ceiling = sum(node.charge + node.workspace for node in graph.nodes)
        self.budget = ceiling if budget is None else min(budget, ceiling)
        self.order: Sequence[int] | None = None
        self.cost = math.inf
        self.lower_bound = graph.keep_all_cost
        self.closed = self.interrupted = False
        self.peaks: list[int] = []
        self.work = 0.0
        self.allowed_copies = _COPIES if copies is None else copies
        self.most_copies = _MOST_COPIES if copies is None else copies
        self.complete = count_moments(graph) <= most_moments
        self._starts: list[Sequence[int]] = [graph.steps]
        try:
            self._starts = [self._offer(order) for order in (graph.steps, *options.starts)]
        except KeyboardInterrupt:  # of the progress callback
            self.interrupted = True

    def prepare(self, *, greedy: bool) -> None:
        """Chooses the schedule to start from, and with it the moments and units of all models.

        Args:
            greedy: whether greedy eviction may make one where none is known that fits.
        """
        graph = self.graph
        if greedy and self.order is None:
            self._starts += self._greedy_orders()
        staged = self._choose_start()
        moments = every_moment(graph) if self.complete else useful_moments(graph)
        self.moments = moments.with_events(staged)
        self.current = sorted(self.moments.rank[event] for event in staged)
        self.excess = max(0, peak_of(self.graph, [v for *_, v in staged]) - self.budget)
        self.units = Units.of(graph, self.budget, len(self.moments.events) + 1)
        self._set_copies()

    @property
    def scope(self) -> str:
        """What the bound is relative to."""
        text = describe_scope("given", self.allowed_copies)
        more = sum(c > self.allowed_copies for c in self.copies.values())
        if more:
            text += f" (for {more} of them as many as the start has)"
        if not self.complete:
            text += ", recomputed only just before late uses"
        if not self.units.exact_bytes:
            text += f", sizes rounded up to multiples of {self.units.byte_unit} bytes"
        return text

    @property
    def seconds(self) -> float:
        """Wall-clock time since the start."""
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        """What is left of deterministic work if that is limited, else of seconds; 0 when there is no more to do."""
        seconds = self.options.time_limit - self.seconds
        if self.closed or self.interrupted or seconds <= 0:
            return 0.0
        return seconds if self.options.work_limit is None else max(0.0, self.options.work_limit - self.work)

    def solve_whole(self, amount: float) -> None:
        """Solves the whole model for schedules that fit, spending at most `amount` of what is left."""
        model = self._model(self.graph.steps, 0)
        model.hint(self.current)
        outcome = self._run(model, amount, self.options.seed, self._report_whole)
        self._raise_bound(outcome.bound)
        if outcome.proved:
            self.close()

    def solve_part(self, free: Collection[int], amount: float, seed: int) -> Outcome:
        """Improves the current schedule by deciding anew on the recomputations of some steps.

        Improving means a lower cost or, while the current schedule exceeds the budget, less of that.

        Args:
            free: the steps.
            amount: how much of `left` to spend at most.
            seed: added to the seed of the options.
        """
        excess = -(-self.excess // self.units.byte_unit)
        model = self._model(free, excess)
        model.hint(self.current, excess)
        return self._run(model, amount, self.options.seed + seed, None)

    def close(self) -> None:
        """Notes that nothing in scope is better than the best order."""
        self.closed = True
        if self.order is not None:
            self._raise_bound(self._repeated(self.order))

    def allow_more_copies(self) -> bool:
        """Lets steps be computed once more from now on; False if that is the caller's limit or ours."""
        if self.allowed_copies >= self.most_copies:
            return False
        self.allowed_copies += 1
        self._set_copies()
        self.closed = False
        return True

    def try_more_copies(self) -> None:
        """Once the whole model is settled, settles it with more copies, as long as that lowers the cost.

        Each attempt may take as long as everything before it. One that ends without proof or gain leaves no trace.
        """
        while self._settled():
            cost, bound, copies = self.cost, self.lower_bound, self.allowed_copies
            spent = self.seconds if self.options.work_limit is None else self.work
            if not self.allow_more_copies():
                return
            self.lower_bound = self.graph.keep_all_cost
            self.solve_whole(min(self.left, max(1.0, spent)))
            if self.cost == cost:
                if not self._settled():
                    self.allowed_copies, self.lower_bound, self.closed = copies, bound, True
                    self._set_copies()
                return

    def _settled(self) -> bool:
        """Whether the best order is proved, and not just by costing no more than keep-all."""
        return self.closed and self.order is not None and self.cost > self.graph.keep_all_cost

    def _set_copies(self) -> None:
        used = Counter(self.moments.order(self.current))
        moments = self.moments.again
        self.copies = {v: min(max(self.allowed_copies, used[v]), 1 + len(moments.get(v, ()))) for v in self.graph.steps}

    def report(self) -> None:
        """Tells the caller where the search is."""
        if self.options.progress is not None:
            self.options.progress(Progress("intervals", self.seconds, self.cost, self.lower_bound))

    def _choose_start(self) -> list[Event]:
        """The events of the known schedule to start from: the least excess, then the least cost."""
        graph = self.graph
        best: tuple[int, float, list[Event]] | None = None
        for order in self._starts:
            events = events_of(graph, order)
            if events is not None:
                staged = [v for *_, v in events]
                rank = (max(0, peak_of(self.graph, staged) - self.budget), cost_of(self.graph, staged), events)
                best = rank if best is None else min(best, rank)
        assert best is not None  # keeping everything is always among the starts
        return best[2]

    def _greedy_orders(self) -> list[Sequence[int]]:
        """Orders by greedy eviction that fit, or else one that exceeds the budget a little.

        There is one if that takes long (or runs must repeat themselves), else one per rule.
        """
        found: list[Sequence[int]] = []
        repeatable = self.options.work_limit is not None
        deadline = math.inf if repeatable else time.monotonic() + self.options.time_limit / 4
        attempts = [(1.0, rule) for rule in RULES] + [(more, RULES[0]) for more in _LARGER_BUDGETS]
        for more, rule in attempts:
            if found and (more > 1 or repeatable or self.seconds > self.options.time_limit / 20):
                break
            order = greedy_order(self.graph, int(self.budget * more), rule, deadline=deadline)
            if order is not None:
                found.append(self._offer(order))
        return found

    def _offer(self, order: Sequence[int]) -> Sequence[int]:
        """Takes an order as the best one if it fits and is cheaper; returns it without unnecessary recomputations."""
        peak = peak_of(self.graph, order)
        self.peaks.append(peak)
        if peak > self.budget:
            return order
        order = trim(self.graph, order, self.budget)
        if cost_of(self.graph, order) < self.cost:
            self.order, self.cost = order, cost_of(self.graph, order)
            self.report()
        return order

    def _model(self, free: Collection[int], excess: int) -> IntervalModel:
        """A model in which recomputations of `free` steps are open, and those of others as in the current schedule."""
        times: dict[int, list[int]] = {v: [] for v in self.graph.steps}
        for k, v in zip(self.current, self.moments.order(self.current), strict=True):
            times[v].append(k)
        slots = {v: [Slot((k,)) for k in fixed] for v, fixed in times.items()}
        for v in free:
            if v in self.moments.again:
                slots[v][1:] = [Slot(self.moments.again[v], True)] * (self.copies[v] - 1)
        limit = None if self.order is None else self._repeated(self.order)
        weight = max(1, _EXCESS_WEIGHT * sum(self.units.cost) // excess) if excess else 0
        return IntervalModel(
            self.graph, self.moments, self.units, slots, cost_limit=limit, largest_excess=excess, excess_weight=weight
        )

    def _run(
        self, model: IntervalModel, amount: float, seed: int, report: Callable[[float | None, float], None] | None
    ) -> Outcome:
        seconds = max(0.0, self.options.time_limit - self.seconds)
        work = self.options.work_limit
        if work is None:
            seconds = min(amount, seconds)
        else:
            work = min(amount, work - self.work)
        outcome = run(model.model, Limits(seconds, work, seed, self.options.workers), report)
        self.work += outcome.work
        self.interrupted |= outcome.interrupted
        if outcome.found:
            self._take(model.events(outcome.value_of))
        return outcome

    def _take(self, events: Sequence[int]) -> None:
        """Makes a solution of a model the current schedule if it is better."""
        order: Sequence[int] = self.moments.order(events)
        excess = max(0, peak_of(self.graph, order) - self.budget)
        if not excess:
            longer, order = zip(events, order, strict=True), self._offer(order)
            events = [next(k for k, w in longer if w == v) for v in order]  # the order is what is left of the longer one
        now = cost_of(self.graph, self.moments.order(self.current))
        if (excess, cost_of(self.graph, order)) < (self.excess, now):
            self.current, self.excess = list(events), excess

    def _report_whole(self, objective: float | None, bound: float) -> None:
        if objective is not None:
            cost = self.graph.keep_all_cost + self.units.cost_of(objective)
        else:
            cost = self.cost
        self._raise_bound(bound)
        if self.options.progress is not None:
            self.options.progress(Progress("intervals", self.seconds, min(cost, self.cost), self.lower_bound))

    def _raise_bound(self, bound: float) -> None:
        """Takes over a bound of the whole model's objective."""
        if math.isfinite(bound):
            # The objective is a whole number.
            whole = math.ceil(bound - 1e-6)
            self.lower_bound = max(self.lower_bound, self.graph.keep_all_cost + self.units.cost_of(whole))

    def _repeated(self, order: Sequence[int]) -> int:
        """Cost units of all computations but the first of each step."""
        return sum(self.units.cost[v] for v in order) - sum(self.units.cost)
