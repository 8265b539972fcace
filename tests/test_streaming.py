"""Comparisons while they are made: rows in order before they are timed, one compilation for equal programs, interrupts."""

import importlib
import io
import json
import threading
from concurrent.futures import CancelledError

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from remat_lab.api import as_loss, planner_for
from remat_lab.cli import app
from remat_lab.compare import compare
from remat_lab.comparison import Comparison, Interrupted, Row
from remat_lab.errands import Errands, Stopped
from remat_lab.measure import SCHEDULERS
from remat_lab.programs import LossStep, Programs
from remat_lab.progress import _Live
from remat_lab.report import as_text

W, X = [jax.ShapeDtypeStruct((16, 16), jnp.float32)] * 4, jax.ShapeDtypeStruct((256, 16), jnp.float32)


def layer(w, x):
    return jnp.tanh(x @ w)


def blocks(transform):
    step = transform(layer)

    def loss(weights, x):
        for w in weights:
            x = step(w, x)
        return jnp.mean(x**2)

    return loss


loss = blocks(lambda block: block)
ORDER = ["plain", "dots_saveable", "dots_with_no_batch_dims_saveable", "sqrt", "optimal@0.8", "optimal@0.6"]
OPTIONS = {"strategies": ORDER, "rounds": 2, "time_limit": 4}


@pytest.fixture(scope="module")
def told():
    """What is told, in its order: rows, and what is being done."""
    seen = []
    result = compare(loss, W, X, blocks=blocks, **OPTIONS, on_row=seen.append, progress=lambda text, *_: seen.append(text))
    return seen, result


# --- rows


def test_rows_come_in_order_compiled_and_checked_before_any_is_timed(told):
    seen, result = told
    timing = next(i for i, now in enumerate(seen) if isinstance(now, str) and now.startswith("time"))
    first, last = ([now for now in part if isinstance(now, Row)] for part in (seen[:timing], seen[timing:]))
    assert [row.strategy for row in first] == [row.strategy for row in last] == ORDER
    assert all(row.compiled_temp_bytes and row.compiled_extra_flops_ratio is not None for row in first)
    assert all(row.max_grad_difference is not None and row.step_seconds is None for row in first)
    assert tuple(last) == result.rows
    assert all(row.step_seconds and len(row.compiled_temp_by_scheduler) == 2 for row in last)


def test_the_first_row_waits_for_no_other_one_and_quick_rows_for_no_plan_under_a_budget(told):
    seen, _ = told
    before_plain = seen[: next(i for i, now in enumerate(seen) if isinstance(now, Row))]
    assert not any(name in now for now in before_plain for name in ORDER[1:])
    quick = next(i for i, now in enumerate(seen) if isinstance(now, Row) and now.strategy == "sqrt")
    assert not any("optimal" in now for now in seen[:quick] if isinstance(now, str))


def test_what_goes_on_beside_is_said_after_what_is_being_done(told):
    plans = [now for now in told[0] if isinstance(now, str) and now.startswith("plan optimal@0.6: ")]
    assert any("plan optimal@0.8" in now.partition("; ")[2] for now in plans)


def test_rows_that_are_one_program_are_compiled_once_and_share_their_times(told):
    _, result = told
    one, other = result["dots_saveable"], result["dots_with_no_batch_dims_saveable"]
    assert one.compile_seconds == other.compile_seconds
    assert one.step_seconds == other.step_seconds
    assert one.step_seconds != result["sqrt"].step_seconds


def test_a_row_that_fails_is_told_of_with_its_reason_in_its_place():
    def broken(transform):
        def fails(weights, x):
            raise RuntimeError("these blocks cannot be traced")

        return loss if transform(layer) is layer else fails

    rows = []
    compare(loss, W, X, blocks=broken, strategies=["nn_remat", "keep_all"], rounds=0, on_row=rows.append)
    assert [row.strategy for row in rows] == 2 * ["plain", "nn_remat", "keep_all"]
    assert {(row.status, row.reason) for row in rows if row.strategy == "nn_remat"} == {
        ("failed", "RuntimeError: these blocks cannot be traced")
    }


def test_the_users_function_is_traced_in_the_users_thread_only():
    threads = set()

    def noted(weights, x):
        threads.add(threading.get_ident())
        return loss(weights, x)

    result = compare(noted, W, X, strategies=["optimal@0.8", "optimal@0.6"], rounds=0, time_limit=4)
    assert all(row.compiled_temp_bytes for row in result.rows)
    assert threads == {threading.get_ident()}


# --- interrupts


def interrupt(row_or_text, *_):
    """Stands for Ctrl-C: when the second row is told of, or when plans under a budget are made."""
    name = row_or_text.strategy if isinstance(row_or_text, Row) else row_or_text.partition(":")[0]
    if name in ("dots_saveable", "plan optimal@0.6"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(("hook", "rows"), [("on_row", ORDER[:2]), ("progress", ORDER[:4])])
def test_an_interrupt_leaves_the_rows_so_far_and_nothing_that_works_on(hook, rows):
    with pytest.raises(Interrupted) as caught:
        compare(loss, W, X, blocks=blocks, **{**OPTIONS, "time_limit": 600, hook: interrupt})
    partial = caught.value.comparison
    assert [row.strategy for row in partial.rows] == rows
    assert json.loads(json.dumps(partial.to_json()))["rows"][0]["compiled_temp_bytes"] > 0
    assert "plain" in str(partial)
    for thread in threading.enumerate():
        if thread.name.startswith("errands"):
            thread.join(30)
            assert not thread.is_alive()


def test_an_interrupt_before_the_first_row_is_an_ordinary_one():
    def at_once(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        compare(loss, W, X, strategies=["keep_all"], rounds=0, progress=at_once)
    assert caught.type is KeyboardInterrupt


def test_the_command_shows_and_writes_the_rows_so_far_beside_an_earlier_file(tmp_path, monkeypatch):
    (tmp_path / "compare.json").write_text("{}")
    where = {"cores": 2, "processor": "one", "backend": "cpu"}
    rows = (Row(strategy="plain", family="plain", compiled_temp_bytes=7_000_000),)
    found = Comparison(title="mlp", rows=rows, keep_all_peak_bytes=None, settings={"rounds": 2}, environment=where)

    def stop(*_, **__):
        raise Interrupted(found)

    monkeypatch.setattr(importlib.import_module("remat_lab.compare"), "compare", stop)
    result = CliRunner().invoke(app, ["compare", "-m", "mlp", "--out", str(tmp_path)])
    assert result.exit_code == 130
    assert result.stdout.strip() == as_text(found.to_json()).strip()
    assert "interrupted; the rows so far are in" in result.stderr
    assert json.loads((tmp_path / "compare.interrupted.json").read_text())["rows"][0]["strategy"] == "plain"
    assert (tmp_path / "compare.json").read_text() == "{}"


# --- what is shown


def test_a_log_has_a_line_for_each_row_and_the_output_is_the_final_table(tmp_path):
    options = ["--set", "layers=3", "--strategy", "nn_remat", "--strategy", "sqrt", "--rounds", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["compare", "-m", "mlp", "--batch", "64", *options])
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    at = [next(i for i, line in enumerate(lines) if f"] {name}: " in line) for name in ("plain", "nn_remat", "sqrt")]
    assert [*at, len(lines)] == sorted({*at, len(lines)})
    assert at[-1] < next(i for i, line in enumerate(lines) if "] time " in line)
    assert sum("] sqrt: " in line for line in lines) == 1
    assert "planned" in lines[at[-1]]
    assert result.stdout.rstrip("\n") == as_text(json.loads((tmp_path / "compare.json").read_text()))


@pytest.mark.parametrize("height", [50, 12])
def test_a_screen_shows_the_last_rows_that_fit_above_the_bar(height):
    live, console = _Live("mlp", timed=True), Console(file=io.StringIO(), width=80, height=height, color_system=None)
    for i in range(12):
        row = Row(strategy=f"optimal@{i}", family="optimal", status="optimal", max_grad_difference=0.0, bitwise_equal=True)
        live.row(row)
    live.row(Row(strategy="nn_remat", family="policy", status="failed", reason="ValueError: [odd] blocks"))
    live.report("time 12 programs in alternation, round 3 of 11", 30, 44)
    console.print(live)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert len(lines) <= height
    assert lines[-1] == "time 12 programs in alternation, round 3 of 11"
    assert "30/44" in lines[-2]
    assert "nn_remat: failed, ValueError: [odd] blocks" in lines
    assert ("optimal@0 " in console.file.getvalue()) == (height == 50)
    assert "..." in next((line for line in lines if line.startswith("optimal@11")), "...")


# --- programs


def programs_of(*functions):
    call = as_loss(loss, 0, False, (), ()).call((W, X), {})
    return Programs(call), [LossStep(function, call, 0, False) for function in functions]


def test_equal_programs_are_compiled_once_under_each_set_of_options():
    programs, (one, same, other) = programs_of(loss, blocks(lambda block: block), lambda w, x: 2 * loss(w, x))
    first = programs.compile(one, {})
    assert programs.compile(same, {}) is first
    assert programs.compile(one, SCHEDULERS["memory"]) is not first
    assert programs.compile(other, {}) is not first


def test_programs_that_differ_in_the_constants_they_read_are_not_one():
    large = [np.full((256, 16), value, np.float32) for value in (1, 2)]  # JAX passes large ones as hidden arguments
    made = [lambda w, x, c=c: loss(w, x + c) for c in map(jnp.asarray, large)]
    programs, steps = programs_of(*made)
    one, two = (programs.compile(step, {}) for step in steps)
    assert one is not two
    values = jax.tree.leaves((jax.tree.map(lambda s: jnp.full(s.shape, 0.1), W), jnp.ones(X.shape)))
    assert steps[0].unflatten(one.call(*values))[0] != steps[1].unflatten(two.call(*values))[0]


def test_what_a_plan_compiled_for_its_promise_is_what_others_compile():
    whole = as_loss(loss, 0, False, (), ())
    planner = planner_for(whole, whole.call((W, X), {}))
    planner.programs = Programs(planner.call)
    plan = planner.plan(int(0.8 * planner.keep_all_peak_bytes), time_limit=4)
    assert planner.programs.compile(plan.on_leaves, plan.compiler_options) is plan.compiled


def test_what_was_begun_is_there_when_asked_for_and_fails_where_it_is_asked_for():
    def fails(weights, x):
        raise RuntimeError("not today")

    programs, (step, broken) = programs_of(loss, fails)
    with programs:
        programs.begin(step, {})
        programs.begin(broken, {})
        assert programs.compile(step, {}).temp_bytes > 0
        with pytest.raises(RuntimeError, match="not today"):
            programs.compile(broken, {})


# --- errands


def test_errands_are_done_at_home_and_their_errors_go_to_who_asked():
    def fail():
        raise ValueError("no")

    def work():
        with pytest.raises(ValueError, match="no"):
            errands.ask(fail)
        return threading.get_ident(), errands.ask(threading.get_ident)

    with Errands() as errands:
        done = errands.start(work)
        errands.wait([done])
    there, here = done.result()
    assert here == threading.get_ident() != there
    assert errands.ask(threading.get_ident) == here


def test_threads_take_turns_in_the_order_in_which_they_were_started():
    order = []
    with Errands(most=1) as errands:
        errands.wait([errands.start(lambda n=n: errands.ask(lambda: order.append(n))) for n in range(5)])
    assert order == list(range(5))


def test_who_waits_for_an_errand_or_a_turn_when_all_ends_is_stopped():
    with Errands(most=1) as errands:
        asking, waiting = errands.start(lambda: errands.ask(lambda: None)), errands.start(lambda: None)
    assert isinstance(asking.exception(30), CancelledError | Stopped)
    assert isinstance(waiting.exception(30), Stopped)
