"""Exports of several tables that share a patient's id: each table is described, one loop reads them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.histories import BIRTH, DEATH, LONG_TEXT, NO_NUMBER, Cells, Histories
from seqmlm.domains.ehr.readers.tables import scan, table_files
from seqmlm.errors import DataError

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
        spell: cell of the code -> the code (with "//" where it has its own vocabulary), None for a row that
            names nothing; such rows are counted and no fault.
        say: cell of `text` -> the words.
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
    spell: Callable[[str], str | None] | None = None
    say: Callable[[str], str] | None = None
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
    """One file of an export under way: its name and number, where its faults go, and the visits' times."""

    path: Path
    number: int
    problems: Problems
    visits: Mapping[str, float]


def read_tables(
    folder: str | Path,
    problems: Problems,
    people: People,
    tables: Sequence[Table],
    *,
    until: str | None = None,
    visits: Mapping[str, float] | None = None,
) -> Iterator[Record]:
    """A record for each subject of a folder of tables; tables that are not there are counted.

    Args:
        folder: of the export.
        problems: see `Histories`, and rows without patient, code or readable time.
        people, tables: what the tables are.
        until: the last day of events.
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
    histories = Histories(problems, sources, until=until)

    def rows() -> Iterator[Cells]:
        readers = {people.name: partial(_people_rows, people)}
        readers |= {table.name: partial(_table_rows, table) for table in tables}
        for name, read in readers.items():
            if name not in found:
                problems.note(f"no table {name} in the folder")
            for path in found.get(name, ()):
                sources.append(str(path))
                yield from read(Source(path, len(sources) - 1, problems, visits or {}))

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
    for line, (who, birth, death, *rest) in scan(source.path, source.problems, columns, ["patient"]):
        subject = cells.words(who)
        if not subject:
            source.problems.bad(cells.no_subject(name, line, people.subject[0]))
            continue
        for vocabulary, cell in zip(people.static, rest[3:], strict=True):
            word = cells.words(cell)
            spelled = people.spell(word) if people.spell and word else word
            if spelled:
                yield subject, None, f"{vocabulary}//{spelled}", None, None, None, "", number, line
        born = _date(rest[:3]) if birth is None or birth == "" else birth
        dates = ((BIRTH, born, people.birth), (DEATH, death, people.death))
        for code, cell, column in dates:
            if cell in (None, ""):
                continue
            at = cells.when(cell)
            if at is None:
                source.problems.bad(cells.no_time(name, line, (column or year)[0]))
            else:
                yield subject, at, code, None, None, None, "", number, line


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
    }
    needed = ["patient", "code", "time"] if table.time else ["patient", "code", "visit"]
    problems, name, number, say = source.problems, str(source.path), source.number, table.say
    spelling, has_words = _spelling(table), bool(table.text)
    for line, (who, when, what, place, *rest) in scan(source.path, problems, columns, needed):
        value, text, day, source_code, more = rest
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
        at = cells.when(moment) if table.time else source.visits.get(visit or "")
        if at is None:
            problems.bad(cells.no_time(name, line, (table.time or table.visit)[0]))
            continue
        kind = table.kind(cells.words(what)) if table.opens else ""
        said = text if say is None else say(cells.words(text))
        size, said = measured(value, said, has_words, problems)
        yield subject, at, code, size, said, visit, kind, number, line
        if further and (another := cells.words(more)):
            yield subject, at, f"{further_vocabulary}//{another}", None, None, visit, "", number, line


def _spelling(table: Table) -> Callable[[Any], str | None]:
    """Cells of a table's code -> the whole code, None for none; those met before are remembered."""

    @lru_cache(_REMEMBERED)
    def spelled(cell: Any) -> str | None:
        word = cells.words(cell)
        code = table.spell(word) if table.spell is not None and word else word
        if not code:
            return None
        return code if "//" in code or code in (BIRTH, DEATH) else f"{table.vocabulary}//{code}"

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
            if own or not isinstance(value, str):
                problems.note(NO_NUMBER)
            else:
                said = said or cells.words(value)
    if len(said) > cells.TEXT_LIMIT:
        problems.note(LONG_TEXT)
        said = ""
    return found, said or None
