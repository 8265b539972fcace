"""`Plan.apply`: the loss itself with regions that are recomputed, for every transform of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_lab.call import Call, is_traced
from remat_lab.checkpointing import emitter_for
from remat_lab.errors import PlanMismatch
from remat_lab.loop_policy import planned_function
from remat_lab.mismatch import other_program
from remat_lab.policy_plan import PolicyPlan
from remat_lab.refs import forward_program
from remat_lab.trace import Loss

_ARRAY = object()


def forward_function(loss: Loss, call: Call) -> tuple[Callable[..., list[Any]], list[Any]]:
    """The loss as a function of the traced leaves alone, and a list that receives how to rebuild its result when it runs."""
    rebuilt: list[Any] = []

    def run(*values: Any) -> list[Any]:
        args, kwargs = call.rebuild(values)
        leaves, tree = jax.tree.flatten(loss.fun(*args, **kwargs))
        rebuilt[:] = [(tree, [_ARRAY if is_traced(leaf) else leaf for leaf in leaves])]
        return [leaf for leaf in leaves if is_traced(leaf)]

    return run, rebuilt


def result_of(rebuilt: list[Any], outputs: Sequence[Any]) -> Any:
    """The loss's result in its own structure, from the outputs of `forward_function`'s function and its list."""
    arrays = iter(outputs)
    tree, leaves = rebuilt[0]
    return jax.tree.unflatten(tree, [next(arrays) if leaf is _ARRAY else leaf for leaf in leaves])


def applied(loss: Loss, planned: Call, found: PolicyPlan) -> Callable[..., Any]:
    """A function like the loss, in the regions of a policy plan.

    Raises (when called):
        PlanMismatch: for other shapes, dtypes or static values, or if the loss traces to another program.
    """

    def run_applied(*args: Any, **kwargs: Any) -> Any:
        call = loss.call(args, kwargs)
        call.check_same(planned)
        run, rebuilt = forward_function(loss, call)
        forward = forward_program(planned_function(run, found), call.values)
        program = forward.program
        if program.fingerprint != found.forward.fingerprint:
            if jax.sharding.get_abstract_mesh().manual_axes:
                raise PlanMismatch(
                    f"{loss.name} traces to another program than the one planned: inside jax.shard_map types say which mesh "
                    "axes they vary over. Plan the function that calls shard_map, or decorate the loss with remat_lab.remat, "
                    "which plans where it is called."
                )
            raise PlanMismatch(other_program(loss.name, found.forward, program, call.paths_of_values))
        return result_of(rebuilt, forward.finish(emitter_for(found, program).run(program.constants, call.values)))

    run_applied.__name__ = loss.name
    return run_applied
