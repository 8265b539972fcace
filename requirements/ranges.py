"""What pyproject.toml asks for, against what the lock files beside this file hold.

Run by `make`, in an environment that has `packaging`; reaches no package index:

    python requirements/ranges.py check       says which lock no longer fits pyproject.toml, and what to do
    python requirements/ranges.py oldest      JAX at its lower bound: what makes oldest.txt differ from locked.txt
    python requirements/ranges.py newest      what `make test-newest` installs: ranges without their upper ends
    python requirements/ranges.py gpu-target  the extra, its compiler at the version of the locked jaxlib
    python requirements/ranges.py installed   versions in this environment, and where they differ from locked.txt
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

CHECKOUT = Path(__file__).resolve().parent.parent
LOCKED, OLDEST, GPU_TARGET = (f"requirements/{name}.txt" for name in ("locked", "oldest", "gpu-target"))

AT_THEIR_OLDEST = ("jax", "jaxlib")
CUDA_COMPILER = "jax-cuda13-pjrt"


class Mismatch(Exception):
    """A lock does not hold what pyproject.toml asks for."""


def package(checkout: Path) -> list[Requirement]:
    """Requirements of the package and of its build."""
    data = _pyproject(checkout)
    return [Requirement(line) for line in [*data["project"]["dependencies"], *data["build-system"]["requires"]]]


def extra(checkout: Path, name: str) -> list[Requirement]:
    """Requirements of one extra alone."""
    return [Requirement(line) for line in _pyproject(checkout)["project"]["optional-dependencies"][name]]


def held(checkout: Path, lock: str) -> dict[str, Version]:
    """Version of each package in a lock file.

    Raises:
        Mismatch: if there is no such file.
    """
    path = checkout / lock
    if not path.is_file():
        raise Mismatch(f"{lock} is missing")
    lines = (line.rstrip("\\ \n") for line in path.read_text().splitlines() if "==" in line)
    pins = [Requirement(line) for line in lines if not line.startswith((" ", "#"))]
    return {canonicalize_name(pin.name): Version(next(iter(pin.specifier)).version) for pin in pins if _applies(pin)}


def oldest(checkout: Path) -> list[str]:
    """Pins of JAX at the lower bounds that pyproject.toml gives."""
    bounds = {canonicalize_name(r.name): s.version for r in package(checkout) for s in r.specifier if s.operator == ">="}
    return [f"{name}=={bounds[name]}" for name in AT_THEIR_OLDEST]


def newest(checkout: Path) -> list[str]:
    """All requirements: those of the package without their upper ends, those of tools as they are."""
    without_ends = package(checkout)
    for requirement in without_ends:
        requirement.specifier = SpecifierSet([s for s in requirement.specifier if s.operator not in ("<", "<=")])
    return [str(requirement) for requirement in [*without_ends, *extra(checkout, "dev")]]


def gpu_target(checkout: Path) -> list[str]:
    """The extra gpu-target, with the compiler at the version of the locked jaxlib, which no range can say."""
    return [*map(str, extra(checkout, "gpu-target")), f"{CUDA_COMPILER}=={held(checkout, LOCKED)['jaxlib']}"]


def installed(checkout: Path) -> list[str]:
    """Two lines: versions of what pyproject.toml names, and where this environment differs from the lock."""
    lock = held(checkout, LOCKED)
    have = {canonicalize_name(d.metadata["Name"]): Version(d.version) for d in metadata.distributions()}
    named = dict.fromkeys(canonicalize_name(r.name) for r in [*package(checkout), *extra(checkout, "dev")])
    other = [f"{n} {have.get(n, 'absent')} (locked: {v})" for n, v in lock.items() if have.get(n) != v]
    return [
        "versions: " + ", ".join(f"{name} {have[name]}" for name in named if name in have),
        f"other than in {LOCKED}: " + (", ".join(other) or "none"),
    ]


def check(checkout: Path) -> list[str]:
    """Raises an error where a lock does not satisfy pyproject.toml.

    Raises:
        Mismatch: with the file, what it holds and what is asked for.
    """
    everything = [*package(checkout), *extra(checkout, "dev")]
    _satisfy(everything, checkout, LOCKED)
    _satisfy([*everything, *map(Requirement, oldest(checkout))], checkout, OLDEST)
    _satisfy(map(Requirement, gpu_target(checkout)), checkout, GPU_TARGET)
    return []


def _pyproject(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text())


def _satisfy(requirements: Iterable[Requirement], checkout: Path, lock: str) -> None:
    problems = list(_problems(requirements, held(checkout, lock)))
    if problems:
        raise Mismatch(f"{lock} does not fit pyproject.toml: {'; '.join(problems)}")


def _problems(requirements: Iterable[Requirement], lock: dict[str, Version]) -> Iterator[str]:
    for requirement in filter(_applies, requirements):
        version = lock.get(canonicalize_name(requirement.name))
        if version is None:
            yield f"it lacks {requirement}"
        elif not requirement.specifier.contains(version, prereleases=True):
            yield f"it holds {requirement.name} {version}, asked for is {requirement.name}{requirement.specifier}"


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


COMMANDS = {f.__name__.replace("_", "-"): f for f in (check, oldest, newest, gpu_target, installed)}

if __name__ == "__main__":
    try:
        lines = COMMANDS[sys.argv[1]](CHECKOUT)
    except Mismatch as error:
        sys.exit(f"{error}.\nRun `make lock`, and commit the lock files that it writes.")
    sys.stdout.writelines(f"{line}\n" for line in lines)
