"""`span.v1`: runs of consecutive units, with geometric lengths (SpanBERT, Joshi et al. 2020)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from seqmlm.engine.masking.base import Outcome, RateMasker, check_share, number_units
from seqmlm.engine.types import Bools, Encoding, TokenSpace
from seqmlm.errors import UsageError
from seqmlm.parsing import Share


class Span(RateMasker):
    """Selects spans of 1 to `max_units` units, where P(length = k) is proportional to p (1 - p)^(k - 1).

    Spans alternate with geometric gaps of at least one unit, as a stationary process. Every unit is
    therefore selected with probability `rate`, and only the ends of the sequence shorten spans. A short
    sequence without a span gets one, which has at most the fraction `rate` of its units, or one unit. With p
    = .2 and max_units = 10, a span has 3.8 units on average.

    Args:
        rate: fraction of units to select, in [0, m / (m + 1)] for spans of m units on average.
        space: the vocabulary.
        p: parameter of the geometric distribution, in (0, 1]; lower values give longer spans.
        max_units: number of units of the longest span, at least 1.

    Raises:
        UsageError: an option is out of range, or `rate` leaves no gap between spans.
    """

    name: ClassVar[str] = "span.v1"
    outcome: ClassVar[Outcome] = "unit"

    def __init__(self, *, rate: float, space: TokenSpace, p: Share = 0.2, max_units: int = 10) -> None:
        super().__init__(rate=rate, space=space)
        if check_share("p", p) == 0 or max_units < 1:
            raise UsageError(f"span masks need p in (0, 1] and max_units >= 1, not {p} and {max_units}")
        lengths = p * (1 - p) ** np.arange(max_units)
        lengths /= lengths.sum()
        at_least = np.cumsum(lengths[::-1])[::-1]  # P(length >= k) for k = 1..max_units
        mean = float(at_least.sum())
        if rate > mean / (mean + 1):
            raise UsageError(
                f"masking key 'rate' = {rate} leaves no gap between spans of {mean:.2f} units on average; "
                f"use at most {mean / (mean + 1):.2f}"
            )
        self._length_below = np.cumsum(lengths)[:-1]
        self._rest_below = np.cumsum(at_least / mean)[:-1]  # remaining length of a span at a random unit
        self._gap_ends = min(rate / (mean * (1 - rate)), 1.0)

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        numbers, count = number_units(encoding.groups[eligible])
        if count:
            selected[eligible] = self._units(count, rng)[numbers]
        return selected

    def _units(self, count: int, rng: np.random.Generator) -> Bools:
        """(count,) True at the selected units."""
        units = np.zeros(count, dtype=np.bool_)
        first, starts = rng.random(), rng.random(count) < self._gap_ends
        free = 1
        if first < self.rate:
            free += 1 + int(self._rest_below.searchsorted(first / self.rate, side="right"))
            units[: free - 1] = True
        candidates = starts.nonzero()[0]
        lengths = 1 + self._length_below.searchsorted(rng.random(len(candidates)), side="right")
        for start, length in zip(candidates.tolist(), lengths.tolist(), strict=True):
            if start >= free:
                units[start : start + length] = True
                free = start + length + 1  # the unit after a span belongs to the gap
        if free == 1:  # no span at all
            share = max(int(self.rate * count), 1)
            length = min(1 + int(self._length_below.searchsorted(rng.random(), side="right")), share)
            start = int(rng.random() * (count - length + 1))
            units[start : start + length] = True
        return units
