"""The private or version-dependent JAX that mutable references take: a part of `_compat`."""

from __future__ import annotations

from typing import Any

import jax
from jax._src.state import discharge
from jax._src.state.types import AbstractRef
from jax.extend import core as jex
from jax.interpreters import partial_eval as pe


def is_ref(value: Any) -> bool:
    """Whether a value is a mutable reference, concrete or traced."""
    return isinstance(jax.typeof(value), AbstractRef)


def is_ref_type(aval: Any) -> bool:
    """Whether a type is that of a mutable reference."""
    return isinstance(aval, AbstractRef)


def refs_to_values(jaxpr: Any) -> tuple[Any, list[int], list[bool]]:
    """A jaxpr that reads and writes Refs as one without effects on them.

    Returns:
        The jaxpr, whose inputs are the constants, then the inputs, with the contents of Refs in place of Refs, and whose
        outputs are followed by the final contents; the positions of the Refs among its inputs; whether each is written.
    """
    operands = (*jaxpr.constvars, *jaxpr.invars)
    refs = [i for i, var in enumerate(operands) if isinstance(var.aval, AbstractRef)]
    pure = _with_rules(discharge.discharge_state(pe.convert_constvars_jaxpr(_without_rules(jaxpr))))
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
    """JAX (0.11, 0.12) discharges references by running functions that have derivative rules, which loses these: hold them."""

    def hold(eqn: Any) -> Any:
        if eqn.primitive.name in _RULES and not any(isinstance(v.aval, AbstractRef) for v in eqn.invars):
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
    if isinstance(value, jex.ClosedJaxpr):
        return value.replace(jaxpr=change(value.jaxpr))
    return change(value) if isinstance(value, jex.Jaxpr) else value
