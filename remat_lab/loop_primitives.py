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

from remat_lab import _jax
from remat_lab.loop import Loop, PlannedLoop
from remat_lab.loop_body import Moving, body_of
from remat_lab.loop_checkpoint import checkpointed
from remat_lab.loop_passes import Passes
from remat_lab.loop_rules import has_custom_vjp

Arrays = list[Any]

loop_p = _jax.primitive("planned_loop")
tangent_p = _jax.primitive("planned_loop_tangent")
backward_p = _jax.primitive("planned_loop_backward")


def run_loop(planned: PlannedLoop, operands: Sequence[Any]) -> Arrays:
    """Runs a planned loop: final carries and ys."""
    return _bind(loop_p, *operands, planned=planned, moving=None, axes=())


def _bind(primitive: Any, *values: Any, planned: PlannedLoop, **params: Any) -> Arrays:
    """Binds one of the three; the body stands among the parameters by itself, where whoever walks through jaxprs finds it."""
    _jax.require(primitive)
    return primitive.bind(*values, planned=planned, jaxpr=planned.loop.body, **params)


def replace_scan(jaxpr: Any, operands: Sequence[Any], run: Callable[[Any, Sequence[Any]], Sequence[Any]]) -> Arrays:
    """Runs a jaxpr with its last outermost `scan` equation run by `run(equation, operands)`."""
    scans = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]
    env: dict[Any, Any] = dict(zip(jaxpr.invars, operands, strict=True))
    env.update(_jax.constants(jaxpr))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _jax.Literal) else env[atom]

    for eqn in jaxpr.eqns:
        values = [read(v) for v in eqn.invars]
        results = run(eqn, values) if scans and eqn is scans[-1] else _jax.bind(eqn, values)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _vmapped(fun: Callable[..., Any], axes: tuple[_jax.MappedAxis, ...]) -> Callable[..., Any]:
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
    """From moving operands to moving results, by nested checkpointed scans.

    With a `jax.custom_vjp` in the body by a plain scan: its rule is the derivative of the first pass only, and recomputation
    under `jax.checkpoint` would bring it back into derivatives of higher order.
    """
    return _smooth_part(
        planned, moving, operands, planned.loop.scan if has_custom_vjp(planned.loop.body) else checkpointed(planned)
    )


def _smooth_part(
    planned: PlannedLoop, moving: Moving, operands: Sequence[Any], run_all: Callable[[Sequence[Any]], Arrays]
) -> Callable[..., Arrays]:
    """From moving operands to moving results."""
    body = body_of(planned.loop, moving)
    kinds = (*body.moving_carries, *body.moving_ys)

    def run(*point: Any) -> Arrays:
        given = iter(point)
        filled = [next(given) if m else x for x, m in zip(operands, moving, strict=True)]
        return [out for out, m in zip(run_all(filled), kinds, strict=True) if m]

    return run


def _tangent_of_forward(*values: Any, planned: PlannedLoop, moving: Moving) -> Arrays:
    """The derivative of the forward pass of a loop that was differentiated before: of what rules of `jax.custom_vjp` left."""
    operands, tangents = values[: len(moving)], values[len(values) - sum(moving) :]
    point = [x for x, m in zip(operands, moving, strict=True) if m]
    passes = Passes.of(planned, moving)
    return list(jax.jvp(_smooth_part(planned, moving, operands, passes.scan), tuple(point), tuple(tangents))[1])


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
    return list(pull([next(cts) if p else _zeros_like(o) for p, o in zip(present, out, strict=True)]))


# Derivatives.


def _zeros_like(value: Any) -> Any:
    return _jax.vary_like(jnp.zeros(value.shape, value.dtype), jax.typeof(value))


def _loop_jvp(primals: Arrays, tangents: Arrays, *, planned: PlannedLoop, moving: Moving | None, axes: Any) -> Any:
    body = body_of(planned.loop, tuple(not _jax.is_zero(t) for t in tangents))
    count = planned.loop.carries + len(body.moving_ys)
    results = _bind(loop_p, *primals, planned=planned, moving=body.moving if moving is None else moving, axes=axes)
    outputs, stored = results[:count], results[count:]
    lin = [_zeros_like(x) if _jax.is_zero(t) else t for x, t, m in zip(primals, tangents, body.moving, strict=True) if m]
    kinds = (*body.moving_carries, *body.moving_ys)
    again = moving is not None and has_custom_vjp(planned.loop.body)
    if axes or again:
        push = _tangent_of_forward if again else _tangent
        mapped = _vmapped(lambda *values: push(*values, planned=planned, moving=body.moving), _doubled(axes, body.moving))
        moved = iter(mapped(*primals, *lin))
    else:
        if moving is not None and moving != body.moving:
            stored = _bind(loop_p, *primals, planned=planned, moving=body.moving, axes=axes)[count:]
        moved = iter(_bind(tangent_p, *primals, *stored, *lin, planned=planned, moving=body.moving))
    out = [next(moved) if m else _jax.zero_of(x) for x, m in zip(outputs, kinds, strict=True)]
    if moving is None:
        return outputs, out
    return results, [*out, *map(_jax.zero_of, results[count:])]


def _doubled(axes: Any, moving: Moving) -> Any:
    """Axes of the operands, and again for the tangents of those that move."""
    return tuple(axis.with_dims((*axis.dims, *(d for d, m in zip(axis.dims, moving, strict=True) if m))) for axis in axes)


def _tangent_transpose(cotangents: Arrays, *values: Any, planned: PlannedLoop, moving: Moving) -> Arrays:
    known = values[: len(values) - sum(moving)]
    present = tuple(not _jax.is_symbolic_zero(ct) for ct in cotangents)
    given = [ct for ct, p in zip(cotangents, present, strict=True) if p]
    grads = _bind(backward_p, *known, *given, planned=planned, moving=moving, present=present, axes=())
    return [*[None] * len(known), *grads]


def _tangent_jvp(primals: Arrays, tangents: Arrays, *, planned: PlannedLoop, moving: Moving) -> Any:
    lin = len(primals) - sum(moving)
    out = _bind(tangent_p, *primals, planned=planned, moving=moving)
    if all(_jax.is_zero(t) for t in tangents[: len(moving)]):
        pushed = [_zeros_like(x) if _jax.is_zero(t) else t for x, t in zip(primals[lin:], tangents[lin:], strict=True)]
        return out, _bind(tangent_p, *primals[:lin], *pushed, planned=planned, moving=moving)
    return out, _pushed(lambda *v: _tangent(*v, planned=planned, moving=moving), primals, tangents)


def _backward_jvp(primals: Arrays, tangents: Arrays, *, axes: Any, **params: Any) -> Any:
    out = _bind(backward_p, *primals, axes=axes, **params)
    return out, _pushed(_vmapped(lambda *v: _reference_backward(*v, **params), axes), primals, tangents)


def _pushed(fun: Callable[..., Any], primals: Arrays, tangents: Arrays) -> Arrays:
    """Tangents of a function's results; what the forward pass stored does not count as an operand."""
    moves = [not _jax.is_zero(t) for t in tangents]

    def of_moving(*point: Any) -> Any:
        given = iter(point)
        return fun(*(next(given) if m else x for x, m in zip(primals, moves, strict=True)))

    point = tuple(x for x, m in zip(primals, moves, strict=True) if m)
    return list(jax.jvp(of_moving, point, tuple(t for t, m in zip(tangents, moves, strict=True) if m))[1])


# Mapping.


def _loop_batch(axis: Any, values: Arrays, dims: Any, *, planned: PlannedLoop, moving: Moving | None, axes: Any) -> Any:
    mapped = _jax.MappedAxis.of(axis, dims)
    if moving is not None:
        out = _bind(loop_p, *values, planned=planned, moving=moving, axes=(*axes, mapped))
        return out, [0] * len(out)
    jaxpr = jax.make_jaxpr(mapped.vmap(lambda *operands: planned.loop.scan(operands)))(
        *(_jax.shape_of(jax.typeof(v)) for v in values)
    )

    found: list[tuple[Arrays, list[int | None]]] = []

    def run(eqn: Any, operands: Sequence[Any]) -> Arrays:
        out = run_loop(PlannedLoop(Loop.from_equation(eqn), planned.nest, planned.tier), operands)
        before = [len(v.aval.shape) for v in planned.loop.body.outvars]
        after = [len(v.aval.shape) for v in eqn.params["jaxpr"].outvars]
        dims = [None if a == b else int(i >= planned.loop.carries) for i, (a, b) in enumerate(zip(after, before, strict=True))]
        found.append((out, dims))
        return out

    replace_scan(jaxpr, values, run)
    return found[0]


def _tangent_batch(axis: Any, values: Arrays, dims: Any, **params: Any) -> Any:
    out = _jax.MappedAxis.of(axis, dims).vmap(lambda *v: _tangent(*v, **params))(*values)
    return out, [0] * len(out)


def _backward_batch(axis: Any, values: Arrays, dims: Any, *, axes: Any, **params: Any) -> Any:
    out = _bind(backward_p, *values, axes=(*axes, _jax.MappedAxis.of(axis, dims)), **params)
    return out, [0] * len(out)


def _register(primitive: Any, fun: Callable[..., Arrays], jvp: Any, batch: Any, transpose: Any = None) -> None:
    def run(*values: Any, axes: Any = (), jaxpr: Any = None, **params: Any) -> Arrays:
        del jaxpr
        return _vmapped(lambda *v: fun(*v, **params), axes)(*values)

    def abstract(*avals: Any, planned: PlannedLoop, moving: Moving | None, **params: Any) -> Any:
        shapes = map(_jax.shape_of, avals)
        jaxpr = jax.make_jaxpr(lambda *v: run(*v, planned=planned, moving=moving, **params))(*shapes)
        return jaxpr.out_avals, planned.loop.body.effects

    def mapped(axis: Any, values: Arrays, dims: Any, *, jaxpr: Any, **params: Any) -> Any:
        if any(d is not None for d in dims) or any(getattr(e, "name", None) == axis.name for e in jaxpr.effects):
            return batch(axis, values, dims, **params)
        out = primitive.bind(*values, jaxpr=jaxpr, **params)
        return out, [None] * len(out)

    _jax.register(
        primitive,
        run,
        abstract=abstract,
        jvp=_without_jaxpr(jvp),
        transpose=None if transpose is None else _without_jaxpr(transpose),
        axis_batch=mapped,
        static=("planned", "moving", "axes", "present", "jaxpr"),
    )


def _without_jaxpr(rule: Callable[..., Any]) -> Callable[..., Any]:
    def run(*values: Any, jaxpr: Any, **params: Any) -> Any:
        del jaxpr
        return rule(*values, **params)

    return run


_register(loop_p, _loop, _loop_jvp, _loop_batch)
_register(tangent_p, _tangent, _tangent_jvp, _tangent_batch, _tangent_transpose)
_register(backward_p, _backward, _backward_jvp, _backward_batch)
