"""From a compiler's kernels to steps: small programs with kernels made by hand, nothing is compiled."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from remat_lab.flatten import flatten
from remat_lab.hlo import parse
from remat_lab.kernel_fuse import steps_of
from remat_lab.kernel_tags import Result, TaggedKernel, kernels_of
from remat_lab.kernels import Kernel
from remat_lab.steps import assemble, base_values, closure, is_view

SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)
ALL = 64  # elements of SQUARE
BYTES = 4 * ALL


def program_of(fun, *args):
    return flatten(jax.make_jaxpr(fun)(*args))


def kernel(*results, reads=(), scratch=0, moved=(0, 0), taken=()):
    """A kernel that writes arrays of float32: (equation, elements) each; `taken` are others whose arrays it reads."""
    made = tuple(Result(equation, 4 * elements, elements) for equation, elements in results)
    arrays = tuple(array for other in taken for array in other.results)
    return TaggedKernel(Kernel("k", "fusion", *moved, scratch_bytes=scratch), made, frozenset(reads), arrays)


def named(program, *names):
    """Positions of the equations with these names; each must be there once."""
    found = [q.name for q in program.equations]
    assert all(found.count(name) == 1 for name in names), found
    return [found.index(name) for name in names]


def roots(program, kernels, last_primal=None):
    """The names that each step writes."""
    last = len(program.equations) if last_primal is None else last_primal
    return [[program.equations[k].name for k in step.roots] for step in steps_of(program, kernels, last)]


def test_each_kernel_is_a_step_with_its_traffic_and_scratch():
    program = program_of(lambda x, w: jnp.sum(jnp.sin(x @ w)), SQUARE, SQUARE)
    dot, total = named(program, "dot_general", "reduce_sum")
    kernels = [kernel((dot, ALL), scratch=1000, moved=(512, 256)), kernel((total, 1), reads=[dot], moved=(256, 4))]
    first, second = steps_of(program, kernels, len(program.equations))
    assert (first.roots, first.workspace, first.scratch, first.moved_bytes, first.sizes) == ((dot,), 1000, (1000,), 768, {})
    assert (second.roots, second.workspace, second.moved_bytes) == ((total,), 0, 260)


def test_a_kernel_of_two_results_is_one_step_or_one_in_each_pass():
    program = program_of(lambda x: (jnp.sin(x), jnp.cos(x)), SQUARE)
    sine, cosine = named(program, "sin", "cos")
    both = [kernel((sine, ALL), (cosine, ALL))]
    assert roots(program, both) == [["sin", "cos"]]
    assert roots(program, both, last_primal=sine) == [["sin"], ["cos"]]


def test_results_without_a_tag_are_nobodys_and_outputs_without_a_kernel_are_steps():
    program = program_of(lambda x: jnp.sin(jnp.cos(x)), SQUARE)
    assert roots(program, []) == [["sin"]]
    assert roots(program, [kernel((None, ALL))]) == [["sin"]]
    assert roots(program, [kernel((named(program, "cos")[0], ALL))]) == [["cos"], ["sin"]]


def test_an_output_that_algebra_made_smaller_is_still_a_step():
    program = program_of(lambda x: jnp.broadcast_to(jnp.sin(x)[:, :1], (8, 8)), SQUARE)
    (spread,) = named(program, "broadcast_in_dim")
    (step,) = steps_of(program, [kernel((spread, 8), moved=(32, 32))], len(program.equations))
    assert (step.roots, step.workspace) == ((spread,), 32)


def test_heavy_work_that_several_steps_would_repeat_is_a_step_but_a_sum_is_not():
    heavy = program_of(lambda x, w: (jnp.sin(x @ w), jnp.cos(x @ w)), SQUARE, SQUARE)
    assert roots(heavy, []) == [["dot_general"], ["sin"], ["cos"]]
    summed = program_of(lambda x: (lambda s: (jnp.sin(s), jnp.cos(s)))(lax.reduce_sum_p.bind(x, axes=(0,))), SQUARE)
    assert roots(summed, []) == [["sin"], ["cos"]]


def test_what_renames_bytes_stands_for_what_made_them():
    program = program_of(lambda x: jnp.sum(jnp.reshape(jnp.sin(x), (64,)) ** 3), SQUARE)
    (view,) = named(program, "reshape")
    assert roots(program, [kernel((view, ALL))])[0] == ["sin"]
    renamed = program_of(lambda x: jnp.sin(jnp.reshape(x, (64,))), SQUARE)
    assert roots(renamed, [kernel((0, ALL))]) == [["sin"]]  # an argument's bytes are no step


def test_a_smaller_array_of_elementwise_work_is_the_sum_that_it_moved_behind():
    program = program_of(lambda x: jnp.cos(lax.reduce_sum_p.bind(jnp.sin(x) * 2.0, axes=(1,))), SQUARE)
    (product,) = named(program, "mul")
    assert roots(program, [kernel((product, 8))]) == [["reduce_sum"], ["cos"]]
    assert roots(program, [kernel((product, ALL))]) == [["mul"], ["cos"]]
    assert roots(program, [kernel((product, 4))]) == [["cos"]]  # no sum has so few: algebra made something else of it


def test_a_sum_in_two_stages_is_one_step_of_the_first():
    program = program_of(lambda x: (jnp.sin(x), lax.reduce_sum_p.bind(jnp.sin(x), axes=(0, 1))), SQUARE)
    sine, total = named(program, "sin", "reduce_sum")
    kernels = [kernel((sine, ALL), (total, 16), moved=(256, 320)), kernel((total, 1), reads=[total], moved=(64, 4))]
    (step,) = steps_of(program, kernels, len(program.equations))
    assert step.roots == (sine, total)
    assert (step.workspace, step.sizes) == (64, {})  # what the first stage writes is there for the second only
    assert step.moved_bytes == 256 + 320 + 64 + 4


@pytest.mark.parametrize(("readers", "expected"), [(1, [["sin"]]), (2, [["dot_general"], ["sin"], ["cos"]])])
def test_a_padded_product_belongs_to_its_only_reader(readers, expected):
    """With two it is a value as large as it is laid out."""

    def fun(x, w):
        y = x @ w
        return [jnp.sin(y), jnp.cos(y)][:readers]

    program = program_of(fun, SQUARE, SQUARE)
    (dot,) = named(program, "dot_general")
    kernels = [kernel((dot, 2 * ALL))] + [kernel((k, ALL)) for k in range(dot + 1, len(program.equations))]
    assert roots(program, kernels) == expected
    sizes = steps_of(program, kernels, len(program.equations))[0].sizes
    assert sizes == ({} if readers == 1 else {program.equations[dot].outs[0]: 2 * BYTES})


def test_products_of_one_operand_that_share_a_kernel_are_charged_for_their_own_results():
    program = program_of(lambda x, u, v: (x @ u, x @ v), SQUARE, SQUARE, SQUARE)
    first, second = steps_of(program, [kernel((0, 2 * ALL))], len(program.equations))
    assert (first.roots, second.roots, first.sizes) == ((0,), (1,), {})
    padded, _ = steps_of(program, [kernel((0, 2 * ALL)), kernel((1, ALL))], len(program.equations))
    assert (padded.sizes, padded.workspace) == ({}, 2 * BYTES)  # the buffer of a result has no room for more


def test_what_is_padded_for_its_reader_is_work_space():
    """The operand of a convolution in steps of two, say: written with zeros between its elements, and kept without."""
    program = program_of(lambda x, w: (jnp.tan(jnp.sin(x)) @ w, jnp.cos(jnp.sin(x))), SQUARE, SQUARE)
    sine, tangent, dot, cosine = named(program, "sin", "tan", "dot_general", "cos")
    kernels = [kernel((sine, ALL), (tangent, 4 * ALL)), kernel((dot, ALL)), kernel((cosine, ALL))]
    first = steps_of(program, kernels, len(program.equations))[0]
    assert (first.roots, first.sizes, first.workspace) == ((sine, tangent), {}, 4 * BYTES)


def test_what_is_written_for_a_reader_is_work_space_of_each_reader():
    program = program_of(lambda x, w: (jnp.sin(x) @ w, w @ jnp.sin(x)), SQUARE, SQUARE)
    sine, first, second = 0, 1, 2
    padded, turned = kernel((sine, 4 * ALL)), kernel((None, ALL))
    kernels = [padded, turned, kernel((first, ALL), taken=[padded, turned]), kernel((second, ALL), taken=[padded])]
    steps = steps_of(program, kernels, len(program.equations))
    assert [step.roots for step in steps] == [(sine,), (first,), (second,)]
    assert [sorted(step.scratch) for step in steps] == [[], [BYTES, 4 * BYTES], [4 * BYTES]]
    assert [step.workspace for step in steps] == [0, 5 * BYTES, 4 * BYTES]


def test_results_of_one_equation_in_kernels_of_their_own_are_no_work_space():
    program = program_of(lambda x: [jnp.sin(part) for part in lax.split(x, (4, 4))], SQUARE)
    (split,) = named(program, "split")
    (step, *_) = steps_of(program, [kernel((split, ALL // 2)), kernel((split, ALL // 2))], len(program.equations))
    assert (step.roots, step.workspace) == ((split,), 0)
    (step, *_) = steps_of(program, [kernel((split, ALL // 2))] * 2 + [kernel((split, ALL))], len(program.equations))
    assert step.workspace == BYTES  # of no size that a result has


def test_what_only_leaves_is_a_result_and_what_is_read_was_made_for_its_reader():
    text = """
ENTRY %main (x: f32[8,8]) -> (f32[8,8], f32[8,8]) {
  %x = f32[8,8]{1,0} parameter(0)
  %dot = f32[8,8]{0,1} dot(%x, %x), metadata={op_name="jit(f)/eqn0_/dot_general"}
  %wanted = f32[8,8]{1,0} copy(%dot)
  %turned = f32[8,8]{1,0} copy(%dot)
  %sine = f32[8,8]{1,0} sine(%turned), metadata={op_name="jit(f)/eqn1_/sin"}
  ROOT %both = (f32[8,8]{1,0}, f32[8,8]{1,0}) tuple(%wanted, %sine)
}
"""
    dot, wanted, turned, sine = kernels_of(parse(text))
    assert [[array.equation for array in k.results] for k in (dot, wanted, turned, sine)] == [[0], [0], [None], [1]]
    assert sine.taken == turned.results
    assert turned.taken == wanted.taken == dot.results
    program = program_of(lambda x: (lambda y: (y, jnp.sin(y)))(x @ x), SQUARE)
    first, second = steps_of(program, [dot, wanted, turned, sine], len(program.equations))
    assert (first.workspace, second.workspace) == (BYTES, BYTES)


def test_what_is_filled_before_a_loop_are_the_buffers_of_its_results():
    program = program_of(lambda x: lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=3), SQUARE)
    (scan,) = named(program, "scan")
    filled, loop = kernel((scan, 3 * ALL)), kernel((scan, ALL), (scan, 3 * ALL))
    (step,) = steps_of(program, [filled, loop], len(program.equations))
    assert (step.roots, step.workspace, step.sizes) == ((scan,), 0, {})


def test_results_of_a_loop_are_as_large_as_they_are_laid_out():
    program = program_of(lambda x: lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=3), SQUARE)
    (scan,) = named(program, "scan")
    carry, stack = (Result(scan, 4 * BYTES * n, ALL * n) for n in (1, 3))  # rows of 8 padded to 32
    kernels = [TaggedKernel(Kernel("loop", "while", 0, 0), (carry, stack), frozenset())]
    (step,) = steps_of(program, kernels, len(program.equations))
    assert sorted(step.sizes.values()) == [4 * BYTES, 12 * BYTES]
    assert step.workspace == 0


@pytest.mark.parametrize(
    ("reads_other", "expected"), [(True, [["sin"], ["add"]]), (False, [["sin"], ["scatter-add"], ["add"]])]
)
def test_a_scatter_is_the_sum_that_it_updates_in_place(reads_other, expected):
    """But only if its kernel reads the other summand."""

    def fun(x, update):
        dimensions = lax.ScatterDimensionNumbers((0,), (0,), (0,))
        zeros = jnp.zeros(x.shape, x.dtype)
        return jnp.sin(x) + lax.scatter_add(zeros, jnp.zeros((1,), jnp.int32), update, dimensions)

    program = program_of(fun, SQUARE, jax.ShapeDtypeStruct((8,), jnp.float32))
    sine, scatter = named(program, "sin", "scatter-add")
    kernels = [kernel((sine, ALL)), kernel((scatter, ALL), reads=[sine] if reads_other else [])]
    assert roots(program, kernels) == expected


def test_kernels_that_would_read_each_other_are_taken_apart():
    program = program_of(lambda x: jnp.tan(jnp.cos(jnp.sin(x))), SQUARE)
    sine, cosine, tangent = named(program, "sin", "cos", "tan")
    kernels = [kernel((sine, ALL), (tangent, ALL), moved=(1, 1)), kernel((cosine, ALL))]
    assert roots(program, kernels) == [["sin"], ["cos"], ["tan"]]


def test_steps_come_in_an_order_that_they_can_run_in_whatever_the_kernels_order():
    program = program_of(lambda x: jnp.tan(jnp.cos(jnp.sin(x))), SQUARE)
    kernels = [kernel((k, ALL)) for k in (2, 0, 1)]
    assert roots(program, kernels) == [["sin"], ["cos"], ["tan"]]


def training_step():
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w).reshape(4, 16).reshape(8, 8)
        return jnp.sum(x / jnp.max(x, axis=1, keepdims=True))

    return program_of(jax.value_and_grad(loss), [SQUARE] * 2, SQUARE)


STEP = training_step()


@st.composite
def any_kernels(draw):
    """Kernels that say anything about the equations: results in any order, of any size, several times or never."""
    equations = st.none() | st.integers(0, len(STEP.equations) - 1)
    results = st.lists(st.tuples(equations, st.sampled_from((1, 8, ALL, 2 * ALL))), min_size=1, max_size=4)
    reads = st.lists(st.integers(0, len(STEP.equations) - 1), max_size=2)
    found = draw(st.lists(st.tuples(results, reads), max_size=25))
    return [kernel(*written, reads=read) for written, read in found]


@settings(max_examples=60, deadline=None)
@given(any_kernels(), st.integers(-1, len(STEP.equations)))
def test_whatever_the_kernels_say_the_steps_compute_the_program(kernels, last_primal):
    steps = steps_of(STEP, kernels, last_primal)
    own = [k for step in steps for k in step.roots]
    assert len(own) == len(set(own))
    assert not any(is_view(STEP.equations[k]) for k in own)
    assert all(len({k <= last_primal for k in step.roots}) == 1 for step in steps)  # one pass each
    written = [k in set(own) for k in range(len(STEP.equations))]
    ready = set(STEP.inputs)
    for step in steps:
        _, reads = closure(STEP, written, step.roots)
        assert ready.issuperset(v for v in reads if v in STEP.producer)
        ready.update(v for k in step.roots for v in STEP.equations[k].outs)
    base = base_values(STEP)
    assert ready.issuperset(base[v] for v in STEP.outputs if isinstance(v, int))
    assert math.isfinite(
        sum(node.cost for node in assemble(STEP, steps, primal_outputs=1, cost=lambda f, b: f + b).graph.nodes)
    )
