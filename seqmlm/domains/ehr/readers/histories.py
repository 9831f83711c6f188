"""Collect the rows of many tables of medical events into one history per subject.

Rows can have any order, and there can be more rows than memory holds. SQLite then sorts them by subject in
temporary files. The cost is that all rows are written and read once more. Unusual events in a history are
counted and are not fatal.
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
_MOST_CODES = 500_000  # maximum codes with descriptions or units; a column with more does not have codes
_MOST_MEANINGS = 4  # maximum descriptions of a code until one of them has enough subjects


class Meanings(dict[str, str]):
    """The descriptions of codes, none of which can be about a single patient.

    Descriptions from a table of codes are used directly (`define`). The description of an event (`add`) can
    be any text. It is therefore used only if `SMALLEST` subjects have the same description. A code with many
    different descriptions gets none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._people: dict[str, dict[str, set[int]] | None] = {}

    def __reduce__(self) -> tuple[type[dict[str, str]], tuple[()]]:
        return dict, ()  # records that are sent to other processes do not carry all descriptions

    def define(self, code: str, text: str) -> None:
        """Set the description of a code, unless it only repeats the code."""
        if text and not code.endswith(f"//{text}"):
            self[code] = text[:_LONGEST_MEANING]

    def add(self, code: str, text: str, subject: str) -> None:
        """Count the description of a code from an event of a subject. Use it if enough subjects have it."""
        if not text or code in self:
            return
        if code not in self._people and len(self._people) >= _MOST_CODES:
            return
        texts = self._people.setdefault(code, {})
        if texts is None:
            return
        if len(text) > _LONGEST_MEANING or (text not in texts and len(texts) == _MOST_MEANINGS):
            self._people[code] = None  # prose, or descriptions of single events
            return
        people = texts.setdefault(text, set())
        people.add(hash(subject))
        if len(people) >= SMALLEST:
            self.define(code, text)
            self._people[code] = None


# Rows by subject

# subject, time or None, code, value or None, text or None, unit or None, visit or None, kind, number of the
# source, line in the source. Plain tuples save memory, because there are hundreds of millions of rows.
Cells = tuple[Any, ...]

SUBJECT, TIME, CODE, VALUE, TEXT, UNIT, VISIT, KIND, SOURCE, LINE = range(10)

LARGEST = 2_000_000
"""Maximum rows of one subject. More rows cannot be one person, and all rows of a subject are in memory (half
a kilobyte per row)."""

ROWS_IN_MEMORY = 100_000


def group_by_subject(
    rows: Iterable[Cells], *, limit: int = ROWS_IN_MEMORY
) -> Iterator[tuple[str, list[Cells]]]:
    """Yield each subject with its rows, in their order. Rows can have any order.

    If all rows fit in memory (fewer than `limit`), subjects come in the order of their first row. Otherwise,
    they are sorted by name. At most `LARGEST` + 1 rows of a subject are yielded.
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
    """Yield each run of consecutive rows of one subject, with at most `LARGEST` + 1 rows."""
    for subject, members in groupby(rows, key=itemgetter(SUBJECT)):
        yield subject, list(islice(members, LARGEST + 1))


# Histories

NO_BIRTH = "a subject without date of birth: its age is unknown"
NO_EVENTS = "a subject without dated events, left out"
UNSORTED = "an event earlier than the previous event, sorted"
DUPLICATE = "a repeated event, kept once"
FUTURE = "an event later than today, kept"
PLACEHOLDER = "a placeholder for an unknown date (1900-01-01, 9999-12-31), kept"
TOO_LATE = "an event later than the option until, left out"
BEFORE_BIRTH = "an event before the subject's birth, kept"
NO_NUMBER = "a value that is not a number, left out"
WRITTEN = "a value with a sign (<, >, %) or thousands separators, read as a number"
LONG_TEXT = "a value longer than 64 characters, left out"

_DAY = 86_400.0
_PLACEHOLDERS = (-25_567.0, 2_932_896.0)  # days since 1970
_time = itemgetter(TIME)


def _without_duplicates(rows: list[Cells]) -> list[Cells]:
    """The rows without repeated events: those with the same time, code and value as an earlier event.

    Events that open different visits at the same time are kept.
    """
    unique: dict[Cells, Cells] = {}
    for row in rows:
        unique.setdefault(row[TIME:SOURCE] if row[KIND] else row[TIME:VISIT], row)
    return list(unique.values())


CONVERTIBLE = "a value in another unit than most values of its code, converted"
UNITLESS = (
    "a value without unit, although other values of its code have one: read in that unit if there is only "
    "one, otherwise with separate bins"
)
_UNITS = 50  # maximum units that are distinguished per code; a column with more does not have units
_CODES_TOLD = 3  # maximum codes that are named in the message


class _UnitMixtures:
    """Counts values by code and unit, to report codes with several units."""

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
        """Report each kind of mixture to `problems`."""
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
                "a value in another unit than most values of its code, for which no conversion is known "
                f"({named}). Training uses separate bins for each unit. Convert the values, or use one code "
                "per unit",
                sum(n for n, _ in unrelated),
            )

    def _describe(self, code: str, sensitive: bool) -> str:
        """The text about a code: its units with their counts.

        If the data are sensitive, units that few subjects have are not named. The text is "" if no
        other unit is left.
        """
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
    """Makes records from rows that are grouped by subject.

    Args:
        problems: receives the counts of unusual events.
        sources: names of the files. Rows have the index of their file.
        until: the last day, as text. Later events are left out.
        in_order: whether the format requires events in order of time. Events out of order are then counted.
        split: a function that gives the split of a subject in the source ("train", "validation" or "test"),
            or None.
        meanings: descriptions of codes. All histories share them.

    Raises:
        UsageError: `until` is not a day.
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
        """The records of all subjects. Rows can have any order."""
        yield from self.of_groups(group_by_subject(rows))
        self.end()

    def of_groups(self, groups: Iterable[tuple[str, list[Cells]]]) -> Iterator[Record]:
        """The records of subjects that are given with their rows. Some subjects have no record."""
        yield from filter(None, (self.record(subject, rows) for subject, rows in groups))

    def end(self) -> None:
        """Report mixed units to `problems`. Call it after the last record, because it needs all records."""
        self._units.tell(self._problems)

    def record(self, subject: str, rows: list[Cells]) -> Record | None:
        """The record of one subject's rows.

        It is None if the subject has no dated events except birth and death, or more than `LARGEST` rows.
        `problems` receives both cases.
        """
        note = self._problems.note
        if len(rows) > LARGEST:
            reason, remedy = (
                f"a subject with more than {LARGEST:,} rows",
                "check the column with the patient id",
            )
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
