"""`remat-lab doctor`: right where all works, and right about what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from remat_lab import doctor, doctor_programs
from remat_lab._jax import names
from remat_lab.doctor import Diagnosis, Line, Section

HERE = Path(__file__).parent
COMMAND = "from remat_lab.cli import app; app(['doctor', *{options!r}])"
PROGRAMS = [
    doctor_programs.takes_options,
    doctor_programs.holds_order,
    doctor_programs.keeps_recomputation,
    doctor_programs.same_gradients,
    doctor_programs.keeps_what_is_planned,
    doctor_programs.computes_again_what_is_planned,
    doctor_programs.fits_as_compiled,
]


def run(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter beside the tests."""
    return subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True, check=False, timeout=600)


def lines(part) -> dict[str, Line]:
    return {line.subject: line for line in part}


def test_all_works_here_and_the_page_says_so():
    done = run(COMMAND.format(options=["--json"]))
    page = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert page["works"] is True
    states = {line["subject"]: line["state"] for section in page["sections"] for line in section["lines"]}
    assert {name.where for name in names.NAMES} <= {subject for subject, state in states.items() if state == "ok"}
    assert {"options", "order", "recomputation", "gradients", "kept", "recomputed", "fits"} <= states.keys()
    assert states["jax"] == ("ok" if jax.__version__ in names.TESTED else "note")


def test_a_private_name_that_is_missing_fails_and_is_named():
    done = run(f"import without_name; without_name.hide({names.DISCHARGE!r}); {COMMAND.format(options=[])}")
    assert done.returncode == 1
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("  fails")]
    assert names.DISCHARGE in failed
    assert names.REFERENCES in failed
    assert done.stdout.rstrip().endswith("lines fail.")


def test_a_name_that_only_makes_something_less_is_a_note():
    done = run(f"import without_name; without_name.hide({names.DEAD_CODE!r}); {COMMAND.format(options=[])}")
    assert done.returncode == 0, done.stdout
    assert f"note   {names.DEAD_CODE}" in done.stdout


def test_a_part_that_cannot_be_looked_at_is_a_line(monkeypatch):
    def broken():
        raise RuntimeError("no devices\nand more")

    for part in ("_versions", "_names", "_compiler", "_proofs"):
        monkeypatch.setattr(doctor, part, lambda: iter(()))
    monkeypatch.setattr(doctor, "_targets", broken)
    page = doctor.examine()
    assert page.sections[-1].lines == (Line("targets", "fails", "RuntimeError: no devices"),)
    assert not page.works


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_program_holds_here(program):
    assert program()


def test_a_barrier_that_orders_nothing_is_found(monkeypatch):
    monkeypatch.setattr(doctor_programs, "barrier", lambda tied, pending=(): list(tied))
    with pytest.raises(ValueError, match="tied in this order, run as"):
        doctor_programs.holds_order()
    with pytest.raises(ValueError, match="of a product and its recomputation"):
        doctor_programs.keeps_recomputation()


def test_options_that_are_refused_are_found(monkeypatch):
    monkeypatch.setattr("remat_lab.targets.CPU_SCHEDULERS", {"memory": {"xla_cpu_scheduler_type": "NO_SUCH_SCHEDULER"}})
    assert doctor._tried("options", doctor_programs.takes_options).state == "fails"


def test_options_that_are_not_looked_at_are_found(monkeypatch):
    monkeypatch.setattr(doctor_programs, "compile_program", lambda *_, **__: None)
    with pytest.raises(ValueError, match="taken in silence"):
        doctor_programs.takes_options()


def test_another_program_than_the_planned_one_is_found(monkeypatch):
    planned = doctor_programs.tiny_plan()
    with monkeypatch.context() as patch:
        patch.setattr(doctor_programs, "tiny_plan", lambda: planned.amended(budget_bytes=planned.compiled_bytes - 1))
        with pytest.raises(ValueError, match="bytes for a budget of"):
            doctor_programs.fits_as_compiled()
    found = doctor_programs.scopes_of_products(planned.compiled.executable)
    with monkeypatch.context() as patch:
        patch.setattr(doctor_programs, "scopes_of_products", lambda _: found[::-1])
        with pytest.raises(ValueError, match="is compiled otherwise"):
            doctor_programs.fits_as_compiled()


def test_versions_are_set_against_what_was_tested(monkeypatch):
    monkeypatch.setattr(names, "TESTED", ("0.0.1",))
    monkeypatch.setattr(doctor, "_version", lambda name: {"jax": "9.9", "jaxlib": "9.8", "flax": None}.get(name, "1"))
    found = lines(doctor._versions())
    assert (found["jax"].state, found["jaxlib"].state, found["flax"].state) == ("note", "note", "fails")
    assert "tested are 0.0.1" in found["jax"].text
    assert "pip install jaxlib==9.9" in found["jaxlib"].text


def test_a_compiler_that_is_installed_and_does_not_fit_fails(monkeypatch):
    from remat_lab.targets import Target

    monkeypatch.setattr(Target, "problem", lambda target: "does not fit" if target.platform == "cuda" else "is not installed")
    found = {line.text: line.state for line in doctor._targets()}
    assert found["does not fit"] == "fails"
    assert found["is not installed"] == "note"


def test_the_page_as_text():
    page = Diagnosis((Section("first", (Line("a", "ok", "1"), Line("long", "fails", "2"))),))
    assert str(page) == "remat-lab doctor\n\nfirst\n  ok     a     1\n  fails  long  2\n\n1 of 2 lines fail."
    assert not page.works
