"""What composition alone says of DNA: an interpolated Markov chain of bases, the same for both strands."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]

ORDER = 5
"""Bases of the longest context: six of them tell codons apart, and 4^6 counts need little data."""

REACH = 50
"""Bases on either side that make a base's own composition."""

_OWN_STRENGTH = 16.0  # pseudo-counts of the training composition in a base's own

_UNKNOWN = 4
_STRENGTH = 4.0  # pseudo-counts that a shorter context gives to a longer one


def _table() -> NDArray[np.int8]:
    table = np.full(256, _UNKNOWN, dtype=np.int8)
    for code, letter in enumerate("ACGT"):
        table[[ord(letter), ord(letter.lower())]] = code
    return table


_CODES = _table()


def base_codes(text: str) -> Longs:
    """(L,) 0..3 for A C G T in either case, 4 for all else.

    >>> base_codes("ACgtN").tolist()
    [0, 1, 2, 3, 4]
    """
    letters = np.frombuffer(text.encode("latin-1", errors="replace"), dtype=np.uint8)
    return _CODES[letters].astype(np.int64)


class Composition:
    """p(base | the k bases before it), k = 0..order, each level smoothed by the one below.

    Every sequence is counted on both strands, and a base is priced from both sides, so that a sequence and
    its reverse complement cost the same. A context that holds something unknown, or the edge, is cut short
    there.

    Args:
        tables: order + 1 arrays, (4^k, 4) each: natural log-probabilities after each context.
    """

    def __init__(self, tables: list[Doubles]) -> None:
        self.tables = tables

    @classmethod
    def uniform(cls) -> Composition:
        """Of a genome that nothing is known of."""
        return cls([np.log(np.full((1, 4), 0.25))])

    @property
    def order(self) -> int:
        """Bases of the longest context."""
        return len(self.tables) - 1

    @classmethod
    def fit(cls, sequences: Iterable[Longs], order: int = ORDER) -> Composition:
        """Count and smooth.

        Args:
            sequences: codes of each, as `base_codes` gives them.
            order: of the chain, 0 to 8.
        """
        counts = [np.zeros(4 ** (k + 1)) for k in range(order + 1)]
        for codes in sequences:
            for strand in (codes, _turned(codes)):
                for k, words, known in _words(strand, order):
                    counts[k] += np.bincount(words[known], minlength=4 ** (k + 1))
        tables: list[Doubles] = []
        below = np.full((1, 4), 0.25)
        for k, flat in enumerate(counts):
            own = flat.reshape(4**k, 4)
            prior = np.tile(below, (4 if k else 1, 1))  # the context without its farthest base
            shares = (own + _STRENGTH * prior) / (own.sum(axis=1, keepdims=True) + _STRENGTH)
            tables.append(np.log(shares))
            below = shares
        return cls(tables)

    def bits(self, text: str) -> Doubles:
        """(L,) surprisal of each base in bits, the mean of both directions; NaN where there is no base."""
        codes = base_codes(text)
        forward, backward = self._one_way(codes), self._one_way(_turned(codes))[::-1]
        return np.asarray((forward + backward) / 2)

    def own_bits(self, text: str, reach: int = REACH) -> Doubles:
        """(L,) bits of each base by the frequencies of the bases around it; NaN where there is no base.

        The base itself is left out, and the training frequencies count as a few bases more. What a model's
        surprisal has above this is what neither the composition of the place nor its context explains: it is
        near zero or below in any stretch the model has learnt to read, rich in GC or not, and above zero in
        one that the model believes to be of another composition, or grammar, than it is.

        Args:
            text: the sequence.
            reach: bases on either side.
        """
        codes = base_codes(text)
        length = len(codes)
        shown = (codes[:, None] == np.arange(_UNKNOWN)).astype(np.float64)
        total = np.concatenate([np.zeros((1, _UNKNOWN)), np.cumsum(shown, axis=0)])
        places = np.arange(length)
        around = total[np.minimum(places + reach + 1, length)] - total[np.maximum(places - reach, 0)] - shown
        prior = _OWN_STRENGTH * np.exp(self.tables[0][0])
        shares = (around + prior) / (around.sum(axis=1, keepdims=True) + _OWN_STRENGTH)
        bits = np.full(length, np.nan)
        known = codes < _UNKNOWN
        bits[known] = -np.log2(shares[known, codes[known]])
        return bits

    def _one_way(self, codes: Longs) -> Doubles:
        found = np.full(len(codes), np.nan)
        for k, words, known in _words(codes, self.order):
            found[known] = -self.tables[k].ravel()[words[known]] / np.log(2)
        return found


def _turned(codes: Longs) -> Longs:
    """The other strand, in its own direction."""
    back = codes[::-1]
    return np.where(back < _UNKNOWN, 3 - back, _UNKNOWN)


def _words(codes: Longs, order: int) -> Iterable[tuple[int, Longs, NDArray[np.bool_]]]:
    """For k = 0..order: k, (L,) the word of k + 1 bases that ends at each place, and where it is one."""
    words = np.minimum(codes, _UNKNOWN - 1)
    known = codes < _UNKNOWN
    yield 0, words, known
    for k in range(1, order + 1):
        farther = np.zeros(len(codes), dtype=np.int64)
        whole = np.zeros(len(codes), dtype=np.bool_)
        farther[k:] = np.minimum(codes[:-k], _UNKNOWN - 1) if len(codes) > k else farther[k:]
        whole[k:] = codes[:-k] < _UNKNOWN if len(codes) > k else whole[k:]
        words = words + farther * 4**k
        known = known & whole
        yield k, words, known
