"""Patient histories as they were known at the time: a visit is asked with nothing but what came before it.

The model sees the background, the visits before (the most recent ones, where all are too long), when the
visit was and of which class, and how many codes it has, all of them [MASK]: what it says of them is p(code |
history). Asked one by one beside the others of the visit they would be nearly certain, for a diagnosis comes
with its drugs. One pass a visit, so that the modes of scoring make no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.values import Bools, Longs
from seqmlm.anomaly.view import View
from seqmlm.engine.query import Query
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT, Mode, Units
from seqmlm.tokenizers.base import Tokenizer
from seqmlm.tokenizers.events_layout import CLS, SEP, UNK, visit_starts

Places = NDArray[np.intp]


class PastUnits(Units):
    """Events of the last visit of a window, hidden together; of several tokens the last one is asked.

    That one is the code itself and settles the family in front of it, so its probability is the event's.
    """

    def questions(
        self, encoding: Encoding, owned: Bools | None = None, mode: Mode = EXACT
    ) -> Iterator[Query]:
        starts = visit_starts(encoding.ids)
        hidden = (encoding.groups >= 0) & ~self.space.is_special[encoding.ids]
        hidden[: int(starts[-1]) if len(starts) else 0] = False
        masked = np.flatnonzero(hidden)
        last = np.append(np.diff(encoding.groups[masked]) != 0, True)[: len(masked)]
        asked = masked[last] if owned is None else masked[last & owned[masked]]
        if len(asked):
            yield Query(encoding=encoding, masked=masked.astype(np.int32), asked=asked.astype(np.int32))


class PastView(View):
    """Each visit in a window of its own, at its end."""

    def units(self, tokenizer: Tokenizer) -> Units:
        return PastUnits(tokenizer.space)

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, wanted: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        asked = (encoding.groups >= 0) & ~tokenizer.space.is_special[encoding.ids]
        if wanted is not None:
            # An event of two tokens is asked at its last one, whichever of them was wanted.
            asked &= np.isin(encoding.groups, encoding.groups[wanted & asked])
        windows = []
        for kept, own in _windows(encoding, asked, max_length):
            owned = asked[kept] & np.isin(kept, own)
            if owned.any():
                windows.append((_taken(encoding, kept), owned))
        return windows


def _windows(encoding: Encoding, asked: Bools, max_length: int) -> Iterator[tuple[Places, Places]]:
    """(places of a window's tokens; those it asks about) for each visit, long ones in parts."""
    ids = encoding.ids
    starts = visit_starts(ids)
    stop = len(ids) - int(len(ids) > 0 and ids[-1] == SEP)
    head = np.arange(int(starts[0]) if len(starts) else stop)
    end = np.arange(stop, len(ids))
    if len(head) and asked[head].any():
        for part in _parts(encoding, head, max(max_length - len(end) - 1, 1)):
            first = head[:1] if ids[0] == CLS and part[0] else head[:0]
            yield np.concatenate([first, part, end]), part
    front = head[: max_length // 2]
    bounds = [*starts.tolist(), stop]
    for begin, close in pairwise(bounds):
        visit = np.arange(begin, close)
        if not asked[visit].any():
            continue
        room = max_length - len(front) - len(end)
        for part in _parts(encoding, visit, room):
            before = starts[(starts <= begin) & (starts >= begin - (room - len(part)))]
            past = np.arange(int(before[0]) if len(before) else begin, begin)
            yield np.concatenate([front, past, part, end]), part


def _parts(encoding: Encoding, segment: Places, room: int) -> list[Places]:
    """A visit, or parts of one that is longer than `room`: its frame, and some of its codes."""
    if len(segment) <= room:
        return [segment]
    groups = encoding.groups[segment]
    frame = segment[(groups < 0) & (encoding.ids[segment] != UNK)]
    codes = segment[groups >= 0]
    size = max((room - len(frame)) // 2, 1)  # the other half is for what came before
    cuts = np.flatnonzero(np.diff(encoding.groups[codes], prepend=-2) != 0)
    parts: list[Places] = []
    begin = 0
    while begin < len(codes):
        fitting = cuts[(cuts > begin) & (cuts <= begin + size)]
        after = cuts[cuts > begin]
        end = len(codes) if begin + size >= len(codes) else int(fitting[-1] if len(fitting) else after[0])
        parts.append(np.sort(np.concatenate([frame, codes[begin:end]])))
        begin = end
    return parts


def _taken(encoding: Encoding, kept: Places) -> Encoding:
    """The tokens at `kept`; positions go on without a gap where visits were left out."""

    def of(values: NDArray[Any] | None) -> Any:
        return None if values is None else values[kept]

    return Encoding(
        ids=encoding.ids[kept],
        groups=encoding.groups[kept],
        classes=of(encoding.classes),
        spans=of(encoding.spans),
        positions=_closed_up(encoding, kept),
        weights=of(encoding.weights),
        symbols=of(encoding.symbols),
        channels={name: values[kept] for name, values in encoding.channels.items()},
    )


def _closed_up(encoding: Encoding, kept: Places) -> Any:
    """Positions of kept tokens: the first kept visit stands where the first visit of all stood."""
    if encoding.positions is None:
        return None
    positions = encoding.positions[kept].astype(np.int64)
    starts = visit_starts(encoding.ids)
    if len(starts) and (kept >= starts[0]).any():
        inside = kept >= starts[0]
        first = int(np.flatnonzero(inside)[0])
        positions[inside] -= int(positions[first]) - int(encoding.positions[starts[0]])
        if encoding.ids[kept[-1]] == SEP:
            tail = int(encoding.positions[-1]) - int(encoding.positions[-2])
            positions[-1] = positions[-2] + tail
    return positions.astype(encoding.positions.dtype)


def visits(encoding: Encoding, positions: Longs) -> Longs:
    """(N,) 0-based number of the visit each token place is in; -1 for the background."""
    return np.searchsorted(visit_starts(encoding.ids), positions, side="right").astype(np.int64) - 1
