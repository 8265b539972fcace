"""Forward and backward pass of a program as its regions write them: as a function, and as a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from remat_lab import _jax, costs
from remat_lab.flatten import Program, flatten
from remat_lab.fuse import Fused, fuse
from remat_lab.segments import Emitter


def inexact_inputs(program: Program, wanted: Sequence[int] | None = None) -> tuple[int, ...]:
    """Positions of the inputs that gradients can be taken of, among those wanted."""
    candidates = range(len(program.inputs)) if wanted is None else wanted
    return tuple(i for i in candidates if jax.dtypes.issubdtype(program.avals[program.inputs[i]].dtype, jax.numpy.inexact))


def emitted_step(program: Program, emitter: Emitter, differentiated: Sequence[int]) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Forward and backward pass of an emitted program, as a function, and the shapes of what it takes.

    Args:
        program: the forward program.
        emitter: runs it.
        differentiated: positions of the inputs that gradients are taken of.
    """
    shapes = [_jax.shape_of(program.avals[v]) for v in program.inputs]
    constants = {v: _jax.shape_of(program.avals[v]) for v in program.constants}
    out_avals: list[Any] = [v.aval if isinstance(v, _jax.Literal) else program.avals[v] for v in program.outputs]
    smooth = [i for i, aval in enumerate(out_avals) if jax.dtypes.issubdtype(aval.dtype, jax.numpy.inexact)]

    def step(values: list[Any], held: dict[int, Any], cotangents: list[Any]) -> list[Any]:
        def of_moving(moving: list[Any]) -> tuple[list[Any], list[Any]]:
            filled = list(values)
            for i, x in zip(differentiated, moving, strict=True):
                filled[i] = x
            outputs = emitter.run(held, filled)
            return [outputs[i] for i in smooth], [x for i, x in enumerate(outputs) if i not in set(smooth)]

        primal, backward, rest = jax.vjp(of_moving, [values[i] for i in differentiated], has_aux=True)
        return [*primal, *rest, *backward(cotangents)[0]]

    return step, (shapes, constants, [_jax.shape_of(out_avals[i]) for i in smooth])


def differentiate(program: Program, emitter: Emitter, differentiated: Sequence[int], *, masks: bool) -> Fused:
    """Forward and backward pass of an emitted program as one graph, in the order in which JAX writes it.

    Args:
        program: the forward program.
        emitter: runs it.
        differentiated: positions of the inputs that gradients are taken of.
        masks: as for `fuse`.
    """
    step, shapes = emitted_step(program, emitter, differentiated)
    jaxpr = flatten(jax.make_jaxpr(step)(*shapes), merge=False)
    return fuse(jaxpr, primal_outputs=len(program.outputs), cost=costs.CPU.seconds, masks=masks)
