"""Sequences with gaps: their tokens hidden, asked all at once or one after the other.

What stands in a gap while nobody knows what belongs there is any ordinary token: it is hidden whenever the
model is asked. A gap of several units has an order, from left to right; each of its tokens is a unit by
itself, so that what is known of a gap can be put there and the rest be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seqmlm.engine.types import Encoding, Longs, TokenSpace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gapped:
    """A sequence with gaps, one at least.

    Args:
        encoding: the sequence, tokens of the gaps included.
        gaps: for each gap, the places of its units among all units of the sequence, from left to right; a
            gap that a window has cut off has none.
    """

    encoding: Encoding
    gaps: tuple[Longs, ...]

    @property
    def units(self) -> Longs:
        """(G,) the places of the units of all gaps."""
        return np.concatenate(self.gaps)


def tokens_at(encoding: Encoding, start: int, end: int) -> Longs:
    """(M,) the tokens of which a character of the raw text between `start` and `end` is a part.

    A token without text of its own (the space of a word that stands apart) counts with where it stands.
    """
    assert encoding.spans is not None
    first, last = encoding.spans[:, 0], encoding.spans[:, 1]
    inside = (first < last) & (first < end) & (last > start)
    inside |= (first == last) & (first >= start) & (first < end) & (encoding.groups >= 0)
    return np.flatnonzero(inside)


def resize_gaps(
    encoding: Encoding, gaps: Sequence[Longs], counts: Sequence[int], space: TokenSpace
) -> tuple[Encoding, list[Longs]]:
    """The sequence with so many tokens in each gap, whatever stood there, and where these stand now.

    Args:
        gaps: for each, (M,) its tokens, one at least; the gaps are in order and share none.
        counts: tokens wanted in each.
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
    """The sequence with each of some tokens a unit of its own."""
    groups = encoding.groups.copy()
    groups[tokens] = groups.max(initial=-1) + 1 + np.arange(len(tokens), dtype=groups.dtype)
    return replace(encoding, groups=groups)
