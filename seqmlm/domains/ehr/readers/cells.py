"""Cells of medical tables: the order of dates, values, short words, kinds of visit; what errors may say."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, Literal

from seqmlm.data.clock import When, common, is_date, order_error, orders, read_as, time_reader, when
from seqmlm.data.counts import Things
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

_LONGEST_UNIT = 32
TEXT_LIMIT = 64  # characters: beyond this a value is prose, and prose may name people

_SPACE = re.compile(r"\s+")

_KINDS = {
    "inpatient": "acute eip hospice imp inpatient ip nonac obsenc prenc ss snf",
    "outpatient": "amb ambulatory fld hh home op outpatient urgentcare virtual vr wellness",
    "emergency": "ed emer emergency er",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


# How a table writes its dates

_REMEDY = (
    "write ISO 8601 or a number counted from 1970, or say how times are written, such as "
    "--option date_format=%m/%d/%Y; --option date_format=minutes for those since an admission"
)
_HEAD = 10_000  # rows whose dates say how they are written

Rows = Iterator[tuple[int, tuple[Any, ...]]]
COMMA = "a value with a decimal comma, read as its number"


def dated_rows(
    rows: Rows, problems: Problems, source: str, columns: Mapping[int, str], date_format: str | None
) -> tuple[Rows, When]:
    """The rows of a table, and the reader of its times, which is asked of each before the next is taken.

    Dates that are not ISO 8601 are read in the one order of day, month and year that all of the first 10,000
    rows fit, which `problems` is told. Where several fit, or none, and most dates are such, no row follows:
    `problems` receives one error for the table.

    Args:
        columns: place of a cell with a time -> its column.
        date_format: see `time_reader`; None for what the data say.
    """
    if date_format is not None:
        return rows, time_reader(date_format)
    reader: When = when

    def rows_with_reader() -> Rows:
        """The rows; before the first row whose date is not ISO 8601, the reader of dates is chosen."""
        nonlocal reader
        undecided = 0
        for line, cells in rows:
            at = next((at for at in columns if _orders(cells[at])), None)
            if at is None:
                undecided += 1
                yield line, cells
                continue
            head = [(line, cells), *islice(rows, _HEAD)]
            dates = [cell for _, row in head for at in columns if (cell := row[at])]
            odd = [fits for cell in dates if (fits := _orders(cell))]
            fitting = common(odd)
            if len(fitting) == 1:
                problems.note(read_as(fitting[0]), Things(1), source=source, line=line)
                reader = time_reader(fitting[0])
            elif 2 * len(odd) > undecided + len(dates):  # else some are odd, each a problem of its row
                problems.bad(order_error(fitting, source, line, columns[at]))
                return
            yield from head
            yield from rows

    return rows_with_reader(), lambda cell: reader(cell)


def _orders(cell: Any) -> tuple[str, ...]:
    """The orders of day, month and year that a date fits which is not ISO 8601."""
    if not isinstance(cell, str) or (cell[4:5] == "-" and cell[7:8] == "-"):
        return ()  # nearly always, and decided at once
    text = cell.strip()
    return orders(text) if is_date(text) and when(text) is None else ()


def number(cell: Any) -> float | None:
    """A finite number, or None where the cell holds none."""
    try:
        parsed = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return parsed if math.isfinite(parsed) else None


_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?")
_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
_LIST = re.compile(r"\d+(,\d+){2,}")
_SIGNS = "<>=≤≥~"


def _bare_value(cell: str) -> str:
    """A value without its sign and its percent."""
    return cell.strip().lstrip(_SIGNS).strip().removesuffix("%").strip()


def commas(cell: Any) -> Literal["decimal", "thousands", "either", "list", ""]:
    """The meaning of commas in a value; "" where it has none, or is no number, nor several.

    >>> [commas(cell) for cell in ("<1,5", "0,103", "1,103", "1,103.5 %", "1,2,3", "a,b", 1.5)]
    ['decimal', 'decimal', 'either', 'thousands', 'list', '', '']
    """
    if not isinstance(cell, str) or "," not in cell:
        return ""
    text = _bare_value(cell)
    decimal, thousands = _COMMA.fullmatch(text), _GROUPED.fullmatch(text)
    if decimal or thousands:
        return "either" if decimal and thousands else "decimal" if decimal else "thousands"
    return "list" if _LIST.fullmatch(text) else ""


def with_points(rows: Rows, places: Sequence[int], problems: Problems, source: str) -> Rows:
    """The rows of a table, with points for the decimal commas in columns of values.

    What 1,103 is, its column says: a decimal where one of the first 10,000 values from there on has a comma
    that parts no thousands (1,5), and none has one that only does (1,103.5); else a thousand. A column that
    has a list (1,2,3) among these stays as it is: its 1,2 is one, too.
    """
    head: list[tuple[int, tuple[Any, ...]]] = []
    for line, row in rows:
        for place in places:  # nearly always numbers, and decided at once
            if type(cell := row[place]) is str and "," in cell and commas(cell):
                head = [(line, row), *islice(rows, _HEAD)]
                break
        if head:
            break
        yield line, row
    kinds_by_place = {place: {commas(row[place]) for _, row in head} for place in places}
    places = [place for place in places if "list" not in kinds_by_place[place]]
    decimal = {
        place
        for place in places
        if "decimal" in kinds_by_place[place] and "thousands" not in kinds_by_place[place]
    }
    for line, row in chain(head, rows):
        kinds = {place: commas(row[place]) for place in places}
        decimal_places = [
            place
            for place, kind in kinds.items()
            if kind == "decimal" or (kind == "either" and place in decimal)
        ]
        if decimal_places:
            problems.note(COMMA, len(decimal_places), source=source, line=line)
            pointed = {place: row[place].replace(".", "").replace(",", ".") for place in decimal_places}
            row = tuple(pointed.get(place, cell) for place, cell in enumerate(row))
        yield line, row


def amount(cell: str) -> float | None:
    """The number in a value as laboratories write it; infinite where it is one beyond all that a float holds,
    None where there is none.

    >>> amount("1,103"), amount("< 2.5"), amount("91 %"), amount("1,4")
    (1103.0, 2.5, 91.0, None)
    """
    text = _bare_value(cell)
    try:
        return float(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
    except ValueError:
        return None


def words(cell: Any) -> str:
    """The text of a cell without tabs, line ends and outer white space; 7.0 is "7"."""
    if isinstance(cell, str):
        text = cell.strip()
        return text if text.isprintable() else _SPACE.sub(" ", text)
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


@lru_cache(maxsize=1 << 14)
def unit(cell: Any) -> str | None:
    """The unit of a value as the source spells it; None for none, and for prose."""
    text = words(cell)
    if text.endswith(".0") and text[:-2].isdecimal():  # the number of a concept, read as a real number
        text = text[:-2]
    return text if text and len(text) <= _LONGEST_UNIT else None


def kind_of(word: str) -> str:
    """ "inpatient", "outpatient" or "emergency" for what a source calls a class of visit, else ""."""
    return _KIND_OF.get(word.strip().lower(), "")


_FAULTS = {
    "patient": ("no patient in the row", "fill in the patient's id"),
    "code": ("no code in the row", "fill in the code, or leave the row out"),
    "time": ("the time cannot be read", _REMEDY),
}


def fault(problem: str, source: str, line: int, field: str) -> DataError:
    """The error for a row without "patient", "code" or a "time"; it names the column and never a value."""
    reason, remedy = _FAULTS[problem]
    return DataError(reason, source=source, line=line, field=field, remedy=remedy)
