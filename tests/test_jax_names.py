"""JAX's inside: what the toolkit needs of it on every release, and what becomes of each feature where a name is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import pytest
from without_name import FEATURES, FORMS

from remat_lab._jax import checks, names

HIDDEN = [name for name in names.NAMES if name.private or name.where in FORMS or name.where.startswith("jax.extend.")]


@pytest.mark.parametrize("name", names.NAMES, ids=lambda name: name.where)
def test_this_jax_has_what_is_needed_of_each_name(name):
    assert checks.check(name).problem is None


def test_every_row_has_its_program_and_every_program_its_row():
    assert list(dict.fromkeys(name.where for name in names.NAMES)) == [name.where for name in names.NAMES]
    assert set(checks._CHECKS) == {name.where for name in names.NAMES}
    assert all(name.purpose and name.public and name.since for name in names.NAMES)


def test_a_name_that_is_missing_is_told_from_one_that_changed(monkeypatch):
    name = names.NAMES[0]
    monkeypatch.setitem(checks._CHECKS, name.where, lambda: names.find(name.where) is None)
    assert "something else" in checks.check(name).problem
    monkeypatch.setattr(names.importlib, "import_module", lambda _: None)
    assert "UnsupportedJax" in checks.check(name).problem


def test_private_jax_is_named_in_one_folder_only(checkout):
    inside = "jax." + "_src"
    listed = subprocess.run(["git", "ls-files"], cwd=checkout, capture_output=True, text=True, check=True).stdout.split()
    texts = {path: (checkout / path).read_bytes() for path in listed if (checkout / path).is_file()}
    found = {path for path, text in texts.items() if inside.encode() in text}
    assert found
    assert all(path.startswith("remat_lab/_jax/") for path in found)


@cache
def _outcomes(where: str) -> dict[str, str]:
    """What becomes of each feature in an interpreter where a name of JAX is hidden from the toolkit."""
    code = f"import without_name, sys; without_name.main({where!r})"
    env = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"}  # nothing is measured here
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=_HERE, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


_HERE = Path(__file__).parent


def test_nothing_is_missing_where_nothing_is_hidden():
    assert _outcomes("") == dict.fromkeys(FEATURES, "works")


@pytest.mark.parametrize("name", HIDDEN, ids=lambda name: name.where)
def test_a_missing_name_disables_the_feature_that_needs_it_and_no_other(name):
    found = _outcomes(name.where)
    broken = {feature: outcome for feature, outcome in found.items() if outcome != "works"}
    if name.without is not None:
        assert not broken  # it goes on with less
        return
    said = f"UnsupportedJax: {name.feature}: not with jax {jax.__version__}, which lacks {name.where}"
    assert all(outcome.startswith(said) for outcome in broken.values()), broken
    assert name.feature in broken
    if name.feature != names.PLANS:  # which the others rest on
        assert set(broken) <= {name.feature, names.MAPPING}  # there a loop stands for what is planned


def test_what_is_said_to_be_tested_is_what_the_locks_hold(checkout):
    locks = {name: (checkout / f"requirements/{name}.txt").read_text() for name in ("oldest", "locked")}
    assert f"\njax=={names.TESTED[0]} " in locks["oldest"]
    assert f"\njax=={names.TESTED[-1]} " in locks["locked"]


@pytest.mark.parametrize("line", ["from {} import core\n", "import {}.core\n", "from jax.interpreters import ad\n"])
def test_lint_forbids_private_jax_outside_of_its_folder(line, checkout):
    ruff = Path(sys.executable).with_name("ruff")
    command = [ruff, "check", "--select", "TID251", "--stdin-filename", "remat_lab/elsewhere.py", "-"]
    text = line.format("jax." + "_src")
    done = subprocess.run(command, cwd=checkout, input=text, capture_output=True, text=True, check=False, timeout=60)
    assert "TID251" in done.stdout
    assert done.returncode == 1
