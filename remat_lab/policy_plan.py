"""Plans of the form that `jax.checkpoint` can express: nested regions, and names of the values kept in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from remat_lab import _jax
from remat_lab.budget import parse_budget
from remat_lab.cuts import crossing, owners, primal_equations, regions_of, settle
from remat_lab.differentiated import differentiate, inexact_inputs
from remat_lab.errors import InvalidArgument, RematLabError
from remat_lab.flatten import Equation, Program
from remat_lab.fuse import Fused
from remat_lab.layers import costs_nothing, fading, reduced, without
from remat_lab.loop import PlannedLoop
from remat_lab.naming import is_nameable
from remat_lab.primitives import VIEWS, forbids_replay
from remat_lab.refs import forward_program
from remat_lab.segments import Emitter, Layout, Region, number_of
from remat_lab.selection import Selection, select_values
from solvers.errors import InfeasibleBudget
from solvers.schedule import Schedule
from solvers.segment_search import EFFORTS, FORMS, SegmentPlan, SegmentSearch
from solvers.simulate import fullest_step, keep_all_peak, simulate
from solvers.solution import Options, Solution

_PREFIX = "remat_lab/"
_ROUNDS = 3
_FULL = 0.97  # of a budget: a plan that needs less may be asked for again, once
Budget = int | float | str


@dataclass(frozen=True)
class PolicyPlan:
    """A plan of the form that `jax.checkpoint` can express.

    Attributes:
        forward: the function's program, as written by the user.
        fused: its forward and backward pass as a graph.
        layout: regions and names.
        budget_bytes: largest peak of temporaries allowed; None if no budget was given.
        segments: what the search found; None where nothing needs to be recomputed.
        peak_bytes: peak of temporaries of the emitted program, simulated in the order in which JAX writes it.
        keep_all_peak_bytes: the same without recomputation.
        extra_flops_ratio: FLOPs that the emitted program computes more than once, over those of computing all once.
        primitives: how many equations of each primitive the emitted program runs, forward and backward.
        again: for steps of `fused`, how often the emitted program computes them beyond the first time.
        fullest: the step of the emitted program at which it peaks, in words.
        loops: nests for loops, by their numbers in the function's program; `forward` then has them in it.
    """

    forward: Program
    fused: Fused
    layout: Layout
    budget_bytes: int | None
    segments: SegmentPlan | None
    peak_bytes: int
    keep_all_peak_bytes: int
    extra_flops_ratio: float
    primitives: Mapping[str, int] = field(default_factory=dict[str, int])
    again: Mapping[int, int] = field(default_factory=dict[int, int])
    fullest: str = ""
    loops: dict[int, PlannedLoop] = field(default_factory=dict[int, PlannedLoop])
    emitters: list[Emitter] = field(default_factory=list[Emitter], compare=False, repr=False)

    @property
    def policy(self) -> Any:
        """The `jax.checkpoint` policy of the regions: frozen, hashable, equal by content."""
        return self.layout.policy

    @property
    def solution(self) -> Solution | None:
        """The schedule that the segments amount to."""
        return None if self.segments is None else self.segments.solution

    @property
    def schedule(self) -> Schedule:
        """The order of computations that the segments amount to."""
        graph = self.fused.graph
        return Schedule.from_order(graph, graph.steps) if self.segments is None else self.segments.solution.schedule


def plan_policy(
    run: Callable[..., Sequence[Any]],
    values: Sequence[Any],
    *,
    budget: Budget | None,
    solver: str = "auto",
    differentiated: Sequence[int] | None = None,
    must_save: Selection = (),
    must_recompute: Selection = (),
    effort: str = "quick",
    time_limit: float = 20.0,
    seed: int = 0,
) -> PolicyPlan:
    """Plans a flat function: which regions to checkpoint and what to name.

    Args:
        run: from arrays to a sequence of arrays.
        values: its arguments; shapes are enough.
        budget: for the temporaries of the function's forward and backward pass together, as in `plan`; None for the lowest
            peak that segments reach.
        solver: a strategy of `solvers.segment_search.FORMS`.
        differentiated: positions of the arguments that gradients are taken of; all floating-point ones by default.
        must_save: what is always kept, as the user's checkpoint names or a predicate of `Candidate`.
        must_recompute: what is never kept, likewise.
        effort: of the search, one of `solvers.segment_search.EFFORTS`; what it finds does not depend on the clock ...
        time_limit: ... unless it takes longer than this, in seconds.
        seed: of the search.

    Raises:
        InfeasibleBudget: if no plan of this form fits.
        InvalidArgument: if a name is not in the program, the solver makes no plans of this form, or there is no such effort.
    """
    if solver not in FORMS:
        raise InvalidArgument(f"solver={solver!r} makes no plans for jax.checkpoint: choose one of {', '.join(FORMS)}")
    if effort not in EFFORTS:
        raise InvalidArgument(f"effort={effort!r} is unknown: choose one of {', '.join(EFFORTS)}")
    forward = forward_program(run, values).program
    differentiated = inexact_inputs(forward, differentiated)
    marked = Layout(_whole(forward), _all_names(forward), ordered=False, marked=True, simulated=True)
    fused = differentiate(forward, Emitter(forward, marked), differentiated, masks=True)
    keep_all = keep_all_peak(fused.graph)
    once = fused.flops(fused.graph.steps)
    budget_bytes = None if budget is None else parse_budget(budget, keep_all)
    if (budget_bytes is not None and keep_all <= budget_bytes) or not differentiated:
        layout = Layout(_whole(forward), {}, ordered=False)
        fullest = fullest_step(fused.graph, Schedule.from_order(fused.graph, fused.graph.steps))
        return PolicyPlan(forward.abstract(), fused, layout, budget_bytes, None, keep_all, keep_all, 0.0, fullest=fullest)
    values_of = _forward_values(forward, fused)
    saved, dropped = select_values(forward, must_save), select_values(forward, must_recompute)
    options = Options(time_limit=time_limit / _ROUNDS, seed=seed)
    inside = fading(forward, fused, values_of)
    segments = SegmentSearch(
        without(fused.graph, inside),
        keepable=frozenset(v for v, made in values_of.items() if v not in inside and not dropped.intersection(made)),
        always=frozenset(v for v, made in values_of.items() if saved.intersection(made)),
        settle=lambda steps: settle(forward, steps, values_of),
        owners=lambda steps: owners(forward, fused, steps, values_of),
    )

    def make(asked: int | None) -> tuple[Solution, PolicyPlan]:
        found = segments.find(asked, options, form=solver, effort=effort)
        plan = _emitted(forward, fused, found, values_of, differentiated, budget_bytes, keep_all, once, saved - dropped)
        return found.solution, plan

    return make(None)[1] if budget_bytes is None else _within(make, budget_bytes)


def _within(make: Callable[[int | None], tuple[Solution, PolicyPlan]], budget: int) -> PolicyPlan:
    """A plan that fits a budget as emitted: as JAX writes them, segments need more than the graph shows, or less.

    For this reason a floor on schedules of the graph proves nothing about what is emitted, and the error claims none.
    """
    asked = budget
    for _ in range(_ROUNDS):
        try:
            found, plan = make(asked)
        except InfeasibleBudget:
            break
        asked = int(found.peak * budget / plan.peak_bytes)
        if plan.peak_bytes > budget:
            continue
        if plan.peak_bytes < _FULL * budget:
            dearer, other = found, plan
            found, plan = make(asked)
            if plan.peak_bytes > budget or found.cost >= dearer.cost:
                return other
        return plan
    _, plan = make(None)  # the lowest there is: its peak as emitted is what an error may name
    if plan.peak_bytes > budget:
        raise InfeasibleBudget(
            budget=budget,
            minimum=min(plan.peak_bytes, plan.keep_all_peak_bytes),
            relative_to="regions and names of jax.checkpoint",
            fullest=plan.fullest if plan.peak_bytes <= plan.keep_all_peak_bytes else "",
        )
    return plan


def _emitted(
    forward: Program,
    fused: Fused,
    found: SegmentPlan,
    values_of: dict[int, tuple[int, ...]],
    differentiated: Sequence[int],
    budget_bytes: int | None,
    keep_all: int,
    once: float,
    wanted: frozenset[int],
) -> PolicyPlan:
    """A found plan as JAX will run it."""
    names = {value: f"{_PREFIX}{value}" for v in found.keep for value in values_of[v]}
    names |= {v: name for v, name in _all_names(forward).items() if v in wanted}
    read = {v for q in forward.equations for v in q.reads}  # names of what nobody reads would be dead code
    names |= {
        o: f"{_PREFIX}{o}" for q in forward.equations if forbids_replay(q.eqn) is not None for o in read.intersection(q.outs)
    }
    within = {
        w: f"{_PREFIX}layer/{w}"
        for v, made in values_of.items()
        for w in made
        if w in read and w not in names and not costs_nothing(fused, v)
    }
    root = regions_of(forward, found, values_of)
    handed = {v: within.get(v, f"{_PREFIX}next/{v}") for v in crossing(forward, root) if v not in names}
    layout = Layout(root, names, within=within, handed=handed, written=reduced(forward, chain(*values_of.values())))
    emitter = Emitter(forward, replace(layout, marked=True, simulated=True))
    emitted = differentiate(forward, emitter, differentiated, masks=False)
    missing = {*names.values(), *within.values(), *handed.values()} - _names_in(emitted.program)
    if missing:
        raise RematLabError(f"the names {sorted(missing)} were lost on the way into the program; please report this")
    schedule = Schedule.from_order(emitted.graph, emitted.graph.steps)
    peak = simulate(emitted.graph, schedule).peak
    extra = emitted.flops(emitted.graph.steps) / once - 1 if once else 0.0
    counts = Counter(q.name for q in emitted.program.equations)
    again = _again(fused, emitted.program, len(forward.outputs))
    fullest = fullest_step(emitted.graph, schedule)
    return PolicyPlan(forward.abstract(), fused, layout, budget_bytes, found, peak, keep_all, extra, counts, again, fullest)


def _again(fused: Fused, emitted: Program, outputs: int) -> dict[int, int]:
    """For steps of a marked program's graph, how often an emitted program, marked too, computes them beyond the first time.

    Derivatives are computed once in both, so what there is more of was computed again.
    """

    def kinds(equations: Iterable[Equation]) -> Counter[tuple[int | None, str]]:
        return Counter((number_of(q), q.name) for q in equations)

    more = kinds(emitted.equations)
    more.subtract(kinds(fused.program.equations))
    own = kinds(fused.program.equations[k] for k in primal_equations(fused.program, outputs))
    found: dict[int, int] = {}
    for v in fused.graph.steps:
        kind = number_of(fused.root(v)), fused.root(v).name
        if not fused.graph.nodes[v].backward and kind[0] is not None and more[kind] > 0:
            found[v] = more[kind] // max(1, own[kind])
    return {v: times for v, times in found.items() if times}


def _whole(program: Program) -> Region:
    return Region(0, len(program.equations))


def _all_names(program: Program) -> dict[int, str]:
    """A name for every array, so that the values of the forward program can be found in the differentiated one."""
    return {o: f"{_PREFIX}{o}" for q in program.equations for o in q.outs if is_nameable(program.avals[o])}


def _forward_values(forward: Program, fused: Fused) -> dict[int, tuple[int, ...]]:
    """For each step all of whose values exist in the forward program, those values."""
    program, found = fused.program, dict[int, int]()
    base: dict[int, int] = {}
    for q in program.equations:
        if q.name in VIEWS and isinstance(q.ins[0], int):
            base[q.outs[0]] = base.get(q.ins[0], q.ins[0])
            name = _jax.checkpoint_name_of(q.eqn)
            if name is not None and name.startswith(_PREFIX):
                node = fused.node_of.get(base[q.outs[0]])
                if node is not None:
                    found.setdefault(node, int(name.removeprefix(_PREFIX)))
    graph = fused.graph
    return {
        v: tuple(found[w] for w in graph.written(v))
        for v in graph.steps
        if not graph.nodes[v].backward and all(w in found for w in graph.written(v))
    }


def _names_in(program: Program) -> set[str]:
    return {name for q in program.equations if (name := _jax.checkpoint_name_of(q.eqn)) is not None}
