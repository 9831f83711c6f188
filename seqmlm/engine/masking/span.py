"""`span.v1`: runs of consecutive units of geometric length (SpanBERT, Joshi et al. 2020)."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from seqmlm.engine.masking.base import RateMasker, check_share, number_units
from seqmlm.engine.types import Bools, Encoding, TokenSpace
from seqmlm.errors import UsageError


class Span(RateMasker):
    """Selects spans of 1 to `max_units` units, P(length = k) proportional to p (1 - p)^(k - 1).

    Spans and geometric gaps of at least one unit alternate as a stationary process, so every unit is
    selected with probability `rate` exactly and no span is cut short but by an end of the sequence.
    With p = .2 and max_units = 10 the mean span has 3.8 units.

    Args:
        rate: share of units to select, in [0, m / (m + 1)] for spans of m units on average.
        space: the vocabulary.
        p: in (0, 1].
        max_units: longest span, at least 1.
    """

    name: ClassVar[str] = "span.v1"
    outcome: ClassVar[Literal["token", "unit"]] = "unit"

    def __init__(self, *, rate: float, space: TokenSpace, p: float = 0.2, max_units: int = 10) -> None:
        super().__init__(rate=rate, space=space)
        if check_share("p", p) == 0 or max_units < 1:
            raise UsageError(f"span masks need p in (0, 1] and max_units >= 1, not {p} and {max_units}")
        lengths = p * (1 - p) ** np.arange(max_units)
        lengths /= lengths.sum()
        at_least = np.cumsum(lengths[::-1])[
            ::-1
        ]  # P(length >= k), k = 1 .. max_units; they add up to the mean
        mean = float(at_least.sum())
        if rate > mean / (mean + 1):
            raise UsageError(
                f"masking key 'rate' = {rate} leaves no gap between spans of {mean:.2f} units on average; "
                f"use at most {mean / (mean + 1):.2f}"
            )
        self._length_below = np.cumsum(lengths)[:-1]
        self._rest_below = np.cumsum(at_least / mean)[:-1]  # what is left of a span met at a random unit
        self._gap_ends = min(rate / (mean * (1 - rate)), 1.0)

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) positions to predict."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        numbers, count = number_units(encoding.groups[eligible])
        if count:
            selected[eligible] = self._units(count, rng)[numbers]
        return selected

    def _units(self, count: int, rng: np.random.Generator) -> Bools:
        """(count,) the selected units."""
        pairs = count // 2 + 1  # enough: a span and a gap together have at least two units
        spans = 1 + np.searchsorted(self._length_below, rng.random(pairs), side="right")
        gaps = np.full(pairs, count)
        if self.rate > 0:
            np.minimum(rng.geometric(self._gap_ends, pairs), count, out=gaps)
        inside = rng.random() < self.rate
        if inside:
            spans[0] = 1 + np.searchsorted(self._rest_below, rng.random(), side="right")
        elif gaps[0] >= count:  # no span fell into the sequence: one anywhere
            start = int(rng.random() * max(count - spans[0] + 1, 1))
            units = np.zeros(count, dtype=np.bool_)
            units[start : start + spans[0]] = True
            return units
        runs = np.stack((spans, gaps) if inside else (gaps, spans), axis=1).ravel()
        ends = np.minimum(np.cumsum(runs), count)
        return np.repeat(np.resize([inside, not inside], 2 * pairs), np.diff(ends, prepend=0))
