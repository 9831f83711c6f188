"""The masker interface, functions that maskers share, and the `Corruptor` that applies masks to sequences.

A masker selects the positions to predict. The `Corruptor` decides what replaces each token there: [MASK], a
random token, or the token itself (80/10/10 by default). This is the same for all maskers. Each masker
declares which positions share the outcome. All random numbers depend on (seed, epoch, sample). Masks are
therefore the same for any number of workers and processes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.randomness import KeyedGenerator
from seqmlm.engine.types import Bools, Encoding, Floats, Ids, TokenSpace
from seqmlm.errors import UsageError, nearest
from seqmlm.parsing import Share

Outcome = Literal["token", "unit", "run", "symbol"]


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How training masks its input.

    Args:
        masker: name of the masker, such as "uniform.v1". A name without version, such as uniform, whole_unit
            or span, selects the newest version.
        rate: expected fraction of tokens (or units) to predict, in [0, 1]; at least one is predicted.
        mask: fraction of the predicted tokens that is replaced by [MASK]. `mask`, `random` and `keep` add up
            to 1.
        random: fraction of the predicted tokens that is replaced by a random token.
        keep: fraction of the predicted tokens that is not changed.
        replacement: distribution of random tokens: "uniform", or "unigram" for their frequency in the
            training data.
        dynamic: whether each epoch has new masks; False repeats the masks of the first epoch.
        options: options of the masker, by name.

    Raises:
        UsageError: a fraction is outside [0, 1], or the three fractions do not add up to 1.
    """

    masker: str = "uniform.v1"
    rate: Share = 0.15
    mask: Share = 0.8
    random: Share = 0.1
    keep: Share = 0.1
    replacement: Literal["uniform", "unigram"] = "uniform"
    dynamic: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("rate", "mask", "random", "keep"):
            check_share(key, getattr(self, key))
        if not math.isclose(self.mask + self.random + self.keep, 1.0, abs_tol=1e-9):
            total = f"{self.mask} + {self.random} + {self.keep}"
            raise UsageError(f"masking keys 'mask' + 'random' + 'keep' must add up to 1, not {total}")
        if self.replacement not in ("uniform", "unigram"):
            raise UsageError(
                f"masking key 'replacement' must be 'uniform' or 'unigram', not {self.replacement!r}"
            )


class Masker(Protocol):
    """Selects the positions to predict.

    A masker is constructed with `rate`, `space` and its own options, all by keyword. A masker that draws its
    own random tokens is a `Replacer`. A masker with positions that always become [MASK] is a `Hider`.

    Attributes:
        name: versioned name under which it is stored.
        outcome: which positions share the outcome: [MASK], a random token, or the token itself. For "token",
            none do. For "unit", all tokens of a unit do. For "run", neighbouring positions do. For "symbol",
            all units of a symbol do.
    """

    name: ClassVar[str]
    outcome: ClassVar[Outcome]

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict, all within `eligible` (L,).

        At least one is selected if the rule permits it.
        """


@runtime_checkable
class Replacer(Protocol):
    """A masker that draws its own random tokens."""

    def replace(self, encoding: Encoding, swapped: NDArray[np.intp], rng: np.random.Generator) -> Ids:
        """(S,) ordinary ids for the positions `swapped` (S,) of a sequence, which ascend."""


@runtime_checkable
class Hider(Protocol):
    """A masker with positions that always become [MASK], whatever the fractions in the config are."""

    def select_and_hide(
        self, encoding: Encoding, eligible: Bools, rng: np.random.Generator
    ) -> tuple[Bools, Bools]:
        """(L,) True at the positions to predict, as in `select`, and (L,) True where these become [MASK]."""


class RateMasker:
    """Base class of maskers.

    Args:
        rate: expected fraction of tokens (or units) to select, in [0, 1].
        space: the vocabulary.
    """

    outcome: ClassVar[Outcome] = "token"

    def __init__(self, *, rate: float, space: TokenSpace) -> None:
        self.rate = check_share("rate", rate)


def make_masker(masker: type[Masker], config: MaskingConfig, space: TokenSpace) -> Masker:
    """The masker for a config.

    Args:
        masker: class of the masker.
        config: its settings.
        space: the vocabulary.

    Raises:
        UsageError: an option is unknown or missing.
    """
    options = options_of(masker)
    check_options(config, options)
    for key in sorted(set(options) - set(config.options)):
        if options[key].default is inspect.Parameter.empty:
            raise UsageError(f"masker {config.masker!r} needs the option {key!r} (masking.options.{key})")
    instance: Masker = masker(rate=config.rate, space=space, **config.options)  # type: ignore[call-arg]
    return instance


def options_of(masker: type[Masker]) -> dict[str, inspect.Parameter]:
    """The options of a masker by name: its parameters besides `rate` and `space`."""
    parameters = inspect.signature(masker).parameters
    return {key: value for key, value in parameters.items() if key not in ("rate", "space")}


def check_options(config: MaskingConfig, known_options: Collection[str]) -> None:
    """Raise a UsageError, with the nearest known name, for options that the masker does not have."""
    for key in config.options:
        if key not in known_options:
            near = nearest(key, known_options) if known_options else "; it takes none"
            raise UsageError(f"masker {config.masker!r} has no option {key!r}{near}")


def check_share(key: str, value: float) -> float:
    """`value` if it is in [0, 1], else a UsageError that names `key`."""
    if not 0 <= value <= 1:
        raise UsageError(f"masking key {key!r} must lie in [0, 1], not {value}")
    return value


def eligible_tokens(encoding: Encoding, space: TokenSpace) -> Bools:
    """(L,) True at the tokens that may be masked: not special, and with a loss weight above 0."""
    eligible = ~space.is_special.take(encoding.ids)  # takes half the time of indexing with int32
    eligible &= encoding.groups >= 0
    if encoding.weights is not None:
        eligible &= encoding.weights > 0
    return eligible


def draw(n: int, rate: float, rng: np.random.Generator) -> Bools:
    """(n,) True with probability `rate` for each; if none is True and n > 0, one is chosen uniformly."""
    chosen = rng.random(n) < rate
    if n and not np.count_nonzero(chosen):
        chosen[int(rng.random() * n)] = True
    return chosen


def number_units(groups: Ids) -> tuple[NDArray[np.intp], int]:
    """The number of the unit of each token, from 0 in order of appearance.

    Returns:
        The unit number of each token, and the number of units.

    >>> number_units(np.array([4, 4, 7, 9, 9]))
    (array([0, 0, 1, 2, 2]), 3)
    """
    if not groups.size:
        return np.zeros(0, dtype=np.intp), 0
    previous, following = groups[:-1], groups[1:]
    if np.count_nonzero(following < previous):  # out of order, so a unit may occur again later
        _, first, numbers = np.unique(groups, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[numbers], len(first)
    changes = following != previous
    count = int(np.count_nonzero(changes)) + 1
    if count == len(groups):  # every token is a unit, for example in proteins
        return np.arange(count), count
    numbers = np.zeros(len(groups), dtype=np.intp)
    changes.cumsum(out=numbers[1:])
    return numbers, count


class Masked(NamedTuple):
    """A corrupted sequence and its targets.

    Args:
        ids: (L,) input ids.
        positions: (M,) positions to predict, ascending.
        targets: (M,) true ids at these positions.
        weights: (M,) weights in the loss, or None for 1 everywhere.
    """

    ids: Ids
    positions: NDArray[np.intp]
    targets: Ids
    weights: Floats | None


class Corruptor:
    """Corrupts sequences for training; the result depends only on (seed, epoch, sample).

    Special tokens are never selected and never inserted. A random token is drawn independently of the true
    token, and may therefore be the same. A `Replacer` draws its own random tokens.

    Args:
        config: fractions of masked, random and unchanged tokens; static or dynamic masks.
        masker: selects the positions.
        space: the vocabulary.
        unigram: (V,) token frequencies or probabilities for replacement = "unigram"; else None.
        seed: any integer.

    Raises:
        UsageError: `unigram` is missing, has no mass on ordinary tokens, or is combined with a masker that
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
        if self._replacer is not None and config.replacement == "unigram":
            raise UsageError(
                f"masker {masker.name!r} draws its own random tokens: leave masking.replacement at 'uniform'"
            )
        self._below = _cumulative_shares(unigram, space) if config.replacement == "unigram" else None

    def __call__(self, encoding: Encoding, epoch: int, sample: int) -> Masked:
        """Corrupt a copy of one sequence; static masks do not depend on `epoch`."""
        rng = self._generator.at(epoch if self.config.dynamic else 0, sample)
        eligible = eligible_tokens(encoding, self.space)
        if self._hider is not None:
            selected, hidden = self._hider.select_and_hide(encoding, eligible, rng)
        else:
            selected, hidden = self.masker.select(encoding, eligible, rng), None
        positions = (selected & eligible).nonzero()[0]
        ids = encoding.ids.copy()
        outcome = self._outcomes(encoding, positions, rng)
        unchanged = outcome >= 1 - self.config.keep
        masked = outcome < self.config.mask
        if hidden is not None:
            masked |= hidden[positions]
            unchanged &= ~masked
        ids[positions[masked]] = self.space.mask
        swapped, ordinary = positions[~(masked | unchanged)], self.space.ordinary
        if len(swapped) and self._replacer is not None:
            ids[swapped] = self._replacer.replace(encoding, swapped, rng)
        elif len(swapped) and self._below is not None:
            ids[swapped] = ordinary[np.searchsorted(self._below, rng.random(len(swapped)), side="right")]
        elif len(swapped):
            ids[swapped] = ordinary[(rng.random(len(swapped)) * len(ordinary)).astype(np.intp)]
        weights = None if encoding.weights is None else encoding.weights[positions]
        return Masked(ids, positions, encoding.ids[positions], weights)

    def _outcomes(
        self, encoding: Encoding, positions: NDArray[np.intp], rng: np.random.Generator
    ) -> NDArray[np.float64]:
        """(M,) a random number in [0, 1) for each position, the same for positions that share an outcome."""
        if self.masker.outcome == "token":
            return rng.random(len(positions))
        if self.masker.outcome in ("unit", "symbol"):
            named = self.masker.outcome == "symbol" and encoding.symbols is not None
            owners = _symbol_numbers(encoding, positions) if named else encoding.groups[positions]
            numbers, count = number_units(owners)
            return rng.random(count)[numbers]
        run = np.cumsum(np.diff(positions, prepend=-1) > 1)  # neighbours have the same number
        return rng.random(int(run[-1]) + 1)[run] if len(run) else np.zeros(0)


def _symbol_numbers(encoding: Encoding, positions: NDArray[np.intp]) -> Ids:
    """(M,) a number for each position: the number of its symbol, or of its unit if it has no symbol."""
    assert encoding.symbols is not None
    symbols, groups = encoding.symbols[positions], encoding.groups[positions]
    return np.where(symbols >= 0, symbols, groups + (int(symbols.max(initial=-1)) + 1)).astype(np.int32)


def _cumulative_shares(unigram: NDArray[np.float64] | None, space: TokenSpace) -> NDArray[np.float64]:
    """(R,) cumulative probabilities of the ordinary tokens."""
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
    """(L,) True at whole units chosen at `rate`, at least one; the rule of every evaluation."""
    eligible = eligible_tokens(encoding, space)
    numbers, count = number_units(encoding.groups[eligible])
    eligible[eligible] = draw(count, rate, rng)[numbers]
    return eligible
