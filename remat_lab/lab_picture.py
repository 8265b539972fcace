"""The picture of the laboratory: the live bytes of every strategy, and the U-shaped curve over the number of segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from remat_lab.lab_layers import Chain
from remat_lab.lab_run import Trial, segment_curve
from remat_lab.plots import check_format, save_figure
from remat_lab.units import percent, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DARK = "#0b3c5d"


def picture(chain: Chain, trials: Sequence[Trial], path: str | Path) -> None:
    """Draws everything into one file.

    Raises:
        InvalidArgument: if the suffix is no format of pictures.
        OSError: if the file cannot be written.
    """
    check_format(Path(path))
    save_figure(draw(chain, trials), path)


def draw(chain: Chain, trials: Sequence[Trial]) -> Figure:
    """A panel for each strategy on common axes, and one for the curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.4), layout="constrained")
    figure.suptitle(
        f"{len(chain.layers)} layers ({chain.profile}): bytes alive at each computation, executed in numpy", fontsize=11
    )
    grid = figure.subplots(2, 3)
    axes = [ax for row in grid for ax in row]
    top = max(max(trial.run.live) for trial in trials)
    steps = max(len(trial.run.live) for trial in trials)
    for k, (trial, ax) in enumerate(zip(trials, axes, strict=False)):
        _trace(ax, trial)
        ax.set_xlim(0, steps)
        ax.set_ylim(0, top / 1000 * 1.05)
        if k % 3 == 0:
            ax.set_ylabel("kB alive")
        ax.set_xlabel("computation")
    _curve(axes[-1], chain)
    return figure


def _trace(ax: Axes, trial: Trial) -> None:
    live = [value / 1000 for value in trial.run.live]
    ax.stairs(live, fill=True, color=_DARK, alpha=0.25)
    ax.stairs(live, color=_DARK, linewidth=1)
    ax.axvline(trial.starts_backward, color="black", linewidth=0.9, linestyle=":")
    ax.axhline(trial.solution.peak / 1000, color="black", linewidth=0.8, linestyle="--")
    again = f"{trial.recomputed} run again ({percent(trial.solution.overhead)})"
    ax.set_title(f"{trial.name}: peak {size(trial.solution.peak)}, {again}", fontsize=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)


def _curve(ax: Axes, chain: Chain) -> None:
    rows = segment_curve(chain)
    best = min(rows, key=lambda row: row[1])
    ax.plot([row[0] for row in rows], [row[1] / 1000 for row in rows], "-o", color=_DARK, markersize=4)
    ax.annotate(
        f"least with {best[0]}",
        xy=(best[0], best[1] / 1000),
        xytext=(0, -16),
        textcoords="offset points",
        ha="center",
        fontsize=8.5,
    )
    ax.set_ylim(bottom=0)
    ax.set_xlabel("segments")
    ax.set_ylabel("kB at the peak")
    ax.set_title("one level of segments", fontsize=9, loc="left")
    ax.spines[["top", "right"]].set_visible(False)
