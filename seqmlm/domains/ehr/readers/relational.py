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
class Table:
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
        further, further_prefix: column of one more code in the row, and its vocabulary.
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
    further: Names = ()
    further_prefix: str = ""


_CELLS = word_list("patient time code visit value text day source_code further unit source_unit description")


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
    tables: Sequence[Table],
    *,
    until: str | None = None,
    date_format: str | None = None,
    visits: Mapping[str, float] | None = None,
) -> Iterator[Record]:
    """A record for each subject of a folder of tables; tables that are not there are counted.

    Args:
        problems: see `Histories`, and rows without patient, code or readable time.
        people, tables: what the tables are.
        until, date_format: the last day of events; how times are written, see `cells.dated`.
        visits: time of each visit's codes, for tables without times.
    """
    found = table_files(Path(folder))
    readers = {people.name: partial(_people_rows, people)}
    readers |= {table.name: partial(rows_of_table, table) for table in tables}
    if not readers.keys() & found.keys():
        reason, remedy = "none of the tables is in the folder", f"known are {', '.join(readers)}"
        problems.bad(DataError(reason, source=str(folder), remedy=remedy))
        return
    sources: list[str] = []
    meanings = Meanings()
    histories = Histories(problems, sources, until=until, meanings=meanings)

    def rows() -> Iterator[Cells]:
        for name, read in readers.items():
            if name not in found:
                problems.note(f"no table {name} in the folder", Things(1))
            for path in found.get(name, ()):
                sources.append(str(path))
                number = len(sources) - 1
                yield from read(Source(path, number, problems, visits or {}, date_format, meanings))

    yield from histories.records(rows())


def _people_rows(people: People, source: Source) -> Iterator[Cells]:
    parts = dict(zip(("year", "month", "day"), people.birth_parts or ((), (), ()), strict=True))
    columns = {field: getattr(people, field) for field in ("patient", "birth", "death")}
    columns |= parts | dict(people.static)
    name, number = str(source.path), source.number
    table = scan(source.path, source.problems, columns, ["patient"])
    named = {at: names[0] for at, names in ((1, people.birth), (2, people.death)) if names}
    table, read = cells.dated(table, source.problems, name, named, source.date_format)
    for line, (who, birth, death, *rest) in table:
        subject = cells.words(who)
        if not subject:
            source.problems.bad(cells.fault("patient", name, line, people.patient[0]))
            continue
        for vocabulary, cell in zip(people.static, rest[3:], strict=True):
            word = cells.words(cell)
            if spelled := word and people.spell(word):
                yield subject, None, f"{vocabulary}//{spelled}", None, None, None, None, "", number, line
        born = _date(rest[:3]) if birth is None or birth == "" else birth
        dates = ((BIRTH, born, people.birth), (DEATH, death, people.death))
        for code, cell, column in dates:
            if cell in (None, ""):
                continue
            at = clock.when(cell) if code == BIRTH and cell is not birth else read(cell)
            if at is None:
                source.problems.bad(cells.fault("time", name, line, (column or parts["year"])[0]))
            else:
                yield subject, at, code, None, None, None, None, "", number, line


def _date(parts: Sequence[Any]) -> str | None:
    year, month, day = map(cells.words, parts)
    return f"{year:0>4}-{month or 1:0>2}-{day or 1:0>2}" if year else None


def rows_of_table(
    table: Table,
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
    read: clock.When = clock.when
    if table.time:
        times = {1: table.time[0], 6: (table.day or table.time)[0]}
        rows, read = cells.dated(rows, problems, name, times, source.date_format)
    for line, (who, when, what, place, value, text, day, given, more, *units, meaning, system) in rows:
        subject, visit = cells.words(who), cells.words(place) or None
        if not subject:
            problems.bad(cells.fault("patient", name, line, table.patient[0]))
            continue
        code = spelling(what, system)
        if code is None and (other := cells.words(given)):
            code = f"{table.prefix}//{other}"
        if code is None:
            fault = cells.fault("code", name, line, table.code[0])
            problems.bad(fault) if table.spell is None else problems.note(UNNAMED)
            continue
        moment = day if when is None or when == "" else when
        at = read(moment) if table.time else source.visits.get(visit or "")
        if at is None and table.undated is not None and moment in (None, ""):
            problems.note(table.undated, bool(table.undated))
        elif at is None:
            problems.bad(cells.fault("time", name, line, (table.time or table.visit)[0]))
            continue
        size, said = measured(value, table.say(text), not table.worded, problems)
        measure = None
        if size is not None:
            own, given = map(cells.unit, units)
            measure = (own and table.name_unit(own)) or given
        kind = table.opens(cells.words(what), code)
        yield subject, at, code, size, said, measure, visit, kind, number, line
        if another := cells.words(more):
            code = f"{table.further_prefix}//{another}"  # which the description is of, then
            yield subject, at, code, None, None, None, visit, "", number, line
        if meaning:
            meanings.add(code, cells.words(meaning), subject)


def _spelling(table: Table, meanings: Meanings) -> Callable[[Any, Any], str | None]:
    """Cells of a table's code and its system -> the whole code, None for none; those met are remembered."""

    @lru_cache(_REMEMBERED)
    def spelled(cell: Any, system: Any) -> str | None:
        word = cells.words(cell)
        own = (table.prefix and _LIVES.get(word.lower())) or word
        code = own if table.spell is None or not word else table.spell(word)
        if not code:
            return None
        prefix = "" if "//" in code or code in (BIRTH, DEATH) else cells.words(system) or table.prefix
        full = f"{prefix}//{code}" if prefix else code
        if text := table.means(word):
            meanings.define(full, text)
        return full

    return spelled


def measured(value: Any, text: Any, own: bool, problems: Problems) -> tuple[float | None, str | None]:
    """(number, words) of the cells of a row; what is neither is counted and left out. `own`: a value must be
    a number, for words have a column of their own.
    """
    said = cells.words(text)
    found: float | None = None
    if value not in (None, "") and value == value:  # pandas writes "not a number" where there is none
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
