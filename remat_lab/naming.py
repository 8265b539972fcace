"""Names for values that a checkpointed segment keeps, placed so that the derivative reads the named value.

`jax.ad_checkpoint.checkpoint_name` names a copy. A derivative rule that reads its own result (tanh, exp, a reduction's maximum)
would still read the unnamed original, and the backward pass would compute it again although its copy was saved. For such
equations the rule is rewritten to read the copy. So it is for discrete choices: all that they make in the rule is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero

from remat_lab import _jax
from remat_lab.choices import ELEMENTWISE, REDUCED
from remat_lab.flatten import Equation
from remat_lab.primitives import DISCRETE

_ASKED: dict[Any, bool] = {}
_MOST_ASKED = 4096


def bind_named(q: Equation, values: Sequence[Any], names: Sequence[str | None], *, kept: bool = True) -> list[Any]:
    """Runs an equation; results with a name carry it, in the derivative too.

    Args:
        q: the equation.
        values: its operands.
        names: a name or None for each result.
        kept: whether a `jax.checkpoint` policy will keep what has a name. JAX cannot keep complex numbers by name (it rounds
            what it keeps, and rounding knows real numbers only), so their parts get it.
    """
    if not any(names):
        return _jax.bind(q.eqn, values)
    if _derivative_reads_what_it_makes(q, values):
        once = _jax.is_new_checkpoint() and q.name in DISCRETE
        return _named_beside(q, values, names, kept) if once else _named_with_rule(q, values, names, kept)
    return [_name(x, name, kept) for x, name in zip(_jax.bind(q.eqn, values), names, strict=True)]


def is_nameable(aval: Any) -> bool:
    """Whether values of a type can have a name: arrays, but for typed keys."""
    return hasattr(aval, "dtype") and not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)


def _name(x: Any, name: str | None, kept: bool) -> Any:
    if name is None:
        return x
    if kept and jax.dtypes.issubdtype(jax.typeof(x).dtype, jax.numpy.complexfloating):
        return lax.complex(checkpoint_name(lax.real(x), name), checkpoint_name(lax.imag(x), name))
    return checkpoint_name(x, name)


def _is_differentiable(x: Any) -> bool:
    return bool(jax.dtypes.issubdtype(jax.typeof(x).dtype, jax.numpy.inexact))


def _derivative_reads_what_it_makes(q: Equation, values: Sequence[Any]) -> bool:
    if q.name.startswith("custom_vjp"):
        return False  # its residuals are what the user's forward rule returns
    if q.name in ELEMENTWISE | REDUCED:
        return False  # the rule compares results with operands, so it must read them as computed from the same operands
    inexact = tuple(i for i, x in enumerate(values) if _is_differentiable(x))
    if not inexact:
        return False
    if q.name in DISCRETE:
        return True  # the order that a sort found, if not its results
    # Networks repeat themselves, and so do several traces of one: rules are asked once for each kind of equation.
    key = _kind(q, values)
    if key is not None and key in _ASKED:
        return _ASKED[key]
    jaxpr = _derivative(q, values, inexact)
    results = jaxpr.outvars[: len(q.outs)]
    answer = any(result is v for eqn in jaxpr.eqns for v in eqn.invars for result in results)
    if key is not None:
        if len(_ASKED) >= _MOST_ASKED:
            _ASKED.clear()
        _ASKED[key] = answer
    return answer


def _kind(q: Equation, values: Sequence[Any]) -> Any | None:
    """Equal for equations with the same derivative rule and types; None where that cannot be told."""
    if any(map(callable, q.eqn.params.values())) or _jax.sub_jaxprs(q.eqn):
        return None
    params = tuple(sorted(q.eqn.params.items(), key=lambda item: item[0]))
    key = (q.eqn.primitive, params, tuple(map(jax.typeof, values)), _jax.context_key(q.eqn))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _derivative(q: Equation, values: Sequence[Any], moving: Sequence[int]) -> Any:
    """jaxpr of the results and the tangents of those that have one, from all operands and the tangents of the moving ones."""

    def run(operands: list[Any], tangents: list[Any]) -> tuple[list[Any], list[Any]]:
        def of_moving(*inner: Any) -> list[Any]:
            filled = list(operands)
            for i, x in zip(moving, inner, strict=True):
                filled[i] = x
            return _jax.bind(q.eqn, filled)

        results, moved = jax.jvp(of_moving, [operands[i] for i in moving], tangents)
        return results, [t for x, t in zip(results, moved, strict=True) if _is_differentiable(x)]

    return jax.make_jaxpr(run)(list(values), [values[i] for i in moving])


def _named_with_rule(q: Equation, values: Sequence[Any], names: Sequence[str | None], kept: bool) -> list[Any]:
    @jax.custom_jvp
    def named(*operands: Any) -> list[Any]:
        return [_name(x, name, kept) for x, name in zip(_jax.bind(q.eqn, operands), names, strict=True)]

    def rule(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        moving = [i for i, t in enumerate(tangents) if not isinstance(t, SymbolicZero) and _is_differentiable(primals[i])]
        if not moving:
            results = named(*primals)
            return results, [_zero_tangent(x) for x in results]
        jaxpr = _derivative(q, primals, moving)
        shared = next(filter(None, names))
        name_of = {v: shared for eqn in jaxpr.eqns if eqn.primitive.name in DISCRETE for v in eqn.outvars}
        name_of.update((v, name) for v, name in zip(jaxpr.outvars, names, strict=False) if name is not None)
        known = dict(zip(jaxpr.invars, [*primals, *(tangents[i] for i in moving)], strict=True))
        found = _evaluate(jaxpr, jaxpr.outvars, known, lambda v, x: _name(x, name_of.get(v), kept))
        moved = iter(found[len(names) :])
        results = found[: len(names)]
        return results, [next(moved) if _is_differentiable(x) else _zero_tangent(x) for x in results]

    named.defjvp(rule, symbolic_zeros=True)
    return list(named(*values))


def _named_beside(q: Equation, values: Sequence[Any], names: Sequence[str | None], kept: bool) -> list[Any]:
    """As `_named_with_rule`, where JAX's new implementation keeps no names in derivative rules.

    A choice runs beside the derivative, which reads the named results as operands: those are kept.
    """
    inexact = [i for i, x in enumerate(values) if _is_differentiable(x)]
    jaxpr = _derivative(q, values, inexact)
    results = jaxpr.outvars[: len(names)]
    choices = [v for eqn in jaxpr.eqns if eqn.primitive.name in DISCRETE for v in eqn.outvars if v not in results]
    more = [v for v in choices if not jax.dtypes.issubdtype(v.aval.dtype, jax.numpy.inexact)]
    name_of = [*names, *[next(filter(None, names))] * len(more)]
    fixed = dict(zip(jaxpr.invars, map(lax.stop_gradient, values), strict=False))
    found = [_name(x, name, kept) for x, name in zip(_evaluate(jaxpr, [*results, *more], fixed), name_of, strict=True)]

    @jax.custom_jvp
    def derived(found: list[Any], operands: list[Any]) -> list[Any]:
        return found[: len(names)]

    def rule(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        outs = derived(*primals)
        known = dict(zip([*results, *more], [*outs, *primals[0][len(names) :]], strict=True))
        moves = [jax.numpy.zeros_like(primals[1][i]) if isinstance(t := tangents[1][i], SymbolicZero) else t for i in inexact]
        known.update(zip(jaxpr.invars, [*primals[1], *moves], strict=True))
        moved = iter(_evaluate(jaxpr, jaxpr.outvars[len(names) :], known))
        return outs, [next(moved) if _is_differentiable(x) else _zero_tangent(x) for x in outs]

    derived.defjvp(rule, symbolic_zeros=True)
    return list(derived(found, list(values)))


def _evaluate(
    jaxpr: Any, wanted: Sequence[Any], known: Mapping[Any, Any], mark: Callable[[Any, Any], Any] = lambda _, x: x
) -> list[Any]:
    """Values of a jaxpr from others, each marked when it is made: what only makes those that are known is left out."""
    needed, run = {v for v in wanted if not isinstance(v, _jax.Literal)}, []
    for eqn in reversed(jaxpr.eqns):
        if any(v in needed and v not in known for v in eqn.outvars):
            needed.update(v for v in eqn.invars if not isinstance(v, _jax.Literal))
            run.append(eqn)
    env: dict[Any, Any] = {**dict(_jax.constants(jaxpr)), **known}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, _jax.Literal) else env[atom]

    for eqn in reversed(run):
        made = zip(eqn.outvars, _jax.bind(eqn, [read(v) for v in eqn.invars]), strict=True)
        env.update((v, mark(v, x)) for v, x in made if v not in known)
    return list(map(read, wanted))


def _zero_tangent(x: Any) -> Any:
    aval = jax.typeof(x)
    if _is_differentiable(x):
        return jax.numpy.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, jax.dtypes.float0)
