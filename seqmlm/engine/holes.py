"""Sequences with gaps, whose hidden tokens are predicted all together or one after another.

While the content of a gap is unknown, any ordinary token takes its place. That token is hidden whenever the
model predicts. The units of a gap are ordered from left to right. Each of its tokens is its own unit. A unit
that is already predicted can therefore be put in its place before the rest is predicted again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqmlm.engine.types import Encoding, Longs, TokenSpace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gapped:
    """A sequence with at least one gap.

    Args:
        encoding: the sequence, including the tokens of the gaps.
        gaps: for each gap, the indices of its units among all units of the sequence, from left to right. A
            gap outside the window has no units.
    """

    encoding: Encoding
    gaps: tuple[Longs, ...]

    @property
    def units(self) -> Longs:
        """(G,) indices of the units of all gaps."""
        return np.concatenate(self.gaps)


def tokens_at(encoding: Encoding, start: int, end: int) -> Longs:
    """(M,) indices of the tokens that overlap the characters from `start` to `end` (excluded) of the text.

    A token without text, such as the space of a separate word, is included if it is located in this range.
    """
    assert encoding.spans is not None
    first, last = encoding.spans[:, 0], encoding.spans[:, 1]
    inside = (first < last) & (first < end) & (last > start)
    inside |= (first == last) & (first >= start) & (first < end) & (encoding.groups >= 0)
    return np.flatnonzero(inside)


def resize_gaps(
    encoding: Encoding, gaps: Sequence[Longs], counts: Sequence[int], space: TokenSpace
) -> tuple[Encoding, list[Longs]]:
    """The sequence with a given number of tokens in each gap, and the new indices of these tokens.

    Args:
        encoding: the sequence.
        gaps: (M,) indices of the tokens of each gap, at least one; the gaps are in order and do not overlap.
        counts: new number of tokens of each gap.
        space: the vocabulary.
    """
    repeats = np.ones(len(encoding), dtype=np.int64)
    for tokens, count in zip(gaps, counts, strict=True):
        repeats[tokens] = 0
        repeats[tokens[0]] = count
    chosen = np.repeat(np.arange(len(encoding)), repeats)
    starts = np.cumsum(repeats) - repeats
    places = [starts[tokens[0]] + np.arange(count) for tokens, count in zip(gaps, counts, strict=True)]
    resized = encoding.take(chosen)
    ids = resized.ids.copy()
    ids[np.concatenate(places)] = space.ordinary[0]
    return replace(resized, ids=ids), places


def split_units(encoding: Encoding, tokens: Longs) -> Encoding:
    """The sequence in which each of the given tokens is its own unit."""
    groups = encoding.groups.copy()
    groups[tokens] = groups.max(initial=-1) + 1 + np.arange(len(tokens), dtype=groups.dtype)
    return replace(encoding, groups=groups)
