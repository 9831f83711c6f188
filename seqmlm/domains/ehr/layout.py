"""Lay out histories as tokens: group events into visits, order the tokens, and compute all columns.

    [CLS] background...  then per visit: time-since-last-visit [VS] class codes... [VE]  and [SEP] at the end

The layout follows CEHR-BERT (Pang et al. 2021). All steps are arithmetic on flat arrays over the
events of a whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from seqmlm.domains.ehr.vocabulary import INTERVALS, SPECIAL
from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Ids

Longs = NDArray[np.int64]
Doubles = NDArray[np.float64]

PAD, UNK, CLS, SEP, MASK, VS, VE = range(len(SPECIAL))
FIRST_INTERVAL = len(SPECIAL)
DAY = 86400.0
YEAR = 365.25

# Positions in a visit: interval, [VS], class, codes, [VE]. All codes have one position, since they are a set.
_STRIDE = 5
_INTERVAL, _START, _CLASS, _CODES, _END = range(_STRIDE)
_FIRST_VISIT = 2  # [CLS] is at 0, the background at 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Events:
    """The N events of B subjects, in the order of the subjects.

    Args:
        subjects: B, the number of subjects.
        subject: (N,) the subject of each event, 0..B-1, ascending.
        ids, kind: (N,) the token of each event, and the token of its visit class (0 for none).
        time: (N,) seconds since 1970, NaN for background.
        source: (N,) the number of the visit in the source, 0 for none.
        spans: (N, 2) start and end (half open) of the event's code in the text of its subject.
        birth: (B,) seconds since 1970, NaN if unknown.
    """

    subjects: int
    subject: Longs
    ids: Longs
    time: Doubles
    source: Longs
    kind: Longs
    spans: Longs
    birth: Doubles


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """The families of all tokens in a vocabulary, and the layout options.

    Args:
        symbol: (V,) the number of each token's family, -1 for tokens that are not codes.
        rule: how events form visits: "auto", "id", "day" or "gap" (see `number_visits`).
        gap: seconds without an event that separate two visits.
        channels: the requested channels, from "age", "time", "visit" and "segment".
    """

    symbol: Longs
    rule: str
    gap: float
    channels: tuple[str, ...]


def number_visits(
    subject: Longs, time: Doubles, source: Longs, rule: str, gap: float
) -> tuple[Longs, Longs, Doubles]:
    """Group events into visits.

    Args:
        subject, time, source: (N,) see `Events`. No time is NaN.
        rule: how events form visits. They have the same visit in the source ("id"), the same calendar day in
            UTC ("day"), or pauses below `gap` ("gap"). With "auto", the visit in the source is used, or the
            day for events without a visit. With "id", events without a visit are grouped by equal time.
        gap: seconds without events between two visits, for the rule "gap".

    Returns:
        (N,) the visit of each event, numbered from 0 by subject and time; (M,) the subject and (M,) the start
        time of each visit.
    """
    if rule == "gap":
        order = np.lexsort((time, subject))
        parted = np.diff(subject[order], prepend=-1) != 0
        parted[1:] |= np.diff(time[order]) >= gap
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.cumsum(parted) - 1
        first = order[parted]
        return number, subject[first], time[first]
    moments = time if rule == "id" else np.floor(time / DAY)
    key = np.unique(moments, return_inverse=True)[1]
    if rule != "day":
        key = np.where(source > 0, key.max(initial=0) + source, key)
    pair = np.unique(subject * (key.max(initial=0) + 1) + key, return_inverse=True)[1]
    order = np.argsort(pair, kind="stable")
    begins = np.flatnonzero(np.diff(pair[order], prepend=-1))
    start = np.minimum.reduceat(time[order], begins) if len(begins) else time
    first = order[begins]
    rank = np.empty(len(first), dtype=np.int64)
    ranked = np.lexsort((first, start, subject[first]))
    rank[ranked] = np.arange(len(first))
    return rank[pair], subject[first][ranked], start[ranked]


def intervals(days: Longs) -> Longs:
    """(M,) the number of the interval token (weeks, months, long term) for (M,) days between visits."""
    weeks, months = days // 7, np.clip(days // 30, 1, 11)
    return np.where(days < 28, weeks, np.where(days < 365, 3 + months, len(INTERVALS) - 1))


def lay_out(events: Events, tables: Tables) -> list[Encoding]:
    """One encoding per subject. Events of one visit with the same token become one event."""
    return _Sheet(events, tables).encodings()


class _Sheet:
    """The concatenated tokens of a batch.

    A *block* is a visit or the head of a subject ([CLS] and background). Blocks are numbered in order.
    """

    def __init__(self, events: Events, tables: Tables) -> None:
        timed = ~np.isnan(events.time)
        visit, owner, self.start = number_visits(
            events.subject[timed], events.time[timed], events.source[timed], tables.rule, tables.gap
        )
        self.events, self.tables = events, tables
        visits = np.bincount(owner, minlength=events.subjects)
        visits_before = np.cumsum(visits) - visits
        self.heads = np.arange(events.subjects) + visits_before
        self.visits = owner + 1 + np.arange(len(owner))
        self.order_in_subject = np.arange(len(owner)) - visits_before[owner]
        self.owner, self.lasts = owner, self.heads + visits
        block = self.heads[events.subject]
        block[timed] = events.subject[timed] + 1 + visit
        self._find_units(block, timed)
        self._measure(visit, timed)

    def _find_units(self, block: Longs, timed: NDArray[np.bool_]) -> None:
        """Find the distinct events of each block, sorted by token.

        Events with unknown codes stay separate, and come last.
        """
        ids, size = self.events.ids, len(self.tables.symbol)
        width = size + len(block)
        order = np.where(ids == UNK, size + np.arange(len(ids)), ids)
        keys, self.event = np.unique(block * width + order, return_index=True)
        self.block = keys // width if len(keys) else keys
        self.ids = ids[self.event]
        self.timed = timed[self.event]

    def _measure(self, visit: Longs, timed: NDArray[np.bool_]) -> None:
        """Compute where every block and every unit begins."""
        blocks = len(self.heads) + len(self.visits)
        self.kind = np.zeros(len(self.visits), dtype=np.int64)
        classed = np.flatnonzero(self.events.kind[timed])[::-1]  # the first class of a visit is written last
        self.kind[visit[classed]] = self.events.kind[timed][classed]
        self.later = self.order_in_subject > 0
        front = np.ones(blocks, dtype=np.int64)
        front[self.visits] += self.later.astype(np.int64) + (self.kind > 0)
        inside = np.bincount(self.block, minlength=blocks)
        length = front + inside
        length[self.visits] += 1
        length[self.lasts] += 1
        self.length, self.begin = length, np.cumsum(length) - length
        self.close = self.begin + front + inside  # [VE] of a visit
        earlier = np.arange(len(self.block)) - (np.cumsum(inside) - inside)[self.block]
        self.place = self.begin[self.block] + front[self.block] + earlier
        self.total = int(length.sum())
        self.ends = self.begin[self.lasts] + length[self.lasts]

    def encodings(self) -> list[Encoding]:
        """The encodings of all subjects, as views of shared flat columns."""
        ids, positions, units = self._tokens()
        starts = np.concatenate([[0], self.ends])
        running = np.concatenate([[0], np.cumsum(units)])
        groups = running[1:] - np.repeat(running[starts[:-1]], np.diff(starts)) - 1
        groups[~units] = SPECIAL_GROUP
        spans = np.zeros((self.total, 2), dtype=np.int32)
        spans[self.place] = self.events.spans[self.event]
        columns = (ids, groups, positions, self._symbols())
        ids32, groups32, positions32, symbols32 = (values.astype(np.int32) for values in columns)
        channels = self._channels(ids)
        return [
            Encoding(
                ids=ids32[a:b],
                groups=groups32[a:b],
                positions=positions32[a:b],
                symbols=symbols32[a:b],
                spans=spans[a:b],
                channels={name: values[a:b] for name, values in channels.items()},
            )
            for a, b in pairwise(starts.tolist())
        ]

    def _tokens(self) -> tuple[Longs, Longs, NDArray[np.bool_]]:
        """(T,) the ids; (T,) the positions; (T,) whether each token is a unit."""
        ids = np.empty(self.total, dtype=np.int64)
        base = np.ones(len(self.length), dtype=np.int64)
        base[self.visits] = _FIRST_VISIT + _STRIDE * self.order_in_subject + _CODES
        positions = np.repeat(base, self.length)
        units = np.zeros(self.total, dtype=np.bool_)
        begin, gap = self.begin[self.visits], self.later.astype(np.int64)
        last = self.ends - 1

        def write(places: Longs, values: Longs | int, shift: Longs | int) -> None:
            """Write tokens at `places`, and shift their positions."""
            ids[places], positions[places] = values, positions[places] + shift

        write(self.begin[self.heads], CLS, -1)
        write(last, SEP, np.where(self.lasts > self.heads, _STRIDE - _CODES, 1))
        write(begin[self.later], self._interval_tokens(), _INTERVAL - _CODES)
        write(begin + gap, VS, _START - _CODES)
        classed = self.kind > 0
        class_places = (begin + gap + 1)[classed]
        write(class_places, self.kind[classed], _CLASS - _CODES)
        write(self.close[self.visits], VE, _END - _CODES)
        ids[self.place] = self.ids
        units[self.place] = (self.ids != UNK) & self.timed
        return ids, positions, units

    def _interval_tokens(self) -> Longs:
        """The interval token of each visit except the first visit of a subject."""
        later = np.flatnonzero(self.later)
        days = np.floor((self.start[later] - self.start[later - 1]) / DAY).astype(np.int64)
        return FIRST_INTERVAL + intervals(days)

    def _symbols(self) -> Longs:
        """(T,) the number of each code's family within its subject, -1 for tokens without a family."""
        family = np.where(self.timed, self.tables.symbol[self.ids], -1)
        has_family = np.flatnonzero(family >= 0)
        subject = self.events.subject[self.event[has_family]]
        keys, number = np.unique(
            subject * (family.max(initial=0) + 1) + family[has_family], return_inverse=True
        )
        owners = keys // (family.max(initial=0) + 1)
        family[has_family] = number - np.searchsorted(owners, subject)
        symbols = np.full(self.total, -1, dtype=np.int64)
        symbols[self.place] = family
        return symbols

    def _channels(self, ids: Longs) -> dict[str, NDArray[np.float32]]:
        """(T,) the additional inputs by name (see `EventOptions`), NaN for tokens without a value."""
        if not self.tables.channels:
            return {}
        time = np.full(len(self.length), np.nan)
        time[self.visits] = self.start
        when = np.repeat(time, self.length)
        when[self.place] = self.events.time[self.event]
        when[self.ends - 1] = np.nan
        number = np.full(len(self.length), np.nan)
        number[self.visits] = self.order_in_subject
        visit = np.repeat(number, self.length)
        visit[self.ends - 1] = np.nan
        lengths = np.diff(self.ends, prepend=0)
        first = np.full(self.events.subjects, np.nan)
        first[self.owner[::-1]] = self.start[::-1]
        spoken = ~np.isnan(visit) & (ids >= FIRST_INTERVAL + len(INTERVALS))
        channels = {
            "age": (when - np.repeat(self.events.birth, lengths)) / DAY / YEAR,
            "time": (when - np.repeat(first, lengths)) / DAY,
            "visit": visit,
            "segment": np.where(spoken, 1 + np.nan_to_num(visit) % 2, 0),
        }
        return {name: channels[name].astype(np.float32) for name in self.tables.channels}


def visit_starts(ids: Ids) -> NDArray[np.intp]:
    """The indexes at which visits begin: at the interval token or, without one, at [VS]."""
    opens = np.flatnonzero(ids == VS)
    previous = ids[np.maximum(opens - 1, 0)]
    return opens - ((previous >= FIRST_INTERVAL) & (previous < FIRST_INTERVAL + len(INTERVALS)))
