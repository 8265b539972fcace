"""What is installed, what the tests import, and which way imports go."""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

import remat_lab as rl
import solvers

PACKAGES = ["remat_lab", "solvers", "experiments"]
MODELS = {"resnet", "mlp", "dropout_mlp", "transformer", "unet"}


def run(code: str, cwd: Path) -> str:
    """Standard output of a fresh interpreter, started away from the checkout."""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


# Imports every module of the packages named in `names`, then prints which of `watched` came with them.
IMPORT_ALL = """
import importlib, pkgutil, sys
count = 0
for name in {names!r}:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            count += 1
assert count > 0, "no modules found"
print(*sorted({watched!r} & {{name.partition(".")[0] for name in sys.modules}}))
"""


@pytest.mark.parametrize("name", PACKAGES)
def test_tests_import_the_installed_wheel(name: str, checkout: Path):
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    assert Path(folder).parent == Path(sysconfig.get_paths()["purelib"]), "run the tests with `make test`, without PYTHONPATH"
    assert Path(folder).parent != checkout


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheel_holds_every_source_file(name: str, checkout: Path):
    installed = {str(file) for file in metadata.files("remat-lab") or () if "__pycache__" not in file.parts}
    written = {str(file.relative_to(checkout)) for file in (checkout / name).rglob("*.py")}
    assert written
    assert written <= installed
    assert f"{name}/py.typed" in installed
    assert not any(file.startswith("tests/") for file in installed)


def test_solvers_import_no_jax(tmp_path: Path):
    code = IMPORT_ALL.format(names=["solvers"], watched={"jax", "jaxlib", "flax", "remat_lab", "experiments"})
    assert run(code, tmp_path).split() == []


def test_remat_lab_never_imports_experiments(tmp_path: Path):
    code = IMPORT_ALL.format(names=["remat_lab"], watched={"experiments", "jax"})
    assert run(code, tmp_path).split() == ["jax"]


def test_entry_points_name_loss_factories():
    found = {point.name: point for point in metadata.entry_points(group="remat_lab.models")}
    assert set(found) >= MODELS
    for name in MODELS:
        assert callable(found[name].load())


def test_the_command_is_installed_and_says_what_it_does(tmp_path: Path):
    command = Path(sys.executable).with_name("remat-lab")
    done = subprocess.run(
        [command, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


# Caught where they are raised; the first is what Python asks of a module that has no such name.
CAUGHT = {
    "bounds.py: AttributeError",
    "checks.py: AssertionError",
    "doctor_programs.py: ValueError",
    "part.py: FileNotFoundError",
    "profile_cache.py: ValueError",
    "read_back.py: ValueError",
    "refs.py: TypeError",
}
ABSTRACT = {"NotImplementedError", "TimeoutError"}  # never meant for users: a method to be written, a time limit on its way


def test_one_root_catches_every_error():
    found = 0
    for package in (rl, solvers):
        for module in pkgutil.iter_modules(package.__path__):
            names = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
            for name, kind in names.items():
                if inspect.isclass(kind) and issubclass(kind, Exception) and kind.__module__.partition(".")[0] in PACKAGES:
                    assert issubclass(kind, rl.RematLabError) or issubclass(kind, Warning) or name.startswith("_"), name
                    found += 1
    assert found > 10
    assert issubclass(rl.InfeasibleBudget, solvers.SolverError)
    assert not issubclass(rl.InvalidArgument, solvers.SolverError)


def test_no_error_of_python_is_raised_past_the_root(checkout: Path):
    raised = {
        f"{file.name}: {kind}"
        for file in (*checkout.glob("remat_lab/**/*.py"), *checkout.glob("solvers/**/*.py"))
        for kind in re.findall(r"^ *raise (\w+)", file.read_text(), re.MULTILINE)
        if inspect.isclass(known := getattr(builtins, kind, None)) and issubclass(known, Exception) and kind not in ABSTRACT
    }
    assert raised == CAUGHT
