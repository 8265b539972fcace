"""Gap and seconds of every solver, over the public planning graphs and two chains.

The graphs are JSON files of the folder `../shared/graphs` beside the current directory; without it only the chains are solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.figures import tidy
from experiments.records import Point, Row
from experiments.sweeps import Experiment
from experiments.tables import Section
from remat_lab.units import NOTHING, percent, seconds
from solvers.graph import Graph, training_chain
from solvers.simulate import keep_all_peak
from solvers.solve import available, solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRAPHS = Path("../shared/graphs")
_LEFT_OUT = {"brute_force", "keep_all"}  # an oracle for ten nodes, and no answer to a budget
_LARGEST = 400  # nodes of the graphs of the cpu preset


def points(preset: str, target: str | None) -> list[Point]:
    """Every solver on every graph under two budgets."""
    solvers = [name for name in available() if name not in _LEFT_OUT]
    if preset == "smoke":
        graphs, fractions, limit = ["chain 8"], [0.6], 1.0
    else:
        files = sorted(GRAPHS.glob("*.json")) if GRAPHS.is_dir() else []
        graphs = ["chain 32", *(path.stem for path in files if len(Graph.load(path)) <= _LARGEST)]
        fractions, limit = [0.9, 0.65], 10.0
    return [
        {"graph": graph, "fraction": fraction, "solver": solver, "time_limit": limit, "workers": 2}
        for graph in graphs
        for fraction in fractions
        for solver in solvers
    ]


def measure(point: Point) -> dict[str, Any]:
    """One solver, one graph, one budget; cost and bound relative to computing everything once.

    Raises:
        InfeasibleBudget: if the solver finds nothing.
        UnsupportedGraph: if the solver does not treat such graphs.
    """
    name = point["graph"]
    graph = training_chain(int(name.split()[1])) if name.startswith("chain ") else Graph.load(GRAPHS / f"{name}.json")
    budget = int(point["fraction"] * keep_all_peak(graph))
    found = solve(graph, budget, point["solver"], time_limit=point["time_limit"], workers=point["workers"])
    return {
        "status": found.status.value,
        "extra_cost": found.overhead,
        "bound": found.lower_bound / graph.keep_all_cost - 1,
        "gap": found.gap,
        "scope": found.scope,
        "seconds": found.seconds,
        "nodes": len(graph),
    }


def problems(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """Graphs and fractions, as they come."""
    return list(dict.fromkeys((row["point"]["graph"], row["point"]["fraction"]) for row in rows))


def best(rows: Sequence[Row]) -> dict[tuple[str, float], float]:
    """The least extra cost that any solver found, by problem."""
    found: dict[tuple[str, float], float] = {}
    for row in rows:
        if row["status"] == "ok":
            key = row["point"]["graph"], row["point"]["fraction"]
            found[key] = min(found.get(key, float("inf")), row["result"]["extra_cost"])
    return found


def tables(rows: Sequence[Row]) -> list[Section]:
    """Extra cost, gap and seconds of each solver on each problem."""
    sections: list[Section] = []
    for graph, fraction in problems(rows):
        lines = []
        for row in rows:
            point, result = row["point"], row["result"]
            if (point["graph"], point["fraction"]) != (graph, fraction):
                continue
            if row["status"] == "ok":
                cells = [percent(result["extra_cost"], digits=2), percent(result["gap"], sign=False, digits=2)]
                lines.append([point["solver"], *cells, seconds(result["seconds"]), result["status"], result["scope"]])
            else:
                why = "not for such graphs" if "UnsupportedGraph" in (row["reason"] or "") else row["status"]
                lines.append([point["solver"], NOTHING, NOTHING, seconds(row["seconds"]), why, NOTHING])
        columns = ("solver", "extra cost", "gap", "seconds", "status", "bound is for")
        sections.append(Section(f"{graph} at {fraction:g} of the keep-all peak", columns, lines))
    return sections


def draw(rows: Sequence[Row]) -> Figure:
    """For each solver, a mark for each problem: cost above the best that any solver found, and seconds."""
    from matplotlib.figure import Figure

    least = best(rows)
    good = [row for row in rows if row["status"] == "ok"]
    names = list(dict.fromkeys(row["point"]["solver"] for row in rows))
    figure = Figure(figsize=(12, 1.6 + 0.33 * len(names)), layout="constrained")
    figure.suptitle("Every solver on every problem (filled: proved optimal)", fontsize=11)
    left, right = figure.subplots(1, 2, sharey=True)
    for row in good:
        y = names.index(row["point"]["solver"])
        above = 100 * (row["result"]["extra_cost"] - least[row["point"]["graph"], row["point"]["fraction"]])
        face = "#0b3c5d" if row["result"]["status"] == "optimal" else "none"
        for ax, x in ((left, above), (right, max(row["result"]["seconds"], 1e-4))):
            ax.plot(x, y, "o", color="#0b3c5d", markerfacecolor=face, markersize=6, alpha=0.8)
    solved = {name: sum(row["point"]["solver"] == name for row in good) for name in names}
    total = len(problems(rows))
    left.set_yticks(range(len(names)), [f"{name} ({solved[name]} of {total})" for name in names])
    left.invert_yaxis()
    left.set_xscale("symlog", linthresh=0.1)
    left.margins(x=0.06)
    left.set_xlabel("extra cost above the best found (% of computing all once)")
    right.set_xscale("log")
    right.set_xlabel("seconds")
    for ax in (left, right):
        tidy(ax)
    return figure


EXPERIMENT = Experiment(
    name="optimality",
    title="Solvers on public graphs: cost, gap and seconds",
    points=points,
    measure=measure,
    tables=tables,
    draw=draw,
)
