"""Exact pseudo-log-likelihood: every token asked once, with its unit hidden so that nothing leaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.types import Bools, Encoding, Floats, Ids
from seqmlm.engine.units import Prices, Units, pll_queries

__all__ = ["SequenceScore", "pll_queries", "pseudo_log_likelihood", "window_scores"]


@dataclass(frozen=True, eq=False)
class SequenceScore:
    """The pseudo-log-likelihood of one sequence, token by token and unit by unit.

    Args:
        positions: (A,) scored positions, ascending: all but special tokens (an unknown token is special);
            where a token shows several units or a unit several tokens, a token of each unit.
        log_probs: (A,) natural log-probability of what was observed at each.
        groups: (A,) unit number of each scored position.
    """

    positions: Ids
    log_probs: Floats
    groups: Ids

    @property
    def pll(self) -> float:
        """Sum of the log-probabilities, in nats; 0 for a sequence without scored tokens."""
        return float(self.log_probs.sum(dtype=np.float64))

    @cached_property
    def units(self) -> tuple[Ids, NDArray[np.float64]]:
        """Unit numbers (U,) in ascending order, and the sum of each unit's log-probabilities (U,) in nats."""
        numbers, place = np.unique(self.groups, return_inverse=True)
        sums = np.bincount(place, weights=self.log_probs, minlength=len(numbers))
        return numbers, sums.astype(np.float64)

    @property
    def bits_per_unit(self) -> float:
        """-PLL in bits over the number of scored units; NaN for a sequence without any."""
        units = len(self.units[0])
        return -self.pll / np.log(2) / units if units else float("nan")


def pseudo_log_likelihood(
    conditionals: Conditionals, encodings: Iterable[Encoding], units: Units | None = None
) -> Iterator[SequenceScore]:
    """Score sequences exactly, lazily and in order; see `pll_queries`.

    Raises:
        UsageError: a sequence longer than the model: cut it into windows first.
    """
    return window_scores(conditionals, ((encoding, None) for encoding in encodings), units)


def window_scores(
    conditionals: Conditionals, windows: Iterable[tuple[Encoding, Bools | None]], units: Units | None = None
) -> Iterator[SequenceScore]:
    """Score windows, each at the positions it owns alone (see `seqmlm.engine.windows.central_windows`).

    Args:
        windows: encodings, each with (L,) True at the positions to score, or None for all.
        units: how units are hidden and read back; None for groups of tokens.

    Raises:
        UsageError: a window longer than the model.
    """
    rule = Units(conditionals.space) if units is None else units
    waiting: deque[tuple[Encoding, list[Query]]] = deque()

    def questions() -> Iterator[Query]:
        for encoding, owned in windows:
            queries = list(rule.each(encoding, owned))
            waiting.append((encoding, queries))
            yield from queries

    parts: list[Prices] = []
    for answer in conditionals.ask(questions(), full=rule.whole_rows):
        while not waiting[0][1]:
            yield _score(waiting.popleft()[0], [], rule)
        parts.append(rule.read(waiting[0][1][len(parts)], answer))
        if len(parts) == len(waiting[0][1]):
            yield _score(waiting.popleft()[0], parts, rule)
            parts = []
    while waiting:
        yield _score(waiting.popleft()[0], [], rule)


def _score(encoding: Encoding, parts: list[Prices], rule: Units) -> SequenceScore:
    if not parts:
        empty = np.zeros(0, dtype=np.int32)
        return SequenceScore(empty, np.zeros(0, dtype=np.float32), empty)
    unit = np.concatenate([part.unit for part in parts])
    return SequenceScore(
        np.concatenate([part.position for part in parts]),
        np.concatenate([part.log_probs for part in parts]).astype(np.float32),
        rule.numbers(encoding)[unit].astype(np.int32),
    )
