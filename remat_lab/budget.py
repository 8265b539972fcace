"""Budgets as people write them: bytes, a string with a unit, or a fraction of the keep-all peak."""

from __future__ import annotations

import math
import numbers
import re
from fractions import Fraction

from solvers.errors import InvalidBudget

UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_BY_LOWER_CASE = {unit.lower(): factor for unit, factor in UNITS.items()}
_NUMBER = re.compile(r"(?P<number>[+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[A-Za-z]*)")
_LONGEST = 64  # characters; nobody writes a longer budget, and 1e999999999 must not be expanded
_LARGEST = 1 << 62  # bytes; what the solvers' integers hold

FORMS = 'an int is bytes, a string has a unit ("600MiB", "2 GB"), a float is a fraction of the keep-all peak (0.5)'


def parse_budget(value: object, keep_all_peak: int) -> int:
    """Turns a budget as a person writes it into bytes.

    Args:
        value: an int is bytes. A float is a fraction of `keep_all_peak`, above 0 and at most 1. A string is a number with a
            unit (B, kB, MB, GB, TB, or KiB, MiB, GiB, TiB, in any case), a percentage ("50%"), a fraction with a decimal
            point ("0.5"), or whole bytes ("600000").
        keep_all_peak: peak of the schedule that keeps everything, bytes.

    Returns:
        The budget in bytes, at least 1. Parts of a byte are dropped, so that the budget is never exceeded.

    Raises:
        InvalidBudget: if the value is not a budget; the message says what was asked for and which forms exist.

    >>> parse_budget("1.5 KiB", 10_000), parse_budget(0.5, 10_000), parse_budget("50%", 10_000)
    (1536, 5000, 5000)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
        raise InvalidBudget(f"budget {value!r} is neither a number nor a string: {FORMS}")
    if isinstance(value, str):
        return _parse_string(value, keep_all_peak)
    if isinstance(value, numbers.Integral):
        return _as_bytes(Fraction(int(value)), value)
    if not math.isfinite(value):
        raise InvalidBudget(f"budget {value!r} is not a finite number: {FORMS}")
    return _as_fraction(Fraction(float(value)), value, keep_all_peak)


def _parse_string(text: str, keep_all_peak: int) -> int:
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if match is None:
        raise InvalidBudget(f"budget {text!r} is not a number with a unit: {FORMS}")
    written, unit = match["number"], match["unit"]
    if abs(float(written)) > _LARGEST:
        raise InvalidBudget(f"budget {text!r} is more bytes than any device has")
    number = Fraction(written)
    if unit == "%":
        return _as_fraction(number / 100, text, keep_all_peak)
    if unit:
        factor = _BY_LOWER_CASE.get(unit.lower())
        if factor is None:
            raise InvalidBudget(f"budget {text!r} has the unknown unit {unit!r}: known are {', '.join(UNITS)} and %")
        return _as_bytes(number * factor, text)
    if written.lstrip("+-").replace("_", "").isdigit():
        if number == 1:
            raise InvalidBudget(f'budget {text!r} could be one byte or all of the keep-all peak: write "1B" or "1.0"')
        return _as_bytes(number, text)
    return _as_fraction(number, text, keep_all_peak)


def _as_bytes(number: Fraction, asked: object) -> int:
    if number <= 0:
        raise InvalidBudget(f"budget {asked!r} is not positive: a program needs more than that to run ({FORMS})")
    if number > _LARGEST:
        raise InvalidBudget(f"budget {asked!r} is more bytes than any device has")
    if number < 1:
        raise InvalidBudget(f"budget {asked!r} is less than one byte ({FORMS})")
    return int(number)


def _as_fraction(fraction: Fraction, asked: object, keep_all_peak: int) -> int:
    if not 0 < fraction <= 1:
        raise InvalidBudget(
            f"budget {asked!r} is a fraction of the keep-all peak and must lie above 0 and at most at 1: "
            f"for bytes write an int or a unit ({FORMS})"
        )
    if keep_all_peak == 0:
        return 1  # a program without temporaries fits any budget
    if fraction * keep_all_peak < 1:
        raise InvalidBudget(f"budget {asked!r} of a keep-all peak of {keep_all_peak:,} bytes is less than one byte")
    return int(fraction * keep_all_peak)
