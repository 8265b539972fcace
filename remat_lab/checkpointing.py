"""`planned_checkpoint`: `jax.checkpoint` with regions and names planned under a budget."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from remat_lab import _jax
from remat_lab.flatten import Atom, Program
from remat_lab.loop_policy import plan_policy_with_loops, planned_function
from remat_lab.policy_plan import Budget, PolicyPlan
from remat_lab.refs import forward_program
from remat_lab.segment_promise import hold_segments
from remat_lab.segments import Emitter
from remat_lab.selection import Selection


class Plans:
    """Plans by what they are for; each is made once, in one thread, while others that need one wait."""

    def __init__(self) -> None:
        self._found: dict[Any, PolicyPlan] = {}
        self._lock = threading.RLock()  # a decorated function may call itself

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[PolicyPlan]:
        return iter(tuple(self._found.values()))

    def get_or_make(self, key: Any, make: Callable[[], PolicyPlan]) -> PolicyPlan:
        """The plan for a key, made if there is none."""
        with self._lock:
            if key not in self._found:
                self._found[key] = make()
            return self._found[key]


def planned_checkpoint(
    fun: Callable[..., Any],
    *,
    budget: Budget | None,
    key: Any = None,
    solver: str = "auto",
    must_save: Selection = (),
    must_recompute: Selection = (),
    time_limit: float = 20.0,
    seed: int = 0,
    check: str = "planned",
    plans: Plans | None = None,
) -> Callable[..., Any]:
    """`jax.checkpoint`, with regions and names chosen so that forward and backward pass of `fun` fit a budget.

    Args:
        fun: from array pytrees, by position, to array pytrees.
        budget: as in `plan_policy`.
        key: hashable; calls with other static values than those in `fun` need another key to share `plans`.
        solver: see `plan_policy`.
        must_save: see `plan_policy`.
        must_recompute: see `plan_policy`.
        time_limit: seconds for the search, once for each set of shapes.
        seed: of the search.
        check: "compiled" holds each plan to its budget as compiled, see `segment_promise.hold_segments`; "planned" does not.
        plans: where plans are remembered; its own by default.

    Returns:
        A function like `fun`. It plans on the first call for each set of shapes and traces `fun` anew on each call.
    """
    remembered = Plans() if plans is None else plans

    @functools.wraps(fun)
    def planned(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        out_trees: list[Any] = []

        def run(*values: Any) -> list[Any]:
            out_leaves, out_tree = jax.tree.flatten(fun(*jax.tree.unflatten(tree, values)))
            out_trees.append(out_tree)
            return out_leaves

        kinds = tuple((x.shape, x.dtype, bool(getattr(x, "weak_type", False))) for x in map(jax.typeof, leaves))
        forward = forward_program(run, leaves)
        program = forward.program
        signature = (key, tree, kinds, program.fingerprint)
        shapes = [_jax.shape_of(jax.typeof(x)) for x in leaves]

        def make(budget: Budget | None) -> PolicyPlan:
            return plan_policy_with_loops(
                run,
                shapes,
                budget=budget,
                solver=solver,
                must_save=must_save,
                must_recompute=must_recompute,
                time_limit=time_limit,
                seed=seed,
            )

        def held() -> PolicyPlan:
            return hold_segments(make, budget, run, shapes) if check == "compiled" and budget is not None else make(budget)

        found = remembered.get_or_make(signature, held)
        if found.loops:
            forward = forward_program(planned_function(run, found), leaves)
            program = forward.program
        return jax.tree.unflatten(out_trees[0], forward.finish(emitter_for(found, program).run(program.constants, leaves)))

    planned.plans = remembered  # type: ignore[attr-defined]
    return planned


def emitter_for(found: PolicyPlan, program: Program) -> Emitter:
    """An emitter for a fresh trace: the one made before if that trace says the same, so that JAX compiles nothing again."""
    for emitter in tuple(found.emitters):  # another thread may be exchanging it
        if _says_the_same(emitter.program, program):
            return emitter
    emitter = Emitter(program, found.layout)
    found.emitters[:] = [emitter]
    return emitter


def _says_the_same(one: Program, other: Program) -> bool:
    atoms = [(one.outputs, other.outputs), *((a.ins, b.ins) for a, b in zip(one.equations, other.equations, strict=True))]
    return all(_same_atom(x, y) for left, right in atoms for x, y in zip(left, right, strict=True)) and all(
        _equal(a.eqn.params, b.eqn.params) for a, b in zip(one.equations, other.equations, strict=True)
    )


def _same_atom(one: Atom, other: Atom) -> bool:
    if isinstance(one, int) or isinstance(other, int):
        return one is other or one == other
    x, y = np.asarray(one.val), np.asarray(other.val)
    return str(one.aval) == str(other.aval) and x.dtype == y.dtype and x.tobytes() == y.tobytes()


def _equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    for key, a in one.items():
        b = other.get(key)
        if a is b:
            continue
        if hasattr(a, "eqns") and hasattr(b, "eqns"):
            if getattr(a, "consts", ()) or str(a) != str(b) or "custom_" in str(a):
                return False
        elif callable(a) or not isinstance(a, int | float | str | tuple | bool | type(None) | np.dtype) or a != b:
            return False
    return True
