"""Types of arrays, and what tracing depends on beside them."""

from __future__ import annotations

from typing import Any

import jax

from remat_lab._jax import names


def shape_of(aval: Any) -> jax.ShapeDtypeStruct:
    """The type of an array as an argument for tracing, with the mesh axes of `shard_map` that it varies over."""
    sharding = None if aval.sharding.mesh.empty else aval.sharding
    manual = getattr(aval, "manual_axis_type", None)
    varying = {} if manual is None else {"manual_axis_type": manual}
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding, **varying)


def trace_like(fun: Any, jaxpr: Any) -> Any:
    """Traces a function of the inputs of a jaxpr."""
    return jax.make_jaxpr(fun)(*(shape_of(var.aval) for var in jaxpr.invars))


def vary_like(value: Any, aval: Any) -> Any:
    """The value as one that varies over the mesh axes of `shard_map` that a type varies over."""
    missing = tuple(sorted(_varying(aval) - _varying(jax.typeof(value))))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def _varying(aval: Any) -> frozenset[str]:
    manual = getattr(aval, "manual_axis_type", None)
    if manual is None and not jax.sharding.get_abstract_mesh().empty:
        raise names.missing(names.MAPPING, "manual_axis_type")
    return frozenset() if manual is None else frozenset(manual.varying)


def trace_context() -> Any:
    """What tracing depends on beside its arguments, hashable: settings, mesh, axes. Unlike any other where JAX does not say."""
    try:
        settings = tuple((name, getattr(jax.config, name, value)) for name, value in jax.config.values.items())
        axes = tuple((name, jax.lax.axis_size(name)) for name in names.find(names.AXIS_NAMES)())
    except (AttributeError, names.UnsupportedJax):
        return object()
    # the context of an equation knows the mesh and what stands in no setting (where to compute, metadata)
    return settings, axes, jax.make_jaxpr(jax.lax.neg)(1.0).eqns[0].ctx
