"""Rows of many tables of medical events, gathered into one history a subject.

Rows come in any order, and there may be more than memory holds: SQLite then sorts them by subject, in files
of its own that are gone when it is closed. The price is that everything is written and read once more.
What is odd in the history of a subject is counted, not fatal.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, groupby, islice, pairwise
from operator import itemgetter
from typing import Any

from seqmlm.data.clock import until_seconds
from seqmlm.data.counts import SMALLEST, redacted_count
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.history import Event, History, is_birth, is_death
from seqmlm.domains.ehr.units import unit as unit_of
from seqmlm.domains.ehr.vocabulary import unit_groups
from seqmlm.errors import DataError

_LONGEST_MEANING = 200  # characters
_MOST_CODES = 500_000  # looked at for descriptions, and for units; more are no codes
_MOST_MEANINGS = 4  # different descriptions of a code, before one of them is that of enough subjects


class Meanings(dict[str, str]):
    """Descriptions of codes, of which none may be of a patient.

    Definitions (`define`) come from a table of codes. A description beside each event (`add`) may be
    anything: it is taken once `SMALLEST` subjects have the same one, and a code with many different ones has
    none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._people: dict[str, dict[str, set[int]] | None] = {}

    def __reduce__(self) -> tuple[type[dict[str, str]], tuple[()]]:
        return dict, ()  # vocabularies learn them where they are read: no record carries all to a process

    def define(self, code: str, text: str) -> None:
        """Set the description of a code."""
        if text and not code.endswith(f"//{text}"):
            self[code] = text[:_LONGEST_MEANING]

    def add(self, code: str, text: str, subject: str) -> None:
        """Count a description that stands beside a code at an event of a subject."""
        if not text or code in self:
            return
        if code not in self._people and len(self._people) >= _MOST_CODES:
            return
        texts = self._people.setdefault(code, {})
        if texts is None:
            return
        if len(text) > _LONGEST_MEANING or (text not in texts and len(texts) == _MOST_MEANINGS):
            self._people[code] = None  # prose, or of single events
            return
        people = texts.setdefault(text, set())
        people.add(hash(subject))
        if len(people) >= SMALLEST:
            self.define(code, text)
            self._people[code] = None


# Rows by subject

# subject, time or None, code, value or None, text or None, unit or None, visit or None, kind, number of the
# source, line in it. A plain tuple, because there are hundreds of millions of them.
Cells = tuple[Any, ...]

SUBJECT, TIME, CODE, VALUE, TEXT, UNIT, VISIT, KIND, SOURCE, LINE = range(10)

LARGEST = 2_000_000
"""Most rows of one subject; more is no person, and must be held whole: half a kilobyte each."""

ROWS_IN_MEMORY = 100_000


def group_by_subject(
    rows: Iterable[Cells], *, limit: int = ROWS_IN_MEMORY
) -> Iterator[tuple[str, list[Cells]]]:
    """Yield (subject, its rows in their order) for rows in any order; of a subject at most `LARGEST` and one.

    Subjects come in order of first appearance where all rows fit in memory (`limit`), else in that of names.
    """
    stream = iter(rows)
    first_rows = list(islice(stream, limit))
    by_subject: dict[str, list[Cells]] = {}
    if len(first_rows) < limit:
        for row in first_rows:
            by_subject.setdefault(row[SUBJECT], []).append(row)
        first_rows.clear()
        while by_subject:
            subject = next(iter(by_subject))
            yield subject, by_subject.pop(subject)[: LARGEST + 1]
        return
    with closing(sqlite3.connect("", check_same_thread=False)) as file:
        file.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -16000;")
        file.execute("CREATE TABLE rows (subject, time, code, value, text, unit, visit, kind, source, line)")
        all_rows = chain(first_rows, stream)
        del first_rows
        file.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", all_rows)
        yield from subject_runs(file.execute("SELECT * FROM rows ORDER BY subject, rowid"))


def subject_runs(rows: Iterable[Cells]) -> Iterator[tuple[str, list[Cells]]]:
    """Each run of rows of one subject; at most `LARGEST` and one."""
    for subject, members in groupby(rows, key=itemgetter(SUBJECT)):
        yield subject, list(islice(members, LARGEST + 1))


# Histories

NO_BIRTH = "a subject without date of birth"
NO_EVENTS = "a subject without dated events, left out"
UNSORTED = "an event earlier than the one before it, put in its place"
DUPLICATE = "a repeated event, taken once"
FUTURE = "an event later than today, kept"
PLACEHOLDER = "a date that stands for an unknown one (1900-01-01, 9999-12-31), kept"
TOO_LATE = "an event later than the option until, left out"
BEFORE_BIRTH = "an event before the subject's birth, kept"
NO_NUMBER = "a value that is no number, left out"
WRITTEN = "a value with a sign (<, >, %) or commas between thousands, read as its number"
LONG_TEXT = "a value in more than 64 characters, left out"

_DAY = 86_400.0
_PLACEHOLDERS = (-25_567.0, 2_932_896.0)  # days since 1970
_time = itemgetter(TIME)


def _without_duplicates(rows: list[Cells]) -> list[Cells]:
    """The first of events with one time, code and value; visits that open at once are two visits."""
    unique: dict[Cells, Cells] = {}
    for row in rows:
        unique.setdefault(row[TIME:SOURCE] if row[KIND] else row[TIME:VISIT], row)
    return list(unique.values())


CONVERTIBLE = "a value in a unit that can be converted to its code's usual one"
UNITLESS = (
    "a value without unit, though others of its code have one: taken to be in that unit where there is one, "
    "else with bins of its own"
)
_UNITS = 50  # units of a code that are told apart; more are no units
_CODES_TOLD = 3


class _UnitMixtures:
    """Counts values by code and unit while histories stream by, to tell where units of one code mix."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, list[int]]] = {}  # code -> unit -> values, subjects

    def add(self, events: Iterable[Event]) -> None:
        """Count the values of one subject."""
        values: Counter[tuple[str, str]] = Counter()
        for event in events:
            if event.value is not None:
                values[event.code, "" if event.unit is None else unit_of(event.unit)] += 1
        for (code, name), n in values.items():
            if code not in self._counts and len(self._counts) >= _MOST_CODES:
                continue
            units = self._counts.setdefault(code, {})
            counts = units.setdefault(name if name in units or len(units) < _UNITS else "others", [0, 0])
            counts[0] += n
            counts[1] += 1

    def tell(self, problems: Problems) -> None:
        """A note for each kind of mixture."""
        unrelated: list[tuple[int, str]] = []
        convertible = unitless = 0
        for code, units in self._counts.items():
            groups = Counter[str]()
            for name, (group, _) in unit_groups(
                code, {name: n for name, (n, _) in units.items() if name}
            ).items():
                convertible += units[name][0] * (name != group)
                groups[group] += units[name][0]
            if groups:
                unitless += units.get("", (0,))[0]
            if len(groups) > 1:
                unrelated.append((sum(groups.values()) - max(groups.values()), code))
        problems.note(CONVERTIBLE, convertible)
        problems.note(UNITLESS, unitless)
        if unrelated:
            texts = [self._describe(code, problems.sensitive) for _, code in sorted(unrelated, reverse=True)]
            named = "; ".join([text for text in texts if text][:_CODES_TOLD]) or "codes of few subjects"
            problems.note(
                f"a value in another unit than most of its code, with no known factor between them "
                f"({named}): training gives each unit its own bins; convert it, or give each its own code",
                sum(n for n, _ in unrelated),
            )

    def _describe(self, code: str, sensitive: bool) -> str:
        """A code and its units with their counts, without what few subjects have; "" if that is all."""
        units = sorted(self._counts[code].items(), key=lambda pair: (-pair[1][0], pair[0]))
        if not sensitive:
            return f"{code}: " + ", ".join(f"{n:,} in {name or 'none'}" for name, (n, _) in units)
        many = [(name, n) for name, (n, subjects) in units if subjects >= SMALLEST]
        parts = [f"{n:,} in {name or 'none'}" for name, n in many]
        few = sum(n for _, (n, subjects) in units if subjects < SMALLEST)
        if few:
            parts.append(f"{redacted_count(min(few, SMALLEST - 1))} subjects in others")
        return f"{code}: {', '.join(parts)}" if many else ""


class Histories:
    """Makes records of grouped rows.

    Args:
        problems: receives the counts.
        sources: names of the files, by the number that rows carry.
        until: the last day of events, as text (else a UsageError); later ones are left out.
        in_order: the source promises events in order of time, so that breaches are worth counting.
        split: the split the source gives a subject ("train", "validation", "test"), or None.
        meanings: of codes; histories refer to it.
    """

    def __init__(
        self,
        problems: Problems,
        sources: Sequence[str],
        *,
        until: str | None = None,
        in_order: bool = False,
        split: Callable[[str], str | None] | None = None,
        meanings: Meanings | None = None,
    ) -> None:
        self._problems, self._sources, self._split = problems, sources, split
        self.meanings = Meanings() if meanings is None else meanings
        self._units = _UnitMixtures()
        self._until, self._in_order = until_seconds(until), in_order
        self._now = time.time()

    def records(self, rows: Iterable[Cells]) -> Iterator[Record]:
        """A record for each subject among rows in any order."""
        yield from self.of_groups(group_by_subject(rows))
        self.end()

    def of_groups(self, groups: Iterable[tuple[str, list[Cells]]]) -> Iterator[Record]:
        """A record for each subject, given with its rows, that has one."""
        yield from filter(None, (self.record(subject, rows) for subject, rows in groups))

    def end(self) -> None:
        """Tell `problems` of units, which only all records together show; after the last one."""
        self._units.tell(self._problems)

    def record(self, subject: str, rows: list[Cells]) -> Record | None:
        """The record of one subject's rows; None without a dated event besides birth and death.

        Of a subject with more than `LARGEST` rows there is none either; `problems` is told.
        """
        note = self._problems.note
        if len(rows) > LARGEST:
            reason, remedy = f"a subject with more than {LARGEST:,} rows", "check the column of the patient"
            source, line = self._sources[rows[0][SOURCE]], rows[0][LINE]
            self._problems.bad(DataError(reason, source=source, line=line, remedy=remedy))
            return None
        timed = [row for row in rows if row[TIME] is not None]
        if self._until is not None:
            in_time = [row for row in timed if row[TIME] < self._until]
            note(TOO_LATE, len(timed) - len(in_time))
            timed = in_time
        else:
            note(FUTURE, sum(row[TIME] > self._now for row in timed))
            note(PLACEHOLDER, sum(row[TIME] // _DAY in _PLACEHOLDERS for row in timed))
        if late := sum(a[TIME] > b[TIME] for a, b in pairwise(timed)):
            note(UNSORTED, late * self._in_order)
            timed.sort(key=_time)
        ordered = [row for row in rows if row[TIME] is None] + timed
        unique = _without_duplicates(ordered)
        note(DUPLICATE, len(ordered) - len(unique))
        dated = [row for row in unique if row[TIME] is not None]
        birth = next((row[TIME] for row in dated if is_birth(row[CODE])), None)
        if all(is_birth(row[CODE]) or is_death(row[CODE]) for row in dated):
            note(NO_EVENTS)
            return None
        note(NO_BIRTH, birth is None)
        note(BEFORE_BIRTH, sum(birth is not None and row[TIME] < birth - _DAY for row in dated))
        events = tuple(
            Event(time=seconds, code=code, value=value, text=text, unit=unit, visit=visit, kind=kind)
            for _, seconds, code, value, text, unit, visit, kind, _, _ in unique
        )
        self._units.add(events)
        split = None if self._split is None else self._split(subject)
        return Record(
            id=subject,
            raw=History(subject=subject, birth=birth, events=events, meanings=self.meanings),
            source=self._sources[rows[0][SOURCE]],
            line=rows[0][LINE],
            document=subject,
            meta=None if split is None else {"split": split},
        )
