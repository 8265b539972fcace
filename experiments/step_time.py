"""Step time against depth and length: plain JAX and plans, run in alternation, relative to plain JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.compared import measure, only_here, point, strategies_of
from experiments.figures import label_ends, line_styles, tidy
from experiments.records import Point, Row
from experiments.sweeps import Experiment
from experiments.tables import Section
from remat_lab.units import NOTHING, duration, megabytes, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WANTED = ("nn_remat", "keep_all", "sqrt", "optimal")
_SIZES = {"resnet": "depth", "mlp": "layers", "lstm": "length"}


def points(preset: str, target: str | None) -> list[Point]:
    """Sizes that a step of takes milliseconds (smoke), a fraction of a second (cpu), or fills a GPU."""
    only_here(preset, target)
    sweeps: dict[str, tuple[Sequence[int], dict[str, Any]]]
    if preset == "smoke":
        sweeps, rounds, limit = {"mlp": ((4, 8), {"batch": 128, "width": 32})}, 3, 1.0
    elif preset == "cpu":
        sweeps, rounds, limit = (
            {
                "resnet": ((8, 20, 32, 44), {"batch": 32}),
                "mlp": ((8, 16, 32, 64), {"batch": 2048, "width": 128}),
                "lstm": ((16, 64, 256), {"layers": 2, "hidden": 64, "batch": 8}),
            },
            11,
            10.0,
        )
    else:
        sweeps, rounds, limit = (
            {
                "resnet": ((20, 56, 110), {"batch": 256}),
                "lstm": ((64, 256), {"layers": 4, "hidden": 512, "batch": 64}),
            },
            11,
            10.0,
        )
    return [
        point(
            f"{model} {size}",
            model,
            None,
            budgets=("0.5", "0.3"),
            strategies=_WANTED,
            rounds=rounds,
            time_limit=limit,
            **{_SIZES[model]: size, **options},
        )
        for model, (sizes, options) in sweeps.items()
        for size in sizes
    ]


def size_of(row: Row) -> int:
    """The depth or length of a row's model."""
    return int(row["point"]["options"][_SIZES[row["point"]["model"]]])


def tables(rows: Sequence[Row]) -> list[Section]:
    """Medians with quartiles, over rounds in which every program ran once."""
    sections: list[Section] = []
    for model in dict.fromkeys(row["point"]["model"] for row in rows):
        lines = []
        for row in sorted((row for row in rows if row["point"]["model"] == model), key=size_of):
            for one in strategies_of(row):
                ratio, quartiles = one.get("step_time_ratio"), one.get("step_time_ratio_quartiles")
                spread = NOTHING if not quartiles else f"{100 * quartiles[0]:.0f} to {100 * quartiles[1]:.0f}%"
                seconds = one.get("step_seconds")
                lines.append(
                    [
                        f"{row['point']['name']}, {one['strategy']}",
                        megabytes(one["compiled_temp_bytes"]),
                        NOTHING if seconds is None else duration(seconds),
                        percent(ratio, sign=False, digits=0),
                        spread,
                    ]
                )
        columns = (_SIZES[model], "temporaries, MB", "median step", "of plain JAX", "quartiles")
        sections.append(Section(f"{model}: step time, programs in alternation", columns, lines))
    return sections


def draw(rows: Sequence[Row]) -> Figure:
    """A panel for each model: step time relative to plain JAX, with quartiles."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    models = list(dict.fromkeys(row["point"]["model"] for row in rows))
    names = list(dict.fromkeys(one["strategy"] for row in rows for one in strategies_of(row) if one["strategy"] != "plain"))
    styles = line_styles(names)
    figure = Figure(figsize=(1 + 5.4 * len(models), 4.6), layout="constrained")
    figure.suptitle("Step time against depth and length; bars: quartiles over alternated rounds", fontsize=11)
    drawn = []
    for model, ax in zip(models, figure.subplots(1, len(models), squeeze=False)[0], strict=True):
        mine = sorted((row for row in rows if row["point"]["model"] == model), key=size_of)
        sizes = [size_of(row) for row in mine]
        ends = []
        for k, (name, style) in enumerate(styles.items()):
            found = [(size_of(row), one) for row in mine for one in strategies_of(row) if one["strategy"] == name]
            found = [(x, one) for x, one in found if one.get("step_time_ratio") is not None]
            if not found:
                continue
            shift = 1 + 0.012 * (k - len(styles) / 2)  # so that bars do not lie on each other
            x, y = [size * shift for size, _ in found], [100 * one["step_time_ratio"] for _, one in found]
            spread = [[100 * edge for edge in one["step_time_ratio_quartiles"]] for _, one in found]
            bars = [[abs(edges[side] - v) for v, edges in zip(y, spread, strict=True)] for side in (0, 1)]
            ax.errorbar(x, y, yerr=bars, color=style.color, linestyle=style.style, marker=style.marker, markersize=5, capsize=2)
            ends.append((x[-1], y[-1], name, style.color))
        ax.axhline(100, color="black", linewidth=1, linestyle=":")
        ax.set_xscale("log", base=2)
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xlim(sizes[0] * 0.9, sizes[-1] * max(1.4, (sizes[-1] / sizes[0]) ** 0.4))
        ax.set_ylim(bottom=0)
        ax.set_xlabel(f"{model}: {_SIZES[model]}")
        ax.set_ylabel("step time (% of plain JAX)")
        tidy(ax)
        drawn.append((ax, ends))
    figure.draw_without_rendering()
    for ax, ends in drawn:
        label_ends(ax, ends)
    return figure


EXPERIMENT = Experiment(
    name="step-time", title="Step time: plain JAX and plans", points=points, measure=measure, tables=tables, draw=draw
)
