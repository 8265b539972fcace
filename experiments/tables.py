"""Tables as text, and exponents of growth."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Section(NamedTuple):
    """One table.

    Attributes:
        heading: above it.
        columns: names of the columns; the first is set on the left.
        rows: their cells.
        notes: below it.
    """

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def as_text(title: str, sections: Iterable[Section], width: int, notes: Sequence[str] = ()) -> str:
    """All sections as plain text of at most `width` columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    console.print(title, markup=False, highlight=False)
    for section in sections:
        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False, show_edge=False)
        for k, name in enumerate(section.columns):
            table.add_column(name, justify="right" if k else "left", no_wrap=k == 0)
        for row in section.rows:
            table.add_row(*row)
        console.print("", section.heading, table, sep="\n", markup=False, highlight=False)
        for note in section.notes:
            console.print(note, markup=False, highlight=False)
    if notes:
        console.print("")
    for note in notes:
        console.print(note, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def exponent(points: Iterable[tuple[float, float]]) -> float | None:
    """The exponent a of the power law y = c x^a that fits best: least squares on logarithms.

    Args:
        points: x and y above zero.

    Returns:
        None for fewer than three different x, through which any curve goes.

    >>> round(exponent([(1, 3), (4, 6), (16, 12)]), 6)
    0.5
    """
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in logs}) < 3:
        return None
    mean_x, mean_y = (math.fsum(values) / len(logs) for values in zip(*logs, strict=True))
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in logs)
    return slope / math.fsum((x - mean_x) ** 2 for x, _ in logs)
