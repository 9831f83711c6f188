"""Exports of several tables that share a patient's id: each table is described, one loop reads them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.histories import LONG_TEXT, NO_NUMBER, WRITTEN, Cells, Histories, Meanings
from seqmlm.domains.ehr.readers.tables import scan, table_files
from seqmlm.errors import DataError
from seqmlm.tokenizers.events_history import BIRTH, DEATH

Names = tuple[str, ...]

UNNAMED = "a row whose concept is unknown, left out"
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How the rows of a table become events. Columns are given by the names they may have, best first.

    Args:
        name: of the table, in lower case.
        subject, time, code: columns that a row needs; without `time` the event has the time of its visit.
        vocabulary: goes in front of the code.
        day: column taken where that of `time` is empty.
        visit: the visit's id.
        value, text: a number; words. A value that is no number is taken for words where there is no `text`.
        unit, source_unit: of the value; the second is taken where the first names nothing.
        meaning: column with the description of the code.
        spell: cell of the code -> the code (with "//" where it has its own vocabulary), None for a row that
            names nothing; such rows are counted and no fault.
        say: cell of `text` -> the words.
        name_unit: cell of `unit` -> the unit, None for a cell that names nothing.
        means: cell of the code -> its description, of a table of codes.
        source_code: taken where the code names nothing.
        opens: the row opens a visit; its code is the class of the visit.
        further: column of one more code in the row, and its vocabulary.
    """

    name: str
    subject: Names
    code: Names
    vocabulary: str
    time: Names = ()
    day: Names = ()
    visit: Names = ()
    value: Names = ()
    text: Names = ()
    unit: Names = ()
    source_unit: Names = ()
    meaning: Names = ()
    spell: Callable[[str], str | None] | None = None
    say: Callable[[str], str] | None = None
    name_unit: Callable[[str], str | None] | None = None
    means: Callable[[str], str | None] | None = None
    source_code: Names = ()
    opens: bool = False
    kind: Callable[[str], str] = cells.kind_of
    further: tuple[Names, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """The table of patients.

    Args:
        name: of the table, in lower case.
        subject: column of the id.
        birth, death: columns of the dates; `birth` may be a year, a month and a day.
        static: vocabulary -> columns of what does not change (sex, race).
        spell: cell of a static column -> code, None for a cell that names nothing.
    """

    name: str
    subject: Names
    static: Mapping[str, Names]
    birth: Names = ()
    birth_parts: tuple[Names, Names, Names] | None = None
    death: Names = ()
    spell: Callable[[str], str | None] | None = None


@dataclass(slots=True)
class Source:
    """One file of an export under way: its name and number, where its faults go, the visits' times, how dates
    are written, and where descriptions of codes go."""

    path: Path
    number: int
    problems: Problems
    visits: Mapping[str, float]
    date_format: str | None
    meanings: Meanings


def read_tables(
    folder: str | Path,
    problems: Problems,
    people: People,
    tables: Sequence[Table],
    *,
    until: str | None = None,
    date_format: str | None = None,
    visits: Mapping[str, float] | None = None,
) -> Iterator[Record]:
    """A record for each subject of a folder of tables; tables that are not there are counted.

    Args:
        folder: of the export.
        problems: see `Histories`, and rows without patient, code or readable time.
        people, tables: what the tables are.
        until: the last day of events.
        date_format: how times are written, see `cells.dated`.
        visits: time of each visit's codes, for tables without times.
    """
    found = table_files(Path(folder))
    if people.name not in found and not any(table.name in found for table in tables):
        names = ", ".join([people.name, *(table.name for table in tables)])
        error = DataError(
            "none of the tables is in the folder", source=str(folder), remedy=f"known are {names}"
        )
        problems.bad(error)
        return
    sources: list[str] = []
    meanings = Meanings()
    histories = Histories(problems, sources, until=until, meanings=meanings)

    def rows() -> Iterator[Cells]:
        readers = {people.name: partial(_people_rows, people)}
        readers |= {table.name: partial(_table_rows, table) for table in tables}
        for name, read in readers.items():
            if name not in found:
                problems.note(f"no table {name} in the folder")
            for path in found.get(name, ()):
                sources.append(str(path))
                number = len(sources) - 1
                yield from read(Source(path, number, problems, visits or {}, date_format, meanings))

    yield from histories.records(rows())


def _people_rows(people: People, source: Source) -> Iterator[Cells]:
    year, month, day = people.birth_parts or ((), (), ())
    columns = {
        "patient": people.subject,
        "birth": people.birth,
        "death": people.death,
        "year": year,
        "month": month,
        "day": day,
        **people.static,
    }
    name, number = str(source.path), source.number
    table = scan(source.path, source.problems, columns, ["patient"])
    named = {at: names[0] for at, names in ((1, people.birth), (2, people.death)) if names}
    table, read = cells.dated(table, source.problems, name, named, source.date_format)
    for line, (who, birth, death, *rest) in table:
        subject = cells.words(who)
        if not subject:
            source.problems.bad(cells.no_subject(name, line, people.subject[0]))
            continue
        for vocabulary, cell in zip(people.static, rest[3:], strict=True):
            word = cells.words(cell)
            spelled = people.spell(word) if people.spell and word else word
            if spelled:
                yield subject, None, f"{vocabulary}//{spelled}", None, None, None, None, "", number, line
        born = _date(rest[:3]) if birth is None or birth == "" else birth
        dates = ((BIRTH, born, people.birth), (DEATH, death, people.death))
        for code, cell, column in dates:
            if cell in (None, ""):
                continue
            at = cells.when(cell) if code == BIRTH and cell is not birth else read(cell)
            if at is None:
                source.problems.bad(cells.no_time(name, line, (column or year)[0]))
            else:
                yield subject, at, code, None, None, None, None, "", number, line


def _date(parts: Sequence[Any]) -> str | None:
    year, month, day = map(cells.words, parts)
    return f"{year:0>4}-{month or 1:0>2}-{day or 1:0>2}" if year else None


def _table_rows(table: Table, source: Source) -> Iterator[Cells]:
    further, further_vocabulary = table.further or ((), "")
    columns = {
        "patient": table.subject,
        "time": table.time,
        "code": table.code,
        "visit": table.visit,
        "value": table.value,
        "text": table.text,
        "day": table.day,
        "source_code": table.source_code,
        "further": further,
        "unit": table.unit,
        "source_unit": table.source_unit,
        "meaning": table.meaning,
    }
    needed = ["patient", "code", "time"] if table.time else ["patient", "code", "visit"]
    problems, name, number, say = source.problems, str(source.path), source.number, table.say
    spelling, has_words, meanings = _spelling(table, source.meanings), bool(table.text), source.meanings
    rows = scan(source.path, problems, columns, needed)
    read: cells.When = cells.when
    if table.time:
        times = {1: table.time[0], 6: (table.day or table.time)[0]}
        rows, read = cells.dated(rows, problems, name, times, source.date_format)
    for line, (who, when, what, place, *rest) in rows:
        value, text, day, source_code, more, unit, source_unit, meaning = rest
        subject, visit = cells.words(who), cells.words(place) or None
        if not subject:
            problems.bad(cells.no_subject(name, line, table.subject[0]))
            continue
        code = spelling(what)
        if code is None and (other := cells.words(source_code)):
            code = f"{table.vocabulary}//{other}"
        if code is None:
            if table.spell is None:
                problems.bad(cells.no_code(name, line, table.code[0]))
            else:
                problems.note(UNNAMED)
            continue
        moment = day if when is None or when == "" else when
        at = read(moment) if table.time else source.visits.get(visit or "")
        if at is None:
            problems.bad(cells.no_time(name, line, (table.time or table.visit)[0]))
            continue
        kind = table.kind(cells.words(what)) if table.opens else ""
        said = text if say is None else say(cells.words(text))
        size, said = measured(value, said, has_words, problems)
        measure = None if size is None else _measure(table, unit, source_unit)
        means = cells.words(meaning) if meaning else ""
        yield subject, at, code, size, said, measure, visit, kind, number, line
        if further and (another := cells.words(more)):
            code = f"{further_vocabulary}//{another}"  # which the description is of, then
            yield subject, at, code, None, None, None, visit, "", number, line
        if means:
            meanings.add(code, means, subject)


def _measure(table: Table, unit: Any, source_unit: Any) -> str | None:
    """The unit of a row's value."""
    own = cells.unit(unit)
    if own is not None and table.name_unit is not None:
        own = table.name_unit(own)
    return own or cells.unit(source_unit)


def _spelling(table: Table, meanings: Meanings) -> Callable[[Any], str | None]:
    """Cells of a table's code -> the whole code, None for none; those met before are remembered."""

    @lru_cache(_REMEMBERED)
    def spelled(cell: Any) -> str | None:
        word = cells.words(cell)
        code = table.spell(word) if table.spell is not None and word else word
        if not code:
            return None
        full = code if "//" in code or code in (BIRTH, DEATH) else f"{table.vocabulary}//{code}"
        if table.means is not None and (text := table.means(word)):
            meanings.define(full, text)
        return full

    return spelled


def measured(value: Any, text: Any, own: bool, problems: Problems) -> tuple[float | None, str | None]:
    """(number, words) of a row; what is neither is counted and left out.

    Args:
        value, text: cells.
        own: words have a column of their own, so that a value must be a number.
        problems: receives the counts.
    """
    said = cells.words(text)
    found: float | None = None
    if value not in (None, ""):
        found = cells.number(value)
        if found is None:
            written = cells.amount(value) if isinstance(value, str) else None
            if written is not None and math.isfinite(written):
                found = written
                problems.note(WRITTEN)
            elif own or written is not None or not isinstance(value, str):
                problems.note(NO_NUMBER)
            else:
                said = said or cells.words(value)
    if len(said) > cells.TEXT_LIMIT:
        problems.note(LONG_TEXT)
        said = ""
    return found, said or None
