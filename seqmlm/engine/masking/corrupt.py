"""Puts the masks in place: which positions by the masker, what stands there by the 80/10/10 rule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import (
    Hider,
    Masker,
    MaskingConfig,
    Replacer,
    draw,
    eligible_tokens,
    number_units,
)
from seqmlm.engine.randomness import KeyedGenerator
from seqmlm.engine.types import Bools, Encoding, Floats, Ids, TokenSpace
from seqmlm.errors import UsageError


class Masked(NamedTuple):
    """A corrupted sequence and what is to be predicted.

    Args:
        ids: (L,) input ids.
        positions: (M,) positions to predict, ascending.
        targets: (M,) the true ids there.
        weights: (M,) loss weights, or None for all 1.
    """

    ids: Ids
    positions: NDArray[np.intp]
    targets: Ids
    weights: Floats | None


class Corruptor:
    """Corrupts sequences for training: the same for equal (seed, epoch, sample), whoever asks and when.

    Special tokens are never selected and never inserted. A random token is drawn without a look at the
    true one, so it may be the true one; a masker whose replacement is not global draws its own.

    Args:
        config: shares of [MASK], random and kept tokens; static or dynamic.
        masker: chooses the positions.
        space: the vocabulary.
        unigram: (V,) token frequencies or probabilities, for replacement = "unigram"; else None.
        seed: any integer.

    Raises:
        UsageError: `unigram` missing or without mass on ordinary tokens, or asked for with a masker that
            draws its own random tokens.
    """

    def __init__(
        self,
        config: MaskingConfig,
        masker: Masker,
        space: TokenSpace,
        unigram: NDArray[np.float64] | None,
        seed: int,
    ) -> None:
        self.config, self.masker, self.space = config, masker, space
        self._generator = KeyedGenerator(seed)
        self._hider = masker if isinstance(masker, Hider) else None
        self._replacer = masker if isinstance(masker, Replacer) else None
        if (self._replacer is None) is not (masker.replacement == "global"):
            raise TypeError(f"masker {masker.name!r} declares {masker.replacement!r} replacement wrongly")
        if self._replacer is not None and config.replacement == "unigram":
            raise UsageError(
                f"masker {masker.name!r} draws its own random tokens: leave masking.replacement at 'uniform'"
            )
        self._below = _cumulative(unigram, space) if config.replacement == "unigram" else None

    def __call__(self, encoding: Encoding, epoch: int, sample: int) -> Masked:
        """Corrupt one sequence, which stays as it is; `epoch` is ignored by static masks."""
        rng = self._generator.at(epoch if self.config.dynamic else 0, sample)
        eligible = eligible_tokens(encoding, self.space)
        if self._hider is not None:
            selected, hidden = self._hider.select_and_hide(encoding, eligible, rng)
        else:
            selected, hidden = self.masker.select(encoding, eligible, rng), None
        positions = (selected & eligible).nonzero()[0]
        ids = encoding.ids.copy()
        outcome = self._outcomes(encoding, positions, rng)
        kept = outcome >= 1 - self.config.keep
        masked = outcome < self.config.mask
        if hidden is not None:
            masked |= hidden[positions]
            kept &= ~masked
        ids[positions[masked]] = self.space.mask
        swapped = positions[~(masked | kept)]
        if len(swapped) and self._replacer is not None:
            ids[swapped] = self._replacer.replace(encoding, swapped, rng)
        elif len(swapped):
            ids[swapped] = self._random_tokens(rng.random(len(swapped)))
        weights = None if encoding.weights is None else encoding.weights[positions]
        return Masked(ids, positions, encoding.ids[positions], weights)

    def _outcomes(
        self, encoding: Encoding, positions: NDArray[np.intp], rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """(M,) a number in [0, 1) for each position, shared by those that share an outcome."""
        if self.masker.outcome == "token":
            return rng.random(len(positions))
        if self.masker.outcome == "symbol" and encoding.symbols is not None:
            numbers, count = number_units(_named(encoding, positions))
            return rng.random(count)[numbers]
        if self.masker.outcome in ("unit", "symbol"):
            numbers, count = number_units(encoding.groups[positions])
            return rng.random(count)[numbers]
        run = np.cumsum(np.diff(positions, prepend=-1) > 1)  # neighbours have the same number
        return rng.random(int(run[-1]) + 1)[run] if len(run) else np.zeros(0)

    def _random_tokens(self, uniform: NDArray[np.float64]) -> Ids:
        ordinary = self.space.ordinary
        if self._below is None:
            return ordinary[(uniform * len(ordinary)).astype(np.intp)]
        return ordinary[np.searchsorted(self._below, uniform, side="right")]


def _named(encoding: Encoding, positions: NDArray[np.intp]) -> Ids:
    """(M,) a number for each position: its symbol's where it has one, else one of its unit's own."""
    assert encoding.symbols is not None
    symbols, groups = encoding.symbols[positions], encoding.groups[positions]
    return np.where(symbols >= 0, symbols, groups + (int(symbols.max(initial=-1)) + 1)).astype(np.int32)


def _cumulative(unigram: NDArray[np.float64] | None, space: TokenSpace) -> NDArray[np.float64]:
    """(R,) cumulated shares of the ordinary tokens."""
    if unigram is None or unigram.shape != (space.size,):
        raise UsageError(f"replacement = 'unigram' needs the frequencies of all {space.size} tokens")
    shares = np.asarray(unigram, dtype=np.float64)[space.ordinary]
    total = shares.sum()
    if not (shares >= 0).all() or not 0 < total < np.inf:
        raise UsageError("replacement = 'unigram' needs frequencies >= 0, some above 0, of ordinary tokens")
    below: NDArray[np.float64] = np.cumsum(shares)
    below /= below[-1]
    return below


def uniform_units(encoding: Encoding, space: TokenSpace, rate: float, rng: np.random.Generator) -> Bools:
    """(L,) whole units chosen at `rate`, at least one: what evaluation asks, whatever the training masker."""
    eligible = eligible_tokens(encoding, space)
    numbers, count = number_units(encoding.groups[eligible])
    eligible[eligible] = draw(count, rate, rng)[numbers]
    return eligible
