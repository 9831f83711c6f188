"""`kmer_span.v1`: spans of symbols hidden with every overlapping token that shows them.

If a token at every symbol shows it and the k - 1 after it, a masked token hides nothing: its neighbours show
the same symbols. Ji et al. (2021, DNABERT) mask k tokens in a row, which hides a single symbol, and draw
[MASK], random or kept for each token separately, so that unmasked tokens contradict the others. The option
`letters` (the size of the alphabet) keeps its name because stored models have it.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import Outcome, RateMasker, check_share
from seqmlm.engine.types import Bools, Encoding, Ids, TokenSpace
from seqmlm.errors import UsageError


class KmerSpan(RateMasker):
    """Hides spans of symbols of geometric length by selecting all s + k - 1 tokens that cover them.

    A span begins at every symbol with one probability, chosen so that a symbol is hidden with probability
    `rate`; spans that touch or overlap are merged. A sequence without any gets one. A run of selected tokens
    has one outcome, and a random one is a random string of symbols tokenized again together with the visible
    symbols next to it: nothing contradicts and nothing leaks. With k = 1 the tokens are the symbols.

    Args:
        rate: share of symbols to hide, in [0, 1).
        space: the vocabulary.
        k: symbols of a token.
        first: id of the first k-mer; the other letters ** k - 1 follow in alphabetical order.
        p: of the geometric lengths, P(s) proportional to p (1 - p)^(s - 1); in (0, 1].
        longest: longest span, at least 1.
        letters: number of symbols of the alphabet.

    Raises:
        UsageError: a value out of range.
    """

    name: ClassVar[str] = "kmer_span.v1"
    outcome: ClassVar[Outcome] = "run"
    hides_overlap: ClassVar[bool] = True

    def __init__(
        self,
        *,
        rate: float,
        space: TokenSpace,
        k: int,
        first: int,
        p: float = 0.2,
        longest: int = 10,
        letters: int = 4,
    ) -> None:
        super().__init__(rate=rate, space=space)
        if check_share("p", p) == 0 or longest < 1:
            raise UsageError(f"k-mer spans need p in (0, 1] and longest >= 1, not {p} and {longest}")
        if k < 1 or letters < 2 or not 0 <= first <= space.size - letters**k:
            raise UsageError(f"{letters} ** {k} k-mers from id {first} on do not fit {space.size} ids")
        self.k, self.first, self.letters = k, first, letters
        shares = p * (1 - p) ** np.arange(longest)
        shares /= shares.sum()
        self._length_below = np.cumsum(shares)[:-1]
        self._starts = _start_rate(np.cumsum(shares[::-1])[::-1], rate)
        self._worth = letters ** np.arange(k - 1, -1, -1)

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) positions to predict: all tokens that cover a hidden symbol."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        inside = encoding.groups >= 0
        first, size = _runs(encoding, inside)
        for start, tokens in zip(first.tolist(), size.tolist(), strict=True):
            part = slice(start, start + tokens)
            selected[part] = self._select_run(eligible[part], rng)
        if not selected.any():
            selected |= self._one_span(eligible, first, size, rng)
        return selected

    def _select_run(self, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(n,) the same for a run of n tokens, which shows n + k - 1 symbols."""
        able = self._able(eligible)
        # Spans may begin before the first symbol, so that symbols near the ends are hidden as often as
        # others.
        longest = len(self._length_below) + 1
        draws = rng.random(len(able) + longest - 1)
        starts = np.flatnonzero(draws < self._starts) - (longest - 1)
        lengths = 1 + self._length_below.searchsorted(rng.random(len(starts)), side="right")
        edges = np.zeros(len(able) + 1, dtype=np.int64)
        np.add.at(edges, np.clip(starts, 0, len(able)), 1)
        np.add.at(edges, np.clip(starts + lengths, 0, len(able)), -1)
        return self._covering((edges[:-1].cumsum() > 0) & able)

    def _one_span(
        self, eligible: Bools, first: NDArray[np.intp], size: NDArray[np.intp], rng: np.random.Generator
    ) -> Bools:
        """(L,) a single span, at any symbol that can be hidden."""
        selected = np.zeros(len(eligible), dtype=np.bool_)
        able = [self._able(eligible[a : a + n]) for a, n in zip(first.tolist(), size.tolist(), strict=True)]
        places = [(run, letter) for run, own in enumerate(able) for letter in np.flatnonzero(own).tolist()]
        if places:
            run, letter = places[int(rng.random() * len(places))]
            length = 1 + int(self._length_below.searchsorted(rng.random(), side="right"))
            length = min(length, max(1, int(self.rate * len(able[run]))))
            hidden = np.zeros(len(able[run]), dtype=np.bool_)
            hidden[letter : letter + length] = True
            start = int(first[run])
            selected[start : start + int(size[run])] = self._covering(hidden & able[run])
        return selected

    def _able(self, eligible: Bools) -> Bools:
        """(n + k - 1,) the symbols all of whose tokens may be selected."""
        barred = np.zeros(len(eligible) + self.k - 1, dtype=np.bool_)
        for offset in range(self.k):
            barred[offset : offset + len(eligible)] |= ~eligible
        return ~barred

    def _covering(self, hidden: Bools) -> Bools:
        """(n,) the tokens that show any of the hidden (n + k - 1,) symbols."""
        tokens = len(hidden) - self.k + 1
        covering = hidden[:tokens].copy()
        for offset in range(1, self.k):
            covering |= hidden[offset : offset + tokens]
        return covering

    def replace(self, encoding: Encoding, swapped: NDArray[np.intp], rng: np.random.Generator) -> Ids:
        """(S,) k-mers with random symbols where no other token shows them, and the true ones elsewhere."""
        first, size = _runs(encoding, encoding.groups >= 0)
        # Neighbouring positions of one run of tokens are tokenized together.
        run = np.searchsorted(first, swapped, side="right") - 1
        breaks = np.flatnonzero((np.diff(swapped) > 1) | (np.diff(run) > 0)) + 1
        parts = []
        for part, number in zip(np.split(swapped, breaks), run[np.r_[0, breaks]].tolist(), strict=True):
            begins = part[0] == first[number]
            closes = part[-1] == first[number] + size[number] - 1
            parts.append(self._respelled(encoding.ids[part] - self.first, bool(begins), bool(closes), rng))
        return np.concatenate(parts)

    def _respelled(self, numbers: Ids, begins: bool, closes: bool, rng: np.random.Generator) -> Ids:
        """(n,) ids of n consecutive k-mers after a change of the symbols that only they show."""
        k = self.k
        spelled = np.concatenate([numbers // self._worth[0], numbers[-1] // self._worth[1:] % self.letters])
        left, right = 0 if begins else k - 1, len(spelled) - (0 if closes else k - 1)
        if left < right:
            spelled[left:right] = (rng.random(right - left) * self.letters).astype(spelled.dtype)
        changed = np.zeros(len(numbers), dtype=np.int64)
        for offset in range(k):
            changed = changed * self.letters + spelled[offset : offset + len(numbers)]
        return (changed + self.first).astype(np.int32)


def _runs(encoding: Encoding, inside: Bools) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Where runs of neighbouring tokens begin, and their lengths; group numbers go up by one within a run."""
    goes_on = np.zeros(len(inside), dtype=np.bool_)
    goes_on[1:] = inside[1:] & inside[:-1] & (np.diff(encoding.groups) == 1)
    first = np.flatnonzero(inside & ~goes_on)
    numbers = np.cumsum(inside & ~goes_on)[inside] - 1
    return first, np.bincount(numbers, minlength=len(first))


def _start_rate(at_least: NDArray[np.float64], rate: float) -> float:
    """Probability that a span begins at a symbol such that a symbol is hidden with probability `rate`.

    A symbol stays visible if none of the `longest` symbols up to it begins a span that reaches it.

    Args:
        at_least: (longest,) P(length >= 1), P(length >= 2), ...
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - np.prod(1 - middle * at_least) < rate else (low, middle)
    return high
