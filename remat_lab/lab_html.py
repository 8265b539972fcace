"""The laboratory as one page for a browser: a slider over the budget, the plan's trace, and what is kept and run again.

Everything is in the file: no network, no library. The plans were made and executed before; the page only shows them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from remat_lab.lab_layers import Chain
from remat_lab.lab_run import Trial, examine, plan, segment_curve
from solvers.bounds import minimum_budget
from solvers.errors import InfeasibleBudget

_BUDGETS = 20
_PAGE = Path(__file__).with_name("lab_page.html")


def budgets(chain: Chain, full: int, count: int = _BUDGETS) -> list[int]:
    """Budgets at equal distances from the smallest possible to keeping everything."""
    least = minimum_budget(chain.graph).bytes
    return [least + (full - least) * k // (count - 1) for k in range(count)]


def describe(trial: Trial, budget: int | None = None) -> dict[str, Any]:
    """What the page shows of a trial."""
    order = trial.solution.schedule.order
    return {
        "name": trial.name,
        "budget": budget,
        "peak": trial.solution.peak,
        "overhead": trial.solution.overhead,
        "recomputed": trial.recomputed,
        "checkpoints": trial.checkpoint_bytes,
        "status": trial.solution.status.value,
        "backward": trial.starts_backward,
        "live": trial.run.live,
        "order": order,
        "tests": trial.tests,
    }


def page_data(chain: Chain, trials: Sequence[Trial], report: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """Everything on the page, ready for JSON: the strategies, and the cheapest plan found for each budget."""
    wanted = budgets(chain, trials[0].solution.peak)
    plans: list[dict[str, Any]] = []
    for k, budget in enumerate(wanted):
        if report is not None:
            report("plan budgets", k, len(wanted))
        try:
            plans.append(describe(examine(chain, "optimal", plan(chain, "optimal", budget)), budget))
        except InfeasibleBudget as error:
            plans.append({"budget": budget, "infeasible": True, "minimum": error.minimum})
    return {
        "profile": chain.profile,
        "layers": len(chain.layers),
        "names": [node.name for node in chain.graph.nodes],
        "strategies": [describe(trial) for trial in trials],
        "plans": plans,
        "segments": segment_curve(chain),
    }


def write_page(data: dict[str, Any], path: str | Path) -> None:
    """Writes the page, whole or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, allow_nan=False).replace("</", "<\\/")  # no end of a script inside a string
    title = escape(f"{data['layers']} layers, {data['profile']}")
    page = _PAGE.read_text(encoding="utf-8").replace("{{title}}", title).replace("{{data}}", text)
    part = target.with_name(f".{target.name}.part")
    part.write_text(page, encoding="utf-8")
    os.replace(part, target)
