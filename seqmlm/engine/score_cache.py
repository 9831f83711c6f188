"""Windows that come again are scored once: what a window's score depends on, and a bounded memory of scores.

A log of a million lines has few distinct windows. The same window may stand elsewhere in its sequence, so
unit numbers count from the window's first unit here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from seqmlm.engine.types import Bools, Encoding

if TYPE_CHECKING:
    from seqmlm.engine.scoring import SequenceScore

_ENTRY = 1024
"""Bytes that an entry takes beside its arrays: objects and their places in the tables."""


def first_unit(encoding: Encoding) -> int:
    """The smallest unit number of a window, 0 where it has none."""
    inside = encoding.groups[encoding.groups >= 0]
    return int(inside.min()) if len(inside) else 0


def key_of(encoding: Encoding, owned: Bools | None) -> Hashable:
    """What a window's score depends on, for one model and one way of asking."""
    groups = np.where(encoding.groups >= 0, encoding.groups - first_unit(encoding), -1)
    positions, channels = encoding.positions, encoding.channels
    return (
        encoding.ids.tobytes(),
        groups.tobytes(),
        None if owned is None or owned.all() else owned.tobytes(),
        None if positions is None else positions.tobytes(),
        tuple((name, channels[name].tobytes()) for name in channels),
    )


def moved(score: SequenceScore, units: int) -> SequenceScore:
    """The score of the same window `units` units further on in its sequence."""
    return replace(score, groups=score.groups + units) if units else score


class ScoreCache:
    """Scores of the windows seen last.

    Args:
        most: bytes that keys and arrays may take together; 0 keeps nothing.
    """

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._scores: OrderedDict[Hashable, tuple[SequenceScore, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._scores)

    def get(self, key: Hashable) -> SequenceScore | None:
        """The score of a window, which is then the last to be forgotten; None where it is not known."""
        found = self._scores.get(key)
        if found is None:
            return None
        self._scores.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, score: SequenceScore) -> None:
        """Keep a score; those that were not asked for the longest make room."""
        size = _size(key) + sum(getattr(getattr(score, f.name), "nbytes", 0) for f in fields(score)) + _ENTRY
        if size > self._most or key in self._scores:
            return
        self._scores[key] = (score, size)
        self._held += size
        while self._held > self._most:
            self._held -= self._scores.popitem(last=False)[1][1]


def _size(key: Hashable) -> int:
    if isinstance(key, tuple):
        return sum(_size(part) for part in key)
    return len(key) if isinstance(key, bytes | str) else 0
