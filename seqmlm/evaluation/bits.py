"""Bits per unit of a masked language model, measured in the same way for every masker and domain.

One uniform rule selects a fraction of the *units*. All tokens of a selected unit become [MASK]; none is kept
or replaced. The cost is given per unit, next to the cost of a unigram model of the training data at the same
positions. With the masker of the training instead, models with different maskers could not be compared.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import Corruptor
from seqmlm.engine.query import Query
from seqmlm.engine.randomness import EVALUATION, rng
from seqmlm.engine.reductions import Reduction, TargetLogProb
from seqmlm.engine.types import Sequences, TokenSpace
from seqmlm.engine.units import UnitLogProbs, Units
from seqmlm.errors import UsageError

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

_FRESH = 2**40  # an epoch that training never reaches, so that its masks are new


@dataclass(frozen=True, kw_only=True)
class BitsReport:
    """Evaluation on one set of masked units.

    Args:
        bits_per_unit: sum of -log2 p over masked tokens, divided by the number of masked units.
        unigram_bits_per_unit: the same, with the probabilities of the training data's unigram model.
        loss: mean of -ln p over masked tokens, in nats.
        units, tokens: number of masked units and tokens.
    """

    bits_per_unit: float
    unigram_bits_per_unit: float
    loss: float
    units: int
    tokens: int


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitBits:
    """The cost of each masked unit, for totals and for a bootstrap over sequences.

    Args:
        sample: (U,) index of the unit's sequence, in the order of evaluation.
        unit: (U,) number of the unit in its sequence, from 0, as in `unit_symbols`.
        tokens: (U,) number of tokens of the unit; less than 1 if a token shows several units.
        bits, unigram_bits: (U,) -log2 p of the unit, from the model and from the unigram model.
        values: other reductions, name -> (U, ...), from the first entry of each unit.
    """

    sample: Longs
    unit: Longs
    tokens: Doubles
    bits: Doubles
    unigram_bits: Doubles
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def report(self) -> BitsReport:
        """The totals; NaN if nothing was masked."""
        units, tokens = len(self.sample), round(float(self.tokens.sum()))
        return BitsReport(
            bits_per_unit=_ratio(self.bits.sum(), units),
            unigram_bits_per_unit=_ratio(self.unigram_bits.sum(), units),
            loss=_ratio(self.bits.sum() * math.log(2), tokens),
            units=units,
            tokens=tokens,
        )


def unit_bits(
    conditionals: Conditionals,
    sequences: Sequences,
    indices: Iterable[int],
    *,
    unigram: Doubles,
    rate: float = 0.15,
    seed: int,
    units: Units | None = None,
    want: Collection[Reduction] = (),
) -> UnitBits:
    """The cost of each masked unit.

    The selection of units depends only on (seed, index). It does not depend on the model, its masker, or the
    other sequences.

    Args:
        conditionals: the model.
        sequences: validation sequences. A sequence without an ordinary token is skipped.
        indices: the indices of the sequences to evaluate.
        unigram: (K,) probabilities of symbols in the *training* split (`Units.frequencies`). If units are
            groups of tokens, the symbols are tokens.
        rate: fraction of the units of a sequence to mask; at least one unit is masked.
        seed: seed of the selection.
        units: the rule for masking units and reading their predictions; None for groups of tokens.
        want: reductions to compute in addition to log-probabilities.

    Raises:
        UsageError: `unigram` has the wrong size.
    """
    rule = Units(conditionals.space) if units is None else units
    if unigram.shape != (rule.symbols,):
        raise UsageError(f"a unigram of shape {unigram.shape} for {rule.symbols} symbols")
    parts: list[UnitBits] = []
    pending: deque[tuple[int, Query]] = deque()

    def questions() -> Iterator[Query]:
        for index in indices:
            query = rule.evaluation_query(sequences[index], rate, rng(seed, 0, index, EVALUATION))
            if query is not None:
                pending.append((index, query))
                yield query

    for answer in conditionals.ask(questions(), rule.needs(want)):
        index, query = pending.popleft()
        parts.append(_sum_units(index, rule.unit_log_probs(query, answer, want), unigram))
    return concatenate_bits(parts)


def _sum_units(index: int, entries: UnitLogProbs, unigram: Doubles) -> UnitBits:
    """Sum the entries of each masked unit of one sequence."""
    numbers, first, place = np.unique(entries.unit, return_index=True, return_inverse=True)
    with np.errstate(divide="ignore"):
        unigram_bits = -np.log2(unigram[entries.symbol])
    return UnitBits(
        sample=np.full(len(numbers), index, dtype=np.int64),
        unit=numbers.astype(np.int64),
        tokens=np.bincount(place, weights=entries.tokens).astype(np.float64),
        bits=np.bincount(place, weights=-entries.log_probs / math.log(2)).astype(np.float64),
        unigram_bits=np.bincount(place, weights=unigram_bits).astype(np.float64),
        values={name: values[first] for name, values in entries.values.items()},
    )


def concatenate_bits(parts: Sequence[UnitBits]) -> UnitBits:
    """The units of several evaluations, in order."""
    nothing, none = np.zeros(0, dtype=np.int64), np.zeros(0)
    empty = UnitBits(sample=nothing, unit=nothing, tokens=none, bits=none, unigram_bits=none)
    names = [f.name for f in fields(UnitBits) if f.name != "values"]
    columns = {n: np.concatenate([getattr(p, n) for p in (empty, *parts)]) for n in names}
    values = {n: np.concatenate([p.values[n] for p in parts]) for n in (parts[0].values if parts else ())}
    return UnitBits(**columns, values=values)


def unigram(source: Sequences | NDArray[np.integer], space: TokenSpace) -> Doubles:
    """(V,) probabilities of tokens, with add-one smoothing; 0 for special tokens.

    Args:
        source: the training sequences, or (V,) counts of tokens.
        space: the token ids of the vocabulary.
    """
    if isinstance(source, np.ndarray):
        return Units(space).frequencies(source)
    counts = np.zeros(space.size)
    for index in range(len(source)):
        counts += np.bincount(source[index].ids, minlength=space.size)
    return Units(space).frequencies(counts)


def memorization_gap(
    conditionals: Conditionals, sequences: Sequences, indices: Iterable[int], corruptor: Corruptor
) -> float:
    """The loss on the masks of the first epoch minus the loss on new masks, in nats per masked token.

    With static masks, the model was trained on the masks of the first epoch. A negative gap then measures how
    much it has memorized them. Both losses use the corruptor of the training, with replaced and kept tokens.

    Args:
        conditionals: the model.
        sequences: the training sequences.
        indices: the indices of some of these sequences.
        corruptor: the corruptor of the training.
    """
    fresh = copy.copy(corruptor)
    fresh.config = replace(corruptor.config, dynamic=True)
    indices = list(indices)
    trained_loss = _corrupted_loss(conditionals, sequences, indices, corruptor, 0)
    return trained_loss - _corrupted_loss(conditionals, sequences, indices, fresh, _FRESH)


def _corrupted_loss(
    conditionals: Conditionals, sequences: Sequences, indices: list[int], corruptor: Corruptor, epoch: int
) -> float:
    """Mean of -ln p, in nats, over the tokens that a corruptor selects in an epoch."""

    def questions() -> Iterator[Query]:
        for index in indices:
            encoding = sequences[index]
            masked = corruptor(encoding, epoch, index)
            if len(masked.positions):
                yield Query(
                    encoding=replace(encoding, ids=masked.ids),
                    masked=np.zeros(0, dtype=np.int32),
                    asked=masked.positions.astype(np.int32),
                    targets=masked.targets,
                )

    nats, tokens = 0.0, 0
    for answer in conditionals.ask(questions()):
        nats -= float(answer.values[TargetLogProb.name].sum(dtype=np.float64))
        tokens += len(answer.values[TargetLogProb.name])
    return _ratio(nats, tokens)


def _ratio(total: float, count: int) -> float:
    """total / count; NaN if the count is 0."""
    return float(total) / count if count else math.nan
