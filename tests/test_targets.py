"""Targets: the table of facts, files, what is missing and what to do, and a device that is present (here a stand-in)."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import remat_lab as rl
from remat_lab import quiet, targets
from remat_lab.cli import app
from remat_lab.device_facts import FACTS, GIB, Gpu
from remat_lab.errors import InvalidArgument, TargetUnavailable
from remat_lab.flatten import flatten
from remat_lab.measure import compile_program, device_peak
from remat_lab.targets import NAMES, Target

GPUS = [name for name, facts in FACTS.items() if isinstance(facts, Gpu)]


def fields_of(description):
    """The fields of protobuf text, one a line."""
    pairs = (line.strip().partition(" ") for line in description.splitlines() if not line.startswith("}"))
    return {key.rstrip(":"): value for key, _, value in pairs}


@pytest.mark.parametrize("name", GPUS)
def test_descriptions_hold_the_facts(name):
    facts = FACTS[name]
    text = facts.description()
    assert text.count("{") == text.count("}")
    fields = fields_of(text)
    assert int(fields["core_count"]) == facts.multiprocessors
    assert int(fields["memory_bandwidth"]) == facts.bytes_per_second
    assert int(fields["device_memory_size"]) == facts.memory_bytes
    assert fields["cuda_compute_capability"] == "{{ major: {} minor: {} }}".format(*facts.compute_capability)


@pytest.mark.parametrize("name", GPUS)
def test_float32_peaks_follow_from_units_and_clock(name):
    facts = FACTS[name]
    # Two operations per unit and cycle. An L4's data sheet is at a lower clock than its boost.
    assert 2 * facts.multiprocessors * facts.fp32_lanes * facts.clock_ghz * 1e9 == pytest.approx(
        facts.peaks["float32"], rel=0.04
    )


def test_the_roofline_is_of_the_type_that_dots_have():
    h200 = Target.named("h200")
    bfloat16, tf32 = h200.machine("bfloat16").flops_per_second, h200.machine("float32").flops_per_second
    assert bfloat16 == pytest.approx(2 * tf32, rel=1e-2)
    assert h200.machine("float32").seconds(0, 4.8e12) == pytest.approx(1.0, rel=1e-3)
    assert h200.machine().seconds(0, 0) > 0  # a launch

    def loss(w, x):
        return jnp.sum((x @ w).astype(jnp.float32) ** 2)

    shapes = [jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)] * 2
    program = flatten(jax.make_jaxpr(jax.grad(loss))(*shapes))
    assert h200.machine_for(program) == h200.machine("bfloat16")


def test_every_name_is_a_target_and_others_are_refused():
    assert [Target.named(name).name for name in NAMES] == list(NAMES)
    with pytest.raises(InvalidArgument, match=r"no target named 'h300': known are cpu, h100, .*\.toml"):
        Target.named("h300")


def test_a_file_changes_what_differs_from_its_base(tmp_path):
    path = tmp_path / "half.toml"
    path.write_text('base = "h100"\nmemory_bytes = 1_000_000_000\npeaks = { int8 = 1e12 }\n')
    half = Target.named(str(path))
    assert (half.name, half.platform) == ("half", "cuda")
    assert half.facts == dataclasses.replace(
        FACTS["h100"], memory_bytes=1_000_000_000, peaks={**FACTS["h100"].peaks, "int8": 1e12}
    )


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("base = ", "is not TOML"),
        ('platform = "rocm"', "platform is 'rocm'; it must be"),
        ('base = "h100"\nplatform = "tpu"', "and that of its base"),
        ('base = "h100"\nspeed = 3', "unknown speed; the fields are device,"),
        ('platform = "cuda"\nthreads = 3', "missing; give them, or base = NAME"),
        ('base = "h100"\nthreads = "many"', "threads = 'many' cannot be used"),
        ('base = "h100"\nclock_ghz = -1', "clock_ghz = -1 cannot be used"),
        ('base = "h100"\ncompute_capability = 9', "compute_capability = 9 cannot be used"),
        ('base = "h100"\ndevice = \'a "quote"\'', "device = .* cannot be used"),
    ],
)
def test_files_that_describe_no_target_are_refused(tmp_path, text, match):
    path = tmp_path / "odd.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=match):
        Target.named(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidArgument, match=r"cannot read the target .*none\.toml"):
        Target.named(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("installed", "modules", "name", "match"),
    [
        ({}, (), "h200", r"XLA's CUDA compiler is not installed: pip install \"remat-lab\[gpu-target\]\""),
        ({}, (), "v5e", r"XLA's TPU compiler is not installed: pip install \"remat-lab\[tpu-target\]\""),
        (
            {"jax-cuda12-pjrt": "0.1", "jaxlib": "0.2"},
            (),
            "l4",
            "jax-cuda12-pjrt 0.1 does not fit jaxlib 0.2: pip install jax-cuda13-pjrt==0.2",
        ),
        ({"jax-cuda12-pjrt": "0.2", "jaxlib": "0.2"}, (), "a100", "ptxas"),
        ({"jax-cuda12-pjrt": "0.2", "jaxlib": "0.2"}, ("nvidia.cuda_nvcc",), "a100", None),
        ({}, ("libtpu",), "v6e", None),
    ],
)
def test_what_is_missing_is_said_with_what_to_install(monkeypatch, installed, modules, name, match):
    monkeypatch.setattr(targets, "_version", installed.get)
    monkeypatch.setattr(targets, "_has_module", lambda module: module in modules)
    monkeypatch.setattr(targets.shutil, "which", lambda command: None)
    target = Target.named(name)
    if match is None:
        assert target.problem() is None
        return
    with pytest.raises(TargetUnavailable, match=match):
        compile_program(jnp.sin, jnp.ones(3), target=name)
    with pytest.raises(TargetUnavailable, match=f"cannot compile for {name}"):
        rl.compare(lambda x: jnp.sum(x**2), jnp.ones(3), targets=["cpu", name], strategies=["plain"], rounds=0)


def test_the_command_lists_all_and_says_why_not(monkeypatch, capsys):
    monkeypatch.setattr(targets, "_version", {}.get)
    monkeypatch.setattr(targets, "_has_module", lambda module: False)
    with pytest.raises(SystemExit) as stop:
        app(["targets"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "runs here" in lines["cpu"]
    assert all("not usable here" in lines[name] for name in FACTS)
    assert 'h100, h200, a100, l4: XLA\'s CUDA compiler is not installed: pip install "remat-lab[gpu-target]"' in out
    assert "151.4 GB" in lines["h200"]


@pytest.fixture
def gpu(monkeypatch):
    """A present H200 that remembers a peak, as JAX would show it."""
    stats = {"bytes_in_use": 100, "peak_bytes_in_use": 500}
    device = SimpleNamespace(platform="gpu", device_kind="NVIDIA H200", stats=stats, memory_stats=lambda: dict(stats))
    monkeypatch.setattr(targets.jax, "devices", lambda *platform: [device])
    monkeypatch.setattr(targets.jax, "default_backend", lambda: "gpu")
    return device


def test_a_present_device_is_found_by_its_kind_and_used(gpu):
    here = Target.present()
    assert here == Target.named("h200")
    assert here.is_present
    assert here.is_default
    assert here.device() is gpu
    assert here.problem() is None
    assert here.compiler_options == {}
    values = (jnp.ones(3), "static")
    assert here.place(values) is values
    assert not Target.named("h100").is_present


def test_a_present_device_that_is_not_in_the_table_is_used_too(gpu):
    gpu.device_kind = "NVIDIA Something"
    here = Target.present()
    assert (here.name, here.platform, here.facts) == ("NVIDIA Something", "cuda", None)
    assert here.is_default


def test_the_peak_of_a_program_is_what_it_adds_to_what_was_in_use(gpu):
    def run(peak):
        gpu.stats["peak_bytes_in_use"] = max(gpu.stats["peak_bytes_in_use"], peak)

    assert device_peak(lambda: run(900), gpu) == 800
    assert device_peak(lambda: run(700), gpu) is None  # hidden behind the one before
    assert device_peak(lambda: run(950), gpu) == 850


def test_the_cpu_keeps_no_statistics_and_runs_nothing_for_them():
    def never():
        raise AssertionError("the program was run for statistics that there are none of")

    assert device_peak(never, jax.devices()[0]) is None


def test_nothing_is_set_where_a_driver_or_the_user_says_otherwise(monkeypatch):
    for name in ("JAX_PLATFORMS", *quiet._WITHOUT_TPU):
        monkeypatch.setenv(name, "kept")  # so that monkeypatch restores it
    monkeypatch.setattr(quiet.os.path, "exists", lambda path: True)
    for name in ("JAX_PLATFORMS", *quiet._WITHOUT_TPU):
        monkeypatch.delenv(name)
    quiet.quiet_without_devices()
    assert "JAX_PLATFORMS" not in quiet.os.environ
    monkeypatch.setattr(quiet.os.path, "exists", lambda path: False)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    quiet.quiet_without_devices()
    assert quiet.os.environ["JAX_PLATFORMS"] == "cuda,cpu"


def test_plans_and_rows_for_the_cpu_by_name_equal_those_for_the_present_one():
    def loss(w, x):
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)

    args = (jnp.ones((16, 16)), jnp.ones((64, 16)))
    here, named = (rl.plan(loss, *args, check="planned", target=target) for target in (None, "cpu"))
    assert here.schedule == named.schedule
    assert here.compiler_options == named.compiler_options
    assert named.measure()["memory"].temp_bytes == here.measure("cpu")["memory"].temp_bytes
    rows = rl.compare(loss, *args, targets=["cpu"], strategies=["keep_all"], rounds=0).rows
    assert [(row.target, row.strategy) for row in rows] == [("cpu", "plain"), ("cpu", "keep_all")]
    assert all(row.kernels > 0 and row.kernel_bytes > 0 and row.bitwise_equal is not None for row in rows)
    assert FACTS["h100"].memory_bytes == 80 * GIB
