"""Exports of several tables that share a patient's id: each table is described, one loop reads them all."""

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
    """How the rows of a table become events. Columns are given by the names they may have, best first.

    Args:
        name: of the table, in lower case.
        patient, time, code: columns that a row needs; without `time` the event has the time of its visit.
        prefix: goes in front of a code that has no vocabulary; "" leaves codes as they are.
        vocabulary: column whose cell does so, where it is filled in.
        undated: what is noted of a row without time, whose event is background; None where that is a fault.
        day: column taken where that of `time` is empty.
        visit: the visit's id.
        value, text: a number; words. `worded`: a value that is no number is taken for words.
        unit, source_unit: of the value; the second is taken where the first names nothing.
        description: column with the meaning of the code.
        spell: cell of the code -> the code (with "//" where it has its own vocabulary), None for a row that
            names nothing; such rows are counted and no fault.
        say: cell of `text` -> the words.
        name_unit: cell of `unit` -> the unit, None for a cell that names nothing.
        means: cell of the code -> its description, of a table of codes.
        source_code: taken where the code names nothing.
        opens: (cell of the code, the whole code) -> the kind of visit that the row opens, or "".
        extra_code, extra_prefix: column of one more code in the row, and its vocabulary.
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
    """The table of patients.

    Args:
        patient: column of the id.
        birth, death: columns of the dates; `birth_parts` are a year, a month and a day.
        static: vocabulary -> columns of what does not change (sex, race).
        spell: cell of a static column -> code, None for a cell that names nothing.
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
    """One file of an export under way: its name and number, where its faults go, the visits' times, how dates
    are written, and where descriptions of codes go."""

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
    """A record for each subject of a folder of tables; tables that are not there are counted.

    Args:
        problems: see `Histories`, and rows without patient, code or readable time.
        people, tables: what the tables are.
        until, date_format: the last day of events; how times are written, see `cells.dated_rows`.
        visits: time of each visit's codes, for tables without times.
    """
    files = table_files(Path(folder))
    readers = {people.name: partial(_people_rows, people)}
    readers |= {table.name: partial(rows_of_table, table) for table in tables}
    if not readers.keys() & files.keys():
        reason, remedy = "none of the tables is in the folder", f"known are {', '.join(readers)}"
        problems.bad(DataError(reason, source=str(folder), remedy=remedy))
        return
    sources: list[str] = []
    meanings = Meanings()
    histories = Histories(problems, sources, until=until, meanings=meanings)

    def rows() -> Iterator[Cells]:
        """The rows of all tables of the folder."""
        for name, reader in readers.items():
            if name not in files:
                problems.note(f"no table {name} in the folder", Things(1))
            for path in files.get(name, ()):
                sources.append(str(path))
                number = len(sources) - 1
                yield from reader(Source(path, number, problems, visits or {}, date_format, meanings))

    yield from histories.records(rows())


def _people_rows(people: People, source: Source) -> Iterator[Cells]:
    """The rows of the table of patients: background, birth and death."""
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
    """A date of its year, month and day; January and the first where these are missing."""
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
    """The rows of one file of a table as events; `needed`, `delimiter` and `option` as in `scan`."""
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
            code = f"{table.extra_prefix}//{another}"  # which the description is of, then
            yield subject, seconds, code, None, None, None, visit, "", number, line
        if meaning:
            meanings.add(code, cells.words(meaning), subject)


def _spelling(table: EventTable, meanings: Meanings) -> Callable[[Any, Any], str | None]:
    """A function from the cells of a code and its system to the whole code, None for none; it remembers."""

    @lru_cache(_REMEMBERED)
    def full_code(cell: Any, system: Any) -> str | None:
        """The whole code of a cell and its system; None for a cell that names nothing."""
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
    """(number, words) of the cells of a row; what is neither is counted and left out. With `numbers_only` a
    value must be a number, for words have a column of their own.
    """
    phrase = cells.words(text)
    number: float | None = None
    if value not in (None, "") and value == value:  # pandas writes "not a number" where there is none
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
