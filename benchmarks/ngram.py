"""An n-gram model over the same units as a masked model: its cheap baseline.

The n-gram reads from left to right. It also gets two facts that the masked model sees. They are the number n
of tokens of the unit (one [MASK] each), and that the sequence does not end there. Let h be the k units
before. Counts are over training positions whose unit has n tokens:

    P_k(w | h, n) = (max(c(h w) - d_k, 0) + (a_k + d_k t(h)) P_{k-1}(w | h', n)) / (c(h) + a_k)
    P_{-1}(w | n) = product over the tokens of w of their unigram probability

Here h' is h without its farthest unit, and t(h) is the number of distinct units that occur after h. If a
context does not occur in training, the model uses the shorter context. This is the predictive rule of the
hierarchical Pitman-Yor process (Teh 2006). With a = 0 and continuation counts, it is interpolated Kneser-Ney
(Kneser and Ney 1995). With d = 0, it is a hierarchical Dirichlet model (MacKay and Peto 1995).

Each order has a discount d_k and a strength a_k. Orders below the highest count either occurrences or
distinct units before (h, w). These settings are selected on a tenth of the training sequences, from counts of
the others. No fixed rule is good both for words and for residues: most contexts of residues are dense.

The last level spells the unit. A unit that does not occur in training therefore has a probability over the
same tokens as in the masked model. All strings of n ordinary tokens together have probability 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import Encoding
from seqmlm.engine.units import Units, unit_numbers, unit_symbols
from seqmlm.errors import UsageError

Unit = tuple[int, ...]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]
Counting = Literal["occurrences", "continuations"]
# c(h w), c(h) and t(h) at N positions.
_Found = tuple[Doubles, Doubles, Doubles]

# Before the first unit of a sequence; a unit not seen in training.
_BEGIN, _UNSEEN = 0, 1
_HELD_OUT = 10
_DISCOUNTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_STRENGTHS = tuple(2.0**e for e in range(-4, 15))
_SWEEPS = 3
# Held-out units on which the ten smoothing parameters are chosen.
_TUNED = 1 << 15


@dataclass(frozen=True, kw_only=True)
class Smoothing:
    """Smoothing: (discount, strength) of each order, shortest first, and what lower orders count."""

    counting: Counting
    orders: tuple[tuple[float, float], ...]


def without_order(
    units: Units, encoding: Encoding, random: np.random.Generator
) -> tuple[list[Unit], list[int]]:
    """The units of a sequence, with sets in a random order, and the place of each unit of the sequence.

    Units of one position are a set (the events of a visit). A table writes its columns in an order. An n-gram
    that reads it knows the next column, which is not a fact about patients.
    """
    spelled = unit_symbols(units, encoding)
    if encoding.positions is None:
        return spelled, list(range(len(spelled)))
    numbers = unit_numbers(encoding)
    inside = numbers >= 0
    position = np.zeros(len(spelled), dtype=np.int64)
    position[numbers[inside]] = encoding.positions[inside]
    order = np.lexsort([random.random(len(spelled)), position])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return [spelled[number] for number in order.tolist()], place.tolist()


@dataclass(frozen=True, eq=False)
class _Level:
    """Contexts of one length as sorted arrays (dictionaries of tuples would take ten times the memory).

    Args:
        contexts: (C,) sorted keys: (index of the context one shorter) * size + farthest unit.
        events: (E,) sorted keys: (index of the context) * size + next unit.
        counts: (E,) of each event; totals, types: (C,) sum and number of each context's events.
    """

    contexts: Longs
    events: Longs
    counts: Doubles
    totals: Doubles
    types: Doubles


@dataclass(frozen=True, eq=False)
class _Positions:
    """Units to be predicted: their numbers (N,), tokens (N,), log2 spelled probability (N,), history (N, k).

    The history has the nearest unit first, as the contexts grow.
    """

    unit: Longs
    tokens: Longs
    spelled: Doubles
    history: Longs

    def some(self, limit: int) -> _Positions:
        """At most `limit` sequences, evenly spread."""
        step = -(-len(self.unit) // limit) or 1
        return _Positions(**{field.name: getattr(self, field.name)[::step] for field in fields(self)})


class NGram:
    """An interpolated n-gram over units, with the number of a unit's tokens known.

    Args:
        order: units in the longest n-gram, itself included; 5 looks at 4 units before.
        unigram: (V,) probabilities of tokens in the training split, positive at ordinary ones.

    >>> model = NGram(order=2, unigram=np.array([0.5, 0.5])).fit([[(0,), (1,), (0,), (1,)]] * 20)
    >>> bool(model.bits([[(0,), (1,)]])[1] < 0.1)
    True
    """

    def __init__(self, *, order: int = 5, unigram: Doubles) -> None:
        if order < 1:
            raise UsageError(f"an n-gram has an order of at least 1, not {order}")
        self.order = order
        self.smoothing = Smoothing(counting="continuations", orders=((0.75, 0.125),) * order)
        with np.errstate(divide="ignore"):
            self._token_log2 = np.log2(unigram)
        self._numbers: dict[Unit, int] = {}
        self._size = 0
        self._levels: list[_Level] = []

    def fit(self, sequences: Iterable[Sequence[Unit]]) -> NGram:
        """Count, and choose the smoothing; fewer than ten sequences keep the default (d = .75, a = 1/8).

        Units () are context, never events.

        Raises:
            UsageError: no unit at all.
        """
        numbers: dict[Unit, int] = {}
        flat = []
        for sequence in sequences:
            units = [numbers.setdefault(unit, len(numbers) + 2) for unit in sequence]
            flat.append(np.array([_BEGIN] * (self.order - 1) + units, dtype=np.int64))
        if not any(numbers):
            raise UsageError("an n-gram needs at least one training unit")
        self._numbers = numbers
        # The keys of the shortest contexts are numbers of tokens, which need room too.
        self._size = max(len(numbers) + 2, max(map(len, numbers)) + 1)
        held = self._positions(flat[_HELD_OUT - 1 :: _HELD_OUT]).some(_TUNED)
        rest = self._positions([s for i, s in enumerate(flat, 1) if i % _HELD_OUT])
        if len(held.unit) and len(rest.unit):
            trials = [self._tune(rest, held, "occurrences"), self._tune(rest, held, "continuations")]
            self.smoothing = min(trials, key=lambda trial: trial[0])[1]
        self._levels = self._count(self._positions(flat), self.smoothing.counting)
        return self

    def bits(self, sequences: Iterable[Sequence[Unit]]) -> Doubles:
        """-log2 P of every unit, sequence after sequence; units () are skipped."""
        sequences = list(sequences)
        return self.bits_at(sequences, [[i for i, unit in enumerate(s) if unit] for s in sequences])

    def bits_at(self, sequences: Iterable[Sequence[Unit]], chosen: Iterable[Sequence[int]]) -> Doubles:
        """-log2 P of some units given the units before them.

        Args:
            sequences: each a list of units, as `unit_symbols` gives them.
            chosen: for each sequence the unit numbers wanted, such as those `unit_bits` masked.

        Returns:
            One value for each chosen unit, sequence after sequence.
        """
        if not self._levels:
            raise UsageError("fit the n-gram first")
        units, histories, before = [], [], self.order - 1
        for sequence, wanted in zip(sequences, chosen, strict=True):
            numbers = [_BEGIN] * before + [self._numbers.get(unit, _UNSEEN) for unit in sequence]
            units += [sequence[i] for i in wanted]
            histories += [numbers[i : i + before][::-1] for i in wanted]
        positions = _Positions(
            unit=np.array([self._numbers.get(unit, _UNSEEN) for unit in units], dtype=np.int64),
            tokens=np.array([len(unit) for unit in units], dtype=np.int64),
            spelled=np.array([self._spell(unit) for unit in units]),
            history=np.array(histories, dtype=np.int64).reshape(len(units), before),
        )
        return -_chain(self._look_up(self._levels, positions), positions.spelled, self.smoothing.orders)

    def _spell(self, unit: Unit) -> float:
        """log2 of the product of the tokens' probabilities; the product itself may underflow."""
        return float(self._token_log2[list(unit)].sum())

    def _positions(self, flat: Sequence[Longs]) -> _Positions:
        """Every unit with tokens of some training sequences, each of which begins with its padding."""
        units = np.concatenate([np.zeros(0, dtype=np.int64), *flat])
        sizes = np.array([0, 0, *map(len, self._numbers)], dtype=np.int64)
        spelled = np.array([0.0, 0.0, *map(self._spell, self._numbers)])
        at = np.flatnonzero((units >= 2) & (sizes[units] > 0))
        unit = units[at]
        history = units[at[:, None] - np.arange(1, self.order)]
        return _Positions(unit=unit, tokens=sizes[unit], spelled=spelled[unit], history=history)

    def _count(self, positions: _Positions, counting: Counting) -> list[_Level]:
        """Contexts and events of every length."""
        keys, contexts, events, counts = positions.tokens, [], [], []
        for length in range(self.order):
            known, index = np.unique(keys, return_inverse=True)
            event, count = np.unique(index * self._size + positions.unit, return_counts=True)
            contexts.append(known)
            events.append(event)
            counts.append(count)
            if length + 1 < self.order:
                keys = index * self._size + positions.history[:, length]
        if counting == "continuations":
            counts = self._continuations(contexts, events, counts)
        levels = []
        for known, event, count in zip(contexts, events, counts, strict=True):
            owner, weights = event // self._size, count.astype(np.float64)
            totals = np.bincount(owner, weights=weights).astype(np.float64)
            levels.append(_Level(known, event, weights, totals, np.bincount(owner).astype(np.float64)))
        return levels

    def _continuations(self, contexts: list[Longs], events: list[Longs], counts: list[Longs]) -> list[Longs]:
        """Below the highest order, the distinct units before an event; occurrences at the very beginning."""
        kept = []
        for length in range(self.order - 1):
            longer = events[length + 1]
            shorter = (contexts[length + 1] // self._size)[longer // self._size]
            distinct = np.unique(shorter * self._size + longer % self._size, return_counts=True)[1]
            begins = (contexts[length] % self._size)[events[length] // self._size] == _BEGIN
            kept.append(np.where(begins & (length > 0), counts[length], distinct))
        return [*kept, counts[-1]]

    def _look_up(self, levels: Sequence[_Level], positions: _Positions) -> list[_Found]:
        """c(h w), c(h), t(h) of every position in every order, (N,) each; 0 where not seen."""
        found = []
        # A number of tokens never seen must not collide with another key.
        key = np.where(positions.tokens < self._size, positions.tokens, -1)
        for length, level in enumerate(levels):
            context = _find(level.contexts, key)
            event = _find(level.events, np.where(context < 0, -1, context * self._size + positions.unit))
            unseen = context < 0
            found.append(
                (
                    np.where(event < 0, 0.0, level.counts[event]),
                    np.where(unseen, 0.0, level.totals[context]),
                    np.where(unseen, 0.0, level.types[context]),
                )
            )
            if length + 1 < len(levels):
                key = np.where(unseen, -1, context * self._size + positions.history[:, length])
        return found

    def _tune(self, rest: _Positions, held: _Positions, counting: Counting) -> tuple[float, Smoothing]:
        """Bits per held-out unit of the best smoothing that coordinate descent finds, and that smoothing."""
        found = self._look_up(self._count(rest, counting), held)
        orders = list(self.smoothing.orders)
        best = math.inf
        for _ in range(_SWEEPS):
            lower = held.spelled
            for k in range(self.order):
                for refine in (_discounts, _strengths):
                    trials = [[trial, *orders[k + 1 :]] for trial in refine(orders[k])]
                    costs = [float(-_chain(found[k:], lower, trial).mean()) for trial in trials]
                    orders[k], best = trials[int(np.argmin(costs))][0], min(costs)
                lower = _chain(found[k : k + 1], lower, orders[k : k + 1])
        return best, Smoothing(counting=counting, orders=tuple(orders))


def _discounts(order: tuple[float, float]) -> list[tuple[float, float]]:
    return [(discount, order[1]) for discount in _DISCOUNTS]


def _strengths(order: tuple[float, float]) -> list[tuple[float, float]]:
    return [(order[0], strength) for strength in _STRENGTHS]


def _chain(found: Sequence[_Found], lower: Doubles, orders: Sequence[tuple[float, float]]) -> Doubles:
    """The recursion over orders, (N,) log2 in and out: products of a long unit would underflow."""
    for (count, total, types), (discount, strength) in zip(found, orders, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.log2(np.maximum(count - discount, 0)) - np.log2(total + strength)
            handed = np.log2(strength + discount * types) - np.log2(total + strength) + lower
            lower = np.where(total == 0, lower, np.logaddexp2(kept, handed))
    return lower


def _find(keys: Longs, wanted: Longs) -> Longs:
    """The index of each wanted key, or -1 if it is missing."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found: Longs = np.where(keys[place] == wanted, place, -1)
    return found
