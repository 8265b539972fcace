"""What a measurement ran on, for the files that record it."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("remat-lab", "jax", "jaxlib", "flax", "ortools", "numpy")


def describe() -> dict[str, Any]:
    """Processor, cores, backend, versions, and the options in force; ready for JSON."""
    import jax

    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "x64": bool(jax.config.jax_enable_x64),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cores() -> int:
    """Number of processors that this process may use."""
    return (os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0))) or 1


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
