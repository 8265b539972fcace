"""Budgets as people write them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_lab.budget import UNITS, parse_budget
from remat_lab.units import sufficient_size
from solvers.errors import InvalidBudget

PEAK = 10_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (600, 600),
        (np.int64(7), 7),
        (0.5, 5_000_000),
        (1.0, PEAK),
        (np.float32(0.25), 2_500_000),
        ("600MiB", 600 * 2**20),
        ("2 GB", 2 * 10**9),
        ("1.5 kib", 1536),
        (" 3e3 kB ", 3_000_000),
        ("0.5", 5_000_000),
        ("1.0", PEAK),
        ("50%", 5_000_000),
        ("600000", 600_000),
        ("1_000", 1000),
        ("1B", 1),
    ],
)
def test_forms_of_a_budget(value, expected):
    assert parse_budget(value, PEAK) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "not positive"),
        (-5, "not positive"),
        ("0MiB", "not positive"),
        ("-2 GB", "not positive"),
        ("0.2B", "less than one byte"),
        (0.0, "above 0 and at most at 1"),
        (-0.5, "above 0 and at most at 1"),
        (1.5, "above 0 and at most at 1"),
        ("1.5", "above 0 and at most at 1"),
        ("150%", "above 0 and at most at 1"),
        (float("nan"), "not a finite number"),
        (float("inf"), "not a finite number"),
        ("3 GB of", "not a number with a unit"),
        ("", "not a number with a unit"),
        ("nan", "not a number with a unit"),
        ("1__0", "not a number with a unit"),
        ("9" * 100, "not a number with a unit"),
        ("600M", "unknown unit 'M'"),
        ("1e999 MB", "more bytes than any device has"),
        (2**70, "more bytes than any device has"),
        ("1", "could be one byte or all"),
        (None, "neither a number nor a string"),
        (True, "neither a number nor a string"),
        ([1], "neither a number nor a string"),
        (1j, "neither a number nor a string"),
    ],
)
def test_what_is_not_a_budget_says_why(value, message):
    with pytest.raises(InvalidBudget, match=message):
        parse_budget(value, PEAK)


def test_a_fraction_of_next_to_nothing_is_refused():
    with pytest.raises(InvalidBudget, match="less than one byte"):
        parse_budget(0.5, 1)


@given(st.integers(1, 2**60), st.sampled_from(sorted(UNITS)))
def test_every_unit_reads_back(number, unit):
    if number * UNITS[unit] <= 2**62:
        assert parse_budget(f"{number} {unit}", 1) == number * UNITS[unit]


@given(st.integers(1, 10**15))
def test_a_suggested_budget_suffices_and_is_close(needed):
    given_bytes = parse_budget(sufficient_size(needed), 1)
    assert needed <= given_bytes <= max(needed + 1, needed * 1.011)
