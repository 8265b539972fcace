"""FLOP rules: against XLA's own count where it has one, and by hand where it does not."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_lab import costs
from remat_lab.costs import CPU, Machine, flops, has_rule, loop_bytes, moved_bytes
from remat_lab.errors import InvalidArgument, UnknownPrimitiveWarning
from remat_lab.flatten import flatten
from remat_lab.measure import compile_program
from remat_lab.pricing import COSTS, fuse_priced
from remat_lab.targets import Target


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def equations(fun, *args):
    return [q.eqn for q in flatten(jax.make_jaxpr(fun)(*args)).equations]


def total(fun, *args):
    return sum(map(flops, equations(fun, *args)))


def conv(x, kernel, **options):
    options = {"window_strides": (1, 1), "padding": "VALID", **options}
    return lax.conv_general_dilated(x, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        pytest.param(jnp.dot, (floats(64, 96), floats(96, 32)), id="dot"),
        pytest.param(partial(jnp.einsum, "bij,bjk->bik"), (floats(5, 16, 24), floats(5, 24, 8)), id="batched dot"),
        pytest.param(partial(jnp.einsum, "ijk,jkl->il"), (floats(8, 12, 16), floats(12, 16, 4)), id="two contracted"),
        pytest.param(jnp.vdot, (floats(1024), floats(1024)), id="vectors"),
        pytest.param(conv, (floats(2, 16, 16, 8), floats(3, 3, 8, 12)), id="convolution"),
        pytest.param(partial(conv, window_strides=(2, 2)), (floats(2, 17, 17, 8), floats(3, 3, 8, 12)), id="strided"),
        pytest.param(partial(conv, feature_group_count=4), (floats(2, 16, 16, 8), floats(3, 3, 2, 12)), id="grouped"),
        pytest.param(partial(conv, rhs_dilation=(2, 2)), (floats(2, 16, 16, 8), floats(3, 3, 8, 12)), id="dilated kernel"),
    ],
)
def test_dots_and_convolutions_count_as_xla_counts(fun, args):
    assert total(fun, *args) == pytest.approx(compile_program(fun, *args).flops, rel=0.01)


@pytest.mark.parametrize(
    "options", [{}, {"window_strides": (2, 2)}, {"feature_group_count": 4}], ids=["plain", "strided", "grouped"]
)
def test_the_gradients_of_a_convolution_cost_about_as_much_as_itself(options):
    args = (floats(4, 32, 32, 8), floats(3, 3, 8 // options.get("feature_group_count", 1), 16))

    def loss(x, kernel):
        return jnp.sum(conv(x, kernel, padding="SAME", **options) ** 2)

    forward = total(partial(conv, padding="SAME", **options), *args)
    heavy = [e for e in equations(jax.grad(loss, (0, 1)), *args) if e.primitive.name == "conv_general_dilated"]
    assert len(heavy) == 3
    # With respect to the input of a strided convolution, most of what the rule counts are zeros between the rows.
    strided = 4 if "window_strides" in options else 1
    for eqn in heavy:
        assert forward * 0.8 <= flops(eqn) <= forward * 1.3 * strided


def test_what_meets_the_padding_is_counted_too():
    fun, args = partial(conv, padding="SAME"), (floats(2, 16, 16, 8), floats(3, 3, 8, 12))
    by_xla = compile_program(fun, *args).flops
    assert by_xla < total(fun, *args) <= 1.15 * by_xla


def scanned(x, length):
    return lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, None, length=length)[0]


def test_a_scan_costs_its_body_times_its_length():
    body = total(lambda c: jnp.tanh(c @ c), floats(32, 32))
    for length in (1, 10, 100):
        assert total(partial(scanned, length=length), floats(32, 32)) == length * body


def test_nested_scans_multiply():
    def nested(x):
        return lax.scan(lambda c, _: (scanned(c, 5), None), x, None, length=7)[0]

    assert total(nested, floats(16, 16)) == 35 * total(lambda c: jnp.tanh(c @ c), floats(16, 16))


def test_a_branch_costs_its_dearest_arm_and_a_loop_one_trip():
    def branched(p, x):
        return lax.cond(p, lambda x: x @ x @ x, lambda x: x, x)

    assert total(branched, jax.ShapeDtypeStruct((), jnp.bool_), floats(16, 16)) >= 2 * 2 * 16**3

    def looped(x):
        return lax.while_loop(lambda c: jnp.sum(c) < 50, lambda c: c @ c, x)

    assert total(looped, floats(16, 16)) >= 2 * 16**3


def test_an_unknown_primitive_is_never_free():
    unknown = jax.extend.core.Primitive("unheard_of")
    unknown.def_abstract_eval(lambda x: x)
    (eqn,) = jax.make_jaxpr(unknown.bind)(floats(7, 9)).eqns
    assert not has_rule(eqn)
    assert flops(eqn) == 2 * 7 * 9
    assert moved_bytes(eqn) == 2 * 7 * 9 * 4


def test_a_custom_call_is_not_free_either():
    (eqn,) = equations(lambda x: jax.pure_callback(lambda x: x, x, x), floats(8))
    assert flops(eqn) >= 16


@pytest.mark.parametrize("name", ["mlp", "dropout_mlp", "transformer", "unet", "resnet"])
def test_every_primitive_of_the_models_has_a_rule(name):
    model = import_module(f"experiments.models.{name}").loss()
    step = jax.value_and_grad(model.loss, has_aux=model.has_aux)
    assert {e.primitive.name for e in equations(step, *model.args) if not has_rule(e)} == set()


@pytest.mark.parametrize("name", ["transformer", "dropout_mlp"])
def test_the_flops_of_a_whole_step_are_near_xlas(name):
    model = import_module(f"experiments.models.{name}").loss()
    step = jax.value_and_grad(model.loss)
    assert total(step, *model.args) == pytest.approx(compile_program(step, *model.args).flops, rel=0.03)


def test_random_bits_cost_more_than_moving_them():
    (bits,) = [
        e
        for e in equations(lambda k: jax.random.bits(k, (1000,)), jax.eval_shape(lambda: jax.random.key(0)))
        if e.primitive.name == "random_bits"
    ]
    assert flops(bits) > 10 * 1000


def test_extended_types_are_counted_in_bytes_they_take():
    key = jax.eval_shape(lambda: jax.random.key(0))
    assert costs.nbytes(jax.typeof(key)) == 8
    assert costs.nbytes(jax.typeof(jax.ShapeDtypeStruct((3,), jnp.bool_))) == 3
    assert costs.nbytes(jax.typeof(jax.ShapeDtypeStruct((3,), jnp.bfloat16))) == 6
    assert costs.nbytes(jax.typeof(jax.ShapeDtypeStruct((0, 5), jnp.float32))) == 0


def test_a_kernel_takes_the_slower_of_arithmetic_and_memory():
    machine = Machine(flops_per_second=100.0, bytes_per_second=10.0)
    assert machine.seconds(1000, 1) == 10
    assert machine.seconds(1, 1000) == 100
    assert CPU.seconds(0, 0) == 0


def test_a_kernel_has_to_be_launched_however_short_it_is():
    machine = Machine(flops_per_second=100.0, bytes_per_second=10.0, launch_seconds=0.5)
    assert machine.seconds(0, 0) == 0.5
    assert machine.seconds(1000, 1) == 10.5


def priced(fun, *args, **options):
    return fuse_priced(flatten(jax.make_jaxpr(fun)(*args)), **options)


@pytest.mark.parametrize("name", COSTS)
def test_every_name_of_costs_charges_every_step(monkeypatch, tmp_path, name):
    monkeypatch.setenv("REMAT_LAB_CACHE", str(tmp_path))
    graph = priced(lambda x: jnp.tanh(x @ x) @ x, floats(8, 8), costs=name).graph
    assert all(graph.nodes[v].cost > 0 for v in graph.steps)


def test_a_function_of_costs_is_asked_for_flops_and_bytes():
    graph = priced(lambda x: jnp.tanh(x @ x), floats(8, 8), costs=lambda flops, moved: 1e6 * flops + moved).graph
    assert graph.keep_all_cost == 1e6 * (2 * 8**3 + 8**2) + 2 * 4 * 8**2
    with pytest.raises(InvalidArgument, match="'roofline', 'measured', 'flops'"):
        priced(lambda x: x @ x, floats(8, 8), costs="dollars")


def test_the_roofline_is_the_targets_and_of_the_type_that_most_dots_have():
    def cost(target, dtype):
        x = jax.ShapeDtypeStruct((4096, 4096), dtype)
        return priced(lambda x: x @ x, x, target=target, steps="rules").graph.keep_all_cost

    single, half = cost("h100", jnp.float32), cost("h100", jnp.bfloat16)
    assert half < single < cost("cpu", jnp.float32) / 100
    machine = Target.named("h100").machine("bfloat16")
    assert half == machine.seconds(2 * 4096**3, 2 * 2 * 4096**2)


def test_a_loop_is_charged_for_the_bytes_of_every_trip():
    def looped(w, x, length):
        return lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=length)[0]

    args = floats(64, 64), floats(1, 64)
    once = 4 * (64 * 64 + 2 * 64)  # what the dot of a trip reads and writes
    (eqn,) = equations(partial(looped, length=10), *args)
    assert loop_bytes(eqn) == 10 * once
    costs_of = {n: priced(partial(looped, length=n), *args, costs=lambda f, moved: moved).graph.keep_all_cost for n in (10, 20)}
    assert costs_of == {10: 10 * once, 20: 20 * once}
    (nested,) = equations(lambda w, x: lax.scan(lambda c, _: (looped(w, c, 3), None), x, None, length=5)[0], *args)
    assert loop_bytes(nested) == 15 * once
    (dot,) = equations(lambda x: x @ x, floats(8, 8))
    assert loop_bytes(dot) == 0


def unheard_of(name):
    primitive = jax.extend.core.Primitive(name)
    primitive.def_abstract_eval(lambda x: x)
    return primitive.bind


def test_an_unknown_primitive_is_reported_once_and_charged_by_its_bytes(recwarn):
    first, second = unheard_of("never_seen"), unheard_of("nor_this")
    with pytest.warns(UnknownPrimitiveWarning, match=r"no rule for the cost of never_seen \(at .*test_costs.py:\d+") as found:
        graph = priced(lambda x: jnp.sum(first(first(x))), floats(512, 512)).graph
    assert len(found) == 1
    assert graph.nodes[0].cost == CPU.seconds(0, 2 * 4 * 512 * 512)
    priced(lambda x: jnp.sum(first(x)), floats(4, 4))
    assert not recwarn.list
    with pytest.warns(UnknownPrimitiveWarning, match="nor_this"):
        priced(lambda x: second(first(x)), floats(4, 4))


def test_what_is_never_recomputed_is_not_reported(recwarn):
    priced(lambda x: jnp.sum(jax.pure_callback(lambda a: a, x, x)), floats(8))
    assert not recwarn.list
