"""Every use of private or version-dependent JAX, in one place; what concerns mutable references is in `_compat_refs`.

Checked with jax 0.11.2 and 0.12.0.1. In both, `jax.make_jaxpr` returns one class that is jaxpr and closed jaxpr at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax._src import config, core, effects, source_info_util, xla_bridge
from jax._src.ad_checkpoint import name_p  # in jax.ad_checkpoint since 0.12
from jax._src.debugging import OrderedDebugEffect
from jax._src.lax import windowed_reductions
from jax._src.state.types import RefEffect
from jax.extend import core as jex
from jax.interpreters import partial_eval as pe

Literal = jex.Literal
Equation = jex.JaxprEqn


@contextlib.contextmanager
def equation_context(eqn: Equation) -> Iterator[None]:
    """Re-binding `eqn` inside this context gives the new equation its source line, name stack and tracing context."""
    stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def bind(eqn: Equation, values: Sequence[Any], **changed: Any) -> list[Any]:
    """Runs one equation on other inputs, with some parameters changed; its results as a list."""
    with equation_context(eqn):
        results = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params({**eqn.params, **changed}))
    return list(results) if eqn.primitive.multiple_results else [results]


def scatter_selected(eqn: Equation, values: Sequence[Any], zero: Any) -> list[Any]:
    """Runs a `select_and_scatter_add` of floats on a given zero, rather than on a constant of its own.

    It is what JAX lowers the equation to for GPUs; the primitive itself has no such operand.
    """
    source, operand = values
    select, padding = eqn.params["select_prim"], eqn.params["padding"]
    last = jnp.array(-jnp.inf if select is lax.ge_p else jnp.inf, operand.dtype)
    window = eqn.params["window_dimensions"], eqn.params["window_strides"], [(0, 0)] * operand.ndim
    with equation_context(eqn):
        padded = lax.pad(operand, last, [(low, high, 0) for low, high in padding])
        result = windowed_reductions._select_and_scatter(padded, select.bind, *window, source, zero, lax.add)
        low = [low for low, _ in padding]
        return [lax.slice(result, low, [a + n for a, n in zip(low, operand.shape, strict=True)])]


_LIBRARIES = ("/flax/", "/optax/", "/haiku/", "/equinox/", "/functools.py", "/contextlib.py", "/remat_lab/")


def source_line(eqn: Equation, calls: Sequence[Equation] = ()) -> str | None:
    """The user's line that made an equation, as `file.py:12 (function)`.

    Frames of JAX, Flax and their like are passed over while there is a frame of the user's own.

    Args:
        eqn: the equation.
        calls: the call equations around it, outermost first; used where it has no user frame itself (a cached trace).
    """
    fallback = None
    for candidate in (eqn, *reversed(calls)):
        for frame in source_info_util.user_frames(candidate.source_info.traceback):
            line = f"{frame.file_name}:{frame.start_line} ({frame.function_name.split('.<locals>.')[-1]})"
            if not any(part in frame.file_name for part in _LIBRARIES):
                return line
            fallback = fallback or line
    return fallback


def context_key(eqn: Equation) -> Any:
    """Equal for equations traced under the same context (compute type, mesh, metadata)."""
    ctx = eqn.ctx
    return (ctx.compute_type, ctx.threefry_partitionable, ctx.cur_abstract_mesh, str(ctx.xla_metadata)) if hasattr(ctx, "compute_type") else ctx


def scopes_of(eqn: Equation) -> str:
    """The `jax.named_scope`s under which an equation was traced; those of the primal equation for what its derivative adds."""
    return str(eqn.source_info.name_stack)


def drop_dead(jaxpr: Any) -> Any:
    """Removes equations, and unused results of loops, that neither an output nor an effect needs. Inputs stay."""
    return pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def constants(jaxpr: Any) -> list[tuple[Any, Any]]:
    """Pairs (variable, value) of the arrays that a jaxpr closes over."""
    return list(zip(jaxpr.constvars, getattr(jaxpr, "consts", ()), strict=True))


def is_unspecified_call(eqn: Equation) -> bool:
    """Whether a `jit` equation asks for nothing beyond running its body (no shardings)."""
    wanted = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return all(type(s).__name__ == "UnspecifiedValue" for s in wanted)


def sub_jaxprs(eqn: Equation) -> list[Any]:
    """The jaxprs among an equation's parameters (loop bodies, branches)."""
    return list(jex.jaxprs_in_params(eqn.params))


def is_new_checkpoint() -> bool:
    """Whether `jax.checkpoint` is JAX's new implementation of it (JAX_REMAT3)."""
    return bool(getattr(jax.config, "jax_remat3", False))


def checkpoint_name_of(eqn: Equation) -> str | None:
    """The name that a `checkpoint_name` equation gives; under JAX_REMAT3 it is another primitive."""
    if eqn.primitive is name_p:
        return str(eqn.params["name"])
    prim: Any = eqn.params.get("_prim")
    return str(prim.name) if type(prim).__name__ in ("CheckpointName", "CheckpointNameFwd") else None


def remat_traced_body(eqn: Equation) -> Any | None:
    """What a region of `jax.checkpoint` computes again under JAX_REMAT3, where a primitive of another kind stands for it."""
    prim: Any = eqn.params.get("_prim")
    return prim.params["jaxpr"] if type(prim).__name__ == "RematTraced" else None


def bodies(eqn: Equation) -> list[Any]:
    """As `sub_jaxprs`, and what an equation of a high-level primitive (JAX_REMAT3) holds."""
    prim: Any = eqn.params.get("_prim")
    return [*jex.jaxprs_in_params(eqn.params), *jex.jaxprs_in_params(getattr(prim, "params", None) or {})]


def effects_to_run_once(eqn: Equation) -> list[Any]:
    """An equation's effects that recomputation must not repeat; writing to a Ref is not among them (see `without_refs`)."""
    return [
        effect
        for effect in eqn.effects
        if not isinstance(effect, RefEffect)
        and (not effects.remat_allowed_effects.contains(effect) or isinstance(effect, OrderedDebugEffect))
    ]


def trace_like(fun: Any, jaxpr: Any) -> Any:
    """Traces a function of the inputs of a jaxpr."""
    return jax.make_jaxpr(fun)(*(shape_of(var.aval) for var in jaxpr.invars))


def shape_of(aval: Any) -> jax.ShapeDtypeStruct:
    """The type of an array as an argument for tracing, with the mesh axes of `shard_map` that it varies over."""
    sharding = None if aval.sharding.mesh.empty else aval.sharding
    return jax.ShapeDtypeStruct(
        aval.shape, aval.dtype, weak_type=aval.weak_type, sharding=sharding, manual_axis_type=aval.manual_axis_type
    )


def register_cuda_compiler() -> None:
    """Makes the CUDA plugin known to JAX for compiling only, where its own start found no CUDA to run on and gave up."""
    with contextlib.suppress(Exception):  # what is wrong with a plugin shows when it is asked for its topology
        xla_bridge._discover_and_register_pjrt_plugins()
    if "cuda" in xla_bridge._topology_factories:
        return
    check = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"  # of libraries that only running needs
    before = os.environ.get(check)
    os.environ[check] = "1"
    try:
        for plugin in ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(plugin).initialize()
                return
    finally:
        if before is None:
            del os.environ[check]
        else:
            os.environ[check] = before


def scan_operands(eqn: Equation) -> tuple[int, int]:
    """How many constants and carries a `scan` equation has."""
    consts, carries, _ = eqn.params["ft_in"].unpack()  # trees since jax 0.11
    return len(consts), len(carries)


def trace_context() -> Any:
    """What tracing depends on beside its arguments, hashable: configuration, mesh, axes."""
    return config.trace_context()


@dataclass(frozen=True)
class MappedAxis:
    """How a batching rule is to map: dimension of each operand, and what `jax.vmap` was told."""

    dims: tuple[int | None, ...]
    size: int
    name: Any
    spmd_name: Any

    @classmethod
    def of(cls, axis: Any, dims: Sequence[Any]) -> MappedAxis:
        """From what a batching rule gets."""
        name = None if axis.name is core.no_axis_name else axis.name
        return cls(tuple(dims), axis.size, name, axis.spmd_name)

    def with_dims(self, dims: tuple[int | None, ...]) -> MappedAxis:
        """The same axis for other operands."""
        return replace(self, dims=dims)

    def vmap(self, fun: Any) -> Any:
        """The mapped function; all its results have the axis in front."""
        return jax.vmap(fun, self.dims, axis_name=self.name, axis_size=self.size, spmd_axis_name=self.spmd_name)


def vary_like(value: Any, aval: Any) -> Any:
    """The value as one that varies over the mesh axes of `shard_map` that a type varies over."""
    missing = tuple(sorted(set(aval.manual_axis_type.varying) - set(jax.typeof(value).manual_axis_type.varying)))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def aval_of(shape: jax.ShapeDtypeStruct) -> Any:
    """The type of an array as rules give it."""
    return core.shaped_abstractify(shape)
