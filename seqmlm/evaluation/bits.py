"""How good a masked language model is, in numbers that do not flatter it.

The definition is the same for every masker and domain: a share of the *units* is chosen by one uniform rule,
all tokens of a chosen unit become [MASK] (none is kept, none replaced), and the cost is counted per unit,
beside the cost of the training data's unigram on exactly those positions.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.masking.base import number_units
from seqmlm.engine.masking.corrupt import Corruptor, uniform_units
from seqmlm.engine.randomness import EVALUATION, rng
from seqmlm.engine.types import Encoding, Sequences, TokenSpace
from seqmlm.errors import UsageError

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

# An epoch that training never reaches: its masks are fresh.
_FRESH = 2**40


@dataclass(frozen=True, kw_only=True)
class BitsReport:
    """Evaluation on one set of masked units.

    Args:
        bits_per_unit: sum of -log2 p over masked tokens / masked units.
        unigram_bits_per_unit: the same with the training data's unigram as p.
        loss: mean of -ln p over masked tokens, nats.
        units, tokens: how many were masked.
    """

    bits_per_unit: float
    unigram_bits_per_unit: float
    loss: float
    units: int
    tokens: int


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitBits:
    """The cost of every masked unit: what a report sums, and what a bootstrap over sequences resamples.

    Args:
        sample: (U,) index of the unit's sequence, in the order the sequences were asked.
        unit: (U,) the unit's number within its sequence, 0-based in order of appearance, as in `units_of`.
        tokens: (U,) tokens of the unit.
        bits, unigram_bits: (U,) -log2 p of the unit, by the model and by the unigram.
    """

    sample: Longs
    unit: Longs
    tokens: Longs
    bits: Doubles
    unigram_bits: Doubles

    def report(self) -> BitsReport:
        """Reduce to totals; NaN where nothing was masked."""
        units, tokens = len(self.sample), int(self.tokens.sum())
        return BitsReport(
            bits_per_unit=_ratio(self.bits.sum(), units),
            unigram_bits_per_unit=_ratio(self.unigram_bits.sum(), units),
            loss=_ratio(self.bits.sum() * math.log(2), tokens),
            units=units,
            tokens=tokens,
        )


def masked_bits(
    conditionals: Conditionals,
    sequences: Sequences,
    indices: Iterable[int],
    *,
    unigram: Doubles,
    rate: float = 0.15,
    seed: int,
) -> BitsReport:
    """Evaluate a model on the sequences of `indices`; see `unit_bits` for the arguments."""
    return unit_bits(conditionals, sequences, indices, unigram=unigram, rate=rate, seed=seed).report()


def unit_bits(
    conditionals: Conditionals,
    sequences: Sequences,
    indices: Iterable[int],
    *,
    unigram: Doubles,
    rate: float = 0.15,
    seed: int,
) -> UnitBits:
    """The cost of each masked unit.

    The units depend on (seed, index) alone: not on the model, its masker, or which other sequences are asked.

    Args:
        sequences: validation sequences; those without an ordinary token are passed over.
        unigram: (V,) probabilities from the *training* split, see `unigram`.
        rate: share of the units of a sequence that is masked; at least one unit is.
        seed: names the choice of units.

    Raises:
        UsageError: a unigram of another size.
    """
    if unigram.shape != (conditionals.space.size,):
        raise UsageError(f"a unigram of shape {unigram.shape} for {conditionals.space.size} tokens")
    parts: list[UnitBits] = []
    asked: deque[tuple[int, Encoding, Longs]] = deque()

    def questions() -> Iterator[Query]:
        for index in indices:
            encoding = sequences[index]
            generator = rng(seed, 0, index, EVALUATION)
            chosen = np.flatnonzero(uniform_units(encoding, conditionals.space, rate, generator))
            if len(chosen):
                asked.append((index, encoding, chosen))
                yield Query(encoding=encoding, masked=chosen.astype(np.int32), asked=chosen.astype(np.int32))

    for answer in conditionals.ask(questions()):
        index, encoding, chosen = asked.popleft()
        parts.append(_by_unit(index, encoding, chosen, answer.log_probs.astype(np.float64), unigram))
    return _concatenated(parts)


def _by_unit(index: int, encoding: Encoding, chosen: Longs, log_probs: Doubles, unigram: Doubles) -> UnitBits:
    """Sum the tokens of each masked unit of one sequence."""
    numbers, place = np.unique(unit_numbers(encoding)[chosen], return_inverse=True)
    with np.errstate(divide="ignore"):
        unigram_bits = -np.log2(unigram[encoding.ids[chosen]])
    return UnitBits(
        sample=np.full(len(numbers), index, dtype=np.int64),
        unit=numbers.astype(np.int64),
        tokens=np.bincount(place),
        bits=np.bincount(place, weights=-log_probs / math.log(2)).astype(np.float64),
        unigram_bits=np.bincount(place, weights=unigram_bits).astype(np.float64),
    )


def _concatenated(parts: list[UnitBits]) -> UnitBits:
    nothing = np.zeros(0, dtype=np.int64)
    empty = UnitBits(sample=nothing, unit=nothing, tokens=nothing, bits=np.zeros(0), unigram_bits=np.zeros(0))
    names = [f.name for f in fields(UnitBits)]
    return UnitBits(**{n: np.concatenate([getattr(p, n) for p in (empty, *parts)]) for n in names})


def unit_numbers(encoding: Encoding) -> Longs:
    """(L,) the number of each token's unit, 0-based in order of appearance; -1 outside all units."""
    inside = encoding.groups >= 0
    numbers = np.full(len(encoding), -1, dtype=np.int64)
    numbers[inside] = number_units(encoding.groups[inside])[0]
    return numbers


def units_of(encoding: Encoding, space: TokenSpace) -> list[tuple[int, ...]]:
    """The units of a sequence as tuples of their ordinary token ids; () for a unit of special tokens."""
    numbers = unit_numbers(encoding)
    units: list[list[int]] = [[] for _ in range(int(numbers.max(initial=-1)) + 1)]
    ordinary = (numbers >= 0) & ~space.is_special[encoding.ids]
    for number, token in zip(numbers[ordinary].tolist(), encoding.ids[ordinary].tolist(), strict=True):
        units[number].append(token)
    return [tuple(unit) for unit in units]


def unigram(source: Sequences | NDArray[np.integer], space: TokenSpace) -> Doubles:
    """The unigram of the training split with add-one smoothing over the ordinary tokens.

    Args:
        source: the training sequences, or their (V,) token counts.

    Returns:
        (V,) probabilities, 0 at special tokens.
    """
    if isinstance(source, np.ndarray):
        if source.shape != (space.size,):
            raise UsageError(f"token counts have shape {source.shape} for a vocabulary of {space.size}")
        counts = source.astype(np.float64)
    else:
        counts = np.zeros(space.size)
        for index in range(len(source)):
            counts += np.bincount(source[index].ids, minlength=space.size)
    smoothed: Doubles = np.where(space.is_special, 0.0, counts + 1)
    smoothed /= smoothed.sum()
    return smoothed


def memorization_gap(
    conditionals: Conditionals, sequences: Sequences, indices: Iterable[int], corruptor: Corruptor
) -> float:
    """Loss on the masks of the first epoch minus loss on masks never seen, in nats per masked token.

    With static masks the first epoch's are those trained on, and a negative gap says how much of the training
    loss is memory of the masks. Both sides are corrupted as in training (also replaced and kept tokens).

    Args:
        sequences: the training sequences; `indices` names some of them.
        corruptor: the one trained with.
    """
    fresh = copy.copy(corruptor)
    fresh.config = replace(corruptor.config, dynamic=True)
    indices = list(indices)
    trained_loss = _corrupted_loss(conditionals, sequences, indices, corruptor, 0)
    return trained_loss - _corrupted_loss(conditionals, sequences, indices, fresh, _FRESH)


def _corrupted_loss(
    conditionals: Conditionals, sequences: Sequences, indices: list[int], corruptor: Corruptor, epoch: int
) -> float:
    """Mean -ln p over the selected tokens."""

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
        nats -= float(answer.log_probs.sum(dtype=np.float64))
        tokens += len(answer.log_probs)
    return _ratio(nats, tokens)


def _ratio(total: float, count: int) -> float:
    return float(total) / count if count else math.nan
