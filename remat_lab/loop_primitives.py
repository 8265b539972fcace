"""A planned loop as primitives, so that every transformation of JAX finds a rule.

    loop            the loop itself; with `moving`, its forward pass, which also returns what the backward pass reads
    loop_tangent    its derivative: tangents to tangents. Transposed it is
    loop_backward   the backward pass

The first derivative in reverse is the planned one. Forward mode, and whatever follows a first derivative, differentiates the
nested checkpointed scans instead, which compute the same. `vmap` of the loop is the planned loop of the mapped body, as for
`lax.scan`; of the others, the mapped program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex
from jax.interpreters import ad, batching, mlir

from remat_lab import _compat
from remat_lab.loop import Loop, PlannedLoop
from remat_lab.loop_body import Moving, body_of
from remat_lab.loop_checkpoint import checkpointed
from remat_lab.loop_passes import Passes

Arrays = list[Any]

loop_p: Any = jex.Primitive("planned_loop")
tangent_p: Any = jex.Primitive("planned_loop_tangent")
backward_p: Any = jex.Primitive("planned_loop_backward")


def run_loop(planned: PlannedLoop, operands: Sequence[Any]) -> Arrays:
    """Runs a planned loop: final carries and ys."""
    return loop_p.bind(*operands, planned=planned, moving=None, axes=())


def replace_scan(jaxpr: Any, operands: Sequence[Any], run: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Arrays:
    """Runs a jaxpr with its outermost `scan` equations run by `run(equation, operands)`."""
    env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
    env.update(_compat.constants(jaxpr))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _compat.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        results = run(eqn, values) if eqn.primitive.name == "scan" else _compat.bind(eqn, values)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _vmapped(fun: Callable[..., Any], axes: tuple[_compat.MappedAxis, ...]) -> Callable[..., Any]:
    for axis in axes:
        fun = axis.vmap(fun)
    return fun


# What each primitive computes, before mapping.


def _loop(*operands: Any, planned: PlannedLoop, moving: Moving | None) -> Arrays:
    if moving is None:
        return planned.loop.scan(operands)
    outputs, stored = Passes.of(planned, moving).forward(operands)
    return [*outputs, *stored]


def _reference(planned: PlannedLoop, moving: Moving, operands: Sequence[Any]) -> Callable[..., Arrays]:
    """From moving operands to moving results, by nested checkpointed scans."""
    body = body_of(planned.loop, moving)
    kinds = (*body.moving_carries, *body.moving_ys)

    def run(*point: Any) -> Arrays:
        given = iter(point)
        filled = [next(given) if m else x for x, m in zip(operands, moving, strict=True)]
        return [out for out, m in zip(checkpointed(planned)(filled), kinds, strict=True) if m]

    return run


def _tangent(*values: Any, planned: PlannedLoop, moving: Moving) -> Arrays:
    operands, tangents = values[: len(moving)], values[len(values) - sum(moving) :]
    point = [x for x, m in zip(operands, moving, strict=True) if m]
    _, out = jax.jvp(_reference(planned, moving, operands), tuple(point), tuple(tangents))
    return list(out)


def _backward(*values: Any, planned: PlannedLoop, moving: Moving, present: tuple[bool, ...]) -> Arrays:
    n, cts = len(moving), iter(values[len(values) - sum(present) :])
    stored = values[n : len(values) - sum(present)]
    cotangents = [next(cts) if p else None for p in present]
    return Passes.of(planned, moving).backward(values[:n], stored, cotangents)


def _reference_backward(*values: Any, planned: PlannedLoop, moving: Moving, present: tuple[bool, ...]) -> Arrays:
    operands, cts = values[: len(moving)], iter(values[len(values) - sum(present) :])
    point = [x for x, m in zip(operands, moving, strict=True) if m]
    out, pull = jax.vjp(_reference(planned, moving, operands), *point)
    return list(pull([next(cts) if p else jnp.zeros_like(o) for p, o in zip(present, out, strict=True)]))


# Derivatives.


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero or jax.typeof(tangent).dtype == jax.dtypes.float0


def _zero_of(value: Any) -> Any:
    return ad.Zero(jax.typeof(value).to_tangent_aval())


def _loop_jvp(primals: Arrays, tangents: Arrays, *, planned: PlannedLoop, moving: Moving | None, axes: Any) -> Any:
    body = body_of(planned.loop, tuple(not _is_zero(t) for t in tangents))
    count = planned.loop.carries + len(body.moving_ys)
    results = loop_p.bind(*primals, planned=planned, moving=body.moving if moving is None else moving, axes=axes)
    outputs, stored = results[:count], results[count:]
    lin = [
        jnp.zeros(x.shape, x.dtype) if _is_zero(t) else t for x, t, m in zip(primals, tangents, body.moving, strict=True) if m
    ]
    kinds = (*body.moving_carries, *body.moving_ys)
    if axes:
        mapped = _vmapped(lambda *values: _tangent(*values, planned=planned, moving=body.moving), _doubled(axes, body.moving))
        moved = iter(mapped(*primals, *lin))
    else:
        if moving is not None and moving != body.moving:
            stored = loop_p.bind(*primals, planned=planned, moving=body.moving, axes=axes)[count:]
        moved = iter(tangent_p.bind(*primals, *stored, *lin, planned=planned, moving=body.moving))
    out = [next(moved) if m else _zero_of(x) for x, m in zip(outputs, kinds, strict=True)]
    if moving is None:
        return outputs, out
    return results, [*out, *map(_zero_of, results[count:])]


def _doubled(axes: Any, moving: Moving) -> Any:
    """Axes of the operands, and again for the tangents of those that move."""
    return tuple(axis.with_dims((*axis.dims, *(d for d, m in zip(axis.dims, moving, strict=True) if m))) for axis in axes)


def _tangent_transpose(cotangents: Arrays, *values: Any, planned: PlannedLoop, moving: Moving) -> Arrays:
    known = values[: len(values) - sum(moving)]
    present = tuple(type(ct) is not ad.Zero for ct in cotangents)
    given = [ct for ct in cotangents if type(ct) is not ad.Zero]
    grads = backward_p.bind(*known, *given, planned=planned, moving=moving, present=present, axes=())
    return [*[None] * len(known), *grads]


def _tangent_jvp(primals: Arrays, tangents: Arrays, *, planned: PlannedLoop, moving: Moving) -> Any:
    lin = len(primals) - sum(moving)
    out = tangent_p.bind(*primals, planned=planned, moving=moving)
    if all(_is_zero(t) for t in tangents[: len(moving)]):
        pushed = [jnp.zeros(x.shape, x.dtype) if _is_zero(t) else t for x, t in zip(primals[lin:], tangents[lin:], strict=True)]
        return out, tangent_p.bind(*primals[:lin], *pushed, planned=planned, moving=moving)
    return out, _pushed(lambda *v: _tangent(*v, planned=planned, moving=moving), primals, tangents)


def _backward_jvp(primals: Arrays, tangents: Arrays, *, axes: Any, **params: Any) -> Any:
    out = backward_p.bind(*primals, axes=axes, **params)
    return out, _pushed(_vmapped(lambda *v: _reference_backward(*v, **params), axes), primals, tangents)


def _pushed(fun: Callable[..., Any], primals: Arrays, tangents: Arrays) -> Arrays:
    """Tangents of a function's results; what the forward pass stored does not count as an operand."""
    moves = [not _is_zero(t) for t in tangents]

    def of_moving(*point: Any) -> Any:
        given = iter(point)
        return fun(*(next(given) if m else x for x, m in zip(primals, moves, strict=True)))

    point = tuple(x for x, m in zip(primals, moves, strict=True) if m)
    return list(jax.jvp(of_moving, point, tuple(t for t, m in zip(tangents, moves, strict=True) if m))[1])


# Mapping.


def _loop_batch(axis: Any, values: Arrays, dims: Any, *, planned: PlannedLoop, moving: Moving | None, axes: Any) -> Any:
    mapped = _compat.MappedAxis.of(axis, dims)
    if moving is not None:
        out = loop_p.bind(*values, planned=planned, moving=moving, axes=(*axes, mapped))
        return out, [0] * len(out)
    jaxpr = jax.make_jaxpr(mapped.vmap(lambda *operands: planned.loop.scan(operands)))(
        *(_compat.shape_of(jax.typeof(v)) for v in values)
    )

    def run(eqn: Any, operands: Sequence[Any]) -> Arrays:
        return run_loop(PlannedLoop(Loop.from_equation(eqn), planned.nest, planned.tier), operands)

    out = replace_scan(jaxpr, values, run)
    return out, [0] * len(out)


def _tangent_batch(axis: Any, values: Arrays, dims: Any, **params: Any) -> Any:
    out = _compat.MappedAxis.of(axis, dims).vmap(lambda *v: _tangent(*v, **params))(*values)
    return out, [0] * len(out)


def _backward_batch(axis: Any, values: Arrays, dims: Any, *, axes: Any, **params: Any) -> Any:
    out = backward_p.bind(*values, axes=(*axes, _compat.MappedAxis.of(axis, dims)), **params)
    return out, [0] * len(out)


def _register(primitive: Any, fun: Callable[..., Arrays], jvp: Any, batch: Any, transpose: Any = None) -> None:
    def run(*values: Any, axes: Any = (), **params: Any) -> Arrays:
        return _vmapped(lambda *v: fun(*v, **params), axes)(*values)

    jitted = jax.jit(run, static_argnames=("planned", "moving", "axes", "present"))

    def abstract(*avals: Any, planned: PlannedLoop, moving: Moving | None, **params: Any) -> Any:
        out = jax.eval_shape(lambda *v: run(*v, planned=planned, moving=moving, **params), *map(_compat.shape_of, avals))
        return [_compat.aval_of(x) for x in out], planned.loop.body.effects

    primitive.multiple_results = True
    primitive.def_impl(jitted)
    primitive.def_effectful_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    ad.primitive_jvps[primitive] = jvp
    batching.fancy_primitive_batchers[primitive] = batch
    if transpose is not None:
        ad.primitive_transposes[primitive] = transpose


_register(loop_p, _loop, _loop_jvp, _loop_batch)
_register(tangent_p, _tangent, _tangent_jvp, _tangent_batch, _tangent_transpose)
_register(backward_p, _backward, _backward_jvp, _backward_batch)
