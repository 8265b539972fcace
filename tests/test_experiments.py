"""Experiments: files that survive interruptions, rows for failures, tables and pictures from the file alone, and exponents."""

import json
import os
from dataclasses import replace
from importlib.metadata import EntryPoint
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from typer.testing import CliRunner

from experiments import growth, lstm_length, memory_time, mlp_depth, optimality, predicted, resnet_depth, step_time
from experiments.figures import _spread as spread
from experiments.growth_tables import below_sharing, by_size, exponents, limits, paper_table, strategies
from experiments.isolated import Killed, call_apart
from experiments.records import append, read
from experiments.strategies import DROP, SHARED, UNSHARED, Subject, executed_bytes, keep_linear_order
from experiments.sweeps import Experiment, run
from experiments.tables import Section, exponent
from experiments.unrolled import loop
from remat_lab.api import analyse, as_loss
from remat_lab.cli import app
from remat_lab.errors import InvalidArgument
from solvers.errors import InfeasibleBudget
from solvers.graph import Graph, Node
from solvers.liveness import assign, overlapping
from solvers.segments import Forward
from solvers.solve import solve

MODULES = (resnet_depth, mlp_depth, lstm_length, step_time, memory_time, predicted, optimality)
EXPERIMENTS = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}


# --- an experiment whose points do as they are told -------------------------------------------------------------------------


def measure(point):
    if point["do"] == "fail":
        raise ValueError("first line\nsecond line")
    if point["do"] == "exhaust":
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate")
    if point["do"] == "none":
        raise MemoryError
    if point["do"] == "infeasible":
        raise InfeasibleBudget(budget=1, minimum=5, lower_bound=3, relative_to="any order", bottleneck=0, name="conv")
    if point["do"] == "die":
        os._exit(9)
    return {"bytes": point["size"] ** 2, "process": os.getpid()}


def tables(rows):
    return [Section("sizes", ("size", "bytes"), [[str(r["point"]["size"]), str(r["result"].get("bytes"))] for r in rows])]


def draw(rows):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([row["point"]["size"] for row in rows])
    return figure


def points_of(*todo):
    return [{"size": k, "do": do} for k, do in enumerate(todo, 1)]


def three(preset, target):
    return points_of("work", "work", "work")


TOY = Experiment(name="toy", title="A toy", points=three, measure=measure, tables=tables, draw=draw)


def doing(*todo):
    return replace(TOY, points=lambda preset, target: points_of(*todo))


# --- files ------------------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    path = tmp_path / "toy.jsonl"
    done = []

    def interrupted(point):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(point["size"])
        return {"bytes": 1}

    with pytest.raises(KeyboardInterrupt):
        run(replace(TOY, measure=interrupted), path)
    assert [row["point"]["size"] for row in read(path).rows] == [1, 2]
    seen = []
    assert run(TOY, path, report=lambda what, done, total: seen.append((what, done, total))) == []
    assert seen == [("3, work", 2, 3)]
    rows = read(path).rows
    assert [row["result"]["bytes"] for row in rows] == [1, 1, 9]
    for row in rows:
        assert row["status"] == "ok"
        assert {"time", "processor", "versions", "xla_flags"} <= set(row["environment"])


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (b'{"experiment": "toy", "point": {"si', "the last line is not JSON"),
        (b"\xff\xfe\x00 not text\n", "the last line is not JSON"),
        (b'{"other": 1}\n', "line 4 is no record of an experiment (no experiment, point, status, result)"),
        (b"3\n", "line 4 is no record"),
    ],
)
def test_a_corrupted_last_line_is_reported_and_skipped(tmp_path, tail, said):
    path = tmp_path / "toy.jsonl"
    run(TOY, path)
    path.write_bytes(path.read_bytes() + tail)
    rows, problems = read(path)
    assert len(rows) == 3
    assert len(problems) == 1
    assert said in problems[0]
    more = replace(TOY, points=lambda preset, target: points_of(*["work"] * 4))
    assert said in run(more, path)[0]
    rows, problems = read(path)  # what was appended stands on a line of its own
    assert [row["point"]["size"] for row in rows] == [1, 2, 3, 4]
    assert len(problems) == 1


def test_a_lost_line_is_measured_again(tmp_path):
    path = tmp_path / "toy.jsonl"
    run(TOY, path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:40])
    run(TOY, path)
    assert [row["point"]["size"] for row in read(path).rows] == [1, 2, 3]


def test_failures_are_rows_and_retry_measures_them_again(tmp_path):
    path = tmp_path / "toy.jsonl"
    run(doing("work", "fail", "exhaust", "none", "infeasible"), path)
    rows = read(path).rows
    assert [row["status"] for row in rows] == ["ok", "failed", "out of memory", "out of memory", "infeasible"]
    assert rows[1]["reason"] == "ValueError: first line"
    assert rows[4]["result"] == {"minimum_bytes": 5, "lower_bound_bytes": 3}
    calls = []
    again = replace(doing("work", "fail", "exhaust"), measure=lambda point: calls.append(point["size"]) or {"bytes": 0})
    run(again, path)
    assert calls == []
    run(again, path, retry=True)
    assert calls == [2]
    assert [row["status"] for row in read(path).rows[:2]] == ["ok", "ok"]
    text = TOY.text(read(path).rows)
    assert "3, exhaust: out of memory, RuntimeError: RESOURCE_EXHAUSTED" in text


@pytest.mark.slow
def test_a_point_in_a_process_of_its_own_may_die(tmp_path):
    path = tmp_path / "toy.jsonl"
    apart = replace(TOY, apart=_always, points=_dying)
    run(apart, path)
    rows = read(path).rows
    assert [row["status"] for row in rows] == ["ok", "out of memory", "ok"]
    assert "exit code 9" in rows[1]["reason"]
    assert len({os.getpid(), rows[0]["result"]["process"], rows[2]["result"]["process"]}) == 3


def _always(preset, target):
    return True


def _dying(preset, target):
    return points_of("work", "die", "work")


def test_a_killed_process_is_told_from_an_answer():
    assert isinstance(call_apart(os._exit, 3), Killed)
    assert call_apart(divmod, 7, 2) == (3, 1)


def test_two_experiments_may_share_a_file(tmp_path):
    path = tmp_path / "both.jsonl"
    run(TOY, path)
    run(replace(TOY, name="other"), path)
    assert len(path.read_text().splitlines()) == len(read(path).rows) == 6
    assert len(TOY.read(path)[0]) == 3


def test_on_a_device_each_point_has_a_process_and_runs_for_a_target_it_is_compiled():
    for experiment in EXPERIMENTS.values():
        assert [experiment.apart(*where) for where in (("cpu", None), ("gpu", None), ("gpu", "h200"))] == [False, True, False]
    for module in (resnet_depth, mlp_depth, lstm_length):
        assert {point["level"] for point in module.points("gpu", None)} == {"run"}
    levels = {(point["level"], point["target"]) for point in resnet_depth.points("gpu", "h200")}
    assert levels == {("compiled", "h200")}


@pytest.mark.parametrize(
    ("model", "strategy", "options"),
    [
        ("mlp", "plain JAX", {"batch": 64, "width": 8}),
        ("mlp", "sqrt(n)", {"batch": 64, "width": 8}),
        pytest.param(
            *("lstm", "optimal@0.7", {"layers": 1, "hidden": 8, "batch": 2, "inputs": 4, "classes": 5}), marks=pytest.mark.slow
        ),
    ],
)
def test_a_step_that_runs_says_what_it_took(model, strategy, options):
    (point,) = growth.points(model, (8,), (strategy,), "run", None, time_limit=1.0, **options)
    result = growth.measure(point)
    assert result["step_seconds"] > 0
    assert result["device_peak_bytes"] is None  # the CPU's allocator does not say
    assert result["total_bytes"] > result["temp_bytes"] > 0


def test_the_time_left_is_told(tmp_path):
    seen = []
    run(replace(TOY, weight=lambda point: point["size"]), tmp_path / "toy.jsonl", report=lambda what, *_: seen.append(what))
    assert seen[0] == "1, work"
    assert all("left" in what for what in seen[1:])


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="smoke, cpu, gpu"):
        run(TOY, tmp_path / "toy.jsonl", preset="huge")
    with pytest.raises(InvalidArgument, match="remat-lab experiment"):
        read(tmp_path / "absent.jsonl")
    append(tmp_path / "other.jsonl", {"experiment": "other", "point": {}, "status": "ok", "result": {}})
    with pytest.raises(InvalidArgument, match="no row of the experiment 'toy'"):
        TOY.read(tmp_path / "other.jsonl")
    with pytest.raises(InvalidArgument, match="only on the device that is here"):
        step_time.points("gpu", "h200")


# --- the command line -------------------------------------------------------------------------------------------------------


def test_commands_measure_and_show_from_the_file_alone(tmp_path, monkeypatch):
    here = EntryPoint("toy", f"{__name__}:TOY", "remat_lab.experiments")
    monkeypatch.setattr(EntryPoint, "load", lambda self: TOY)
    monkeypatch.setattr("remat_lab.experiment.entry_points", lambda group, name="toy": [here] if name == "toy" else [])
    monkeypatch.chdir(tmp_path)

    def invoke(*args):
        return CliRunner().invoke(app, list(args))

    done = invoke("experiment", "toy", "--preset", "smoke", "--out", "results")
    assert done.exit_code == 0, done.output
    assert "sizes" in done.stdout
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"toy.jsonl", "toy.svg", "toy.png"}
    pictures = [(tmp_path / "results" / name).read_bytes() for name in ("toy.svg", "toy.png")]
    with (tmp_path / "results" / "toy.jsonl").open("a") as file:
        file.write('{"cut')
    shown = invoke("table", "toy", "--out", "results")
    assert shown.exit_code == 0
    assert shown.stdout == done.stdout
    assert "the last line is not JSON" in shown.stderr
    assert invoke("plot", "toy", "--out", "results").exit_code == 0
    assert [(tmp_path / "results" / name).read_bytes() for name in ("toy.svg", "toy.png")] == pictures
    assert invoke("plot", "toy", "--out", "results", "--picture", "one.svg").exit_code == 0
    assert (tmp_path / "one.svg").exists()
    for arguments, said in (
        (("experiment", "nothing"), "installed are toy"),
        (("table", "nothing"), "installed are toy"),
        (("table", "toy"), "cannot read toy.jsonl"),
        (("table", "nothing.json"), "cannot read nothing.json"),
        (("experiment", "toy", "--preset", "x"), "smoke, cpu, gpu"),
    ):
        failed = invoke(*arguments)
        assert failed.exit_code == 2, failed.output
        assert said in failed.stderr


def test_every_experiment_is_an_entry_point(checkout):
    import tomllib

    declared = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["entry-points"]["remat_lab.experiments"]
    assert declared == {module.EXPERIMENT.name: f"{module.__name__}:EXPERIMENT" for module in MODULES}


@pytest.mark.parametrize("preset", ["smoke", "cpu", "gpu"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_points_are_distinct_and_ready_for_json(name, preset):
    points = EXPERIMENTS[name].points(preset, None)
    keys = [json.dumps(point, sort_keys=True) for point in points]
    assert len(set(keys)) == len(keys) > 0
    assert all(EXPERIMENTS[name].weight(point) > 0 for point in points)


# --- strategies -------------------------------------------------------------------------------------------------------------


def test_an_executor_by_hand():
    """x -> sin -> cos -> sum, and back: what is written, what is shared, what is in place."""

    def value(x):
        return jnp.sum(jnp.cos(jnp.sin(x)))

    loss = as_loss(value, 0, False, (), ())
    program = analyse(loss, loss.call((jax.ShapeDtypeStruct((1000,), jnp.float32),), {})).program
    found = executed_bytes(program)
    leaves = {v for v in program.outputs if isinstance(v, int)}
    assert found[UNSHARED] == sum(program.bytes[v] for q in program.equations for v in q.outs if v not in leaves)
    assert 4000 <= found[SHARED] < found[UNSHARED]


@pytest.fixture(scope="module")
def small():
    return Subject.of(growth.FACTORIES["resnet"](14, batch=4, image=32, width=8, classes=10), None)


def test_dropping_batch_norm_keeps_every_convolution(small):
    plan = small.plan("keep all", time_limit=1)
    names = {v: plan.fused.root(v).name for v in plan.graph.steps}
    order = keep_linear_order(plan)
    again = [v for v in set(order) if order.count(v) > 1]
    assert again
    assert not {names[v] for v in again} & {"conv_general_dilated", "dot_general"}
    dropped = small.plan(DROP, time_limit=1)
    assert dropped.predicted.peak_bytes < plan.predicted.peak_bytes
    assert 0 < dropped.predicted.extra_flops_ratio < 0.05


def test_no_strategy_of_that_name(small):
    with pytest.raises(ValueError, match="no strategy"):
        small.plan("other", time_limit=1)


def test_buffers_of_a_real_step_never_overlap(small):
    from experiments.strategies import executed_graph

    graph, in_place = executed_graph(small.planner.fused.program)
    assert overlapping(assign(graph, in_place=in_place)) == []


def test_a_loop_written_out_is_the_scan():
    def body(carry, row):
        return jnp.tanh(carry + row["a"]), (carry * row["b"], carry)

    rows = {"a": jnp.arange(5.0), "b": jnp.arange(1.0, 6.0)}
    expected, found = lax.scan(body, jnp.float32(0.5), rows), loop(body, jnp.float32(0.5), rows)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("depth", [14, 50, 101, 200, 401, 602, 1001])
def test_stages_add_up(depth):
    counts = growth.stages(depth)
    assert 3 * sum(counts) + 2 == depth
    assert min(counts) >= 1


def test_stages_of_other_depths_are_refused():
    with pytest.raises(ValueError, match="3n"):
        growth.stages(100)


# --- growth -----------------------------------------------------------------------------------------------------------------


def test_memory_grows_as_the_paper_says():
    """Planned memory of the uniform chain: linear, square root, logarithmic (Chen et al. 2016, sections 4.1 and 4.3)."""
    points = growth.points("mlp", (64, 128, 256), ("keep all", "sqrt(n)", "recursive"), "planned", None, batch=1024, width=32)
    rows = [{"point": point, "status": "ok", "result": growth.measure(point)} for point in points]
    section = exponents(rows, "depth", 64)[0]
    fits = {line[0].removeprefix("mlp, "): float(line[1].split()[0]) for line in section.rows}
    assert fits["keep all"] == pytest.approx(1.0, abs=0.05)
    assert fits["sqrt(n)"] == pytest.approx(0.5, abs=0.05)
    assert 0 < fits["recursive"] <= 0.2
    by_strategy = {row["point"]["strategy"]: row["result"] for row in rows if row["point"]["size"] == 256}
    assert by_strategy["sqrt(n)"]["extra_flops"] < 1 / 3
    assert by_strategy["keep all"]["extra_flops"] == 0
    assert exponents(rows, "depth", 128) == []  # two sizes prove nothing


def _with_masks(layers):
    """A chain whose backward pass also reads a mask of each layer, a 64th of it in bytes."""
    nodes = []
    for i in range(layers):
        nodes += [Node(f"f{i}", 1, 64, (2 * i - 2,) if i else ()), Node(f"mask{i}", 1, 1, (2 * i,))]
    for i in reversed(range(layers)):
        above = (len(nodes) - 1,) if i < layers - 1 else ()
        nodes.append(Node(f"b{i}", 1, 64, (2 * i, 2 * i + 1, *above), backward=True, external=not i))
    return Graph(tuple(nodes), (len(nodes) - 1,))


@pytest.mark.parametrize("solver", ["sqrt", "chen"])
def test_what_is_too_small_to_decide_about_does_not_grow_with_depth(solver):
    """A hundredth of all bytes, once always kept, made memory grow linearly in the end."""
    graphs = {n: _with_masks(n) for n in (64, 256, 1024)}
    for graph in graphs.values():
        assert sum(graph.nodes[v].charge for v in Forward.of(graph).kept) <= 32
    assert exponent([(n, solve(graph, None, solver).peak) for n, graph in graphs.items()]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
def test_compiled_memory_grows_likewise():
    """Temporaries as compiled, within 0.1 of the exponents."""
    points = growth.points("mlp", (32, 64, 128), ("keep all", "sqrt(n)"), "compiled", None, batch=1024, width=64)
    found = {"keep all": [], "sqrt(n)": []}
    for point in points:
        found[point["strategy"]].append((point["size"], growth.measure(point)["temp_bytes"]))
    assert exponent(found["keep all"]) == pytest.approx(1.0, abs=0.1)
    assert exponent(found["sqrt(n)"]) == pytest.approx(0.5, abs=0.1)


def test_exponents_of_power_laws():
    assert exponent([(x, 5 * x**0.3) for x in (1, 7, 50)]) == pytest.approx(0.3)
    assert exponent([(1, 1), (2, 2)]) is None
    assert exponent([(1, 1), (2, 2), (2, 2), (3, 0)]) is None


def _rows(*triples):
    fixed = {"model": "resnet", "level": "planned", "target": None}
    return [
        {"point": {**fixed, "strategy": strategy, "size": size}, "status": "ok", "result": result}
        for strategy, size, result in triples
    ]


def test_tables_take_figures_from_whichever_row_has_them():
    rows = _rows(
        ("keep all", 50, {"planned_bytes": 2e9}),
        ("keep all", 50, {"planned_bytes": 2e9, "temp_bytes": 3e9}),
        ("optimal@0.2", 1001, {"planned_bytes": 8e9, "extra_flops": 0.1, "temp_bytes": 9e9}),
        ("sqrt(n)", 50, {}),
    )
    headings = {section.heading: section.rows for section in by_size(rows, "layers")}
    assert headings["resnet: planned temporaries (MB)"] == [["keep all", "2,000.0", "-"], ["optimal@0.2", "-", "8,000.0"]]
    assert headings["resnet: temporaries as compiled (MB)"][0] == ["keep all", "3,000.0", "-"]
    (section,) = paper_table(rows)
    assert ["optimal@0.2", "8.0 GB", "9.0 GB", "-", "+10.0%", "-"] in section.rows
    assert ["paper, sublinear plan", "7 GB", "-", "-", "30% of time", "-"] in section.rows
    assert paper_table(rows[:2]) == []


def test_how_far_below_sharing():
    rows = _rows(("in-place + sharing", 16, {"planned_bytes": 600}), ("sqrt(n)", 16, {"planned_bytes": 9, "temp_bytes": 100}))
    assert below_sharing(rows[:1], "resnet", "steps") == []
    (section,) = below_sharing(rows, "resnet", "steps")
    assert section.rows == [["resnet, sqrt(n)", "6.0"]]


def test_limits_tell_what_fits():
    device = {"device_bytes": 10}
    rows = _rows(
        ("plain JAX", 50, {"total_bytes": 8, **device}),
        ("plain JAX", 200, {"total_bytes": 12, **device}),
        ("sqrt(n)", 50, {"total_bytes": 3, **device}),
        ("sqrt(n)", 200, {}),
    )
    for row in rows:
        row["point"]["level"] = "compiled"
    rows[3]["status"] = "out of memory"
    (section,) = limits(rows, "layers")
    assert section.rows == [["plain JAX", "50", "200"], ["sqrt(n)", "50", "200"]]
    assert limits(_rows(("plain JAX", 50, {"total_bytes": 8})), "layers") == []


def test_strategies_are_in_one_order():
    names = ("optimal@0.2", "sqrt(n)", "optimal@100GB", "no optimisation", "optimal@0.5")
    rows = _rows(*((name, 50, {}) for name in names))
    assert strategies(rows) == ["no optimisation", "sqrt(n)", "optimal@100GB", "optimal@0.5", "optimal@0.2"]


def test_targets_are_kept_apart():
    rows = _rows(("keep all", 50, {"planned_bytes": 2e9}), ("keep all", 50, {"planned_bytes": 4e9}))
    rows[1]["point"]["target"] = "h200"
    assert [section.rows for section in by_size(rows, "layers")] == [[["keep all", "2,000.0"]], [["keep all", "4,000.0"]]]


def test_labels_are_spread_without_touching():
    places = spread([0, 1, 2, 50, 51], 10)
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(places))
    assert np.mean(places[:3]) == pytest.approx(1)
    assert spread([5.0, 40.0], 10) == [5.0, 40.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke(name, tmp_path):
    """Every experiment from points to picture; nothing may fail, plans that cannot be made excepted."""
    experiment, path = EXPERIMENTS[name], tmp_path / f"{name}.jsonl"
    assert experiment.run(path, preset="smoke") == []
    rows, problems = experiment.read(path)
    assert problems == []
    assert len(rows) == len(experiment.points("smoke", None))
    assert [row["reason"] for row in rows if row["status"] not in ("ok", "infeasible")] == []
    text = experiment.text(rows)
    assert experiment.title in text
    figure = experiment.draw(rows)
    figure.savefig(tmp_path / "picture.png")
    assert all(ax.get_xlabel() for ax in figure.axes if ax.axison)
