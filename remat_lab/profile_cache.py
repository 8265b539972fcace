"""Measurements of steps on disk, one small file each, so that any number of processes may share them.

A file is written under another name and then moved into place: a reader sees a whole measurement or none. Two processes that
measure the same step both write it, and the later one stays.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remat_lab.errors import ProfileWarning

FOLDER_VARIABLE = "REMAT_LAB_CACHE"
"""Environment variable with the folder for measurements, instead of the user's cache folder."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was found out about one step.

    Attributes:
        seconds: of one run: the median over rounds, less what starting any program takes. None if it was only compiled.
        workspace_bytes: temporaries that it needs beyond inputs and results, by the compiler's statistics.
    """

    seconds: float | None
    workspace_bytes: int


class Cache:
    """Measurements by key.

    Args:
        folder: where they lie; made when something is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writable = True

    def read(self, key: str) -> Measurement | None:
        """The measurement under a key; None if there is none, or none that can be used, which is reported.

        Warns:
            ProfileWarning: if the file is damaged. It is replaced by the next measurement.
        """
        path = self._path(key)
        try:
            return _decode(json.loads(path.read_text(encoding="utf-8")), key)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            warnings.warn(f"ignored the measurement {path}: {error}. The step is measured anew", ProfileWarning, stacklevel=2)
            return None

    def write(self, key: str, measurement: Measurement, **about: Any) -> None:
        """Puts a measurement under a key.

        Args:
            key: as for `read`.
            measurement: what to keep.
            **about: anything else for people to read in the file.

        Warns:
            ProfileWarning: once, if the folder cannot be written. The measurement is then good for this time only.
        """
        path = self._path(key)
        text = json.dumps({"key": key, **asdict(measurement), **about}, indent=1)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(name, path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            if self._writable:
                self._writable = False
                message = f"measurements are not kept: {error}. Set {FOLDER_VARIABLE} to a folder that can be written"
                warnings.warn(message, ProfileWarning, stacklevel=2)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key[2:]}.json"


def default_cache() -> Cache:
    """The cache in the folder that `REMAT_LAB_CACHE` names, or else in the user's cache folder."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Cache((Path(given).expanduser() if given else _user_cache_folder() / "remat-lab") / "steps")


def _user_cache_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _decode(data: Any, key: str) -> Measurement:
    """Raises ValueError if this is not what `write` wrote under the key."""
    if not isinstance(data, dict) or data.get("key") != key:
        raise ValueError("it is not a measurement of this step")
    seconds, workspace = data.get("seconds"), data.get("workspace_bytes")
    if seconds is not None and not (isinstance(seconds, int | float) and math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"seconds is {seconds!r}")
    if not isinstance(workspace, int) or workspace < 0:
        raise ValueError(f"workspace_bytes is {workspace!r}")
    return Measurement(seconds, workspace)
