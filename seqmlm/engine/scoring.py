"""Exact pseudo-log-likelihood: every token asked once, with its unit hidden so that nothing leaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.types import Bools, Encoding, Floats, Ids, TokenSpace

# Tokens of the masked copies that one query stands for: bounds the memory a very long sequence takes.
QUERY_TOKENS = 1 << 20


@dataclass(frozen=True, eq=False)
class SequenceScore:
    """The pseudo-log-likelihood of one sequence, token by token and unit by unit.

    Args:
        positions: (A,) scored positions, ascending: all but special tokens (an unknown token is special).
        log_probs: (A,) natural log-probability of the observed token at each.
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


def pll_queries(encoding: Encoding, space: TokenSpace, owned: Bools | None = None) -> Iterator[Query]:
    """The questions of an exact pseudo-log-likelihood (Salazar et al. 2020), in the order of the positions.

    Each token is asked with itself and the later tokens of its unit hidden, the earlier ones seen:
    within-word left-to-right (Kauf and Ivanova 2023), which for units of one token is the original metric.
    The asked positions of the queries together are the scored positions; special tokens are neither asked nor
    hidden.

    Args:
        encoding: the sequence, or a window of one.
        space: its vocabulary.
        owned: (L,) True at the positions to ask, None for all: a window may overlap others.

    Returns:
        One query, more for a very long sequence, none where nothing can be scored.
    """
    scored = np.flatnonzero((encoding.groups >= 0) & ~space.is_special[encoding.ids]).astype(np.int32)
    step = max(1, QUERY_TOKENS // max(1, len(encoding)))
    later, count = _later_in_unit(encoding.groups[scored])
    hidden, asked = scored[later], scored
    if owned is not None:
        kept = owned[scored]
        hidden, asked, count = hidden[np.repeat(kept, count)], scored[kept], count[kept]
    ends = np.cumsum(count)
    for first in range(0, len(asked), step):
        last = min(first + step, len(asked))
        begin = 0 if first == 0 else int(ends[first - 1])
        variants = np.arange(last - first, dtype=np.int32)
        yield Query(
            encoding=encoding,
            masked=hidden[begin : int(ends[last - 1])],
            masked_in=np.repeat(variants, count[first:last]),
            asked=asked[first:last],
            asked_in=variants,
        )


def _later_in_unit(groups: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each of A tokens, itself and the later tokens of its unit.

    Returns:
        Indices into 0..A-1, token after token, and how many each token has (A,).

    >>> _later_in_unit(np.array([4, 4, 7]))
    (array([0, 1, 1, 2]), array([2, 1, 1]))
    """
    if (groups[1:] > groups[:-1]).all():  # units of one token, as residues are
        return np.arange(len(groups)), np.ones(len(groups), dtype=np.int64)
    order = np.argsort(groups, kind="stable")
    ends = np.searchsorted(groups[order], groups[order], side="right")
    ranks = np.arange(len(groups))
    count = np.empty_like(ranks)
    count[order] = ends - ranks
    start = np.empty_like(ranks)
    start[order] = ranks
    offsets = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return order[np.repeat(start, count) + offsets], count


def pseudo_log_likelihood(
    conditionals: Conditionals, encodings: Iterable[Encoding]
) -> Iterator[SequenceScore]:
    """Score sequences exactly, lazily and in order; see `pll_queries`.

    Raises:
        UsageError: a sequence longer than the model: cut it into windows first.
    """
    return window_scores(conditionals, ((encoding, None) for encoding in encodings))


def window_scores(
    conditionals: Conditionals, windows: Iterable[tuple[Encoding, Bools | None]]
) -> Iterator[SequenceScore]:
    """Score windows, each at the positions it owns alone (see `seqmlm.engine.windows.central_windows`).

    Args:
        windows: encodings, each with (L,) True at the positions to score, or None for all.

    Raises:
        UsageError: a window longer than the model.
    """
    waiting: deque[tuple[Encoding, list[Query]]] = deque()

    def questions() -> Iterator[Query]:
        for encoding, owned in windows:
            queries = list(pll_queries(encoding, conditionals.space, owned))
            waiting.append((encoding, queries))
            yield from queries

    parts: list[Floats] = []
    for answer in conditionals.ask(questions()):
        while not waiting[0][1]:
            yield _score(*waiting.popleft(), [])
        parts.append(answer.log_probs)
        if len(parts) == len(waiting[0][1]):
            yield _score(*waiting.popleft(), parts)
            parts = []
    while waiting:
        yield _score(*waiting.popleft(), [])


def _score(encoding: Encoding, queries: list[Query], parts: list[Floats]) -> SequenceScore:
    empty = np.zeros(0, dtype=np.int32)
    positions = np.concatenate([q.asked for q in queries]) if queries else empty
    log_probs = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
    return SequenceScore(positions, log_probs, encoding.groups[positions])
