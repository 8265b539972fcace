"""Numbers for people: bytes, ratios, seconds."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise

MEGABYTE = 1_000_000
NOTHING = "-"  # what a table shows where there is no figure
_STEPS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))
_BARS = "▁▂▃▄▅▆▇█"


def megabytes(value: float | None) -> str:
    """Bytes as a number of MB, without the unit."""
    if value is None:
        return NOTHING
    return f"{value / MEGABYTE:,.1f}" if value >= 0.05 * MEGABYTE or value == 0 else f"{value / MEGABYTE:.2g}"


def size(value: float) -> str:
    """Bytes with the decimal unit that suits them."""
    factor, unit = next((step for step in _STEPS if value >= step[0]), _STEPS[-1])
    return f"{value:.0f} B" if factor == 1 else f"{value / factor:.{2 if value < 10 * factor else 1}f} {unit}"


def sufficient_size(value: int) -> str:
    """The shortest way to write a number of bytes that is not below `value`, as a budget that can be typed."""
    factor, unit = next((step for step in _STEPS if value >= step[0]), _STEPS[-1])
    hundredths = math.ceil(value * 100 / factor) if factor > 1 else value * 100
    text = f"{hundredths // 100}.{hundredths % 100:02d}".rstrip("0").rstrip(".")
    return f"{text}{unit}"


def percent(ratio: float | None, *, sign: bool = True, digits: int = 1) -> str:
    """A ratio as a percentage; one too small to show does not look like zero."""
    if ratio is None:
        return NOTHING
    scaled, smallest = 100 * ratio, 10.0**-digits
    if ratio and abs(scaled) < smallest / 2:
        return f"{'<' if scaled > 0 else '>-'}{smallest:.{digits}f}%"
    return f"{scaled:{'+' if sign and ratio else ''},.{digits}f}%"


def seconds(value: float | None) -> str:
    """Seconds, to a useful precision, without the unit."""
    if value is None:
        return NOTHING
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def duration(value: float) -> str:
    """Seconds with the unit that suits them."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.3g} s"


def difference(value: float | None, bitwise: bool | None = None) -> str:
    """A largest difference; equality of every byte is said in words."""
    if value is None:
        return NOTHING
    return "0 (bitwise)" if bitwise else "0" if value == 0 else f"{value:.1e}"


def near(text: str) -> str:
    """A text with paths below the current directory shortened."""
    return text.replace(f"{os.getcwd()}{os.sep}", "")


def sparkline(values: Sequence[float], width: int) -> str:
    """The values as one line of bars; each bar shows the largest of its share, so that the peak is never lost."""
    if not values:
        return ""
    top, width = max(values), min(width, len(values))
    edges = [len(values) * i // width for i in range(width + 1)]
    shares = (max(values[a:b]) for a, b in pairwise(edges))
    return "".join(_BARS[min(len(_BARS) - 1, int(len(_BARS) * share / top))] if top else _BARS[0] for share in shares)
