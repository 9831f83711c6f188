"""An n-gram over the same units: the cheap baseline a masked model has to beat.

It reads left to right, so it is given what the masked model is given beside its context: the number of tokens
n of the unit (a [MASK] each), and that the sequence does not end there. With h = the k units before, farthest
first, and counts over training positions whose unit has n tokens,

    P_k(w | h, n) = (max(c(h, w, n) - D, 0) + g(h, n) P_{k-1}(w | h', n)) / c(h, n)
    P_{-1}(w | n) = product over the tokens t of w of the token unigram p(t)

where h' is h without its farthest unit. This is interpolated modified Kneser-Ney (Chen and Goodman 1998): D
is one of three discounts by the count (1, 2, 3 and more), estimated from the counts of counts of each order;
g is the mass they free; below the highest order c counts the distinct units seen before (h, w) instead of
occurrences, save where h reaches the beginning of the sequence. With `smoothing="witten_bell"` (Bell, Cleary
and Witten 1990) all orders keep plain counts, D = 0, and g(h, n) = the number of distinct w seen after h,
added to the denominator: better where few units make most contexts dense, as for residues. A context never
seen hands on to the shorter one. The last level spells the unit, so that a unit never seen has a price in the
same tokens as the model's, and all strings of n ordinary tokens together have probability 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seqmlm.errors import UsageError

Unit = tuple[int, ...]
Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]
Smoothing = Literal["kneser_ney", "witten_bell"]

# Before the first unit of a sequence; a unit not seen in training.
_BEGIN, _UNSEEN = 0, 1


@dataclass(frozen=True, eq=False)
class _Level:
    """What is known of contexts of one length, as sorted arrays (a dict of tuples would take ten times the
    memory).

    Args:
        contexts: (C,) sorted keys: (index of the context one shorter) * vocabulary + farthest unit.
        events: (E,) sorted keys: (index of the context) * vocabulary + next unit.
        kept: (E,) the discounted count of each event over its context's total.
        handed: (C,) share of the probability handed to the shorter context.
    """

    contexts: Longs
    events: Longs
    kept: Doubles
    handed: Doubles


class NGram:
    """An interpolated n-gram over units, with the number of a unit's tokens known.

    Args:
        order: units in the longest n-gram, itself included; 5 looks at 4 units before.
        unigram: (V,) probabilities of tokens in the training split, positive at ordinary ones.
        smoothing: see the module's docstring.

    >>> model = NGram(order=2, unigram=np.array([0.5, 0.5])).fit([[(0,), (1,), (0,), (1,)]] * 9)
    >>> bool(model.bits([[(0,), (1,)]])[1] < 0.5)
    True
    """

    def __init__(self, *, order: int = 5, unigram: Doubles, smoothing: Smoothing = "kneser_ney") -> None:
        if order < 1:
            raise UsageError(f"an n-gram has an order of at least 1, not {order}")
        if smoothing not in ("kneser_ney", "witten_bell"):
            raise UsageError(f"smoothing must be 'kneser_ney' or 'witten_bell', not {smoothing!r}")
        self.order, self.smoothing = order, smoothing
        with np.errstate(divide="ignore"):
            self._token_log2 = np.log2(unigram)
        self._numbers: dict[Unit, int] = {}
        self._levels: list[_Level] = []
        self._size = 0

    def fit(self, sequences: Iterable[Sequence[Unit]]) -> NGram:
        """Count; units () are context, never events.

        Raises:
            UsageError: no unit at all.
        """
        self._numbers, flat, longest = {}, [], 0
        for sequence in sequences:
            numbers = [self._numbers.setdefault(unit, len(self._numbers) + 2) for unit in sequence]
            longest = max(longest, max((len(unit) for unit in sequence), default=0))
            flat.append(np.array([_BEGIN] * (self.order - 1) + numbers, dtype=np.int64))
        if not self._numbers:
            raise UsageError("an n-gram needs at least one training unit")
        # Room for the numbers of tokens too, which are the keys of the shortest contexts.
        self._size = max(len(self._numbers) + 2, longest + 1)
        units = np.concatenate(flat)
        events = np.flatnonzero(units >= 2)
        sizes = np.array([0, 0, *map(len, self._numbers)], dtype=np.int64)
        events = events[sizes[units[events]] > 0]
        self._levels = self._count(units, events, sizes)
        return self

    def _count(self, units: Longs, events: Longs, sizes: Longs) -> list[_Level]:
        """Contexts and counts of every length; lower orders of Kneser-Ney count from the next higher one."""
        keys, contexts, counted = sizes[units[events]], [], []
        for length in range(1, self.order + 1):
            known, index = np.unique(keys, return_inverse=True)
            contexts.append(known)
            counted.append(np.unique(index * self._size + units[events], return_counts=True))
            if length < self.order:
                keys = index * self._size + units[events - length]
        levels = []
        for length, (known, (seen, counts)) in enumerate(zip(contexts, counted, strict=True)):
            if self.smoothing == "kneser_ney" and length < self.order - 1:
                higher = counted[length + 1][0]
                shorter = (contexts[length + 1] // self._size)[higher // self._size]
                distinct = np.unique(shorter * self._size + higher % self._size, return_counts=True)[1]
                begins = (known % self._size)[seen // self._size] == _BEGIN
                counts = np.where(begins & (length > 0), counts, distinct)
            levels.append(self._level(known, seen, counts))
        return levels

    def _level(self, contexts: Longs, events: Longs, counts: Longs) -> _Level:
        context = events // self._size
        if self.smoothing == "kneser_ney":
            discounts = np.array(_discounts(counts))[np.minimum(counts, 3) - 1]
            totals = np.bincount(context, weights=counts)
            freed = np.bincount(context, weights=discounts)
        else:
            discounts = np.zeros(len(events))
            freed = np.bincount(context).astype(np.float64)
            totals = np.bincount(context, weights=counts) + freed
        return _Level(contexts, events, (counts - discounts) / totals[context], freed / totals)

    def bits(self, sequences: Iterable[Sequence[Unit]]) -> Doubles:
        """-log2 P of every unit, sequence after sequence; units () are left out."""
        sequences = list(sequences)
        return self.bits_at(sequences, [[i for i, unit in enumerate(s) if unit] for s in sequences])

    def bits_at(self, sequences: Iterable[Sequence[Unit]], chosen: Iterable[Sequence[int]]) -> Doubles:
        """-log2 P of some units given the units before them.

        Args:
            sequences: each a list of units, as `units_of` gives them.
            chosen: for each sequence the unit numbers wanted, such as those `unit_bits` masked.

        Returns:
            One value for each chosen unit, sequence after sequence.
        """
        columns: list[list[int]] = []
        spelled: list[float] = []
        history = self.order - 1
        for sequence, wanted in zip(sequences, chosen, strict=True):
            numbers = [_BEGIN] * history + [self._numbers.get(unit, _UNSEEN) for unit in sequence]
            for i in wanted:
                unit = sequence[i]
                # Nearest unit first, as the contexts grow.
                columns.append([numbers[i + history], len(unit), *reversed(numbers[i : i + history])])
                spelled.append(float(self._token_log2[list(unit)].sum()))
        if not columns:
            return np.zeros(0)
        return -self._log2(np.array(columns, dtype=np.int64), np.array(spelled))

    def _log2(self, table: Longs, spelled: Doubles) -> Doubles:
        """Interpolate upwards from log2 of the spelled probability.

        Args:
            table: (N, 2 + history) rows of unit, its tokens, the units before, nearest first.
            spelled: (N,) log2; logarithms all the way, as a unit of many tokens underflows.
        """
        if not self._levels:
            raise UsageError("fit the n-gram first")
        unit, result = table[:, 0], spelled
        # A number of tokens never seen must not look like another key.
        index = np.where(table[:, 1] < self._size, table[:, 1], -1)
        for length, level in enumerate(self._levels):
            key = index if length == 0 else np.where(index < 0, -1, index * self._size + table[:, 1 + length])
            index = _find(level.contexts, key)
            event = _find(level.events, np.where(index < 0, -1, index * self._size + unit))
            with np.errstate(divide="ignore"):
                kept = np.log2(np.where(event < 0, 0.0, level.kept[event]))
                handed = np.log2(level.handed[index]) + result
            result = np.where(index < 0, result, np.logaddexp2(kept, handed))
        return result


def _find(keys: Longs, wanted: Longs) -> Longs:
    """The index of each wanted key, -1 where it is not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found: Longs = np.where(keys[place] == wanted, place, -1)
    return found


def _discounts(counts: Longs) -> tuple[float, float, float]:
    """Discounts of counts 1, 2 and more, from the counts of counts (Chen and Goodman 1998, eq. 26).

    Where these are too few for the estimate (all counts large, a toy corpus) the usual .5, 1 and 1.5 are
    taken.
    """
    n1, n2, n3, n4 = (int((counts == c).sum()) for c in (1, 2, 3, 4))
    if not (n1 and n2 and n3 and n4):
        return 0.5, 1.0, 1.5
    y = n1 / (n1 + 2 * n2)
    one, two, more = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return one, two if 0 < two < 2 else 1.0, more if 0 < more < 3 else 1.5
