"""`remat_lab.compare` on a built-in model, as the result of a point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.records import Point, Row
from remat_lab.compare import compare
from remat_lab.errors import InvalidArgument
from remat_lab.models import build

_DROPPED = ("timeline", "compiler_options")  # long, or the same everywhere


def measure(point: Point) -> dict[str, Any]:
    """All strategies of a point on its model, side by side: rows as `Comparison` has them, without timelines."""
    made = build(point["model"], dict(point["options"]))
    found = compare(
        made.loss,
        *made.args,
        blocks=made.blocks,
        argnums=made.argnums,
        has_aux=made.has_aux,
        budgets=point["budgets"],
        strategies=point["strategies"],
        rounds=point["rounds"],
        time_limit=point["time_limit"],
        real_args=made.materialise(0) if made.materialise is not None else None,
        targets=() if point["target"] is None else (point["target"],),
        title=point["name"],
    ).to_json()
    rows = [{key: value for key, value in row.items() if key not in _DROPPED} for row in found["rows"]]
    return {"keep_all_peak_bytes": found["keep_all_peak_bytes"], "rows": rows}


def point(
    name: str,
    model: str,
    target: str | None,
    *,
    budgets: Sequence[str],
    strategies: Sequence[str] | None,
    rounds: int,
    time_limit: float,
    **options: Any,
) -> Point:
    """A point for `measure`."""
    return {
        "name": name,
        "model": model,
        "target": target,
        "budgets": list(budgets),
        "strategies": None if strategies is None else list(strategies),
        "rounds": rounds,
        "time_limit": time_limit,
        "options": options,
    }


def strategies_of(row: Row) -> list[dict[str, Any]]:
    """The compiled strategies of a row; none if the whole point failed."""
    return [one for one in row["result"].get("rows", ()) if one.get("compiled_temp_bytes") is not None]


def only_here(preset: str, target: str | None) -> None:
    """Refuses a target where times are the point.

    Raises:
        InvalidArgument: if there is one.
    """
    if target is not None:
        raise InvalidArgument(f"--target {target}: step times can be measured only on the device that is here")
