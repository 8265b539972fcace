"""What makers publish about their chips: the facts that compiling for one without owning it, and its roofline, need.

GPU descriptions are rendered from these into the text form of XLA's `GpuTargetConfigProto`. Peaks are dense (makers often
print twice as much, "with sparsity"), of tensor cores where they take the type. Dots of float32 are charged as TF32 on GPUs
and as bfloat16 on TPUs, since that is what XLA runs at its default precision. Bandwidths and peaks are decimal; capacities of
memory and caches are binary, as chips are built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GIB = 1 << 30
_MIB, _KIB = 1 << 20, 1 << 10
_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A CUDA device.

    Attributes:
        device: what the driver calls it.
        compute_capability: major and minor.
        multiprocessors: streaming multiprocessors.
        fp32_lanes: float32 units in each.
        clock_ghz: boost clock.
        memory_bytes: device memory.
        bytes_per_second: memory bandwidth.
        l2_bytes: second-level cache.
        shared_bytes: shared memory of a multiprocessor; a block may ask for all but 1 KiB of it.
        threads: resident threads of a multiprocessor.
        peaks: operations per second by type.
        source: where the facts are published.
    """

    device: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    fp32_lanes: int
    clock_ghz: float
    memory_bytes: int
    bytes_per_second: float
    l2_bytes: int
    shared_bytes: int
    threads: int
    peaks: Mapping[str, float]
    source: str

    def description(self) -> str:
        """XLA's target configuration as protobuf text. What is not here holds for every GPU since Ampere."""
        major, minor = self.compute_capability
        info = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 * _KIB,
            "shared_memory_per_core": self.shared_bytes,
            "threads_per_core_limit": self.threads,
            "core_count": self.multiprocessors,
            "fpus_per_core": self.fp32_lanes,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 2**16 - 1,
            "block_dim_limit_z": 2**16 - 1,
            "memory_bandwidth": int(self.bytes_per_second),
            "l2_cache_size": self.l2_bytes,
            "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": self.memory_bytes,
            "shared_memory_per_block_optin": self.shared_bytes - _KIB,
            "cuda_compute_capability": f"{{ major: {major} minor: {minor} }}",
            "registers_per_core_limit": 1 << 16,
            "registers_per_block_limit": 1 << 16,
        }
        fields = "\n".join(f"  {key}{' ' if str(value).startswith('{') else ': '}{value}" for key, value in info.items())
        return (
            f"gpu_device_info {{\n{fields}\n}}\n"
            'platform_name: "CUDA"\n'
            "dnn_version_info { major: 9 minor: 10 }\n"
            "runtime_version { major: 12 minor: 8 }\n"
            f'device_description_str: "{self.device}"\n'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tpu:
    """A TPU chip.

    Attributes:
        device: what JAX calls its kind.
        topology: the name of one chip, for `jax.experimental.topologies`.
        memory_bytes: high-bandwidth memory.
        bytes_per_second: its bandwidth.
        peaks: operations per second by type.
        source: where the facts are published.
    """

    device: str
    topology: str
    memory_bytes: int
    bytes_per_second: float
    peaks: Mapping[str, float]
    source: str

    def description(self) -> str:
        """The topology's name."""
        return self.topology


def _gpu_peaks(float64: float, float32: float, tf32: float, bf16: float, narrow: float) -> dict[str, float]:
    return {
        "float64": float64 * _TERA,
        "float32": float32 * _TERA,
        "tf32": tf32 * _TERA,
        "bfloat16": bf16 * _TERA,
        "float16": bf16 * _TERA,
        "int8": narrow * _TERA,
    }


def _tpu_peaks(bf16: float, int8: float) -> dict[str, float]:
    return {"bfloat16": bf16 * _TERA, "float16": bf16 * _TERA, "float32": bf16 * _TERA, "int8": int8 * _TERA}


_HOPPER_PEAKS = _gpu_peaks(67, 67, 494.5, 989.5, 1979)  # float64 on tensor cores

FACTS: dict[str, Gpu | Tpu] = {
    "h100": Gpu(
        device="NVIDIA H100 80GB HBM3",
        compute_capability=(9, 0),
        multiprocessors=132,
        fp32_lanes=128,
        clock_ghz=1.98,
        memory_bytes=80 * GIB,
        bytes_per_second=3350 * _GIGA,
        l2_bytes=50 * _MIB,
        shared_bytes=228 * _KIB,
        threads=2048,
        peaks=_HOPPER_PEAKS,
        source="NVIDIA H100 Tensor Core GPU data sheet (SXM) and Hopper architecture white paper",
    ),
    "h200": Gpu(
        device="NVIDIA H200",
        compute_capability=(9, 0),
        multiprocessors=132,
        fp32_lanes=128,
        clock_ghz=1.98,
        memory_bytes=141 * GIB,
        bytes_per_second=4800 * _GIGA,
        l2_bytes=50 * _MIB,
        shared_bytes=228 * _KIB,
        threads=2048,
        peaks=_HOPPER_PEAKS,
        source="NVIDIA H200 Tensor Core GPU data sheet (SXM) and Hopper architecture white paper",
    ),
    "a100": Gpu(
        device="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        multiprocessors=108,
        fp32_lanes=64,
        clock_ghz=1.41,
        memory_bytes=80 * GIB,
        bytes_per_second=2039 * _GIGA,
        l2_bytes=40 * _MIB,
        shared_bytes=164 * _KIB,
        threads=2048,
        peaks=_gpu_peaks(19.5, 19.5, 156, 312, 624),
        source="NVIDIA A100 Tensor Core GPU data sheet (SXM, 80 GB) and Ampere architecture white paper",
    ),
    "l4": Gpu(
        device="NVIDIA L4",
        compute_capability=(8, 9),
        multiprocessors=58,
        fp32_lanes=128,
        clock_ghz=2.04,
        memory_bytes=24 * GIB,
        bytes_per_second=300 * _GIGA,
        l2_bytes=48 * _MIB,
        shared_bytes=100 * _KIB,
        threads=1536,
        peaks=_gpu_peaks(0.49, 30.3, 60, 121, 242.5),
        source="NVIDIA L4 Tensor Core GPU data sheet and Ada architecture white paper",
    ),
    "v5e": Tpu(
        device="TPU v5 lite",
        topology="v5e:1x1",
        memory_bytes=16 * GIB,
        bytes_per_second=819 * _GIGA,
        peaks=_tpu_peaks(197, 393),
        source="https://cloud.google.com/tpu/docs/v5e",
    ),
    "v5p": Tpu(
        device="TPU v5",
        topology="v5p:1x1x1",
        memory_bytes=95 * GIB,
        bytes_per_second=2765 * _GIGA,
        peaks=_tpu_peaks(459, 918),
        source="https://cloud.google.com/tpu/docs/v5p",
    ),
    "v6e": Tpu(
        device="TPU v6 lite",
        topology="v6e:1x1",
        memory_bytes=32 * GIB,
        bytes_per_second=1638 * _GIGA,
        peaks=_tpu_peaks(918, 1836),
        source="https://cloud.google.com/tpu/docs/v6e",
    ),
}
"""Known chips by the name that `--target` takes."""

LAUNCH_SECONDS = {"cuda": 3e-6, "tpu": 1e-6, "cpu": 0.0}
"""Rough time between a short kernel and the next, by platform: no maker publishes it. It decides only among tiny kernels."""
