"""The laboratory in the terminal: charts made of characters, tables, and the four tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from remat_lab.lab_layers import Chain
from remat_lab.lab_run import Trial, segment_curve
from remat_lab.units import percent, size

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_HEIGHT, _WIDTH = 6, 64


def chart(values: Sequence[float], *, top: float, width: int = _WIDTH, height: int = _HEIGHT) -> list[str]:
    """Bars from zero to `top`, one column for each value, or for several of them the largest.

    Args:
        values: zero or more each.
        top: what the upper edge stands for.
        width: columns at most.
        height: lines.
    """
    columns = min(width, len(values))
    edges = [len(values) * i // columns for i in range(columns + 1)]
    tops = [max(values[a:b]) for a, b in pairwise(edges)]
    eighths = [round(8 * height * value / top) if top else 0 for value in tops]
    return [
        "".join(_EIGHTHS[min(8, max(0, filled - 8 * line))] for filled in eighths).rstrip() for line in reversed(range(height))
    ]


def trace(trial: Trial, top: int) -> list[str]:
    """The live bytes of a run, with the beginning of the backward pass marked below."""
    live = trial.run.live
    lines = chart(live, top=top)
    columns = min(_WIDTH, len(live))
    at = trial.starts_backward * columns // len(live)
    left = [size(top), *[""] * (len(lines) - 1)]
    marked = "forward".ljust(at)[:at] + "^ backward"
    return [
        f"{trial.name}: peak {size(max(live))}, {trial.recomputed} layers run again, cost {percent(trial.solution.overhead)}",
        *(f"{label:>9} │{line}" for label, line in zip(left, lines, strict=True)),
        f"{'0':>9} └{'─' * columns}",
        f"{'':>9}  {marked}",
    ]


def curve(chain: Chain) -> list[str]:
    """Peak against the number of segments."""
    found = segment_curve(chain)
    top = max(peak for _, peak, _ in found)
    best = min(found, key=lambda row: row[1])
    wide = max(1, _WIDTH // len(found))
    lines = chart([peak for _, peak, _ in found for _ in range(wide)], top=top)
    left = [size(top), *[""] * (len(lines) - 1)]
    columns = min(_WIDTH, wide * len(found))
    return [
        f"Peak against the number of segments: least with {best[0]}, {size(best[1])}",
        *(f"{label:>9} │{line}" for label, line in zip(left, lines, strict=True)),
        f"{'0':>9} └{'─' * columns}",
        f"{'':>9}  1{'segments'.center(max(0, columns - 1 - len(str(len(found)))))}{len(found)}",
    ]


def table(trials: Sequence[Trial]) -> list[str]:
    """What each strategy keeps, recomputes and costs."""
    head = ("strategy", "peak", "of all", "kept", "checkpoints", "again", "cost", "status")
    full = trials[0].solution.peak
    rows = [
        (
            trial.name,
            size(trial.solution.peak),
            percent(trial.solution.peak / full, sign=False, digits=0),
            size(trial.kept_bytes),
            size(trial.checkpoint_bytes),
            str(trial.recomputed),
            percent(trial.solution.overhead),
            trial.solution.status.value,
        )
        for trial in trials
    ]
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(w) if k in (0, len(head) - 1) else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(head), "  ".join("─" * w for w in widths), *map(line, rows)]


def verdicts(trials: Sequence[Trial]) -> list[str]:
    """Each test, over all strategies: passed, or failed with those that failed it."""
    lines: list[str] = []
    for name in trials[0].tests:
        bad = [trial.name for trial in trials if not trial.tests[name]]
        lines.append(f"{'FAILED' if bad else 'passed':7} {name}{': ' + ', '.join(bad) if bad else ''}")
    return lines


def report(chain: Chain, trials: Sequence[Trial]) -> str:
    """Everything, as text."""
    top = max(max(trial.run.live) for trial in trials)
    lines = [
        f"A chain of {len(chain.layers)} layers ({chain.profile}), forward and backward executed in numpy.",
        "Counted: bytes of all arrays alive at each computation, but for the results,",
        "the gradients of parameters.",
        "",
        *table(trials),
        "kept: when the backward pass begins; checkpoints: what layers run again from;",
        "again: layers run again; cost: what that adds to the work of the whole step.",
        "",
    ]
    for trial in trials:
        lines += [*trace(trial, top), ""]
    return "\n".join([*lines, *curve(chain), "", "Tests of all strategies:", *verdicts(trials)])
