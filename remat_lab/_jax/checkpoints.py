"""What `jax.checkpoint` makes of a program, in its present and in its coming form (JAX_REMAT3), and what it lets recompute."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
from jax.extend import core as jex

from remat_lab._jax.equations import Equation
from remat_lab._jax.references import reference_effects


def is_new_checkpoint() -> bool:
    """Whether `jax.checkpoint` is JAX's new implementation of it (JAX_REMAT3)."""
    return bool(getattr(jax.config, "jax_remat3", False))


def checkpoint_name_of(eqn: Equation) -> str | None:
    """The name that a `checkpoint_name` equation gives; under JAX_REMAT3 it is another primitive."""
    if eqn.primitive.name == "name":
        return str(eqn.params["name"])
    prim: Any = eqn.params.get("_prim")
    return str(prim.name) if type(prim).__name__ in ("CheckpointName", "CheckpointNameFwd") else None


def remat_traced_body(eqn: Equation) -> Any | None:
    """What a region of `jax.checkpoint` computes again under JAX_REMAT3, where a primitive of another kind stands for it."""
    prim: Any = eqn.params.get("_prim")
    return prim.params["jaxpr"] if type(prim).__name__ == "RematTraced" else None


def effects_to_run_once(eqn: Equation) -> list[Any]:
    """An equation's effects that recomputation must not repeat; writing to a Ref is not among them (see `refs_to_values`)."""
    return [
        effect
        for effect in eqn.effects
        if not isinstance(effect, reference_effects()) and (isinstance(effect, _ordered_debugging()) or not _may_repeat(effect))
    ]


@cache
def _may_repeat(effect: Any) -> bool:
    """Whether `jax.checkpoint` recomputes an equation with this effect: it is asked with a primitive that has no other side."""
    toy = jex.Primitive("effect")
    toy.multiple_results = True
    toy.def_effectful_abstract_eval(lambda: ([], {effect}))

    def fun(x: Any) -> Any:
        toy.bind()
        return x * x

    try:
        jax.make_jaxpr(lambda x: jax.vjp(jax.checkpoint(fun), x)[0])(1.0)
    except NotImplementedError:
        return False
    return True


@cache
def _ordered_debugging() -> tuple[type, ...]:
    """The types of the effects of `jax.debug.print(ordered=True)`: `jax.checkpoint` would repeat what it prints."""
    jaxpr = jax.make_jaxpr(lambda x: jax.debug.print("{}", x, ordered=True))(1.0)
    return tuple({type(effect) for effect in jaxpr.effects})
