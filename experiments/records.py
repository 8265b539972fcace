"""The file of an experiment: one JSON line for each point, appended as soon as it is measured.

A line that cannot be read, as an interruption may leave one, is reported and skipped; what follows it counts. A point that was
measured again has several lines, and the last one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from remat_lab.errors import InvalidArgument

SCHEMA = "remat_lab.experiment/1"

Point = Mapping[str, Any]  # what is varied and what is fixed; ready for JSON
Row = dict[str, Any]
_NEEDED = ("experiment", "point", "status", "result")


class Records(NamedTuple):
    """What a file holds.

    Attributes:
        rows: the last row of each point, in the order in which points first appear.
        problems: a sentence for each line that was skipped.
    """

    rows: list[Row]
    problems: list[str]


def key_of(point: Point) -> str:
    """Equal for equal points, whatever the order of their fields."""
    return json.dumps(point, sort_keys=True)


def read(path: str | Path) -> Records:
    """Reads a file of records.

    Raises:
        InvalidArgument: if the file cannot be read.
    """
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}; `remat-lab experiment` makes it") from error
    rows: dict[str, Row] = {}
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            place = "the last line" if number == len(lines) else f"line {number}"
            problems.append(f"{path}: {place} is not JSON (cut off?): skipped")
            continue
        missing = [key for key in _NEEDED if not isinstance(row, dict) or key not in row]
        if missing:
            problems.append(f"{path}: line {number} is no record of an experiment (no {', '.join(missing)}): skipped")
            continue
        rows[str(row["experiment"]) + key_of(row["point"])] = row
    return Records(list(rows.values()), problems)


def append(path: str | Path, row: Row) -> None:
    """Adds a row, on a line of its own whatever the last line looks like, and waits until it is on the disk.

    Raises:
        OSError: if the file cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(row, allow_nan=False).encode() + b"\n"
    with target.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
