"""Plans on disk: `Plan.save` and `load_plan`.

A file holds the schedule, the grouping of the program into steps, and words for every equation. It cannot hold the function:
that is given again, traced, and must say the same, equation by equation; a schedule is never replayed on another program. What
`Plan.apply` needs is not in the file: it is planned anew, from the same budget, when first asked for.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat_lab import environment
from remat_lab.call import Call
from remat_lab.errors import InvalidArgument, InvalidLoss, InvalidPlanFile, PlanMismatch, RematLabError
from remat_lab.flatten import Program, flatten
from remat_lab.loop_stored import nested_again, stored_loop
from remat_lab.promise import Round
from remat_lab.steps import Fused, Group
from remat_lab.stored_program import mismatch_of, static_values, stored_program
from remat_lab.structure import digest, semantics
from remat_lab.trace import Loss
from solvers.graph import Graph
from solvers.schedule import Schedule
from solvers.simulate import simulate
from solvers.solution import Solution, Status

if TYPE_CHECKING:
    from remat_lab.plans import Plan

FORMAT, VERSION, READABLE = "remat_lab plan", 2, (1, 2)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes a plan; see `Plan.save`."""
    for name in ("must_save", "must_recompute"):
        if callable(getattr(plan, name)):
            raise InvalidArgument(
                f"{name} is a function, which a file cannot hold: plan with checkpoint names to save the plan"
            )
    solution = {**asdict(replace(plan.solution, schedule=None)), "status": plan.solution.status.name}  # type: ignore[arg-type]
    body = {
        "loss": plan.loss.name,
        "options": _options(plan.loss),
        "arguments": _arguments(plan.call),
        "static": static_values(plan.call),
        "semantics": semantics(),
        "loops": [asdict(loop) for loop in plan.loops],
        "plain": None if plan.plain is None else _grouped(plan.plain[1]),
        **_grouped(plan.fused),
        "order": plan.schedule.order,
        "solution": {key: value for key, value in solution.items() if key != "schedule"},
        "plan": {
            "budget_bytes": plan.budget_bytes,
            "seconds": plan.seconds,
            "must_save": list(plan.must_save),  # type: ignore[arg-type]
            "must_recompute": list(plan.must_recompute),  # type: ignore[arg-type]
            "check": plan.check,
            "rounds": [asdict(attempt) for attempt in plan.rounds],
            "reserved": dict(plan.reserved),
            "target": None if plan.target is None else plan.target.name,
            "unscheduled": plan.unscheduled,
            "options": None if plan.options is None else dict(plan.options),
        },
        "environment": environment.describe(),
    }
    data = {"format": FORMAT, "version": VERSION, "digest": digest([_canonical(body)]), "body": body}
    Path(path).write_text(json.dumps(data))


def load_plan(path: str | Path, loss: Callable[..., Any], *args: Any, **kwargs: Any) -> Plan:
    """Reads a plan that `Plan.save` wrote.

    Args:
        path: of the file.
        loss: the function that was planned; its options (`argnums`, `has_aux`, static arguments) are in the file.
        *args: arguments of the shapes planned for: arrays or `jax.ShapeDtypeStruct`; nothing is allocated.
        **kwargs: more of them.

    Returns:
        The plan. Nothing is solved or compiled; `Plan.apply` is planned anew when first asked for.

    Raises:
        InvalidPlanFile: if the file cannot be read, is damaged, or is of another version.
        PlanMismatch: if the function traces to another program, the arguments have other shapes or types, or settings of JAX
            that change results differ; the message says what.
    """
    from remat_lab.plans import Plan
    from remat_lab.targets import as_target

    body = _read(path)
    with _reading(path):
        options: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in body["options"].items()}
        planned = Loss(loss, **options)
        loops = tuple(stored_loop(row) for row in body["loops"])
        kept = dict(body["plan"])
        kept["rounds"] = tuple(Round(**row) for row in kept["rounds"])
        kept["target"] = None if kept["target"] is None else as_target(kept["target"])
        call = _call(path, planned, args, kwargs)
        _check_arguments(path, body, call)
        _check_semantics(path, body)
    plain = None
    if loops:
        program = flatten(planned.trace(call).jaxpr)
        with _reading(path):
            plain = planned, _regrouped(path, body, body["plain"], planned.name, program, call)
        planned = nested_again(planned, call, loops)
    program = flatten(planned.trace(call).jaxpr)
    with _reading(path):
        fused = _regrouped(path, body, body, planned.name, program, call)
        solution = _solution(path, fused.graph, body)
        return Plan(loss=planned, call=call.abstract(), fused=fused, solution=solution, loops=loops, plain=plain, **kept)


def _call(path: str | Path, planned: Loss, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    try:
        return planned.call(args, kwargs)
    except (InvalidArgument, InvalidLoss) as error:
        raise PlanMismatch(f"the plan in {path} is not for these arguments: {error}") from error


@contextlib.contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """What is missing in a file, or not of its kind, is an error about the file; nothing of the user's runs in here."""
    try:
        yield
    except (InvalidPlanFile, PlanMismatch):
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RematLabError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InvalidPlanFile(f"{path} is damaged: what is in it is no plan ({reason}). Plan and save again.") from error


def _grouped(fused: Fused) -> dict[str, Any]:
    """A program in words, and its grouping."""
    return {
        "program": stored_program(fused.program),
        "graph": fused.graph.to_json(),
        "groups": [[v, asdict(group)] for v, group in fused.groups.items()],
        "node_of": sorted(fused.node_of.items()),
        "forward_nodes": fused.forward_nodes,
        "once": sorted(fused.once.items()),
        "exact": sorted(fused.exact),
    }


def _regrouped(
    path: str | Path, body: Mapping[str, Any], row: Mapping[str, Any], name: str, program: Program, call: Call
) -> Fused:
    """The loss traced again, which must say what the file says, with the grouping in the file."""
    found = mismatch_of(row["program"], body.get("static", {}), program, call)
    if found:
        raise PlanMismatch(f"{name} is not the program that {path} was planned for: {found}. Plan again.")
    groups = {int(v): _group(group) for v, group in row["groups"]}
    node_of, once = dict(map(tuple, row["node_of"])), dict(map(tuple, row["once"]))
    graph = Graph.from_json(row["graph"])
    return Fused(program.abstract(), graph, groups, node_of, row["forward_nodes"], once, frozenset(row["exact"]))


def _group(row: Mapping[str, Any]) -> Group:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return Group(**fields)


def _read(path: str | Path) -> Mapping[str, Any]:
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise InvalidPlanFile(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidPlanFile(f"{path} is damaged, or no plan: it is not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InvalidPlanFile(f"{path} holds no plan: Plan.save writes files with the format {FORMAT!r}")
    if data.get("version") not in READABLE:
        known = " and ".join(map(str, READABLE))
        raise InvalidPlanFile(f"{path} has version {data.get('version')}, this remat_lab reads {known}: plan and save again")
    body = data.get("body")
    if not isinstance(body, dict) or data.get("digest") != digest([_canonical(body)]):
        raise InvalidPlanFile(f"{path} is damaged: its content does not have the digest that it was saved with")
    return body


def _canonical(body: Any) -> str:
    return json.dumps(json.loads(json.dumps(body)), sort_keys=True)


def _options(loss: Loss) -> dict[str, Any]:
    return {name: getattr(loss, name) for name in ("argnums", "has_aux", "static_argnums", "static_argnames")}


def _arguments(call: Call) -> list[list[str]]:
    kinds = dict(zip(call.traced, (f"{x.dtype}{list(x.shape)}" for x in call.abstract().values), strict=True))
    weak = dict(zip(call.traced, call.weak_types, strict=True))
    found = []
    for i, path in enumerate(call.paths):
        kind = f"{kinds[i]}{' (weak)' if weak[i] else ''}" if i in kinds else "not traced"
        found.append([path, kind, "differentiated" if i in call.differentiated else ""])
    return found


def _check_arguments(path: str | Path, body: Mapping[str, Any], call: Call) -> None:
    found, planned = _arguments(call), body["arguments"]
    for ours, theirs in zip(found, planned, strict=False):
        if ours != theirs:
            there, here = (" ".join(filter(None, row)) for row in (theirs, ours))
            raise PlanMismatch(f"{path} was planned for {there}, but here it is {here}: plan again")
    if len(found) != len(planned):
        raise PlanMismatch(f"{path} was planned for {len(planned)} argument leaves, here are {len(found)}: plan again")


def _check_semantics(path: str | Path, body: Mapping[str, Any]) -> None:
    for name, here in semantics().items():
        if here != body["semantics"].get(name):
            raise PlanMismatch(f"{path} was planned with {name}={body['semantics'].get(name)}, here it is {here}: plan again")


def _solution(path: str | Path, graph: Graph, body: Mapping[str, Any]) -> Solution:
    schedule = Schedule.from_order(graph, body["order"])
    kept = {**body["solution"], "status": Status[body["solution"]["status"]]}
    result = simulate(graph, schedule)
    if (result.peak, result.peak_total) != (kept["peak"], kept["peak_total"]):
        raise InvalidPlanFile(f"{path} is damaged: its schedule peaks at {result.peak} bytes, not at {kept['peak']} as it says")
    return Solution(schedule=schedule, **kept)
