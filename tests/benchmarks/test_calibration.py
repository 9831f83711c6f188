"""Intervals and verdicts of the calibration benchmark, beside ranks that are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from calibration import by_records, interval, verdict


@pytest.mark.parametrize(("rate", "rows", "total"), [(0.05, 199, 100), (0.1, 49, 300), (0.01, 999, 500)])
def test_interval_is_that_of_alarms_by_rank(rate: float, rows: int, total: int) -> None:
    random = np.random.default_rng(0)
    alarms = []
    for _ in range(2000):
        normal = np.sort(random.random(rows))
        at_least = rows - np.searchsorted(normal, random.random(total))
        alarms.append(int(((1 + at_least) / (rows + 1) <= rate).sum()))
    low, high = interval(rate, rows, total)
    inside = np.mean([low <= one <= high for one in alarms])
    assert inside >= 0.94
    below, above = np.mean([one < low for one in alarms]), np.mean([one > high for one in alarms])
    assert below <= 0.035
    assert above <= 0.035


def test_interval_of_endless_rows_is_binomial() -> None:
    from scipy.stats import binom

    assert interval(0.05, 10**9, 400) == tuple(int(one) for one in binom.ppf([0.025, 0.975], 400, 0.05))


def test_fewer_rows_have_a_wider_interval() -> None:
    wide, narrow = interval(0.05, 99, 300), interval(0.05, 9999, 300)
    assert wide[0] < narrow[0]
    assert wide[1] > narrow[1]


@pytest.mark.parametrize(
    ("count", "expected"), [(0, "below"), (1, "(in)"), (2, "in"), (4, "in"), (5, "(in)"), (7, "above")]
)
def test_verdict(count: int, expected: str) -> None:
    assert verdict(count, (2, 4), (1, 6)) == expected


def test_rows_of_one_record_are_drawn_together() -> None:
    """Ten records whose rows all alarm, or none of them do: as uncertain as ten rows."""
    owner = np.repeat(np.arange(10), 50)
    low, high = by_records(owner < 5, owner, np.random.default_rng(0))
    assert low <= 0.3
    assert high >= 0.7
