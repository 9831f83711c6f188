"""A one-pass correction fitted to exact conditionals, for models whose training does not give one.

Where training breaks the assumptions of `seqmlm.engine.correction.derive`, a single number in its place still
takes most of the bias away: the one for which corrected log-probabilities are nearest to exact ones. It is an
approximation, and says how good: error and rank correlation on the positions it was fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.query import Query
from seqmlm.engine.types import Bools, Encoding, Floats, Sequences, TokenSpace
from seqmlm.engine.units import pll_queries
from seqmlm.errors import DataError

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

# Nats taken from a seen token's logit while asking: probabilities near 1 keep their digits in float32.
_ASIDE = 30.0
_CLASS_POSITIONS = 32
"""Positions a token class needs for a number of its own."""
_HIGHEST = 40.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """A fitted correction and how well it does where it was fitted.

    Args:
        correction: of kind "fitted".
        positions: it was fitted to.
        rmse: root mean squared difference of the surprisals to exact ones, in bits.
        spearman: rank correlation of the surprisals with exact ones; NaN where one side is constant.
        raw_rmse: the error without any correction, in bits.
    """

    correction: Correction
    positions: int
    rmse: float
    spearman: float
    raw_rmse: float


def fit(
    conditionals: Conditionals,
    encodings: Sequences | Sequence[Encoding],
    *,
    bias: Floats | None = None,
    n: int = 256,
    seed: int = 0,
) -> Fit:
    """Fit what is subtracted from a seen token's logit, by least squares on log-probabilities.

    One number for all tokens; where the encodings have token classes, also one for each class that has enough
    of the positions, given to the tokens that are mostly of that class.

    Args:
        conditionals: of the model.
        encodings: normal sequences, none longer than the model.
        bias: (V,) nats, as in `Correction`, for both sides alike.
        n: positions to ask exactly, at most; fewer where the sequences are short.
        seed: of their choice.

    Raises:
        DataError: nothing to ask in the encodings.
    """
    chosen = sample(encodings, conditionals.space, n, seed)
    if not chosen:
        raise DataError(
            "no positions to fit a one-pass correction to: the sequences hold no ordinary tokens",
            remedy="give normal sequences with units that the model knows",
        )
    exact = _exact(conditionals, chosen, bias)
    odds = _odds(conditionals, chosen, bias)
    tokens = np.concatenate([one.ids[places] for one, places in chosen]).astype(np.int64)
    everywhere = least_squares(odds, exact)
    seen = np.where(conditionals.space.is_special, 0.0, everywhere)
    for own, members in _classes(chosen, conditionals.space):
        if np.count_nonzero(own) >= _CLASS_POSITIONS:
            seen[members] = least_squares(odds[own], exact[own])
    fitted = _log_sigmoid(odds - seen[tokens])
    return Fit(
        correction=Correction(seen=seen.astype(np.float32), bias=bias, kind="fitted"),
        positions=len(exact),
        rmse=float(np.sqrt(np.mean((fitted - exact) ** 2)) / np.log(2)),
        spearman=spearman(fitted, exact),
        raw_rmse=float(np.sqrt(np.mean((_log_sigmoid(odds) - exact) ** 2)) / np.log(2)),
    )


def least_squares(odds: Doubles, log_probs: Doubles) -> float:
    """The c in [0, 40] nats that minimizes the squared error of log sigmoid(odds - c) against `log_probs`.

    The error has one valley, or several where positions disagree much: a grid finds the deepest, then
    golden-section search its floor.

    Args:
        odds: (N,) log-odds of the seen token. log_probs: (N,) natural log of its masked conditional.
    """

    def error(c: float) -> float:
        return float(np.mean((_log_sigmoid(odds - c) - log_probs) ** 2))

    step = 0.25
    grid = np.arange(0.0, _HIGHEST + step, step)
    best = float(grid[int(np.argmin([error(c) for c in grid]))])
    low, high = max(0.0, best - step), min(_HIGHEST, best + step)
    ratio = (np.sqrt(5) - 1) / 2
    while high - low > 1e-6:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if error(left) <= error(right) else (left, high)
    return float((low + high) / 2)


def spearman(a: Doubles, b: Doubles) -> float:
    """Rank correlation, ties at their mean rank; NaN where a side is constant."""
    ranks = []
    for values in (a, b):
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[place])
    if any(np.ptp(one) == 0 for one in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _log_sigmoid(x: Doubles) -> Doubles:
    return -np.logaddexp(0.0, -x)


Sample = list[tuple[Encoding, Longs]]


def sample(encodings: Sequences | Sequence[Encoding], space: TokenSpace, n: int, seed: int) -> Sample:
    """About n positions of random sequences, a tenth of each sequence's at most (one at least)."""
    rng = np.random.default_rng(seed)
    found: Sample = []
    left = n
    for number in rng.permutation(len(encodings)).tolist():
        encoding = encodings[number]
        places = np.flatnonzero((encoding.groups >= 0) & ~space.is_special[encoding.ids])
        if len(places):
            share = min(left, max(-(-len(places) // 10), -(-n // len(encodings))), len(places))
            found.append((encoding, np.sort(rng.choice(places, share, replace=False))))
            left -= share
        if left <= 0:
            break
    return found


def _exact(conditionals: Conditionals, chosen: Sample, bias: Floats | None) -> Doubles:
    """(N,) natural log-probability of each position with itself and the rest of its unit hidden."""

    def queries() -> Iterator[Query]:
        for encoding, places in chosen:
            yield from pll_queries(encoding, conditionals.space, flags(encoding, places))

    answers = conditionals.ask(queries(), correction=Correction(bias=bias))
    return np.concatenate([answer.log_probs for answer in answers]).astype(np.float64)


def _odds(conditionals: Conditionals, chosen: Sample, bias: Floats | None) -> Doubles:
    """(N,) log-odds of the observed token at each position with nothing hidden."""
    aside = np.where(conditionals.space.is_special, 0.0, _ASIDE).astype(np.float32)
    nothing = np.zeros(0, dtype=np.int32)
    queries = (Query(encoding=one, masked=nothing, asked=places.astype(np.int32)) for one, places in chosen)
    answers = conditionals.ask(queries, correction=Correction(seen=aside, bias=bias))
    low = np.concatenate([answer.log_probs for answer in answers]).astype(np.float64)
    low = np.minimum(low, -1e-7)  # a seen token more certain than any float32 softmax can say
    return low - np.log(-np.expm1(low)) + _ASIDE


def flags(encoding: Encoding, places: Longs) -> Bools:
    """(L,) True at the places."""
    flags = np.zeros(len(encoding), dtype=np.bool_)
    flags[places] = True
    return flags


def _classes(chosen: Sample, space: TokenSpace) -> Iterator[tuple[Bools, Longs]]:
    """For each token class: which of the N positions are of it (N,), and the tokens mostly of it."""
    if any(encoding.classes is None for encoding, _ in chosen):
        return
    of = np.concatenate([one.classes[places] for one, places in chosen if one.classes is not None])
    ids = np.concatenate([one.ids for one, _ in chosen])
    classes = np.concatenate([one.classes for one, _ in chosen if one.classes is not None])
    known = ~space.is_special[ids] & (classes >= 0)
    numbers = np.unique(classes[known])
    counts = np.zeros((space.size, len(numbers)), dtype=np.int64)
    np.add.at(counts, (ids[known], np.searchsorted(numbers, classes[known])), 1)
    mostly = np.where(counts.any(axis=1), counts.argmax(axis=1), -1)
    for place, number in enumerate(numbers.tolist()):
        yield of == number, np.flatnonzero(mostly == place)
