"""Read exports of several tables that share a patient id, from a description of each table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seqmlm.data import clock
from seqmlm.data.counts import Things
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.history import BIRTH, DEATH
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.histories import LONG_TEXT, NO_NUMBER, WRITTEN, Cells, Histories, Meanings
from seqmlm.domains.ehr.readers.tables import scan, table_files
from seqmlm.errors import DataError
from seqmlm.parsing import word_list

Names = tuple[str, ...]

_LIVES = {"birth": BIRTH, "dob": BIRTH, "born": BIRTH, "death": DEATH, "dod": DEATH, "died": DEATH}
UNNAMED = "a row whose concept is unknown, left out"
_REMEMBERED = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTable:
    """The description of a table: how its rows become events.

    A column is described by the names that it can have, the preferred name first.

    Args:
        name: the name of the table, in lower case.
        patient, time, code: required columns. Without `time`, the event has the time of its visit.
        prefix: the vocabulary of codes without a vocabulary; "" leaves codes unchanged.
        vocabulary: column with the vocabulary of the code. If its cell is empty, `prefix` is used.
        undated: the note that counts a row without time, whose event is background. If it is None, a row
            without time is an error.
        day: column that is used if the cell of `time` is empty.
        visit: column with the id of the visit.
        value, text: columns with a number, and with words.
        worded: whether a value that is not a number is used as words.
        unit, source_unit: columns with the unit of the value. The second is used if the first has no unit.
        description: column with the description of the code.
        spell: turns a cell of the code into the code (with "//" if it has its own vocabulary), or None if
            the concept is unknown. Rows with an unknown concept are counted and are not errors.
        say: turns a cell of `text` into words.
        name_unit: turns a cell of `unit` into the unit, or None if it has no unit.
        means: turns a cell of the code into its description from a table of codes.
        source_code: column that is used if the code is unknown.
        opens: turns a cell of the code and the whole code into the kind of visit that the row opens, or "".
        extra_code, extra_prefix: column of an additional code in the row, and its vocabulary.
    """

    name: str
    patient: Names
    code: Names
    prefix: str
    vocabulary: Names = ()
    time: Names = ()
    day: Names = ()
    undated: str | None = None
    visit: Names = ()
    value: Names = ()
    text: Names = ()
    worded: bool = False
    unit: Names = ()
    source_unit: Names = ()
    description: Names = ()
    spell: Callable[[str], str | None] | None = None
    say: Callable[[Any], Any] = lambda cell: cell
    name_unit: Callable[[str], str | None] = lambda unit: unit
    means: Callable[[str], str | None] = lambda cell: None
    source_code: Names = ()
    opens: Callable[[str, str], str] = lambda cell, code: ""
    extra_code: Names = ()
    extra_prefix: str = ""


_CELLS = word_list(
    "patient time code visit value text day source_code extra_code unit source_unit description"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """The description of the table of patients. Columns are described as in `EventTable`.

    Args:
        name: the name of the table, in lower case.
        patient: column with the id.
        static: vocabulary -> column with background that does not change (sex, race).
        birth, death: columns with the dates.
        birth_parts: columns with the year, month and day of birth, if `birth` is empty.
        spell: turns a cell of a static column into a code, or None if it has none.
    """

    name: str
    patient: Names
    static: Mapping[str, Names]
    birth: Names = ()
    birth_parts: tuple[Names, Names, Names] | None = None
    death: Names = ()
    spell: Callable[[str], str | None] = lambda word: word


@dataclass(slots=True)
class Source:
    """A file of an export that is being read.

    Attributes:
        path, number: its path, and its index among all files.
        problems: receives rows that cannot be used.
        visits: the time of each visit, for tables without times.
        date_format: format of dates, or None to infer it.
        meanings: receives the descriptions of codes.
    """

    path: str | Path
    number: int
    problems: Problems
    visits: Mapping[str, float]
    date_format: str | None
    meanings: Meanings


def read_tables(
    folder: str | Path,
    problems: Problems,
    people: People,
    tables: Sequence[EventTable],
    *,
    until: str | None = None,
    date_format: str | None = None,
    visits: Mapping[str, float] | None = None,
) -> Iterator[Record]:
    """Read a folder of tables. Each subject is one record.

    Args:
        folder: the folder.
        problems: receives rows without patient, code or readable time. It counts missing tables and unusual
            events (see `Histories`).
        people, tables: the descriptions of the tables.
        until: the last day. Later events are left out.
        date_format: format of times (see `cells.dated_rows`).
        visits: the time of each visit, for tables without times.
    """
    files = table_files(Path(folder))
    readers = {people.name: partial(_people_rows, people)}
    readers |= {table.name: partial(rows_of_table, table) for table in tables}
    if not readers.keys() & files.keys():
        reason, remedy = "the folder has none of the tables", f"it can have {', '.join(readers)}"
        problems.bad(DataError(reason, source=str(folder), remedy=remedy))
        return
    sources: list[str] = []
    meanings = Meanings()
    histories = Histories(problems, sources, until=until, meanings=meanings)

    def rows() -> Iterator[Cells]:
        """The rows of all tables in the folder."""
        for name, reader in readers.items():
            if name not in files:
                problems.note(f"no table {name} in the folder", Things(1))
            for path in files.get(name, ()):
                sources.append(str(path))
                number = len(sources) - 1
                yield from reader(Source(path, number, problems, visits or {}, date_format, meanings))

    yield from histories.records(rows())


def _people_rows(people: People, source: Source) -> Iterator[Cells]:
    """The rows from the table of patients: background, birth and death."""
    parts = dict(zip(("year", "month", "day"), people.birth_parts or ((), (), ()), strict=True))
    columns = {field: getattr(people, field) for field in ("patient", "birth", "death")}
    columns |= parts | dict(people.static)
    name, number = str(source.path), source.number
    table = scan(source.path, source.problems, columns, ["patient"])
    named = {place: names[0] for place, names in ((1, people.birth), (2, people.death)) if names}
    table, reader = cells.dated_rows(table, source.problems, name, named, source.date_format)
    for line, (who, birth, death, *other_cells) in table:
        subject = cells.words(who)
        if not subject:
            source.problems.bad(cells.fault("patient", name, line, people.patient[0]))
            continue
        for vocabulary, cell in zip(people.static, other_cells[3:], strict=True):
            word = cells.words(cell)
            if spelled := word and people.spell(word):
                yield subject, None, f"{vocabulary}//{spelled}", None, None, None, None, "", number, line
        born = _date(other_cells[:3]) if birth is None or birth == "" else birth
        dates = ((BIRTH, born, people.birth), (DEATH, death, people.death))
        for code, cell, column in dates:
            if cell in (None, ""):
                continue
            seconds = clock.when(cell) if code == BIRTH and cell is not birth else reader(cell)
            if seconds is None:
                source.problems.bad(cells.fault("time", name, line, (column or parts["year"])[0]))
            else:
                yield subject, seconds, code, None, None, None, None, "", number, line


def _date(parts: Sequence[Any]) -> str | None:
    """A date from a year, month and day, or None without a year. A missing month or day is 1."""
    year, month, day = map(cells.words, parts)
    return f"{year:0>4}-{month or 1:0>2}-{day or 1:0>2}" if year else None


def rows_of_table(
    table: EventTable,
    source: Source,
    *,
    needed: Sequence[str] = (),
    delimiter: str | None = None,
    option: str = "",
) -> Iterator[Cells]:
    """The events from one file of a table. For `needed`, `delimiter` and `option`, see `scan`."""
    columns = {field: getattr(table, field) for field in (*_CELLS, "vocabulary")}
    needed = needed or ["patient", "code", "time" if table.time else "visit"]
    problems, name, number = source.problems, str(source.path), source.number
    spelling, meanings = _spelling(table, source.meanings), source.meanings
    rows = scan(source.path, problems, columns, needed, delimiter=delimiter, option=option)
    reader: clock.When = clock.when
    if table.time:
        times = {1: table.time[0], 6: (table.day or table.time)[0]}
        rows, reader = cells.dated_rows(rows, problems, name, times, source.date_format)
    for line, row in rows:
        who, when, code_cell, place, value, text, day, source_cell, extra_cell, *units, meaning, system = row
        subject, visit = cells.words(who), cells.words(place) or None
        if not subject:
            problems.bad(cells.fault("patient", name, line, table.patient[0]))
            continue
        code = spelling(code_cell, system)
        if code is None and (source_code := cells.words(source_cell)):
            code = f"{table.prefix}//{source_code}"
        if code is None:
            fault = cells.fault("code", name, line, table.code[0])
            problems.bad(fault) if table.spell is None else problems.note(UNNAMED)
            continue
        moment = day if when is None or when == "" else when
        seconds = reader(moment) if table.time else source.visits.get(visit or "")
        if seconds is None and table.undated is not None and moment in (None, ""):
            problems.note(table.undated, bool(table.undated))
        elif seconds is None:
            problems.bad(cells.fault("time", name, line, (table.time or table.visit)[0]))
            continue
        size, phrase = number_and_words(value, table.say(text), not table.worded, problems)
        measure = None
        if size is not None:
            unit_text, source_unit = map(cells.unit, units)
            measure = (unit_text and table.name_unit(unit_text)) or source_unit
        kind = table.opens(cells.words(code_cell), code)
        yield subject, seconds, code, size, phrase, measure, visit, kind, number, line
        if another := cells.words(extra_cell):
            code = f"{table.extra_prefix}//{another}"  # the description below is then of this code
            yield subject, seconds, code, None, None, None, visit, "", number, line
        if meaning:
            meanings.add(code, cells.words(meaning), subject)


def _spelling(table: EventTable, meanings: Meanings) -> Callable[[Any, Any], str | None]:
    """A cached function that turns the cells of a code and its system into the whole code, or None."""

    @lru_cache(_REMEMBERED)
    def full_code(cell: Any, system: Any) -> str | None:
        """The whole code from the cells of the code and its system; None if the cell has no code."""
        word = cells.words(cell)
        name = (table.prefix and _LIVES.get(word.lower())) or word
        code = name if table.spell is None or not word else table.spell(word)
        if not code:
            return None
        prefix = "" if "//" in code or code in (BIRTH, DEATH) else cells.words(system) or table.prefix
        full = f"{prefix}//{code}" if prefix else code
        if text := table.means(word):
            meanings.define(full, text)
        return full

    return full_code


def number_and_words(
    value: Any, text: Any, numbers_only: bool, problems: Problems
) -> tuple[float | None, str | None]:
    """The number and the words of a row.

    Args:
        value, text: the cells with the value and the words.
        numbers_only: whether the value must be a number. Otherwise, it can also be words.
        problems: counts values that are not numbers, and values that are too long. Both are left out.
    """
    phrase = cells.words(text)
    number: float | None = None
    if value not in (None, "") and value == value:  # pandas writes NaN for missing values
        number = cells.number(value)
        if number is None:
            amount = cells.amount(value) if isinstance(value, str) else None
            if amount is not None and math.isfinite(amount):
                number = amount
                problems.note(WRITTEN)
            elif numbers_only or amount is not None or not isinstance(value, str):
                problems.note(NO_NUMBER)
            else:
                phrase = phrase or cells.words(value)
    if len(phrase) > cells.TEXT_LIMIT:
        problems.note(LONG_TEXT)
        phrase = ""
    return number, phrase or None
