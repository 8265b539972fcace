"""The lock files that `make` installs: they fit pyproject.toml, come from anywhere, and are noticed when they no longer fit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

LOCKS = ["locked", "oldest", "gpu-target"]


@pytest.fixture
def copy(checkout: Path, tmp_path: Path) -> Path:
    """A checkout with the files that locking concerns, to be edited."""
    shutil.copy(checkout / "pyproject.toml", tmp_path)
    shutil.copytree(checkout / "requirements", tmp_path / "requirements")
    return tmp_path


def edit(path: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


def run(checkout: Path, command: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, checkout / "requirements" / "ranges.py", command]
    return subprocess.run(script, capture_output=True, text=True, check=False, timeout=60)


def lines(checkout: Path, command: str) -> list[str]:
    done = run(checkout, command)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_committed_locks_fit_pyproject(checkout: Path):
    assert lines(checkout, "check") == []


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_of_a_lock_has_hashes_and_none_says_where_it_came_from(name: str, checkout: Path):
    text = (checkout / "requirements" / f"{name}.txt").read_text()
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    assert all(re.fullmatch(r"[a-z0-9-]+==[^ ]+( ; .+)? \\", pin) for pin in pins)
    assert len(re.findall(r"^[a-z0-9-]+==.*\\\n    --hash=sha256:", text, re.MULTILINE)) == len(pins)
    assert not re.search(r"://|index-url|find-links|/(tmp|home|root|work)/", text)


@pytest.mark.parametrize(
    ("file", "pattern", "new", "lock", "problem"),
    [
        ("pyproject.toml", r'"optax>=[\d.]+"', '"optax>=99"', "locked", r"it holds optax [\d.]+, asked for is optax>=99"),
        ("pyproject.toml", r"^dependencies = \[", 'dependencies = ["absent>=3",', "locked", "it lacks absent>=3"),
        ("pyproject.toml", r'"ruff>=[^"]+"', '"ruff<0.0.1"', "locked", r"it holds ruff [\d.]+, asked for is ruff<0.0.1"),
        ("pyproject.toml", r'"hatchling>=[^"]+"\]', '"builder"]', "locked", "it lacks builder"),
        ("pyproject.toml", r'"jax>=[\d.]+', '"jax>=0.1', "oldest", r"it holds jax [\d.]+, asked for is jax==0.1"),
        ("pyproject.toml", r'"nvidia-cuda-nvcc>=[^"]+"', '"assembler"', "gpu-target", "it lacks assembler"),
        ("requirements/gpu-target.txt", r"^(jax-cuda13-pjrt)==[\d.]+", r"\1==0.1", "gpu-target", "it holds jax-cuda13-pjrt"),
    ],
    ids=["range", "new", "tool", "build", "oldest", "extra", "compiler"],
)
def test_a_lock_that_does_not_fit_is_named_with_what_to_do(
    copy: Path, file: str, pattern: str, new: str, lock: str, problem: str
):
    edit(copy / file, pattern, new)
    done = run(copy, "check")
    assert done.returncode == 1
    assert re.match(rf"requirements/{lock}\.txt does not fit pyproject\.toml: {problem}", done.stderr)
    assert "make lock" in done.stderr


@pytest.mark.parametrize("name", LOCKS)
def test_a_missing_lock_is_named(copy: Path, name: str):
    (copy / "requirements" / f"{name}.txt").unlink()
    done = run(copy, "check")
    assert done.returncode == 1
    assert done.stderr.startswith(f"requirements/{name}.txt is missing")


def test_packages_for_other_systems_are_not_asked_for(copy: Path):
    edit(copy / "pyproject.toml", r"^dependencies = \[", "dependencies = [\"absent>=3; sys_platform == 'nowhere'\",")
    assert lines(copy, "check") == []


def test_newest_has_no_upper_ends_but_those_of_tools(copy: Path):
    edit(copy / "pyproject.toml", r'"jax>=[^"]+"', '"jax>=0.11.2,!=0.11.3,<0.11.4"')
    found = {r.name: r.specifier for r in map(Requirement, lines(copy, "newest"))}
    assert found["jax"] == Requirement("jax>=0.11.2,!=0.11.3").specifier
    assert "99" in found["jaxlib"]
    assert "99" not in found["ruff"]


def test_installed_names_what_differs_from_the_lock(copy: Path):
    edit(copy / "requirements" / "locked.txt", r"^packaging==[\d.]+", "packaging==0.1")
    versions, other = lines(copy, "installed")
    assert versions.startswith("versions: jax ")
    assert re.search(r"packaging [\d.]+ \(locked: 0\.1\)", other)
