"""Settings that compilers of devices which are not here read from the environment."""

from __future__ import annotations

import logging
import os
import sys

_DRIVERS = ("/dev/nvidiactl", "/dev/accel0", "/dev/vfio/0", "/dev/kfd", "/dev/dxg")
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",  # do not ask the cloud's metadata server, which is not there
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",  # what it would have said, for the log's sake: any will do
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # libtpu otherwise allows one process on a machine
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


def quiet_without_devices() -> None:
    """Keeps JAX from looking for devices that are not here; to be called before JAX starts its backends.

    With the compiler of a GPU or TPU installed and no such device, that search prints a page of errors. Nothing is changed
    where JAX_PLATFORMS is set or there is the file of a device's driver.
    """
    if sys.platform.startswith("linux") and not any(os.path.exists(path) for path in _DRIVERS):
        if "JAX_PLATFORMS" not in os.environ:
            os.environ["JAX_PLATFORMS"] = "cpu"  # for subprocesses, and for JAX if it is imported later
            if "jax" in sys.modules:
                sys.modules["jax"].config.update("jax_platforms", "cpu")
        quiet_compilers()


def quiet_compilers() -> None:
    """Keeps the compilers themselves from looking for their devices."""
    for name, value in _WITHOUT_TPU.items():
        os.environ.setdefault(name, value)
    for plugin in ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"):
        logging.getLogger(plugin).setLevel(logging.ERROR)  # they miss what running would take
