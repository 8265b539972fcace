"""Devices that are not here, as JAX's compilers take them."""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

from jax.experimental import topologies


def described(platform: str, description: str) -> Any:
    """A device to compile for, which need not be here.

    Args:
        platform: "cuda" or "tpu".
        description: the maker's topology for a TPU; a target configuration as text for CUDA.
    """
    if platform == "tpu":
        return topologies.get_topology_desc(description, platform="tpu").devices[0]
    try:
        return _cuda(description)
    except Exception:  # the plugin's own start found no CUDA to run on and gave up; what else is wrong shows below
        _start_cuda_compiler()
        return _cuda(description)


def _cuda(description: str) -> Any:
    return topologies.get_topology_desc(platform="cuda", target_config=description, topology="1x1x1").devices[0]


def _start_cuda_compiler() -> None:
    """Makes the CUDA plugin known to JAX for compiling only."""
    check = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"  # of libraries that only running needs
    before = os.environ.get(check)
    os.environ[check] = "1"
    try:
        for plugin in ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(plugin).initialize()
                return
    finally:
        if before is None:
            del os.environ[check]
        else:
            os.environ[check] = before
