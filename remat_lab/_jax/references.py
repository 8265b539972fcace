"""Mutable references (`jax.Ref`): told from arrays, and turned into values."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex

from remat_lab._jax import names


def is_ref(value: Any) -> bool:
    """Whether a value is a mutable reference, concrete or traced."""
    return isinstance(value, jax.ref.Ref)


def is_ref_type(aval: Any) -> bool:
    """Whether a type is that of a mutable reference."""
    return isinstance(aval, jax.ref.AbstractRef)


@cache
def reference_effects() -> tuple[type, ...]:
    """The types of the effects that reading, writing and adding to a `jax.Ref` have."""

    def touch(ref: Any) -> Any:
        jax.ref.addupdate(ref, ..., jnp.zeros(()))
        ref[...] = jnp.zeros(())
        return ref[...]

    jaxpr = jax.make_jaxpr(touch)(jax.ref.new_ref(jnp.zeros(())))
    return tuple({type(effect) for eqn in jaxpr.eqns for effect in eqn.effects})


def refs_to_values(jaxpr: Any) -> tuple[Any, list[int], list[bool]]:
    """A jaxpr that reads and writes Refs as one without effects on them.

    Returns:
        The jaxpr, whose inputs are the constants, then the inputs, with the contents of Refs in place of Refs, and whose
        outputs are followed by the final contents; the positions of the Refs among its inputs; whether each is written.

    Raises:
        UnsupportedJax: if this JAX has no way to do it.
    """
    discharge = names.find(names.DISCHARGE)
    operands = (*jaxpr.constvars, *jaxpr.invars)
    refs = [i for i, var in enumerate(operands) if is_ref_type(var.aval)]
    held = _without_rules(jaxpr)
    pure = _with_rules(discharge(held.with_consts(()) if held.consts else held))
    finals = pure.outvars[len(jaxpr.outvars) :]
    written = [pure.invars[i] is not final for i, final in zip(refs, finals, strict=True)]
    return pure, refs, written


class _Rule:
    """An equation with a derivative rule of the user's."""

    def __init__(self, eqn: Any):
        self.eqn = eqn


_RULES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
_held = jex.Primitive("remat_lab_held")  # stands for such an equation
_held.multiple_results = True
_held.def_abstract_eval(lambda *_, rule: [var.aval for var in rule.eqn.outvars])


def _without_rules(jaxpr: Any) -> Any:
    """JAX discharges references by running functions that have derivative rules, which loses these: hold them."""

    def hold(eqn: Any) -> Any:
        if eqn.primitive.name in _RULES and not any(is_ref_type(v.aval) for v in eqn.invars):
            return eqn.replace(primitive=_held, params={"rule": _Rule(eqn)})
        return eqn.replace(params={key: _in_bodies(value, _without_rules) for key, value in eqn.params.items()})

    return jaxpr.replace(eqns=[hold(eqn) for eqn in jaxpr.eqns])


def _with_rules(jaxpr: Any) -> Any:
    def put_back(eqn: Any) -> Any:
        if eqn.primitive is not _held:
            return eqn.replace(params={key: _in_bodies(value, _with_rules) for key, value in eqn.params.items()})
        rule = eqn.params["rule"].eqn
        return eqn.replace(primitive=rule.primitive, params=rule.params)

    return jaxpr.replace(eqns=[put_back(eqn) for eqn in jaxpr.eqns])


def _in_bodies(value: Any, change: Any) -> Any:
    """A parameter of an equation with the programs in it changed."""
    if isinstance(value, tuple):
        made = [_in_bodies(item, change) for item in value]
        return type(value)._make(made) if hasattr(value, "_make") else tuple(made)  # type: ignore[attr-defined]
    return change(value) if isinstance(value, jex.Jaxpr) else value
