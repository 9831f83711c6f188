"""Streams are summed up in bounded memory without losing a count or a peak."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqmlm.reports import bins
from seqmlm.reports.bins import Counts, Highest, Point


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_counts_are_exact_whatever_the_range(scale: float) -> None:
    values = np.random.default_rng(0).lognormal(0, 3, 20_000) * scale
    counts = Counts()
    for value in [*values.tolist(), math.nan, math.inf]:
        counts.add(value)
    found = counts.shown()
    assert found is not None
    numbers, edges = found
    assert len(numbers) <= 70
    assert len(counts._bins) <= bins.MOST_BINS
    assert numbers.sum() == len(values)
    assert numbers.tolist() == np.histogram(values, edges)[0].tolist()


def test_few_equal_or_no_values_are_shown() -> None:
    assert Counts().shown() is None
    counts = Counts()
    for _ in range(5):
        counts.add(2.0)
    found = counts.shown()
    assert found[0].sum() == 5
    assert found[1][0] <= 2.0 <= found[1][-1]


def test_the_highest_of_every_stretch_is_kept_and_alarms_first() -> None:
    rng = np.random.default_rng(1)
    values = rng.random(50_000)
    kept = Highest()
    for place, value in enumerate(values.tolist()):
        kept.add(Point(place, place + 1, 0.0 if place == 777 else value, place == 777))
    points = kept.points()
    assert kept.thinned
    assert len(points) <= bins.MOST_BINS
    assert [one.start for one in points] == sorted(one.start for one in points)
    assert [one.start for one in points if one.alarm] == [777]
    assert kept.top == max(one.value for one in points) == np.delete(values, 777).max()


def test_points_that_fit_are_all_kept() -> None:
    kept = Highest()
    for place in range(100):
        kept.add(Point(place * 50, place * 50 + 100, float(place), False))
    kept.add(Point(1, 2, math.nan, False))
    assert len(kept.points()) == 100
    assert not kept.thinned
