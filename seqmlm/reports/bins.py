"""Streams of unknown length and range summed up in bounded memory: counts of values, and highest points.

Bins double their width whenever there are too many, so nothing need be known before, and no count and no peak
is lost; what is lost is where exactly inside a bin a value lay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_BINS = 2000
_SHOWN, _FIRST = 60, 1000


class Counts:
    """How many values lie where: exact counts in at most `MOST_BINS` bins of one width."""

    def __init__(self) -> None:
        self._first: list[float] = []  # until there are enough to choose a width
        self._width = 0.0
        self._bins: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count one value; NaN and infinities are left out."""
        if not math.isfinite(value):
            return
        if self._width:
            self._count(value)
        else:
            self._first.append(value)
            if len(self._first) >= _FIRST:
                self._settle()

    def shown(self) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
        """(B,) counts and (B + 1,) edges of about sixty bins, or None where nothing was counted."""
        if not self._width:
            self._settle()
        if not self._bins:
            return None
        low, high = min(self._bins), max(self._bins)
        together = -(-(high - low + 1) // _SHOWN)
        counts = np.zeros(-(-(high - low + 1) // together), dtype=np.int64)
        for number, count in self._bins.items():
            counts[(number - low) // together] += count
        edges = np.asarray((low + np.arange(len(counts) + 1) * together) * self._width, dtype=np.float64)
        return counts, edges

    def _settle(self) -> None:
        if self._first:
            spread = max(self._first) - min(self._first)
            self._width = max(spread / _SHOWN, abs(self._first[0]) * 1e-6, 1e-9)
        for value in self._first:
            self._count(value)
        self._first = []

    def _count(self, value: float) -> None:
        number = math.floor(value / self._width)
        self._bins[number] = self._bins.get(number, 0) + 1
        while len(self._bins) > MOST_BINS:
            self._width *= 2
            halved: dict[int, int] = {}
            for old, count in self._bins.items():
                halved[old // 2] = halved.get(old // 2, 0) + count
            self._bins = halved


@dataclass(frozen=True, slots=True)
class Point:
    """Something at a place: a stretch of a longer sequence, a moment.

    start, end: where. value: higher is more unusual. alarm: whether one was raised.
    label: what is told of it.
    """

    start: float
    end: float
    value: float
    alarm: bool
    label: str = ""


class Highest:
    """The most unusual point of every stretch, alarms first: at most `MOST_BINS` of them.

    Args:
        width: of a stretch at the beginning, above 0.
    """

    def __init__(self, width: float = 1.0) -> None:
        self._width = width
        self._bins: dict[int, Point] = {}
        self.top = -math.inf
        self.thinned = False

    def add(self, point: Point) -> None:
        """Keep a point, if none in its stretch is more unusual; NaN is left out."""
        if math.isnan(point.value):
            return
        self.top = max(self.top, point.value)
        self._keep(self._bins, point)
        while len(self._bins) > MOST_BINS:
            self._width *= 2
            fewer: dict[int, Point] = {}
            for one in self._bins.values():
                self._keep(fewer, one)
            self._bins = fewer

    def points(self) -> list[Point]:
        """What was kept, in order of place."""
        return sorted(self._bins.values(), key=lambda one: (one.start, one.end))

    def _keep(self, bins: dict[int, Point], point: Point) -> None:
        number = math.floor(point.start / self._width)
        old = bins.get(number)
        self.thinned = self.thinned or old is not None
        if old is None or (point.alarm, point.value) > (old.alarm, old.value):
            bins[number] = point
