"""Offline eviction: run an order and drop what is cheapest to bring back when a step does not fit.

Dynamic Tensor Rematerialization (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021) decides at run time; here
the same eviction is played through in advance, for several rules (the paper's h_DTR with its union-find neighbourhoods
among them, and ones that use the known future as Belady's rule does), then for random mixtures of them, over the given order
and over reorderings of it that need less memory (`reorder`). Recomputations that turn out unnecessary are taken out (`trim`),
and a large-neighbourhood search exchanges others for cheaper ones (`repair`). The best result by simulation is returned.

No optimality is claimed: the result is an upper bound, for graphs of any shape. One run takes time proportional to the
computations made, times the nodes; 1,000 nodes take a few seconds.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from solvers.bounds import infeasible, minimum_budget
from solvers.errors import InfeasibleBudget
from solvers.eviction import Eviction, Neighbourhood, Rule
from solvers.fallback import stopped
from solvers.graph import Graph
from solvers.orders import cost_of, peak_of
from solvers.reorder import lean_orders
from solvers.repair import improve, repair
from solvers.solution import Options, Progress, Solution, Status, make_solution
from solvers.trim import trim

RULES: tuple[Rule, ...] = (
    Rule("cost with evicted ancestors / (bytes x next use)"),
    Rule("cost / (bytes x next use)", neighbourhood=Neighbourhood.NONE),
    Rule("h_DTR", neighbourhood=Neighbourhood.UNION, future=False),
    Rule("h_DTR with next use", neighbourhood=Neighbourhood.UNION),
    Rule("cost with evicted ancestors / (bytes x staleness)", future=False),
    Rule("cost with evicted ancestors / bytes", distance=0),
    Rule("root of cost with evicted ancestors / (bytes x next use)", cost=0.5),
    Rule("bytes x next use", cost=0, neighbourhood=Neighbourhood.NONE),
    Rule("furthest next use", cost=0, size=0, neighbourhood=Neighbourhood.NONE),
)

NAME = "greedy"
_REORDERINGS = 60
_RESTARTS = 24
_IMPROVEMENTS = 600  # rounds of large-neighbourhood search
_ROUNDS_PER_WORK = 20  # of these, for each unit of a work limit
_COMPUTATIONS_PER_NODE = 30
_BISECTIONS = 8


def greedy_order(
    graph: Graph,
    budget: int,
    rule: Rule = RULES[0],
    *,
    base: Sequence[int] | None = None,
    seed: int = 0,
    cost_limit: float = math.inf,
    deadline: float = math.inf,
) -> list[int] | None:
    """The order that one rule makes of a base order, without its unnecessary recomputations.

    Args:
        graph: the graph.
        budget: bytes.
        rule: which value is evicted first.
        base: order of first computations; None for the given one.
        seed: of the rule's noise.
        cost_limit: give up beyond this total cost.
        deadline: give up after this value of `time.monotonic()`.

    Returns:
        An order whose simulated peak is within the budget, or None if the rule got stuck or reached a limit.
    """
    run = Eviction(graph, budget, graph.steps if base is None else base, rule, random.Random(seed))
    step_limit = _COMPUTATIONS_PER_NODE * len(graph) + 1000
    if not run.run(step_limit=step_limit, cost_limit=cost_limit, deadline=deadline):
        return None
    return trim(graph, run.trace, budget)


def solve(graph: Graph, budget: int | None, options: Options) -> Solution:
    """The best schedule that any rule, or a random mixture of rules, finds within the time limit.

    With a work limit no clock decides what is tried: all rules, then a number of improvements in proportion to that limit.

    Raises:
        InfeasibleBudget: if no rule finds a schedule; `proven` tells whether there is none.
        KeyboardInterrupt: if it came before any schedule was known.
    """
    start = time.monotonic()
    given = list(graph.steps)
    if budget is None or peak_of(graph, given) <= budget:
        return make_solution(graph, given, solver=NAME, budget=budget, seconds=time.monotonic() - start)
    if budget < minimum_budget(graph).bytes:
        raise _infeasible(graph, budget, given, start + options.time_limit)
    search = _Search(graph, budget, options, start)
    try:
        status = search.run()
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    seconds, notes = time.monotonic() - start, {"found by": search.found_by}
    if search.best is None:
        if status is Status.FEASIBLE:
            raise _infeasible(graph, budget, search.bases[0], start + options.time_limit)
        return stopped(graph, budget, solver=NAME, status=status, seconds=seconds)
    return make_solution(graph, search.best, solver=NAME, budget=budget, seconds=seconds, status=status, notes=notes)


@dataclass
class _Search:
    """The attempts, and the best order so far."""

    graph: Graph
    budget: int
    options: Options
    start: float
    best: list[int] | None = None
    cost: float = math.inf
    found_by: str = ""
    bases: list[list[int]] = field(default_factory=list[list[int]])

    def run(self) -> Status:
        graph, budget, rng = self.graph, self.budget, random.Random(self.options.seed)
        deadline, rounds = self.start + self.options.time_limit, _IMPROVEMENTS
        if self.options.work_limit is not None:
            rounds = min(rounds, math.ceil(_ROUNDS_PER_WORK * self.options.work_limit))
        for start in self.options.starts:
            if peak_of(graph, start) <= budget:
                self._offer(trim(graph, start, budget), "a given start")
        given = list(graph.steps)
        lean = lean_orders(graph, rng=rng, tries=_REORDERINGS, deadline=self._moment(1 / 10))
        self.bases = [*(order for order in lean if order != given), given]
        if peak_of(graph, lean[0]) <= budget:
            self._offer(lean[0], "reordering alone")
            return Status.FEASIBLE
        # Half of the time at most goes to construction, so that some is left for improvement.
        middle = self._moment(1 / 2)
        for name, attempt in self._attempts(rng, middle):
            if time.monotonic() > (middle if self.best is not None else deadline):
                break
            order = attempt()
            if order is not None:
                self._offer(order, name)
        if self.best is not None and time.monotonic() < deadline:
            better = improve(graph, self.best, budget, rng=rng, rounds=rounds, deadline=deadline)
            self._offer(better, f"{self.found_by}, improved")
        return Status.TIME_LIMIT if time.monotonic() > deadline else Status.FEASIBLE

    def _moment(self, share: float) -> float:
        """The end of a share of the time limit, or all of it if the run is to be repeatable."""
        return self.start + self.options.time_limit * (share if self.options.work_limit is None else 1.0)

    def _attempts(self, rng: random.Random, middle: float) -> Iterator[tuple[str, Callable[[], list[int] | None]]]:
        def evict(rule: Rule, base: list[int], seed: int) -> list[int] | None:
            deadline = max(middle, time.monotonic() + 1)
            limit = 1.5 * self.cost
            return greedy_order(self.graph, self.budget, rule, base=base, seed=seed, cost_limit=limit, deadline=deadline)

        def fit(base: list[int]) -> list[int] | None:
            order = repair(self.graph, base, self.budget, cost_limit=1.5 * self.cost, deadline=middle)
            return None if order is None else trim(self.graph, order, self.budget)

        for k, base in enumerate(self.bases):
            yield f"{RULES[0].name} on order {k}", lambda base=base: evict(RULES[0], base, 0)  # type: ignore[misc]
            yield f"exchanges on order {k}", lambda base=base: fit(base)  # type: ignore[misc]
        for rule in RULES[1:]:
            for k, base in enumerate(self.bases):
                yield f"{rule.name} on order {k}", lambda rule=rule, base=base: evict(rule, base, 0)  # type: ignore[misc]
        for k in range(_RESTARTS):
            rule, base, seed = _mixture(rng), rng.choice(self.bases), rng.randrange(1 << 30)
            yield f"random mixture {k}", lambda rule=rule, base=base, seed=seed: evict(rule, base, seed)  # type: ignore[misc]

    def _offer(self, order: list[int], name: str) -> None:
        cost = cost_of(self.graph, order)
        if cost < self.cost:
            self.best, self.cost, self.found_by = order, cost, name
            if self.options.progress is not None:
                seconds = time.monotonic() - self.start
                self.options.progress(Progress(NAME, seconds, cost, self.graph.keep_all_cost))


def _mixture(rng: random.Random) -> Rule:
    return Rule(
        "random mixture",
        cost=rng.uniform(0.3, 1.5),
        size=rng.uniform(0.3, 1.5),
        distance=rng.uniform(0.0, 1.5),
        neighbourhood=rng.choice((Neighbourhood.ANCESTORS, Neighbourhood.ANCESTORS, Neighbourhood.UNION)),
        future=rng.random() < 0.75,
        noise=rng.uniform(0.0, 0.6),
    )


def _infeasible(graph: Graph, budget: int, base: list[int], deadline: float) -> InfeasibleBudget:
    """The error, with the smallest budget that the first rules reach by bisection."""
    low, high = max(budget, minimum_budget(graph).bytes - 1), peak_of(graph, base)
    for _ in range(_BISECTIONS):
        if high - low <= max(1, high // 200) or time.monotonic() > deadline:
            break
        middle = (low + high) // 2
        runs = (greedy_order(graph, middle, rule, base=base, deadline=deadline) for rule in RULES[:3])
        # Not the peak of what was found, which may be lower: for that budget a rule might get stuck.
        low, high = (low, middle) if any(runs) else (middle, high)
    return infeasible(graph, budget, known_peaks=[high])
