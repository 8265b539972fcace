"""Strategies of the laboratory executed for real: arrays are made and dropped as a schedule says, and every byte is counted."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat_lab.lab_layers import Array, Chain
from solvers.chen import sqrt_order
from solvers.graph import Graph
from solvers.schedule import Compute, Schedule
from solvers.simulate import simulate
from solvers.solution import Solution
from solvers.solve import solve

STRATEGIES = {
    "full retention": "keep_all",
    "sqrt(n)": "sqrt",
    "heterogeneous": "chen",
    "recursive": "recursive",
    "optimal": "auto",
}


@dataclass(frozen=True)
class Execution:
    """One run of a schedule.

    Attributes:
        gradients: of all parameters, last layer first, and of the input.
        live: bytes of all arrays alive during each computation, as held; gradients of parameters and the input's are not in it,
            since they are the results.
        replayed: for each forward step that ran again, whether every repetition gave the very same bytes.
        digest: of all gradients.
    """

    gradients: tuple[Array, ...]
    live: tuple[int, ...]
    replayed: dict[int, bool]
    digest: str


@dataclass(frozen=True)
class Trial:
    """A strategy on a chain: planned, executed, and put to the four tests.

    Attributes:
        name: of the strategy.
        solution: the schedule.
        run: its execution.
        kept_bytes: forward values alive when the backward pass begins.
        checkpoint_bytes: of these, what layers are run again from.
        recomputed: how many forward steps ran again, each repetition counted.
        starts_backward: position of the first backward computation.
        tests: what was tested, and whether it passed.
    """

    name: str
    solution: Solution
    run: Execution
    kept_bytes: int
    checkpoint_bytes: int
    recomputed: int
    starts_backward: int
    tests: dict[str, bool]


def execute(chain: Chain, schedule: Schedule) -> Execution:
    """Runs a schedule on real arrays. What it frees is dropped; reading it then is a KeyError."""
    n, alive, results = len(chain.layers), dict[int, Array](), dict[int, Array]()
    first: dict[int, bytes] = {}
    replayed: dict[int, bool] = {}
    live: list[int] = []
    graph = chain.graph
    for step in schedule.steps:
        v = step.node
        if not isinstance(step, Compute):
            alive.pop(v, None)
        elif v < n:
            alive[v] = chain.layers[v].forward(alive[v - 1] if v else chain.x)
            digest = hashlib.sha256(alive[v].tobytes()).digest()
            if v in first:
                replayed[v] = replayed.get(v, True) and digest == first[v]
            first.setdefault(v, digest)
            live.append(_bytes(alive))
        else:
            _differentiate(chain, graph, v, alive, results)
            live.append(_bytes(alive))
    of_params = [v for v in graph.outputs if graph.nodes[v].part_of is not None]
    gradients = tuple(results[v] for v in [*of_params, graph.step_of(graph.outputs[-1])])
    whole = hashlib.sha256(b"".join(grad.tobytes() for grad in gradients)).hexdigest()
    return Execution(gradients, tuple(live), replayed, whole)


def _bytes(alive: dict[int, Array]) -> int:
    return sum(array.nbytes for array in alive.values())


def _differentiate(chain: Chain, graph: Graph, v: int, alive: dict[int, Array], results: dict[int, Array]) -> None:
    """One backward step: the layer's own backward pass on what is alive."""
    i = max(u for u in graph.nodes[v].deps if u < len(chain.layers))
    above = [u for u in graph.nodes[v].deps if u >= len(chain.layers)]
    grad = alive[above[0]] if above else alive[i]
    of_input, of_params = chain.layers[i].backward(alive[i - 1] if i else chain.x, alive[i], grad)
    (results if graph.nodes[v].external else alive)[v] = of_input
    results.update(zip(graph.parts[v], of_params.values(), strict=True))


def plan(chain: Chain, strategy: str, budget: int | None = None, *, work_limit: float = 2.0) -> Solution:
    """A strategy's schedule; deterministic.

    Args:
        chain: the chain.
        strategy: a name of `STRATEGIES`.
        budget: bytes for "optimal".
        work_limit: of the solver, in deterministic seconds.

    Raises:
        InfeasibleBudget: if the budget is too small.
    """
    limit = budget if strategy == "optimal" else None
    return solve(chain.graph, limit, STRATEGIES[strategy], work_limit=work_limit, time_limit=600, workers=1)


def examine(chain: Chain, name: str, solution: Solution) -> Trial:
    """Executes a schedule twice and puts it to the four tests."""
    run, again = execute(chain, solution.schedule), execute(chain, solution.schedule)
    expected = simulate(chain.graph, solution.schedule)
    order, n = solution.schedule.order, len(chain.layers)
    turn = next(p for p, v in enumerate(order) if v >= n)
    tests = {
        "gradients equal full retention": all(map(np.array_equal, run.gradients, chain.reference())),
        "boundaries replayed exactly": all(run.replayed.values()),
        "peak accounted exactly": run.live == expected.live and max(run.live) == solution.peak,
        "deterministic and finite": run.digest == again.digest
        and run.live == again.live
        and all(np.isfinite(grad).all() for grad in run.gradients),
    }
    kept = _alive_before(chain.graph, solution.schedule, turn)
    return Trial(
        name=name,
        solution=solution,
        run=run,
        kept_bytes=sum(chain.graph.nodes[v].size for v in kept),
        checkpoint_bytes=sum(chain.graph.nodes[v].size for v in _restarted_from(kept, order[turn:], n)),
        recomputed=sum(solution.schedule.recomputed.values()),
        starts_backward=turn,
        tests=tests,
    )


def _alive_before(graph: Graph, schedule: Schedule, position: int) -> set[int]:
    """Forward values alive just before a computation."""
    alive: set[int] = set()
    done = 0
    for step in schedule.steps:
        if isinstance(step, Compute):
            if done == position:
                break
            done += 1
            alive.add(step.node)
        else:
            alive.discard(step.node)
    return {v for v in alive if not graph.nodes[v].backward}


def _restarted_from(kept: set[int], order: Sequence[int], layers: int) -> set[int]:
    """Those of the values kept that a layer reads which runs again, before they are computed again themselves."""
    left, found = set(kept), set[int]()
    for v in order:
        if v < layers:
            found |= left & {v - 1}
            left.discard(v)
    return found


def segment_curve(chain: Chain) -> list[tuple[int, int, int]]:
    """For each number of segments: peak bytes, and forward steps that run again. The peak falls, then rises."""
    found: list[tuple[int, int, int]] = []
    for pieces in range(1, len(chain.layers) + 1):
        schedule = Schedule.from_order(chain.graph, sqrt_order(chain.graph, pieces))
        found.append((pieces, simulate(chain.graph, schedule).peak, sum(schedule.recomputed.values())))
    return found


def run_all(chain: Chain, budget: int | None = None) -> list[Trial]:
    """All strategies on a chain; "optimal" gets a budget, or as much memory as sqrt(n) takes."""
    trials: list[Trial] = []
    for name in STRATEGIES:
        if name == "optimal" and budget is None:
            budget = next(trial.solution.peak for trial in trials if trial.name == "sqrt(n)")
        trials.append(examine(chain, name, plan(chain, name, budget)))
    return trials


def passed(trials: Sequence[Trial]) -> bool:
    """Whether every strategy passed every test."""
    return all(all(trial.tests.values()) for trial in trials)
