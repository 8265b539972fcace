"""Devices to plan and compile for: the one that is here, or one that is not.

XLA compiles for a GPU or a TPU without having one, given a description of it: real memory statistics, real kernels, nothing
runs. That takes the maker's compiler as an optional extra, `remat-lab[gpu-target]` or `remat-lab[tpu-target]`. Where the named
device is present the same calls compile for it, and the program can run. Without a GPU there is no autotuning: XLA takes the
default algorithm of each dot and convolution, and libraries' work space is not counted.
"""

from __future__ import annotations

import importlib.util
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import jax

from remat_lab import _jax, costs
from remat_lab.device_facts import FACTS, LAUNCH_SECONDS, Gpu, Tpu
from remat_lab.errors import InvalidArgument, TargetUnavailable
from remat_lab.flatten import Program
from remat_lab.quiet import quiet_compilers

Platform = Literal["cpu", "cuda", "tpu"]

CPU_SCHEDULERS: dict[str, dict[str, str]] = {
    "default": {},
    "memory": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"},
}
"""XLA:CPU's two instruction schedulers, as compiler options. The default assumes that steps may run concurrently."""

NAMES = ("cpu", *FACTS)
_HEAVY = ("dot_general", "conv_general_dilated", "ragged_dot_general")


@dataclass(frozen=True, slots=True)
class Target:
    """A device to compile for.

    Attributes:
        name: as in `NAMES`, or what a file calls it.
        platform: which of XLA's backends.
        facts: what its maker publishes; None for the CPU, or for a present device that is not in the table.
    """

    name: str
    platform: Platform
    facts: Gpu | Tpu | None = None

    @staticmethod
    def named(name: str) -> Target:
        """A known target, or one described in a TOML file.

        A file has `platform = "cuda"` or `"tpu"` and the fields of `device_facts.Gpu` or `Tpu`; with `base = "h100"` only those
        that differ from that target's.

        Args:
            name: one of `NAMES`, or the path of a file that ends in .toml.

        Raises:
            InvalidArgument: if there is no such target, or the file does not describe one.
        """
        if name.endswith(".toml"):
            return _from_file(Path(name))
        if name == "cpu":
            return Target("cpu", "cpu")
        if name not in FACTS:
            raise InvalidArgument(f"no target named {name!r}: known are {', '.join(NAMES)}, or the path of a .toml file")
        facts = FACTS[name]
        return Target(name, "cuda" if isinstance(facts, Gpu) else "tpu", facts)

    @staticmethod
    def present() -> Target:
        """The device that JAX uses by default."""
        device = jax.devices()[0]
        if device.platform == "cpu":
            return Target("cpu", "cpu")
        platform: Platform = "tpu" if device.platform == "tpu" else "cuda"
        for name, facts in FACTS.items():
            if facts.device == device.device_kind:
                return Target(name, platform, facts)
        return Target(device.device_kind, platform)

    @property
    def is_present(self) -> bool:
        """Whether programs for this target can run here."""
        return self.here() is not None

    @property
    def is_default(self) -> bool:
        """Whether it is the device that JAX uses unless told otherwise."""
        return self.here() == jax.devices()[0]

    def here(self) -> Any | None:
        """The present device of this kind; None if there is none. The CPU is always here."""
        if self.platform == "cpu":
            return jax.devices("cpu")[0]
        if jax.default_backend() == "cpu":
            return None
        wanted = self.name if self.facts is None else self.facts.device
        return next((device for device in jax.devices() if device.device_kind == wanted), None)

    def device(self) -> Any:
        """A device to compile for: the present one, or else a description of it.

        Raises:
            TargetUnavailable: if it is not here and the extra that compiles for it is missing, with what to install.
        """
        found = self.here()
        if found is not None:
            return found
        problem = self.problem()
        if problem is not None:
            raise TargetUnavailable(f"cannot compile for {self.name}: {problem}")
        if self.facts is None:
            raise TargetUnavailable(f"cannot compile for {self.name}: it is not here, and nothing is known about it")
        try:
            return _described(self.platform, self.facts.description())
        except Exception as error:
            reason = str(error).strip().partition("\n")[0]
            raise TargetUnavailable(
                f"cannot compile for {self.name}: XLA refused its description ({type(error).__name__}: {reason})"
            ) from error

    def problem(self) -> str | None:
        """Why nothing can be compiled for this target here, and what to do; None if it can."""
        if self.is_present:
            return None
        return _gpu_problem() if self.platform == "cuda" else _tpu_problem()

    @property
    def schedulers(self) -> dict[str, dict[str, str]]:
        """Compiler options worth comparing, by name: XLA's CPU backend has two schedulers, others one."""
        return {name: dict(options) for name, options in CPU_SCHEDULERS.items()} if self.platform == "cpu" else {"default": {}}

    @property
    def compiler_options(self) -> dict[str, str]:
        """XLA options that a planned order needs to keep its peak: none on GPU and TPU."""
        return dict(CPU_SCHEDULERS["memory"]) if self.platform == "cpu" else {}

    @property
    def lends_results(self) -> bool:
        """Whether the compiler puts temporaries into buffers of results that are not written yet: not for TPUs."""
        return self.platform != "tpu"

    @property
    def memory_bytes(self) -> int | None:
        """The device's memory; None if unknown."""
        return None if self.facts is None else self.facts.memory_bytes

    def machine(self, dtype: str = "float32") -> costs.Machine:
        """The target as the roofline model sees it.

        Args:
            dtype: type of the operands of dots and convolutions; float32 means what XLA makes of it by default (TF32 on a GPU).
        """
        if self.facts is None:
            return costs.CPU
        peaks = self.facts.peaks
        key = "tf32" if dtype == "float32" and "tf32" in peaks else dtype
        return costs.Machine(peaks.get(key, peaks["float32"]), self.facts.bytes_per_second, LAUNCH_SECONDS[self.platform])

    def machine_for(self, program: Program) -> costs.Machine:
        """The roofline for the type in which a program does most of its dots and convolutions."""
        work: dict[str, float] = {}
        for q in program.equations:
            if q.name in _HEAVY:
                dtype = str(getattr(q.eqn.invars[0].aval, "dtype", "float32"))
                work[dtype] = work.get(dtype, 0.0) + costs.flops(q.eqn)
        return self.machine(max(work, key=lambda dtype: work[dtype])) if work else self.machine()

    def jit(self, fun: Any, **options: Any) -> Any:
        """`jax.jit` for this target. Lower it with arguments from `place`."""
        if self.is_default:
            return jax.jit(fun, **options)
        return jax.jit(fun, out_shardings=jax.sharding.make_single_device_sharding(self.device()), **options)

    def place(self, values: Any) -> Any:
        """Arguments for lowering: arrays of the pytree as shapes on this target; as they are if it is the default device."""
        if self.is_default:
            return values
        sharding = jax.sharding.make_single_device_sharding(self.device())

        def shape(leaf: Any) -> Any:
            if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
                return leaf
            weak = bool(getattr(leaf, "weak_type", False))
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding, weak_type=weak)

        return jax.tree.map(shape, values)


def as_target(target: str | Target | None) -> Target:
    """A target from its name; the present device for None."""
    if target is None:
        return Target.present()
    return Target.named(target) if isinstance(target, str) else target


@cache
def _described(platform: Platform, description: str) -> Any:
    quiet_compilers()
    return _jax.described(platform, description)


_CUDA_COMPILERS = ("jax-cuda12-pjrt", "jax-cuda13-pjrt")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu_problem() -> str | None:
    install = 'pip install "remat-lab[gpu-target]"'
    found = {name: v for name in _CUDA_COMPILERS if (v := _version(name)) is not None}
    if not found:
        return f"XLA's CUDA compiler is not installed: {install}"
    jaxlib = _version("jaxlib")
    if jaxlib not in found.values():
        name, other = next(iter(found.items()))
        return f"{name} {other} does not fit jaxlib {jaxlib}: pip install {name}=={jaxlib}"
    if not (_has_module("nvidia.cuda_nvcc") or _has_module("nvidia.cu13") or shutil.which("ptxas")):
        return f"CUDA's assembler (ptxas) is not installed: {install}"
    return None


def _tpu_problem() -> str | None:
    if not _has_module("libtpu"):
        return 'XLA\'s TPU compiler is not installed: pip install "remat-lab[tpu-target]"'
    return None


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _from_file(path: Path) -> Target:
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidArgument(f"cannot read the target {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is not TOML: {error}") from error
    base = Target.named(str(data.pop("base"))) if "base" in data else None
    platform = data.pop("platform", None if base is None else base.platform)
    name = str(data.pop("name", path.stem))
    kinds = {"cuda": Gpu, "tpu": Tpu}
    if platform not in kinds or (base is not None and base.platform != platform):
        raise InvalidArgument(f'{path}: platform is {platform!r}; it must be "cuda" or "tpu", and that of its base')
    return Target(name, platform, _facts(path, kinds[platform], data, None if base is None else base.facts))


def _facts(path: Path, kind: type[Gpu] | type[Tpu], data: Mapping[str, Any], base: Gpu | Tpu | None) -> Gpu | Tpu:
    known = {f.name: f for f in fields(kind)}
    unknown, missing = sorted(set(data) - set(known)), sorted(set(known) - set(data))
    if unknown:
        raise InvalidArgument(f"{path}: unknown {', '.join(unknown)}; the fields are {', '.join(known)}")
    if base is None and missing:
        raise InvalidArgument(f"{path}: {', '.join(missing)} missing; give them, or base = NAME to start from a known target")
    given = dict(data)
    for key, value in data.items():
        if key == "compute_capability":
            ok = isinstance(value, list) and len(value) == 2 and all(isinstance(n, int) for n in value)
            given[key] = tuple(value) if ok else None
        elif key == "peaks":
            ok = isinstance(value, dict) and "float32" in {**(base.peaks if base else {}), **value}
            given[key] = {**(base.peaks if base else {}), **value} if ok else None
        elif key in ("device", "topology", "source"):
            ok = isinstance(value, str) and '"' not in value
        else:
            ok = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if not ok:
            raise InvalidArgument(f"{path}: {key} = {value!r} cannot be used")
    return replace(base, **given) if base is not None else kind(**given)
