"""For each row of the table, the smallest program that shows what the toolkit needs of it.

Run by the tests on every supported release, and by `remat-lab doctor` on whatever is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback
from jax.sharding import PartitionSpec

from remat_lab._jax import avals, checkpoints, equations, names, pooling, references, rules

Check = Callable[[], bool]
_CHECKS: dict[str, Check] = {}


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a row.

    Attributes:
        name: the row.
        problem: why what is needed of it cannot be had; None if it can.
    """

    name: names.Name
    problem: str | None


def check(name: names.Name) -> Finding:
    """Runs the program of a row."""
    try:
        held = _CHECKS[name.where]()
    except Exception as error:
        return Finding(name, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
    return Finding(name, None if held else "it does something else than on the releases that were tested")


def check_all() -> list[Finding]:
    """Runs the programs of all rows, in the order of the table."""
    return [check(name) for name in names.NAMES]


def _of(where: str) -> Callable[[Check], Check]:
    def keep(fun: Check) -> Check:
        _CHECKS[where] = fun
        return fun

    return keep


def _equations(fun: Callable[..., Any], *args: Any) -> list[Any]:
    return jax.make_jaxpr(fun)(*args).eqns


_X = jax.ShapeDtypeStruct((4,), jnp.float32)


@_of(names.DISCHARGE)
def _references_become_values() -> bool:
    def count(ref: Any, x: Any) -> Any:
        ref[...] += x
        return ref[...] * 2

    zero = np.zeros((), np.float32)
    pure, positions, written = references.refs_to_values(jax.make_jaxpr(count)(jax.ref.new_ref(jnp.asarray(zero)), zero))
    return positions == [0] and written == [True] and jax.core.eval_jaxpr(pure, (), 3.0, 4.0) == [14.0, 7.0]


@_of(names.DEAD_CODE)
def _unused_results_of_loops_go() -> bool:
    def fun(x: Any) -> Any:
        return lax.scan(lambda c, _: ((c[0] + 1.0, c[1] * 2.0), None), (x, x), length=3)[0][0]

    names.find(names.DEAD_CODE)
    (loop,) = equations.drop_dead(jax.make_jaxpr(fun)(_X)).eqns
    return len(loop.outvars) == 1


def _triple() -> Any:
    """A primitive with two operands, the second of which counts for nothing."""
    own = rules.primitive("remat_lab_triple")

    def jvp(primals: Any, tangents: Any) -> Any:
        if not rules.is_symbolic_zero(tangents[1]):
            raise AssertionError("an operand that does not move has a tangent")
        return own.bind(*primals), own.bind(tangents[0], primals[1])

    rules.register(
        own,
        lambda x, y: [3.0 * x],
        abstract=lambda x, y: ([x], set()),
        jvp=jvp,
        transpose=lambda cts, x, y: [own.bind(cts[0], y)[0], None],
        batch=lambda values, dims: (own.bind(*values), [dims[0]]),
    )
    rules.require(own)
    return own


def _gradient_of_triple() -> bool:
    own = _triple()
    return float(jax.grad(lambda x: own.bind(x, 1.0)[0])(2.0)) == 3.0


for _where in (names.JVPS, names.TRANSPOSES, names.ZERO, names.LOWERING, names.LOWER_FUN):
    _of(_where)(_gradient_of_triple)


@_of(names.BATCHERS)
def _rules_of_mapping() -> bool:
    own = _triple()
    return jax.vmap(lambda x: own.bind(x, 1.0)[0])(jnp.ones(2)).tolist() == [3.0, 3.0]


@_of(names.AXIS_BATCHERS)
def _rules_of_mapping_know_the_axis() -> bool:
    own, seen = rules.primitive("remat_lab_mapped"), []

    def batch(axis: Any, values: Any, dims: Any) -> Any:
        mapped = rules.MappedAxis.of(axis, dims)
        seen.append((mapped.dims, mapped.size, mapped.name))
        return [mapped.vmap(lambda x: x - lax.psum(x, "rows"))(*values)], [0]

    rules.register(own, lambda x: [x], abstract=lambda x: ([x], set()), jvp=lambda p, t: (list(p), list(t)), axis_batch=batch)
    rules.require(own)
    out = jax.vmap(lambda x: own.bind(x)[0], axis_name="rows")(jnp.arange(2.0))
    return seen == [((0,), 2, "rows")] and out.tolist() == [-1.0, 0.0]


@_of(names.AXIS_NAMES)
def _mapped_axes_are_known() -> bool:
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.extend(names.find(names.AXIS_NAMES)())
        return x

    jax.vmap(look, axis_name="rows")(jnp.ones(2))
    return seen == ["rows"]


@_of(names.SCATTER)
def _max_pools_sum_onto_given_zeros() -> bool:
    def pool(x: Any) -> Any:
        return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID") ** 2)

    names.find(names.SCATTER)
    eqn = next(q for q in _equations(jax.grad(pool), _X) if q.primitive.name == "select_and_scatter_add")
    values = jnp.array([1.0, 2.0]), jnp.array([3.0, 1.0, 2.0, 5.0])
    return pooling.scatter_selected(eqn, values, jnp.zeros(()))[0].tolist() == equations.bind(eqn, values)[0].tolist()


@_of("JaxprEqn.ctx")
def _contexts_of_equations_are_told_apart() -> bool:
    def one() -> Any:
        return _equations(lambda x: x + x, _X)[0]

    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        other = one()
        within = equations.context_key(other)
    with equations.equation_context(other):
        again = one()
    keys = [equations.context_key(eqn) for eqn in (one(), one(), again)]
    return keys[0] == keys[1] and keys[0] != within and keys[2] == within


@_of("Primitive.get_bind_params")
def _an_equation_runs_again_with_its_rule() -> bool:
    fun = jax.custom_jvp(jnp.sin)
    fun.defjvp(lambda primals, tangents: (fun(*primals), 2.0 * tangents[0]))
    (eqn,) = _equations(fun, _X)
    return float(jax.grad(lambda x: equations.bind(eqn, [x])[0])(1.0)) == 2.0


@_of("JaxprEqn.source_info")
def _equations_know_their_lines() -> bool:
    (eqn,) = _equations(jax.named_scope("layer")(lambda x: x + x), _X)
    line = equations.source_line(eqn)
    return line is not None and "checks.py" in line and "layer" in equations.scopes_of(eqn)


@_of("jax.extend.source_info_util.user_context")
def _lines_are_handed_on() -> bool:
    (eqn,) = _equations(lambda x: x + x, _X)
    (again,) = _equations(lambda x: equations.bind(eqn, [x, x])[0], _X)
    return equations.source_line(again) == equations.source_line(eqn) is not None


@_of("jaxpr.consts")
def _constants_stand_in_the_jaxpr() -> bool:
    array = jnp.ones(4)
    jaxpr = jax.make_jaxpr(lambda x: x + array)(_X)
    ((_, value),) = equations.constants(jaxpr)
    return value is array and len(jaxpr.with_consts(()).invars) == 2


@_of("parameters of jit")
def _calls_that_ask_for_nothing_are_told() -> bool:
    sharding = jax.sharding.make_single_device_sharding(jax.devices()[0])
    (plain,) = _equations(jax.jit(jnp.sin), _X)
    (asks,) = _equations(jax.jit(jnp.sin, out_shardings=sharding), _X)
    return equations.is_unspecified_call(plain) and not equations.is_unspecified_call(asks)


@_of("parameters of scan")
def _operands_of_loops_are_told_apart() -> bool:
    def fun(x: Any, y: Any) -> Any:
        return lax.scan(lambda c, xs: (c + y * xs, None), jnp.zeros(()), x)[0]

    return equations.scan_operands(_equations(fun, _X, jnp.ones(()))[-1]) == (1, 1)


@_of("the primitive of checkpoint_name")
def _names_are_found() -> bool:
    (eqn,) = _equations(lambda x: checkpoint_name(x, "mine"), _X)
    return checkpoints.checkpoint_name_of(eqn) == "mine"


@contextmanager
def _new_checkpoint() -> Iterator[None]:
    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", True)
    try:
        yield
    finally:
        jax.config.update("jax_remat3", before)


@_of("call_hi_primitive")
def _the_new_checkpoint_is_understood() -> bool:
    def fun(x: Any) -> Any:
        return jnp.sum(jnp.sin(checkpoint_name(jnp.sin(x), "mine")))

    with _new_checkpoint():
        named = [checkpoints.checkpoint_name_of(eqn) for eqn in _equations(fun, _X)]
        backward = _equations(jax.grad(jax.checkpoint(fun)), _X)
    regions = [checkpoints.remat_traced_body(eqn) for eqn in backward]
    return "mine" in named and any(body is not None and len(body.eqns) > 1 for body in regions)


@_of("effects under jax.checkpoint")
def _side_effects_are_told_apart() -> bool:
    def effects(fun: Callable[..., Any]) -> int:
        return sum(len(checkpoints.effects_to_run_once(eqn)) for eqn in _equations(fun, _X))

    return (
        effects(lambda x: jax.debug.print("{}", x)) == 0
        and effects(lambda x: jax.debug.print("{}", x, ordered=True)) > 0
        and effects(lambda x: io_callback(lambda y: y, _X, x, ordered=True)) > 0
    )


@_of("effects of references")
def _effects_on_references_are_told() -> bool:
    def read(x: Any) -> Any:
        return jax.ref.new_ref(x)[...]

    found = [effect for eqn in _equations(read, _X) for effect in eqn.effects]
    return any(isinstance(effect, references.reference_effects()) for effect in found)


@_of("manual_axis_type")
def _axes_of_shard_map_are_known() -> bool:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])

    def body(x: Any) -> Any:
        made = avals.vary_like(jnp.zeros(4), jax.typeof(x))
        return x + made if "d" in jax.typeof(made).manual_axis_type.varying else x[:0]

    rows = PartitionSpec("d")
    return jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows)(jnp.ones(4)).shape == (4,)


@_of("jax.config.values")
def _settings_that_traces_depend_on_are_known() -> bool:
    with jax.enable_x64(not jax.config.jax_enable_x64):
        other = avals.trace_context()
    return avals.trace_context() == avals.trace_context() != other
