"""Schedule → program: the planned steps in exactly the planned order.

XLA is free to reorder, merge and duplicate what data flow allows, so the order is put into the data flow: a step's inputs pass
an `optimization_barrier` together with the results of all steps since the last barrier. Then no step can start before the
one before it has ended, and a recomputation, reading values that passed a later barrier, cannot be merged with the first
computation. A step left out of this chain could be delayed, and would keep its inputs alive. XLA takes out of a barrier what
nobody reads, before or after it: a step whose results are dropped unread holds nothing back, and is none of the chain's links.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from remat_lab import _jax
from remat_lab.flatten import Equation, Program
from remat_lab.fuse import Fused, Group
from remat_lab.layouts import in_default_layout
from remat_lab.primitives import RANDOM
from remat_lab.turned import Held, wait
from solvers.schedule import Compute, Schedule

# Values below this are not worth holding back the fusion of what makes them; smaller programs scale it down.
_SMALL_BYTES = 1 << 14


def run_schedule(fused: Fused, schedule: Schedule, program: Program, args: Sequence[Any]) -> list[Any]:
    """Runs or traces a program in a schedule's order.

    Args:
        fused: what the schedule was made for.
        schedule: a valid schedule of `fused.graph`.
        program: a program with the same fingerprint as `fused.program`; its parameters and constants are used.
        args: one array per input of the program.

    Returns:
        The program's outputs. Values are dropped where the schedule frees them, so that running without `jit` keeps the plan
        too.
    """
    env: dict[int, Any] = {**program.constants, **dict(zip(program.inputs, args, strict=True))}
    value_of = {node: value for value, node in fused.node_of.items()}
    small = min(_SMALL_BYTES, max(program.bytes, default=0) // 64)
    pending: list[Held] = []
    unread = _unread(fused, schedule)
    for position, step in enumerate(schedule.steps):
        if not isinstance(step, Compute):
            env.pop(value_of.get(step.node, -1), None)
            continue
        group = fused.groups[step.node]
        tied = [] if position in unread else _tied(program, group, small, fused.exact)
        if tied and pending:
            env.update(zip(tied, wait(program, [(v, env[v]) for v in tied], pending), strict=True))
            pending = []
        local: dict[int, Any] = {}
        for k in group.equations:
            q = program.equations[k]
            if tied and _fills(program, q):
                local[q.outs[0]] = _scatter_into_own(q, [local[v] if v in local else env[v] for v in q.reads], env[tied[0]])
            else:
                run_equation(q, local, env)
        for value in group.values:
            env[value] = local[value]
            if _is_array(program.avals[value]) and position not in unread:
                if program.bytes[value] >= small and fused.graph.nodes[fused.node_of[value]].external:
                    env[value] = in_default_layout(local[value])
                pending.append((value, env[value]))
    return [_array(v) if isinstance(v, _jax.Literal) else _resolve(program, env, v) for v in program.outputs]


def _unread(fused: Fused, schedule: Schedule) -> set[int]:
    """Positions of computations whose results are dropped before anybody reads them."""
    graph, found = fused.graph, set[int]()
    wanted = set(graph.outputs)
    for position, step in reversed(list(enumerate(schedule.steps))):
        if isinstance(step, Compute):
            written = wanted.intersection(graph.written(step.node))
            if not written and not any(fused.program.equations[k].eqn.effects for k in fused.groups[step.node].equations):
                found.add(position)
                continue
            wanted -= written
            wanted.update(graph.nodes[step.node].deps)
    return found


def _tied(program: Program, group: Group, small: int, exact: frozenset[int]) -> list[int]:
    """The inputs that carry a step's place in the order: the large ones, and those that must not be computed here anew.

    A step without large inputs may run early, unless that would make a large result early too. It cannot run late: the next
    barrier waits for it. Keys are tied wherever bits are drawn from them: these depend on nothing else, and XLA would otherwise
    keep the first ones rather than draw them again.
    """
    arrays = [v for v in group.reads if _is_array(program.avals[v])]
    large = [v for v in arrays if program.bytes[v] >= small or v in exact]
    if not large:
        return arrays if any(program.bytes[v] >= small for v in group.values) else []
    drawn = {v for k in group.equations if program.equations[k].name in RANDOM for v in program.equations[k].reads}
    return large + [v for v in arrays if v in drawn and v not in large]


def _fills(program: Program, q: Equation) -> bool:
    """Whether an equation is lowered to something that fills an array with zeros first, and adds to it."""
    if q.name != "select_and_scatter_add" or len(q.reads) < len(q.ins):
        return False
    return bool(jnp.issubdtype(program.avals[q.outs[0]].dtype, jnp.floating))


def _scatter_into_own(q: Equation, values: list[Any], tied: Any) -> Any:
    """Runs an equation that `_fills`. For CUDA its zeros come after a barrier.

    XLA otherwise makes one array of the zeros of all steps, those of a relu among them, and keeps it from the first to the
    last: a quarter of what a U-Net planned into half its memory takes. Elsewhere this does not happen.
    """
    zero, _ = lax.optimization_barrier((jnp.zeros((), values[0].dtype), tied))

    def given(zero: Any, *values: Any) -> Any:
        return _jax.bind(q.eqn, values)[0]

    @jax.custom_batching.custom_vmap
    def own(zero: Any, *values: Any) -> Any:
        return _jax.scatter_selected(q.eqn, values, zero)[0]

    @own.def_vmap
    def batched(size: int, mapped: list[bool], *values: Any) -> Any:
        return jax.vmap(given, [0 if is_mapped else None for is_mapped in mapped], axis_size=size)(*values), True

    return lax.platform_dependent(zero, *values, cuda=own, default=given)


def _is_array(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    if dtype is None or "Ref" in type(aval).__name__:
        return False
    return not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _array(literal: Any) -> jax.Array:
    """A literal's value outside of JAX's own wrapper for it."""
    return jnp.asarray(literal.val, literal.aval.dtype)


def run_equation(q: Equation, local: dict[int, Any], env: dict[int, Any]) -> None:
    """Runs an equation on values of its own step or of earlier ones; the results go to `local`."""
    values = [v.val if isinstance(v, _jax.Literal) else local[v] if v in local else env[v] for v in q.ins]
    local.update(zip(q.outs, _jax.bind(q.eqn, values), strict=True))


def _resolve(program: Program, env: dict[int, Any], value: int) -> Any:
    """A value, or a view of one, that the schedule left live."""
    chain: list[Equation] = []
    while value not in env:
        q = program.equations[program.producer[value]]
        chain.append(q)
        value = q.ins[0]  # type: ignore[assignment]
    local = {value: env[value]}
    for q in reversed(chain):
        run_equation(q, local, env)
        value = q.outs[0]
    return local[value]
