"""The rows of one subject become one history; what is odd in them is counted, not fatal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter

from seqmlm.data.events import Event, History, is_birth, is_death
from seqmlm.data.problems import Problems
from seqmlm.data.readers.ehr.cells import until_seconds
from seqmlm.data.readers.ehr.grouping import CODE, KIND, LINE, SOURCE, TIME, VISIT, Row, grouped
from seqmlm.data.record import Record

NO_BIRTH = "a subject without date of birth"
NO_EVENTS = "a subject without dated events, left out"
UNSORTED = "an event earlier than the one before it, put in its place"
DUPLICATE = "a repeated event, taken once"
FUTURE = "an event later than today, kept"
TOO_LATE = "an event later than the option until, left out"
BEFORE_BIRTH = "an event before the subject's birth, kept"
NO_NUMBER = "a value that is no number, left out"
LONG_TEXT = "a value in more than 64 characters, left out"

_DAY = 86_400.0
_time = itemgetter(TIME)


def _unique(rows: list[Row]) -> list[Row]:
    """The first of events with one time, code and value; visits that open at once are two visits."""
    found: dict[Row, Row] = {}
    for row in rows:
        found.setdefault(row[TIME:SOURCE] if row[KIND] else row[TIME:VISIT], row)
    return list(found.values())


class Histories:
    """Makes records of grouped rows.

    Args:
        problems: receives the counts.
        sources: names of the files, by the number that rows carry.
        until: the last day of events, as text; later ones are left out.
        in_order: the source promises events in order of time, so that breaches are worth counting.
        split: the split the source gives a subject ("train", "validation", "test"), or None.

    Raises:
        UsageError: `until` is no date.
    """

    def __init__(
        self,
        problems: Problems,
        sources: Sequence[str],
        *,
        until: str | None = None,
        in_order: bool = False,
        split: Callable[[str], str | None] | None = None,
    ) -> None:
        self._problems, self._sources, self._split = problems, sources, split
        self._until, self._in_order = until_seconds(until), in_order
        self._now = time.time()

    def records(self, rows: Iterable[Row]) -> Iterator[Record]:
        """A record for each subject among rows in any order."""
        for subject, members in grouped(rows):
            record = self.record(subject, members)
            if record is not None:
                yield record

    def record(self, subject: str, rows: list[Row]) -> Record | None:
        """The record of one subject's rows; None without a dated event besides birth and death."""
        note = self._problems.note
        timed = [row for row in rows if row[TIME] is not None]
        if self._until is not None:
            kept = [row for row in timed if row[TIME] < self._until]
            note(TOO_LATE, len(timed) - len(kept))
            timed = kept
        else:
            note(FUTURE, sum(row[TIME] > self._now for row in timed))
        moments = [row[TIME] for row in timed]
        if any(a > b for a, b in pairwise(moments)):
            if self._in_order:
                note(UNSORTED, sum(a > b for a, b in pairwise(moments)))
            timed.sort(key=_time)
        ordered = [row for row in rows if row[TIME] is None] + timed
        unique = _unique(ordered)
        note(DUPLICATE, len(ordered) - len(unique))
        births = [row[TIME] for row in unique if row[TIME] is not None and is_birth(row[CODE])]
        birth = births[0] if births else None
        if not any(
            row[TIME] is not None and not is_birth(row[CODE]) and not is_death(row[CODE]) for row in unique
        ):
            note(NO_EVENTS)
            return None
        if birth is None:
            note(NO_BIRTH)
        else:
            note(BEFORE_BIRTH, sum(row[TIME] is not None and row[TIME] < birth - _DAY for row in unique))
        return self._finish(subject, birth, unique, rows[0])

    def _finish(self, subject: str, birth: float | None, rows: list[Row], first: Row) -> Record:
        events = tuple(
            Event(time=at, code=code, value=value, text=text, visit=visit, kind=kind)
            for _, at, code, value, text, visit, kind, _, _ in rows
        )
        split = None if self._split is None else self._split(subject)
        return Record(
            id=subject,
            raw=History(subject=subject, birth=birth, events=events),
            source=self._sources[first[SOURCE]],
            line=first[LINE],
            document=subject,
            meta=None if split is None else {"split": split},
        )
