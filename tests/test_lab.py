"""The laboratory: layers against finite differences, strategies executed for real, tests that can fail, and what is shown."""

import json
import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from remat_lab.cli import app
from remat_lab.errors import InvalidArgument
from remat_lab.lab_html import page_data, write_page
from remat_lab.lab_layers import PROFILES, make_chain
from remat_lab.lab_picture import draw
from remat_lab.lab_run import STRATEGIES, examine, execute, passed, plan, run_all, segment_curve
from remat_lab.lab_text import chart, report, verdicts
from solvers.errors import InfeasibleBudget
from solvers.schedule import Schedule
from solvers.simulate import simulate


@pytest.fixture(scope="module", params=PROFILES)
def chain(request):
    return make_chain(request.param, 12)


@pytest.fixture(scope="module")
def trials(chain):
    return run_all(chain)


def test_backward_passes_match_finite_differences(chain):
    """Each parameter's gradient, in a random direction, against the loss itself."""

    def loss() -> float:
        value = chain.x
        for layer in chain.layers:
            value = layer.forward(value)
        return 0.5 * float((value * value).sum())

    grads = iter(chain.reference())
    rng, step = np.random.default_rng(1), 1e-6
    for layer in reversed(chain.layers):
        for name, grad in zip(layer.params, [next(grads) for _ in layer.params], strict=True):
            kept, direction = layer.params[name], rng.standard_normal(layer.params[name].shape)
            if chain.profile == "recurrent":
                continue  # shared by all steps: see below
            layer.params[name] = kept + step * direction
            above = loss()
            layer.params[name] = kept - step * direction
            below = loss()
            layer.params[name] = kept
            assert (above - below) / (2 * step) == pytest.approx(float((grad * direction).sum()), rel=2e-4, abs=1e-6)


def test_a_step_of_the_recurrence_matches_finite_differences():
    chain = make_chain("recurrent", 5)
    names = [name for layer in reversed(chain.layers) for name in layer.params]
    grads = chain.reference()
    rng, step = np.random.default_rng(1), 1e-6
    for name in ("W", "V"):
        whole = sum(grad for n, grad in zip(names, grads, strict=False) if n == name)  # over all steps
        direction = rng.standard_normal(whole.shape)
        losses = []
        for sign in (1, -1):
            value = chain.x
            for layer in chain.layers:
                moved = {**layer.params, name: layer.params[name] + sign * step * direction}
                value = np.tanh(value @ moved["W"] + layer.u @ moved["V"])
            losses.append(0.5 * float((value * value).sum()))
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(float((whole * direction).sum()), rel=1e-5)


def test_every_strategy_passes_every_test(trials):
    assert [trial.name for trial in trials] == list(STRATEGIES)
    assert passed(trials), verdicts(trials)


def test_strategies_are_ordered_as_they_must_be(chain, trials):
    full, root, *_, best = trials
    assert full.recomputed == 0 == full.checkpoint_bytes
    assert root.checkpoint_bytes > 0
    assert root.solution.peak < full.solution.peak
    assert best.solution.peak <= root.solution.peak  # its budget
    assert best.solution.cost <= root.solution.cost
    for trial in trials[1:]:
        assert 0 <= trial.checkpoint_bytes <= trial.kept_bytes <= trial.solution.peak
        assert trial.recomputed == len(trial.solution.schedule.order) - len(chain.graph.steps)


def test_the_curve_over_segments_is_u_shaped():
    peaks = [peak for _, peak, _ in segment_curve(make_chain("uniform", 16))]
    least = peaks.index(min(peaks))
    assert 0 < least < len(peaks) - 1
    assert peaks[: least + 1] == sorted(peaks[: least + 1], reverse=True)
    assert peaks[least:] == sorted(peaks[least:])
    assert peaks[0] == peaks[-1] == max(peaks)


def test_a_value_that_was_freed_cannot_be_read():
    chain = make_chain("uniform", 4)
    order = Schedule.from_order(chain.graph, chain.graph.steps).steps
    early = (*order[:2], replace(order[2], node=order[2].node), *order[3:])
    freed = [step for step in early if step.node != 3 or step is not order[3]]
    with pytest.raises(KeyError):
        execute(chain, Schedule(tuple(freed)))


@pytest.mark.parametrize(
    ("damage", "test"),
    [
        (lambda layer, calls: 1.0 + 1e-12 * (calls > 8), "boundaries replayed exactly"),
        (lambda layer, calls: np.inf if calls > 8 else 1.0, "deterministic and finite"),
    ],
    ids=["a layer that drifts", "a layer that overflows"],
)
def test_the_tests_can_fail(damage, test):
    chain = make_chain("uniform", 8)
    solution = plan(chain, "sqrt(n)")
    calls = 0
    for layer in chain.layers:
        honest = layer.forward

        def drifting(x, honest=honest, layer=layer):
            nonlocal calls
            calls += 1
            return honest(x) * damage(layer, calls)

        layer.forward = drifting
    with np.errstate(invalid="ignore"):
        assert not examine(chain, "sqrt(n)", solution).tests[test]


def test_a_wrong_backward_pass_and_a_wrong_count_are_found(monkeypatch):
    chain = make_chain("uniform", 6)
    solution = plan(chain, "sqrt(n)")
    honest = simulate(chain.graph, solution.schedule)
    monkeypatch.setattr("remat_lab.lab_run.simulate", lambda *_: replace(honest, live=(*honest.live[:-1], 1)))
    assert not examine(chain, "sqrt(n)", solution).tests["peak accounted exactly"]
    reference = chain.reference()
    object.__setattr__(chain, "reference", lambda: [reference[0] + 1e-9, *reference[1:]])
    assert not examine(chain, "sqrt(n)", solution).tests["gradients equal full retention"]


def test_charts_stand_for_their_values():
    assert chart([0, 4, 8, 2], top=8, height=2) == ["  █", " ██▄"]
    assert chart([1, 9, 2, 2], top=9, width=2, height=1) == ["█▂"]  # the peak is never lost


def test_the_report_and_the_picture_show_every_strategy(chain, trials):
    text = report(chain, trials)
    assert all(f"{name}: peak" in text for name in STRATEGIES)
    assert text.count("passed") == 4
    assert max(map(len, text.splitlines())) <= 80
    figure = draw(chain, trials)
    assert len(figure.axes) == len(STRATEGIES) + 1
    assert all(ax.get_xlabel() for ax in figure.axes)


def test_the_page_is_self_contained(tmp_path):
    chain = make_chain("uniform", 5)
    path = tmp_path / "lab.html"
    data = page_data(chain, run_all(chain))
    write_page(data, path)
    text = path.read_text()
    assert not re.search(r"(?:src|href)\s*=|@import|fetch\(|import\(|url\(", text)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "{{" not in text
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert json.loads(inside.group(1)) == json.loads(json.dumps(data))
    feasible = [row for row in data["plans"] if "peak" in row]
    assert all(row["peak"] <= row["budget"] for row in feasible)
    assert [row["overhead"] for row in feasible] == sorted((row["overhead"] for row in feasible), reverse=True)
    assert feasible[-1]["overhead"] == 0


@pytest.mark.slow
def test_the_slider_works_in_a_browser(tmp_path):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    chain = make_chain("uniform", 6)
    path = tmp_path / "lab.html"
    data = page_data(chain, run_all(chain))
    write_page(data, path)
    last = len(data["plans"]) - 1
    move = f'<script>slider.value = {last}; slider.dispatchEvent(new Event("input"));</script>'
    path.write_text(path.read_text().replace("</body>", f"{move}</body>"))
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync --dump-dom"
    found = subprocess.run(
        [browser, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert re.search(r'id="summary"[^>]*>Peak [\d.]+ kB \(100% of keeping everything\), 0 layers run again', found)
    assert found.count("passed (") == 4
    assert "<path d=" in found


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--layers", "6"], 0, "passed  peak accounted exactly"),
        (["--layers", "6", "--budget", "0.8"], 0, "optimal: peak"),
        (["--profile", "other"], 2, "choose one of uniform"),
        (["--layers", "6", "--budget", "10B"], 2, "too small"),
        (["--layers", "6", "--picture", "lab.bmp"], 2, "suffix"),
    ],
)
def test_the_command(arguments, code, said):
    result = CliRunner().invoke(app, ["lab", *arguments])
    assert result.exit_code == code, result.output
    assert said in result.output


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidArgument, match="at least 2"):
        make_chain("uniform", 1)
    with pytest.raises(InfeasibleBudget):
        plan(make_chain("uniform", 4), "optimal", 1)
