"""`lexicon.v1`: cloze-like masks from a word list (Zhang and Hashimoto 2021, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.masking.base import Outcome, RateMasker, check_share, draw, number_units
from seqmlm.engine.types import Bools, Encoding, Ids, TokenSpace
from seqmlm.errors import UsageError
from seqmlm.parsing import Share

Mode = Literal["cloze", "nocloze", "mix"]


class Lexicon(RateMasker):
    """Selects whole units that are in a lexicon, or that are not.

    `cloze` selects only words of the lexicon, `nocloze` only other units. `mix` treats a fraction p of the
    sequences as `cloze`. The other sequences, and those without a word of the lexicon, are masked uniformly.

    As in the paper, the number of predictions is the same as with uniform masking. If k of n units are
    eligible, each is selected with probability min(1, rate n / k), and at least one is. If k = 0, nothing is
    selected; for `cloze`, this means that the sequence has no word of the lexicon.

    Args:
        rate: expected fraction of all units to select, in [0, 1].
        space: the vocabulary.
        words: the lexicon: each word as its token ids. A word matches if it is a whole unit.
        ids: other words of the lexicon, of one token each.
        mode: "cloze", "nocloze" or "mix".
        p: fraction of the sequences that `mix` treats as `cloze`, in [0, 1]; only for `mix`.

    Raises:
        UsageError: the lexicon is empty, ids are not ordinary ids of the vocabulary, or `p` is missing or
            set without `mix`.
    """

    name: ClassVar[str] = "lexicon.v1"
    outcome: ClassVar[Outcome] = "unit"

    def __init__(
        self,
        *,
        rate: float,
        space: TokenSpace,
        words: Sequence[Sequence[int]] = (),
        ids: Sequence[int] = (),
        mode: Mode = "cloze",
        p: Share | None = None,
    ) -> None:
        super().__init__(rate=rate, space=space)
        if mode not in get_args(Mode):
            raise UsageError(f"masking key 'mode' must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        if (p is not None) != (mode == "mix"):
            raise UsageError(
                f"masking key 'p' is needed for mode 'mix' and for no other; mode is {mode!r}, p is {p}"
            )
        self.words = {tuple(word) for word in words} | {(word_id,) for word_id in ids}
        if not self.words or () in self.words:
            raise UsageError("lexicon masks need words (masking.options.words), each of at least one token")
        if not {token for word in self.words for token in word} <= set(space.ordinary.tolist()):
            raise UsageError("a word of the lexicon contains a special token or one outside the vocabulary")
        self.mode, self.p = mode, check_share("p", p or 0.0)
        self._alone = np.zeros(space.size, dtype=np.bool_)  # (V,) tokens that are a word
        self._alone[[word[0] for word in self.words if len(word) == 1]] = True
        self._among = np.zeros(space.size, dtype=np.bool_)  # (V,) tokens that a longer word begins with
        self._among[[word[0] for word in self.words if len(word) > 1]] = True

    def select(self, encoding: Encoding, eligible: Bools, rng: np.random.Generator) -> Bools:
        """(L,) True at the positions to predict; none if no unit of the sequence is eligible."""
        inner = (encoding.groups >= 0).nonzero()[0]
        numbers, count = number_units(encoding.groups[inner])
        admitted = np.zeros(count, dtype=np.bool_)
        admitted[numbers[eligible[inner]]] = True
        total = np.count_nonzero(admitted)
        words = self._are_words(encoding.ids[inner], numbers, count)
        if self.mode == "nocloze":
            admitted &= ~words
        elif self.mode == "cloze" or (rng.random() < self.p and (admitted & words).any()):
            admitted &= words
        candidates = int(np.count_nonzero(admitted))
        units = np.zeros(count, dtype=np.bool_)
        if candidates:
            units[admitted] = draw(candidates, min(1.0, self.rate * total / candidates), rng)
        selected = np.zeros(len(eligible), dtype=np.bool_)
        selected[inner] = units[numbers]
        return selected & eligible

    def _are_words(self, ids: Ids, numbers: NDArray[np.intp], count: int) -> Bools:
        """(count,) True for each unit that is a word of the lexicon."""
        words = np.zeros(count, dtype=np.bool_)
        is_single = (np.bincount(numbers, minlength=count) == 1)[numbers]
        words[numbers[self._alone.take(ids) & is_single]] = True
        for unit in set(numbers[self._among.take(ids) & ~is_single].tolist()):
            words[unit] = tuple(ids[numbers == unit].tolist()) in self.words
        return words
