"""The command line: what it prints, what it writes, and how it fails."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
import typer
from typer.testing import CliRunner

from remat_lab.cli import app
from remat_lab.cli_common import friendly
from remat_lab.errors import RematLabError
from remat_lab.models import ModelError, build, names
from solvers.errors import InfeasibleBudget
from solvers.graph import training_chain

FACTORY = """
    import jax
    import jax.numpy as jnp

    def make(batch=256, depth=4, name="plain"):
        def loss(weights, x):
            for w in weights:
                x = jnp.tanh(x @ w)
            return jnp.mean(x ** 2)
        w = jax.ShapeDtypeStruct((16, 16), jnp.float32)
        return loss, ([w] * depth, jax.ShapeDtypeStruct((batch, 16), jnp.float32))

    def needs(width):
        return make()

    def anything(**options):
        return make(batch=options["rows"])

    def raises():
        return 1 / 0

    def one():
        return (1,)

    def number():
        return 3

    def not_a_loss():
        return "loss", ()

    def not_args():
        return make()[0], 3

    def vector():
        return (lambda x: x * x), (jax.ShapeDtypeStruct((4,), jnp.float32),)

    def integers():
        return (lambda x: x.sum()), (jax.ShapeDtypeStruct((4,), jnp.int32),)

    class Bundle:
        loss, args, has_aux, argnums = staticmethod(make()[0]), make()[1], False, 0
        @staticmethod
        def materialise(seed):
            return jax.tree.map(lambda s: jnp.full(s.shape, 0.01 * seed), Bundle.args)

    def bundle():
        return Bundle()

    constant = 7
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory with a user's module in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "my_model.py").write_text(textwrap.dedent(FACTORY))
    (tmp_path / "broken_model.py").write_text("import a_module_that_does_not_exist\n")
    (tmp_path / "wrong_model.py").write_text("raise RuntimeError('not today')\n")
    yield tmp_path
    for name in ("my_model", "broken_model", "wrong_model"):
        sys.modules.pop(name, None)


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_compare_takes_the_users_own_loss_and_writes_into_the_current_directory(here):
    result = run("compare", "-m", "my_model:make", "--batch", 512, "--set", "depth=3", "-b", "0.8", "--rounds", 1)
    assert result.exit_code == 0, result.output
    assert "my_model:make batch=512 depth=3" in result.stdout
    assert "optimal@0.8" in result.stdout
    assert "wrote compare.json and compare.png" in result.stderr
    assert "compile sqrt" in result.stderr
    data = json.loads((here / "compare.json").read_text())
    assert data["rows"][0]["argument_bytes"] == 4 * (3 * 16 * 16 + 512 * 16)
    assert {row["strategy"]: row["status"] for row in data["rows"]}["nn_remat"] == "absent"
    assert (here / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_results_go_where_they_are_sent_and_can_be_shown_again(here):
    options = ("--strategy", "keep_all", "--rounds", 0)
    first = run("compare", "-m", "my_model:make", *options, "--out", "results", "--picture", "figure.svg")
    assert first.exit_code == 0, first.output
    assert sorted(os.listdir(here / "results")) == ["compare.json"]
    assert (here / "figure.svg").exists()
    table = run("table", "results/compare.json")
    assert table.exit_code == 0
    assert table.stdout == first.stdout
    assert run("plot", "results/compare.json", "--picture", "again.svg").exit_code == 0
    assert (here / "again.svg").read_bytes() == (here / "figure.svg").read_bytes()


def test_plan_says_what_is_recomputed_and_proven(here):
    result = run("plan", "-m", "my_model:make", "-b", "0.8", "--time-limit", 5)
    assert result.exit_code == 0, result.output
    for part in ("plan of loss: ", "% of the ", "no plan within the budget is below", "recomputed", "backward pass begins"):
        assert part in result.stdout


def test_an_impossible_budget_is_two_lines_and_exit_code_2(here):
    for command in (("plan", "-b", "1kB"), ("compare", "-b", "0.001")):
        result = run(*command, "-m", "my_model:make")
        assert result.exit_code == 2
        assert result.stdout == ""
        lines = [line for line in result.stderr.splitlines() if not line.startswith("[")]
        assert len(lines) == 2
        assert lines[0].startswith("remat-lab: a budget of ")
        assert "the smallest budget known to work is" in lines[0]
        assert "my_model.py:" in lines[0]
        assert lines[1].startswith("Ask for at least --budget ")
    assert not (here / "compare.json").exists()


@pytest.mark.parametrize("lower_bound", [0, 1_500_000])
@pytest.mark.parametrize("minimum_of", ["simulated", "compiled"])
def test_a_refusal_says_on_the_command_line_what_the_error_says(capsys, lower_bound, minimum_of):
    """Word for word, but for sizes that are short."""
    facts = {"budget": 1_000_000, "minimum": 2_000_001, "lower_bound": lower_bound, "minimum_of": minimum_of}
    error = InfeasibleBudget(**facts, relative_to="any order", name="sin at a.py:1", fullest="cos at a.py:2")
    with pytest.raises(typer.Exit), friendly(typer.Context(typer.main.get_command(app))):
        raise error
    wrong, todo = capsys.readouterr().err.splitlines()
    assert (f"{wrong.removeprefix('remat-lab: ')}. {todo}").replace("--budget 2.01MB", "2.00 MB") == (
        str(error)
        .replace("1,000,000 bytes", "1.00 MB")
        .replace("2,000,001 bytes", "2.00 MB")
        .replace("1,500,000 bytes", "1.50 MB")
    )


def test_the_budget_that_is_suggested_works(here):
    message = run("plan", "-m", "my_model:make", "-b", "1kB").stderr
    suggested = message.partition("--budget ")[2].partition(",")[0]
    assert run("plan", "-m", "my_model:make", "-b", suggested).exit_code == 0


@pytest.mark.parametrize("command", [("compare", "--rounds", "0"), ("plan", "-b", "0.5")])
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nothing_of_that_name", "no model named 'nothing_of_that_name'"),
        ("absent_module:make", "no module 'absent_module'"),
        ("broken_model:make", "importing 'broken_model' raised ModuleNotFoundError"),
        ("wrong_model:make", "raised RuntimeError: not today (wrong_model.py:1)"),
        ("my_model:absent", "'my_model' has no 'absent' (functions there: make, needs,"),
        ("my_model:constant", "is int, not a function"),
        ("my_model:", "not of the form module:function"),
        ("my_model:raises", "raised ZeroDivisionError: division by zero (my_model.py:"),
        ("my_model:needs", "needs the option 'width'"),
        ("my_model:one", "returned 1 values"),
        ("my_model:number", "returned int"),
        ("my_model:not_a_loss", "a loss of type str"),
        ("my_model:not_args", "args of type int"),
        ("my_model:vector", "scalar"),
        ("my_model:integers", "nothing to differentiate"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_in_a_line(here, command, model, message):
    if command[0] == "compare" and model in ("my_model:vector", "my_model:integers"):
        command = (*command, "--strategy", "keep_all")
    result = run(*command, "-m", model)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if not line.startswith("[")]
    assert len(lines) <= 2
    assert message in lines[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--depth", "3", "--set", "colour=red"), "has no option 'colour': its options are batch=256, depth=4, name='plain'"),
        (("--set", "depth"), "not of the form key=value"),
        (("--solver", "oracle"), "no solver 'oracle'"),
        (("--budget", "3 GB of"), "not a number with a unit"),
        (("--budget", "1.5"), "above 0 and at most at 1"),
        (("--budget", "0"), "not positive"),
        (("--strategy", "fastest"), "no strategy named 'fastest'"),
        (("--picture", "picture.docx"), "suffix must be one of"),
    ],
)
def test_options_that_make_no_sense_are_refused(here, options, message):
    result = run("compare", "-m", "my_model:make", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_several_budgets_make_rows_even_if_one_is_impossible(here):
    options = ("--strategy", "optimal", "--rounds", 0, "-b", "0.8", "-b", "0.001", "--time-limit", 5)
    result = run("compare", "-m", "my_model:make", *options)
    assert result.exit_code == 0, result.output
    rows = {row["strategy"]: row for row in json.loads((here / "compare.json").read_text())["rows"]}
    assert rows["optimal@0.001"]["status"] == "infeasible"
    assert rows["optimal@0.8"]["compiled_temp_bytes"] > 0


def test_options_of_any_name_go_to_a_factory_that_takes_them(here):
    assert build("my_model:anything", {"rows": 64}).args[1].shape == (64, 16)


def test_a_factory_may_return_an_object(here):
    model = build("my_model:bundle")
    assert (model.has_aux, model.argnums, model.blocks) == (False, 0, None)
    assert float(model.materialise(2)[1][0, 0]) == pytest.approx(0.02)


def test_the_current_directory_never_hides_installed_modules(here):
    (here / "json.py").write_text("raise RuntimeError('the wrong json')\n")
    build("my_model:make")
    assert sys.path[-1] == str(here)
    assert sys.path.index(str(here)) > 0


def test_errors_of_models_are_errors_of_the_package(here):
    with pytest.raises(RematLabError):
        build("my_model:raises")
    assert issubclass(ModelError, RematLabError)


def test_built_in_models_are_found_through_entry_points():
    assert "resnet" in names()
    model = build("resnet", {"depth": 8, "batch": 2})
    assert model.blocks is not None


def test_solve_plans_a_graph_from_a_file(here):
    training_chain(16, size=1000).save("chain.json")
    result = run("solve", "chain.json", "--budget", "12 kB", "--solver", "sqrt")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("32 nodes: ")
    assert "budget          12.0 kB" in result.stdout
    data = json.loads(run("solve", "chain.json", "-b", "12 kB", "--solver", "sqrt", "--json").stdout)
    assert data["peak"] <= 12_000
    assert data["cost"] >= data["lower_bound"] >= 32
    assert data["schedule"][0] == ["compute", 0]


def test_solve_fails_with_the_smallest_budget_or_with_what_is_wrong(here):
    training_chain(16, size=1000).save("chain.json")
    impossible = run("solve", "chain.json", "--budget", "0.01", "--solver", "sqrt")
    assert impossible.exit_code == 2
    assert len([line for line in impossible.stderr.splitlines() if not line.startswith("[")]) == 2
    assert "Ask for at least --budget" in impossible.stderr
    (here / "bad.json").write_text('{"nodes": [{"cost": -1, "size": 1, "deps": []}]}')
    for path, message in (("bad.json", "cost -1"), ("absent.json", "cannot read"), ("my_model.py", "not a JSON file")):
        result = run("solve", path)
        assert result.exit_code == 2
        assert message in result.stderr


def test_an_unexpected_error_is_a_line_with_a_way_to_see_more(here, monkeypatch):
    def fail(*args, **options):
        raise KeyError("lost")

    training_chain(4).save("chain.json")
    monkeypatch.setattr("solvers.simulate", fail)
    result = run("solve", "chain.json")
    assert result.exit_code == 1
    assert "KeyError: 'lost'" in result.stderr
    assert "--traceback" in result.stderr
    assert isinstance(run("--traceback", "solve", "chain.json").exception, KeyError)


def test_a_folder_that_cannot_be_written_is_a_line(here):
    (here / "file").write_text("")
    result = run("compare", "-m", "my_model:make", "--strategy", "plain", "--rounds", 0, "--out", "file")
    assert result.exit_code == 2
    assert "file" in result.stderr.splitlines()[-1]


def test_help_imports_nothing_heavy_that_it_does_not_need(tmp_path):
    code = "import sys, remat_lab.cli; print([m for m in ('flax', 'matplotlib', 'ortools') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "[]"
