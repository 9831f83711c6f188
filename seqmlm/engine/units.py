"""How what a field counts (its units) is hidden behind [MASK] and read back from the model's answers.

Bits per unit compare between tokenizers only if a unit means the same to all of them. In most fields a unit
is a group of tokens, and `Units` is that. Where a token shows several units, or neighbouring tokens show the
same one, the tokenizer supplies another rule with the same methods; who evaluates or scores knows only those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import number_units, uniform_units
from seqmlm.engine.mode import EXACT, Mode
from seqmlm.engine.query import Answer, Query
from seqmlm.engine.types import Bools, Encoding, Ids, TokenSpace
from seqmlm.errors import UsageError

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

# Tokens of the masked copies that one query stands for: bounds the memory a very long sequence takes.
QUERY_TOKENS = 1 << 20

_PARTITION_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prices:
    """What the answer to one query says of units; a unit may have several entries, which add up.

    Args:
        position: (E,) a token that shows the unit.
        unit: (E,) the unit's number in its sequence, 0-based in order of appearance.
        letter: (E,) what stands there, in the alphabet of `Units.frequencies`.
        log_probs: (E,) natural log-probability of it.
        tokens: (E,) share of a token that the entry is, or None for 1.
        entropy, ranks, top_ids, top_log_probs: of each entry as in `Answer`, over the alphabet of letters;
            None where the answer has none.
    """

    position: Ids
    unit: Longs
    letter: Longs
    log_probs: Doubles
    tokens: Doubles | None = None
    entropy: Doubles | None = None
    ranks: Longs | None = None
    top_ids: Longs | None = None
    top_log_probs: Doubles | None = None


class Units:
    """Units that are groups of tokens: words, residues, lexer tokens, visits.

    Attributes:
        whole_rows: whether `read` needs whole distributions in the answers.
        letter_rows: whether it needs them for entropies, ranks and most probable letters.
        names: how the letters are spelled, or None where they are tokens.

    Args:
        space: the vocabulary.
    """

    whole_rows: ClassVar[bool] = False
    letter_rows: ClassVar[bool] = False
    names: ClassVar[Sequence[str] | None] = None

    def __init__(self, space: TokenSpace) -> None:
        self.space = space

    @property
    def letters(self) -> int:
        """K, the size of the alphabet that units are spelled in; here the vocabulary."""
        return self.space.size

    def frequencies(self, counts: NDArray[Any]) -> Doubles:
        """(K,) add-one unigram of the letters, 0 at special ones.

        Args:
            counts: (V,) occurrences of each token in the training split.
        """
        if counts.shape != (self.space.size,):
            raise UsageError(f"token counts have shape {counts.shape} for a vocabulary of {self.space.size}")
        smoothed: Doubles = np.where(self.space.is_special, 0.0, counts.astype(np.float64) + 1)
        smoothed /= smoothed.sum()
        return smoothed

    def numbers(self, encoding: Encoding) -> Longs:
        """(N,) the number each unit of a sequence (or window) has in the whole sequence, as in `groups`."""
        return encoding.groups[self._firsts(encoding)].astype(np.int64)

    def spans(self, encoding: Encoding) -> Longs:
        """(N, 2) where each unit stands in the raw text: from its first to its last character."""
        numbers = unit_numbers(encoding)
        inside = numbers >= 0
        count = int(numbers.max(initial=-1)) + 1
        if encoding.spans is None:
            return np.zeros((count, 2), dtype=np.int64)
        found = np.zeros((count, 2), dtype=np.int64)
        found[:, 0] = np.iinfo(np.int64).max
        np.minimum.at(found[:, 0], numbers[inside], encoding.spans[inside, 0])
        np.maximum.at(found[:, 1], numbers[inside], encoding.spans[inside, 1])
        return found

    def spelled(self, encoding: Encoding) -> list[tuple[int, ...]]:
        """(N,) the letters of each unit; () for a unit of special tokens."""
        numbers = unit_numbers(encoding)
        units: list[list[int]] = [[] for _ in range(int(numbers.max(initial=-1)) + 1)]
        ordinary = (numbers >= 0) & ~self.space.is_special[encoding.ids]
        for number, token in zip(numbers[ordinary].tolist(), encoding.ids[ordinary].tolist(), strict=True):
            units[number].append(token)
        return [tuple(unit) for unit in units]

    def count(self, ids: Ids, groups: Ids, offsets: Ids) -> int:
        """Units in sequences laid end to end: runs of one group number, special tokens (-1) aside.

        Args:
            ids, groups: (T,) of all tokens.
            offsets: (N + 1,) where the sequences begin.
        """
        starts = np.ones(len(groups), dtype=np.bool_)
        starts[1:] = groups[1:] != groups[:-1]
        starts[offsets[:-1][np.diff(offsets) > 0]] = True
        return int(np.count_nonzero(starts & (groups >= 0)))

    def hide(self, encoding: Encoding, rate: float, rng: np.random.Generator) -> Query | None:
        """The question of an evaluation: units chosen at `rate`, one at least, all their tokens [MASK].

        None where the sequence has nothing to hide.
        """
        chosen = np.flatnonzero(uniform_units(encoding, self.space, rate, rng)).astype(np.int32)
        return Query(encoding=encoding, masked=chosen, asked=chosen) if len(chosen) else None

    def each(self, encoding: Encoding, owned: Bools | None = None) -> Iterator[Query]:
        """The questions of an exact pseudo-log-likelihood: every unit asked once, see `pll_queries`."""
        return pll_queries(encoding, self.space, owned)

    def questions(
        self, encoding: Encoding, owned: Bools | None = None, mode: Mode = EXACT
    ) -> Iterator[Query]:
        """The questions that price every unit in a mode; together they ask each scored position once.

        Args:
            encoding: the sequence, or a window of one.
            owned: (L,) True at the positions to ask, None for all.
            mode: how units are hidden.
        """
        if mode.kind == "exact":
            yield from self.each(encoding, owned)
            return
        numbers = unit_numbers(encoding)
        scored = (numbers >= 0) & ~self.space.is_special[encoding.ids]
        if mode.kind == "one-pass":
            asked = np.flatnonzero(scored if owned is None else scored & owned).astype(np.int32)
            if len(asked):
                yield Query(encoding=encoding, masked=np.zeros(0, dtype=np.int32), asked=asked)
            return
        count = int(numbers.max(initial=-1)) + 1
        passes = np.arange(count) if mode.kind == "whole-unit" else partition(count, mode.parts)
        hidden = np.where(scored, passes[numbers] if count else -1, -1)
        yield from hidden_together(encoding, hidden, owned)

    def read(self, query: Query, answer: Answer) -> Prices:
        """What the answer to a query of `hide`, `each` or `questions` says of units."""
        return Prices(
            position=query.asked,
            unit=unit_numbers(query.encoding)[query.asked],
            letter=query.encoding.ids[query.asked].astype(np.int64),
            log_probs=answer.log_probs.astype(np.float64),
            entropy=None if answer.entropy is None else answer.entropy.astype(np.float64),
            ranks=answer.ranks,
            top_ids=answer.top_ids,
            top_log_probs=None if answer.top_log_probs is None else answer.top_log_probs.astype(np.float64),
        )

    def places(self, encoding: Encoding) -> Longs:
        """(N,) a token that shows each unit."""
        return self._firsts(encoding)

    def _firsts(self, encoding: Encoding) -> Longs:
        """(N,) the first token of each unit."""
        numbers = unit_numbers(encoding)
        found, first = np.unique(numbers, return_index=True)
        return first[found >= 0].astype(np.int64)


def unit_numbers(encoding: Encoding) -> Longs:
    """(L,) the number of each token's unit, 0-based in order of appearance; -1 outside all units."""
    inside = encoding.groups >= 0
    numbers = np.full(len(encoding), -1, dtype=np.int64)
    numbers[inside] = number_units(encoding.groups[inside])[0]
    return numbers


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


def partition(count: int, parts: int) -> Longs:
    """(N,) the pass in 0..parts-1 that hides each of N units.

    In every block of `parts` neighbouring units each pass has one, in an order drawn from a fixed seed: no
    pass hides more than two neighbours, and none hides a regular pattern.
    """
    blocks = np.tile(np.arange(parts), (-(-count // parts), 1))
    drawn = np.random.default_rng(_PARTITION_SEED).permuted(blocks, axis=1)
    return np.asarray(drawn.ravel()[:count], dtype=np.int64)


def hidden_together(encoding: Encoding, passes: Longs, owned: Bools | None = None) -> Iterator[Query]:
    """The questions of passes that each hide several tokens and ask all of them.

    Args:
        encoding: the sequence, or a window of one.
        passes: (L,) the pass that hides each token, from 0 on; -1 for tokens that stay visible.
        owned: (L,) True at the positions to ask, None for all; what is hidden does not depend on it.

    Returns:
        Queries with several variants, fewer tokens than `QUERY_TOKENS` each (one pass at least); passes
        without an asked token are left out.
    """
    wanted = passes >= 0 if owned is None else (passes >= 0) & owned
    order = np.argsort(passes, kind="stable")
    masked = order[passes[order] >= 0]
    asked = order[wanted[order]]
    names = np.unique(passes[asked])
    masked = masked[np.isin(passes[masked], names)]
    masked_in = np.searchsorted(names, passes[masked])
    asked_in = np.searchsorted(names, passes[asked])
    step = max(1, QUERY_TOKENS // max(1, len(encoding)))
    for first in range(0, len(names), step):
        hides, asks = (slice(*np.searchsorted(one, [first, first + step])) for one in (masked_in, asked_in))
        yield Query(
            encoding=encoding,
            masked=masked[hides].astype(np.int32),
            masked_in=(masked_in[hides] - first).astype(np.int32),
            asked=asked[asks].astype(np.int32),
            asked_in=(asked_in[asks] - first).astype(np.int32),
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
