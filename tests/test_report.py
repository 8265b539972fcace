"""Tables, JSON files, labels and pictures, all made from the JSON of a comparison."""

import itertools
import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_lab.comparison import Comparison, Row, Timeline
from remat_lab.errors import InvalidArgument
from remat_lab.labels import Box, place_labels
from remat_lab.plots import draw, picture
from remat_lab.report import as_text, read_comparison, write_json
from remat_lab.summary import describe_progress
from remat_lab.units import difference, percent, size, sparkline
from solvers.solution import Progress

MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


def planned(strategy, family, peak, extra):
    rise = [peak * (i + 1) // 40 for i in range(40)]
    return Row(
        strategy=strategy,
        family=family,
        status="optimal",
        solver="intervals",
        planned_peak_bytes=peak,
        compiled_temp_bytes=peak + 500_000,
        compiled_temp_by_scheduler={"default": 2 * peak, "memory": peak + 500_000},
        compiler_options=MEMORY,
        argument_bytes=1_500_000,
        output_bytes=1_100_000,
        planned_extra_flops_ratio=extra,
        compiled_flops=7e9 * (1 + extra),
        compiled_extra_flops_ratio=extra - 0.01,
        step_seconds=0.15,
        step_time_ratio=0.75 + extra,
        max_grad_difference=0.0,
        bitwise_equal=True,
        cost=1 + extra,
        planned_extra_cost_ratio=extra,
        lower_bound=1 + extra,
        planned_bound_ratio=extra,
        gap=0.0,
        plan_seconds=12.34,
        compile_seconds=9.5,
        timeline=Timeline(live_bytes=(*rise, *reversed(rise)), starts_backward=40, budget_bytes=peak + 1000),
    )


@pytest.fixture
def data():
    plain = Row(
        strategy="plain",
        family="plain",
        compiled_temp_bytes=75_400_000,
        compiled_temp_by_scheduler={"default": 75_400_000, "memory": 77_000_000},
        argument_bytes=1_500_000,
        output_bytes=1_100_000,
        compiled_flops=7e9,
        compiled_extra_flops_ratio=0.0,
        step_seconds=0.2,
        step_time_ratio=1.0,
        max_grad_difference=0.0,
        bitwise_equal=True,
        compile_seconds=10.0,
    )
    absent = Row(strategy="nn_remat", family="policy", status="absent", reason="the model offers no blocks to transform")
    rows = (
        plain,
        absent,
        Row(strategy="dots_with_no_batch_dims_saveable", family="policy", compiled_temp_bytes=26_000_000, step_time_ratio=0.9),
        planned("keep_all", "heuristic", 55_900_000, 0.0),
        planned("optimal@0.5", "optimal", 28_000_000, 0.0001),
        Row(strategy="optimal@0.01", family="optimal", status="infeasible", reason="a budget of 5 bytes is too small"),
    )
    schedulers = {"default": {}, "memory": MEMORY}
    comparison = Comparison(
        title="tiny depth=2",
        rows=rows,
        keep_all_peak_bytes=55_900_000,
        settings={"rounds": 5, "schedulers": schedulers},
        environment={"cores": 2, "processor": "a processor", "backend": "cpu", "versions": {"jax": "0.12"}},
    )
    return json.loads(json.dumps(comparison.to_json()))


def line_of(text, start):
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_table_shows_every_figure_of_a_row(data):
    text = as_text(data, width=160)
    cells = line_of(text, "optimal@0.5").split()
    assert cells == "optimal@0.5 28.0 28.5 56.0 1.5 1.1 <0.1% -1.0% 75% 0 (bitwise) optimal <0.1% <0.1% 12.3 9.5".split()
    assert line_of(text, "plain").split() == "plain - 75.4 77.0 1.5 1.1 - 0.0% 100% 0 (bitwise) - - - - 10.0".split()


def test_the_notes_say_units_options_and_why_rows_are_missing(data):
    text = as_text(data, width=160)
    assert "MB (10^6 bytes)" in text
    assert "plain JAX (200 ms): median of 5 rounds" in text
    assert "xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED: keep_all, optimal@0.5." in text
    assert "nn_remat: absent, the model offers no blocks to transform" in text
    assert "optimal@0.01: infeasible, a budget of 5 bytes is too small" in text


@pytest.mark.parametrize("kernels", [None, 1234])
@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_nothing_is_cut_off_at_ordinary_widths(data, width, kernels):
    for row in data["rows"]:
        row |= {"kernels": kernels, "kernel_bytes": kernels and 10**9}
    text = as_text(data, width=width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert all(line_of(text, row["strategy"][:19]) for row in data["rows"])


def test_brackets_in_a_title_are_not_markup(data):
    assert as_text({**data, "title": "m sizes=[red]"}).startswith("m sizes=[red]")


def test_json_is_written_whole_or_not_at_all(tmp_path, data):
    path = tmp_path / "new" / "compare.json"
    write_json(data, path)
    assert read_comparison(path) == data
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json({"rows": [float("nan")]}, path)
    with pytest.raises(TypeError):
        write_json({"rows": [object()]}, path)
    assert read_comparison(path) == data
    assert os.listdir(path.parent) == ["compare.json"]


def test_reading_what_is_no_comparison_says_so(tmp_path):
    with pytest.raises(InvalidArgument, match="cannot read"):
        read_comparison(tmp_path / "absent.json")
    (tmp_path / "text.json").write_text("no")
    with pytest.raises(InvalidArgument, match="not a JSON file"):
        read_comparison(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(InvalidArgument, match="does not hold a comparison"):
        read_comparison(tmp_path / "list.json")


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_pictures_are_drawn_from_the_json_alone(tmp_path, data, suffix, start):
    path = tmp_path / "deep" / f"compare{suffix}"
    picture(data, path)
    assert path.read_bytes().startswith(start)


def test_a_picture_says_units_and_marks_the_boundary(data):
    figure = draw(data)
    scatter, *timelines = [ax for ax in figure.get_axes() if ax.axison]
    assert "MB" in scatter.get_xlabel()
    assert "% of plain JAX's 200 ms" in scatter.get_ylabel()
    assert {text.get_text() for text in scatter.texts} == {
        "plain",
        "dots_with_no_batch_dims_saveable",
        "keep_all",
        "optimal@0.5",
    }
    assert len(timelines) == 2
    for ax in timelines:
        assert ax.get_ylabel() in ("live (MB)", "")
        assert any(list(line.get_xdata()) == [40, 40] for line in ax.lines)


def test_a_picture_without_plans_or_timings_still_tells_the_work(tmp_path, data):
    rows = [{**row, "timeline": None, "step_time_ratio": None, "step_seconds": None} for row in data["rows"]]
    figure = draw({**data, "rows": rows})
    (ax,) = figure.get_axes()
    assert ax.get_ylabel().startswith("FLOPs")


def test_labels_of_a_picture_do_not_overlap(data):
    crowd = [{**data["rows"][4], "strategy": f"optimal@0.{i}", "step_time_ratio": 0.75 + i / 1000} for i in range(9)]
    figure = draw({**data, "rows": [data["rows"][0], *crowd]})
    boxes = [text.get_window_extent() for text in figure.get_axes()[0].texts]
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_an_unknown_format_of_picture_is_refused(tmp_path, data):
    with pytest.raises(InvalidArgument, match="suffix must be one of"):
        picture(data, tmp_path / "picture.docx")


coordinates = st.tuples(st.floats(0, 800), st.floats(0, 600))


@settings(deadline=None)
@given(
    st.lists(st.tuples(coordinates, st.tuples(st.floats(10, 150), st.floats(8, 14))), max_size=14),
    st.lists(coordinates, max_size=6),
)
def test_placed_labels_never_overlap(cases, clear):
    points, sizes = [point for point, _ in cases], [extent for _, extent in cases]
    bounds = Box(0, 0, 800, 600)
    boxes = place_labels(points, sizes, bounds, marker=4, clear=clear)
    assert [(box.width, box.height) for box in boxes] == sizes
    assert all(bounds.contains(box) for box in boxes)
    assert all(a.overlap(b) == 0 for a, b in itertools.combinations(boxes, 2))
    markers = [Box(x - 4, y - 4, 8, 8) for x, y in (*points, *clear)]
    assert all(box.overlap(marker) == 0 for box in boxes for marker in markers)


def test_a_label_larger_than_its_bounds_is_still_placed():
    (box,) = place_labels([(5, 5)], [(50, 10)], Box(0, 0, 20, 20), marker=1)
    assert (box.width, box.height) == (50, 10)


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (Progress("auto", 1.0, math.inf, 8.0), "solve: auto, no plan yet"),
        (Progress("auto", 1.0, 10.0, 8.0), "solve: auto, cost 10, at most 20.0% above the best"),
        (Progress("auto", 1.0, 10.0, -math.inf), "solve: auto, cost 10"),
        (Progress("plan 2 compiles to 3 MB", 1.0, math.nan, math.nan), "solve: plan 2 compiles to 3 MB"),
    ],
)
def test_progress_says_what_is_known(now, line):
    assert describe_progress("solve", now) == line


def test_numbers_for_people():
    assert [percent(x) for x in (None, 0, 0.0001, -0.0001, 0.5, 12.5)] == [
        "-",
        "0.0%",
        "<0.1%",
        ">-0.1%",
        "+50.0%",
        "+1,250.0%",
    ]
    assert [size(x) for x in (0, 12, 1500, 55_900_000, 2.5e9)] == ["0 B", "12 B", "1.50 kB", "55.9 MB", "2.50 GB"]
    assert [difference(*x) for x in ((None,), (0.0, True), (0.0, False), (1e-6, False))] == ["-", "0 (bitwise)", "0", "1.0e-06"]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 80))
def test_a_sparkline_never_loses_the_peak(values, width):
    bars = sparkline(values, width)
    assert len(bars) == min(width, len(values))
    assert max(values) == 0 or "█" in bars
