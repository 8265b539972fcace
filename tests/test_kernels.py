"""What the compiler's text says about kernels: sizes as laid out, what is really touched, loops per trip."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from remat_lab.hlo import parse
from remat_lab.kernels import kernels, summed, traffic
from remat_lab.measure import compile_program

TEXT = """HloModule small, is_scheduled=true

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%p), index=1
  %y = f32[8,4]{1,0} negate(%x), metadata={op_name="jit(f)/eqn3_/neg (a \\"quoted) name"}
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %y)
}

%condition (p.1: (s32[], f32[8,4])) -> pred[] {
  %p.1 = (s32[], f32[8,4]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %n), direction=LT
}

%sliced (q: f32[5,8,4], j: s32[]) -> f32[1,8,4] {
  %q = f32[5,8,4]{2,1,0} parameter(0)
  %j = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %s = f32[1,8,4]{2,1,0} dynamic-slice(%q, %j, %zero, %zero), dynamic_slice_sizes={1,8,4}
}

%updated (r: f32[5,8,4], u: f32[1,8,4], k: s32[]) -> f32[5,8,4] {
  %r = f32[5,8,4]{2,1,0} parameter(0)
  %u = f32[1,8,4]{2,1,0} parameter(1)
  %k = s32[] parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %d = f32[5,8,4]{2,1,0} dynamic-update-slice(%r, %u, %k, %zero.1, %zero.1)
}

ENTRY %main (a: f32[8,4], b: f32[5,8,4], c: s32[]) -> (f32[8,4], f32[5,8,4], f32[1,8,4], f32[8,8]) {
  %a = f32[8,4]{1,0} parameter(0)
  %b = f32[5,8,4]{2,1,0} parameter(1)
  %c = s32[] parameter(2)
  %start = (s32[], f32[8,4]{1,0}) tuple(%c, %a)
  %loop = (s32[], f32[8,4]{1,0}) while(%start), condition=%condition, body=%body, backend_config={KNOWN}
  %out = f32[8,4]{1,0} get-tuple-element(%loop), index=1
  %slice = f32[1,8,4]{2,1,0} fusion(%b, %c), kind=kLoop, calls=%sliced
  %update = f32[5,8,4]{2,1,0} fusion(%b, %slice, %c), kind=kLoop, calls=%updated
  %gemm = (f32[8,8]{1,0}, s8[1024]{0}) custom-call(%a, %a), custom_call_target="__cublas$gemm"
  %product = f32[8,8]{1,0} get-tuple-element(%gemm), index=0
  ROOT %result = (f32[8,4]{1,0}, f32[5,8,4]{2,1,0}, f32[1,8,4]{2,1,0}, f32[8,8]{1,0}) tuple(%out, %update, %slice, %product)
}
"""
KNOWN = '{"known_trip_count":{"n":"5"}}'


def found(text=TEXT, known=KNOWN):
    return {kernel.name: kernel for kernel in kernels(parse(text.replace("{KNOWN}", known)))}


@pytest.mark.parametrize(
    ("name", "read", "written", "scratch", "times"),
    [
        ("y", 128, 128, 0, 5),  # in a loop of five trips
        ("less", 8, 1, 0, 5),
        ("slice", 128 + 4, 128, 0, 1),  # only the slice, not all that it is taken from
        ("update", 128 + 4, 128, 0, 1),  # in place
        ("gemm", 256, 256, 1024, 1),  # the result that nobody reads is scratch
    ],
)
def test_bytes_of_each_kernel_by_hand(name, read, written, scratch, times):
    kernel = found()[name]
    assert (kernel.read_bytes, kernel.written_bytes, kernel.scratch_bytes, kernel.times) == (read, written, scratch, times)


def test_sums_count_loops_per_trip_and_say_when_trips_are_unknown():
    known, unknown = summed(list(found().values())), summed(list(found(known="{}").values()))
    assert known.kernels == 5 * 2 + 3
    assert known.bytes == 5 * (256 + 9) + 260 + 260 + 512
    assert known.exact
    assert unknown.kernels == 2 + 3
    assert not unknown.exact


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("{1,0}", 10 * 16 * 4),
        ("{1,0:T(8,128)}", 16 * 128 * 4),
        ("{0,1:T(8,128)S(1)}", 16 * 128 * 4),  # the most minor dimension is now the one of 10
        ("{1,0:T(8,128)(2,1)}", 16 * 128 * 4),
    ],
)
def test_tiles_pad_the_most_minor_dimensions(layout, size):
    text = f"HloModule m\n\nENTRY %e (x: f32[10,16]) -> f32[10,16] {{\n  ROOT %x = f32[10,16]{layout} parameter(0)\n}}\n"
    assert parse(text).computations["e"].root.bytes == size


def test_a_text_without_entry_is_refused():
    with pytest.raises(ValueError, match="no entry computation"):
        parse("HloModule nothing")


def test_a_compiled_program_moves_at_least_its_arguments_and_results():
    def step(x):
        return lax.scan(lambda c, row: (jnp.tanh(c @ c) + row, c.sum()), jnp.eye(32), x)

    once, twice = (compile_program(step, jax.ShapeDtypeStruct((n, 32, 32), jnp.float32)) for n in (3, 6))
    assert once.traffic.exact
    assert once.traffic.bytes >= once.argument_bytes + once.output_bytes
    assert once.traffic == traffic(once.executable)
    body = twice.traffic.kernels - once.traffic.kernels
    assert body % 3 == 0
    assert body > 0
    assert twice.traffic.bytes > once.traffic.bytes
