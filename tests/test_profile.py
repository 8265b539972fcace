"""Measured costs: keys, the cache on disk, and what timing does to a graph. Nothing here depends on how long a step takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import remat_lab as rl
from remat_lab import profile_cache, profile_memory, profile_timer
from remat_lab.api import analyse
from remat_lab.errors import InvalidArgument, ProfileWarning
from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from remat_lab.profile import profile
from remat_lab.profile_cache import Cache, Measurement, default_cache
from remat_lab.profile_memory import LARGE_BYTES
from remat_lab.profile_step import cannot_run_alone, step_program
from remat_lab.profile_timer import Timing, compile_step, make_inputs, time_steps
from remat_lab.trace import Loss
from solvers.simulate import simulate


def floats(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Every test has a cache of its own."""
    monkeypatch.setenv(profile_cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    return default_cache()


@pytest.fixture
def ticking(monkeypatch):
    """Every run of every program takes a second, and the first of a queue fifty more, to wake the device's threads."""
    monkeypatch.setattr(profile_timer.Run, "seconds", lambda run, runs=1: 50.0 + runs)


def steps_of(fun, *args):
    fused = fuse(flatten(jax.make_jaxpr(fun)(*args)))
    return [step_program(fused, v) for v in fused.groups]


def keys_of(fun, *args):
    return [step.key for step in steps_of(fun, *args)]


def stack(x, weights):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.sum(x)


WEIGHTS = [floats(16, 16) for _ in range(6)]


def fused_stack():
    loss = Loss(stack, argnums=1)
    return analyse(loss, loss.call((floats(8, 16), WEIGHTS), {}))


# Keys


def test_repeated_blocks_share_their_keys():
    keys = keys_of(jax.value_and_grad(stack, argnums=1), floats(8, 16), WEIGHTS)
    assert len(set(keys)) < len(keys) / 2


def test_a_key_knows_nothing_of_names_and_lines():
    def first(x, y):
        return jnp.tanh(x @ y) * 2.0

    def second(longer, name):
        product = longer @ name

        return jnp.tanh(product) * 2.0

    assert keys_of(first, floats(4, 8), floats(8, 3)) == keys_of(second, floats(4, 8), floats(8, 3))


VARIANTS = {
    "as it is": (lambda x, y: jnp.tanh(x @ y), (floats(4, 8), floats(8, 3))),
    "shape": (lambda x, y: jnp.tanh(x @ y), (floats(5, 8), floats(8, 3))),
    "dtype": (lambda x, y: jnp.tanh(x @ y), (floats(4, 8, dtype=jnp.bfloat16), floats(8, 3, dtype=jnp.bfloat16))),
    "primitive": (lambda x, y: jnp.sin(x @ y), (floats(4, 8), floats(8, 3))),
    "parameter": (lambda x, y: jnp.tanh(lax.dot(x, y, precision="highest")), (floats(4, 8), floats(8, 3))),
    "operands": (lambda x, y: jnp.tanh(y.T @ x), (floats(8, 4), floats(8, 3))),
    "one input twice": (lambda x, y: jnp.tanh(x @ x), (floats(4, 4), floats(8, 3))),
    "two inputs": (lambda x, y: jnp.tanh(x @ y), (floats(4, 4), floats(4, 4))),
    "literal": (lambda x, y: jnp.tanh(x @ y * 3.0), (floats(4, 8), floats(8, 3))),
    "other literal": (lambda x, y: jnp.tanh(x @ y * 4.0), (floats(4, 8), floats(8, 3))),
    "loop": (lambda x, y: lax.scan(lambda c, _: (jnp.tanh(c), None), x @ y, None, length=3)[0], (floats(4, 8), floats(8, 3))),
    "trips": (lambda x, y: lax.scan(lambda c, _: (jnp.tanh(c), None), x @ y, None, length=4)[0], (floats(4, 8), floats(8, 3))),
    "body": (lambda x, y: lax.scan(lambda c, _: (jnp.sin(c), None), x @ y, None, length=3)[0], (floats(4, 8), floats(8, 3))),
}


def test_whatever_changes_the_work_changes_the_key():
    keys = {name: tuple(keys_of(fun, *args)) for name, (fun, args) in VARIANTS.items()}
    assert len(set(keys.values())) == len(VARIANTS), keys


def test_keys_are_the_same_in_another_process():
    code = """
import jax, jax.numpy as jnp
from remat_lab.flatten import flatten
from remat_lab.fuse import fuse
from remat_lab.profile_step import step_program
f = lambda x, y: jnp.sum(jax.nn.relu(jnp.tanh(x @ y)))
fused = fuse(flatten(jax.make_jaxpr(jax.value_and_grad(f))(jnp.zeros((4, 8)), jnp.zeros((8, 3)))))
print(*[step_program(fused, v).key for v in fused.groups])
"""
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].strip()


def test_a_step_alone_computes_what_it_does_in_its_program():
    def fun(x, w):
        y = jnp.tanh(x @ w)
        return y, jnp.sum(y, axis=0), jnp.sort(y[:, 0])

    fused = fuse(flatten(jax.make_jaxpr(fun)(floats(6, 5), floats(5, 4))))
    x, w = np.random.default_rng(0).normal(size=(6, 5)), np.random.default_rng(1).normal(size=(5, 4))
    values = dict(zip(fused.program.inputs, (jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)), strict=True))
    for v in fused.groups:
        step = step_program(fused, v)
        values.update(zip(step.values, step(*(values[u] for u in step.reads)), strict=True))
    expected = fun(jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32))
    for number, array in zip(fused.program.outputs, expected, strict=True):
        np.testing.assert_allclose(values[number], array, rtol=1e-6)


# The cache


@pytest.mark.parametrize("measurement", [Measurement(1.5e-3, 4096), Measurement(0.0, 0), Measurement(None, 7)])
def test_what_is_written_is_read(cache, measurement):
    assert cache.read("ab12") is None
    cache.write("ab12", measurement, step=["dot_general"])
    assert cache.read("ab12") == Cache(cache.folder).read("ab12") == measurement
    assert not list(cache.folder.rglob("*.tmp"))


DAMAGE = {
    "cut off": '{"key": "ab12", "seconds": 0.1',
    "not text": b"\xff\xfe\x00",
    "another thing": "[1, 2]",
    "another step's": '{"key": "ab13", "seconds": 0.1, "workspace_bytes": 0}',
    "negative": '{"key": "ab12", "seconds": -0.1, "workspace_bytes": 0}',
    "no number": '{"key": "ab12", "seconds": NaN, "workspace_bytes": 0}',
    "no bytes": '{"key": "ab12", "seconds": 0.1}',
    "empty": "",
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_reported_ignored_and_replaced(cache, content):
    cache.write("ab12", Measurement(1.0, 1))
    (path,) = cache.folder.rglob("*.json")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.warns(ProfileWarning, match=f"ignored the measurement {path}"):
        assert cache.read("ab12") is None
    cache.write("ab12", Measurement(2.0, 2))
    assert cache.read("ab12") == Measurement(2.0, 2)


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path, recwarn):
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "steps")
    with pytest.warns(ProfileWarning, match="not kept"):
        cache.write("ab12", Measurement(1.0, 1))
    cache.write("ab13", Measurement(1.0, 1))
    assert not recwarn.list


def test_two_processes_may_write_at_once(cache):
    code = """
import sys
from pathlib import Path
from remat_lab.profile_cache import Cache, Measurement
cache, mine = Cache(Path(sys.argv[1])), float(sys.argv[2])
for i in range(300):
    cache.write(f"ab{i % 3}", Measurement(mine, 0))
    found = cache.read(f"ab{i % 3}")
    assert found is not None and found.seconds in (1.0, 2.0), found
"""
    command = [sys.executable, "-W", "error", "-c", code, str(cache.folder)]
    running = [subprocess.Popen([*command, number], stderr=subprocess.PIPE, text=True) for number in ("1", "2")]
    assert [(process.communicate()[1], process.returncode) for process in running] == [("", 0), ("", 0)]
    assert sorted(path.name for path in cache.folder.rglob("*.*")) == ["0.json", "1.json", "2.json"]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/remat-lab/steps"),
        ("linux", {"XDG_CACHE_HOME": "{tmp}/xdg"}, "xdg/remat-lab/steps"),
        ("darwin", {}, "home/Library/Caches/remat-lab/steps"),
        ("win32", {"LOCALAPPDATA": "{tmp}/local"}, "local/remat-lab/steps"),
        ("linux", {"REMAT_LAB_CACHE": "{tmp}/mine", "XDG_CACHE_HOME": "{tmp}/xdg"}, "mine/steps"),
    ],
)
def test_where_measurements_are_kept(monkeypatch, tmp_path, platform, variables, expected):
    for name in ("REMAT_LAB_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("{tmp}", str(tmp_path)))
    monkeypatch.setattr(profile_cache.sys, "platform", platform)
    monkeypatch.setattr(profile_cache.Path, "home", lambda: tmp_path / "home")
    assert default_cache().folder == tmp_path / expected


# Profiles


def test_each_distinct_step_is_measured_once_and_then_read(cache):
    fused = fused_stack()
    seen = []
    first = profile(fused, rounds=1, progress=lambda *what: seen.append(what))
    assert first.measured == first.distinct < len(fused.groups)
    assert len(list(cache.folder.rglob("*.json"))) == first.distinct + 1  # the last is the cost of fresh memory
    assert set(first.measurements) == set(fused.groups)
    assert {message.split()[0] for message, _, _ in seen} == {"compile", "time"}
    assert all(done <= total for _, done, total in seen)
    again = profile(fused, rounds=1)
    assert again.measured == 0
    assert again.measurements == first.measurements


def test_a_damaged_measurement_is_made_again(cache):
    fused = fused_stack()
    profile(fused, timed=False)
    path = sorted(cache.folder.rglob("*.json"))[0]
    path.write_text(path.read_text()[:-10])
    with pytest.warns(ProfileWarning, match="measured anew"):
        assert profile(fused, timed=False).measured == 1
    assert profile(fused, timed=False).measured == 0


def test_steps_that_were_only_compiled_are_timed_when_that_is_asked_for():
    fused = fused_stack()
    compiled = profile(fused, timed=False)
    assert all(found.seconds is None for found in compiled.measurements.values())
    assert compiled.apply(fused).graph.keep_all_cost == fused.graph.keep_all_cost
    timed = profile(fused, rounds=1)
    assert timed.measured == timed.distinct
    assert profile(fused, timed=False).measurements == timed.measurements


@pytest.mark.parametrize("change", ["xla_flags", "precision"])
def test_what_changes_the_compiler_is_measured_apart(monkeypatch, change):
    fused = fused_stack()
    profile(fused, timed=False)
    if change == "xla_flags":
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
        assert profile(fused, timed=False).measured > 0
    else:
        with jax.default_matmul_precision("highest"):
            assert profile(fused, timed=False).measured > 0


def test_measured_seconds_and_workspaces_replace_those_of_the_rules(ticking):
    fused = fused_stack()
    found = profile(fused, rounds=2)
    graph = found.apply(fused).graph
    # By this clock a step takes a second, and so does an empty program: what is left is the least part of a second.
    assert {graph.nodes[v].cost for v in graph.steps} == {0.1}
    assert [replace(node, cost=0.0, workspace=0) for node in graph.nodes] == [
        replace(node, cost=0.0, workspace=0) for node in fused.graph.nodes
    ]
    assert found.seconds_of([*graph.steps, graph.steps[0]], fused.graph) == pytest.approx(0.1 * (len(graph.steps) + 1))


@pytest.mark.parametrize(
    ("temp", "paid"), [(0, 0), (LARGE_BYTES - 1, 0), (LARGE_BYTES, LARGE_BYTES), (2 * LARGE_BYTES, 2 * LARGE_BYTES)]
)
def test_large_temporaries_are_paid_for_once_at_each_run(monkeypatch, temp, paid):
    monkeypatch.setattr("remat_lab.profile.memory_seconds", lambda size: float(size))  # a second a byte
    monkeypatch.setattr("remat_lab.profile.time_steps", lambda steps, **_: [Timing(1.0, 0.0) for _ in steps])
    fused = fused_stack()
    first, second = profile(fused), profile(fused)
    assert second.measured == 0
    for found in (first, second):
        assert found.seconds_of(fused.graph.steps, fused.graph, temp) == len(fused.graph.steps) + paid
    assert profile(fused, timed=False).memory_seconds_per_byte == 0


def test_what_is_kept_until_it_is_read_is_compared_with_the_same_steps_in_the_same_memory(monkeypatch):
    compared = []
    monkeypatch.setattr(profile_memory, "_longer", lambda *runs: compared.append(runs) or 0.25)
    size, part = 1 << 20, (1 << 20) // profile_memory._PARTS
    assert profile_memory.memory_seconds(size) == 0.5
    (_, over), (keeping, reusing) = compared
    for timed in (over, keeping, reusing):
        timed()
        timed()  # its results are given away at each run
    over, keeping, reusing = (timed.__self__.program for timed in (over, keeping, reusing))
    assert over.alias_bytes == size
    assert (keeping.alias_bytes, reusing.alias_bytes) == (size + 4, part + 4)
    assert keeping.flops == reusing.flops > 0
    assert max(keeping.temp_bytes, reusing.temp_bytes) <= 2 * part


def test_the_workspace_is_what_the_compiler_says():
    def fun(x, kernel):
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("CHWN", "IHWO", "HWNC"))

    args = floats(8, 12, 12, 4), floats(8, 3, 3, 16)
    fused = fuse(flatten(jax.make_jaxpr(fun)(*args)))
    learned = profile(fused, timed=False).apply(fused)
    (v,) = fused.groups
    assert learned.graph.nodes[v].workspace == rl.measure.compile_program(fun, *args).temp_bytes > 0


def scanned(x):
    return lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, None, length=3)[0] @ x


def with_bias(x, w, b):
    return x @ w + b


@pytest.mark.parametrize(
    ("fun", "args"), [(scanned, [floats(128, 128)]), (with_bias, [floats(8, 128, 128), floats(128, 256), floats(1, 1, 256)])]
)
def test_buffers_that_a_step_has_only_alone_are_not_its_workspace(fun, args):
    fused = fuse(flatten(jax.make_jaxpr(fun)(*args)))
    found = profile(fused, timed=False)
    assert any(found.measurements[v].workspace_bytes > fused.graph.nodes[v].workspace for v in fused.groups)
    learned = found.apply(fused).graph
    assert [learned.nodes[v].workspace for v in fused.groups] == [fused.graph.nodes[v].workspace for v in fused.groups]


def test_a_step_writes_its_results_over_those_of_the_last_run():
    fused = fused_stack()
    step = step_program(fused, next(iter(fused.groups)))
    compiled = compile_step(step)
    assert compiled.alias_bytes == compiled.output_bytes > 0
    before, arrays = make_inputs(step.results), make_inputs(step.inputs)
    places = [array.unsafe_buffer_pointer() for array in before]
    after = compiled.executable(before, arrays)
    assert [array.unsafe_buffer_pointer() for array in after] == places
    for array, expected in zip(after, step(*arrays), strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6)


def test_no_more_than_one_steps_arrays_exist_at_a_time(monkeypatch):
    fused = fused_stack()
    steps = {step.key: step for step in (step_program(fused, v) for v in fused.groups)}
    compiled = [(step, compile_step(step)) for step in steps.values()]
    alive = []
    make = make_inputs

    def counted(shapes, seed):
        alive.append(sum(array.nbytes for array in jax.live_arrays()))
        return make(shapes, seed)

    before = sum(array.nbytes for array in jax.live_arrays())
    monkeypatch.setattr(profile_timer, "make_inputs", counted)
    time_steps(compiled, rounds=2)
    assert max(alive) <= before + 64  # the empty program's number
    assert len(alive) == 2 * len(compiled) + 1  # the empty program is one more


INPUTS = [
    floats(3, 4),
    floats(3, 4, dtype=jnp.bfloat16),
    jax.ShapeDtypeStruct((5,), jnp.complex64),
    jax.ShapeDtypeStruct((5,), jnp.int32),
    jax.ShapeDtypeStruct((), jnp.bool_),
    floats(0, 3),
    jax.eval_shape(lambda: jax.random.key(0)),
    jax.eval_shape(lambda: jax.random.split(jax.random.key(0, impl="rbg"), 3)),
]


@pytest.mark.parametrize("shape", INPUTS, ids=str)
def test_made_inputs_have_the_type_asked_for(shape):
    (array,) = make_inputs([shape])
    assert (array.shape, array.dtype) == (shape.shape, shape.dtype)


def refs(x):
    ref = jax.new_ref(x)
    ref[...] = ref[...] * 2.0
    return ref[...]


NOT_ALONE = {
    "callback": (lambda x: jax.pure_callback(lambda a: a, x, x), "outside"),
    "print": (lambda x: (jax.debug.print("{}", x[0]), x * 2)[1], "effects"),
    "in a loop": (lambda x: lax.scan(lambda c, _: (jax.pure_callback(jnp.sin, c, c), None), x, None, length=2)[0], "outside"),
    "reference": (refs, "Ref|ref|effects"),
}


@pytest.mark.parametrize(("fun", "reason"), NOT_ALONE.values(), ids=NOT_ALONE.keys())
def test_what_reaches_outside_is_never_run(fun, reason):
    fused = fuse(flatten(jax.make_jaxpr(lambda x: jnp.sum(jnp.sin(fun(x)) @ x))(floats(8))))
    with pytest.warns(ProfileWarning, match=reason):
        found = profile(fused, rounds=1)
    assert found.reasons
    assert found.measurements
    unmeasured = next(iter(found.reasons))
    assert found.apply(fused).graph.nodes[unmeasured] == fused.graph.nodes[unmeasured]
    assert found.seconds_of([unmeasured], fused.graph) == fused.graph.nodes[unmeasured].cost


def test_random_bits_of_any_generator_may_be_timed():
    def fun(key):
        return lax.rng_bit_generator(key, (4,))

    (step,) = steps_of(fun, jax.ShapeDtypeStruct((4,), jnp.uint32))
    assert cannot_run_alone(step.equations) is None


def test_a_step_that_does_not_compile_keeps_its_cost():
    broken = jax.extend.core.Primitive("unheard_of_lowering")
    broken.def_abstract_eval(lambda x: x)
    fused = fuse(flatten(jax.make_jaxpr(lambda x: broken.bind(x @ x) @ x)(floats(8, 8))))
    with pytest.warns(ProfileWarning, match="unheard_of_lowering"):
        found = profile(fused, rounds=1)
    assert len(found.reasons) == 1
    assert len(found.measurements) == len(fused.groups) - 1


def test_only_the_present_device_can_be_timed():
    with pytest.raises(InvalidArgument, match="h100"):
        profile(fused_stack(), target="h100")


# Plans


def test_a_measured_plan_costs_the_sum_of_its_steps(ticking):
    x, weights = floats(8, 16), [floats(16, 16) for _ in range(4)]
    said = []
    options = {"costs": "measured", "solver": "greedy", "check": "planned", "progress": lambda now: said.append(now.solver)}
    plan = rl.plan(stack, x, weights, argnums=1, budget=0.8, **options)
    assert any(text.startswith("compile dot_general") for text in said)
    assert plan.solution.cost == pytest.approx(0.1 * len(plan.schedule.order))
    assert simulate(plan.graph, plan.schedule).peak <= plan.budget_bytes
    with pytest.raises(InvalidArgument, match="'roofline', 'measured', 'flops'"):
        rl.plan(stack, x, weights, argnums=1, budget=0.8, costs="dollars")


def test_the_file_says_what_was_measured(cache):
    profile(fused_stack(), timed=False)
    data = json.loads(next(iter(cache.folder.rglob("*.json"))).read_text())
    assert data["setting"]["jax"] == jax.__version__
    assert data["step"]
    assert all(isinstance(name, str) for name in data["step"])
