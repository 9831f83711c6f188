"""Read the cells of medical tables: dates, values, short texts and kinds of visit.

Errors of this module name columns, and never quote a value.
"""

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
TEXT_LIMIT = 64  # characters; a longer value is prose, and prose can contain names of people

_SPACE = re.compile(r"\s+")

_KINDS = {
    "inpatient": "acute eip hospice imp inpatient ip nonac obsenc prenc ss snf",
    "outpatient": "amb ambulatory fld hh home op outpatient urgentcare virtual vr wellness",
    "emergency": "ed emer emergency er",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


# How a table writes its dates

_REMEDY = (
    "write ISO 8601 or seconds since 1970, or give the format: --option date_format=%m/%d/%Y. "
    "For minutes since an admission, use --option date_format=minutes"
)
_HEAD = 10_000  # rows from which the format of dates or numbers is inferred

Rows = Iterator[tuple[int, tuple[Any, ...]]]
COMMA = "a value with a decimal comma, read as a number"


def dated_rows(
    rows: Rows, problems: Problems, source: str, columns: Mapping[int, str], date_format: str | None
) -> tuple[Rows, When]:
    """The rows of a table, and a function that reads its times.

    If dates are not ISO 8601, the order of day, month and year is inferred from 10,000 rows, beginning with
    the first such date. If exactly one order fits, it is used, and `problems` counts this. If none or several
    fit, and most dates are not ISO 8601, the table has no more rows, and `problems` receives one error.

    The function must be called for the times of a row before the next row is read, because it can change.

    Args:
        rows: line numbers and cells.
        problems: receives the error, or counts the inferred order.
        source: the file, for messages.
        columns: index of each cell with a time -> name of its column.
        date_format: see `time_reader`. None infers the format.
    """
    if date_format is not None:
        return rows, time_reader(date_format)
    reader: When = when

    def rows_with_reader() -> Rows:
        """The rows. The reader is chosen before the first row whose date is not ISO 8601."""
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
            elif 2 * len(odd) > undecided + len(dates):  # otherwise each such date is a problem of its row
                problems.bad(order_error(fitting, source, line, columns[at]))
                return
            yield from head
            yield from rows

    return rows_with_reader(), lambda cell: reader(cell)


def _orders(cell: Any) -> tuple[str, ...]:
    """The orders of day, month and year that fit a date; none if the cell is ISO 8601 or not a date."""
    if not isinstance(cell, str) or (cell[4:5] == "-" and cell[7:8] == "-"):
        return ()  # a fast check for the most frequent case
    text = cell.strip()
    return orders(text) if is_date(text) and when(text) is None else ()


def number(cell: Any) -> float | None:
    """The cell as a finite number, or None if it is not a finite number."""
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
    """The text of a value without a leading comparison sign (such as `<`) and a percent sign at the end."""
    return cell.strip().lstrip(_SIGNS).strip().removesuffix("%").strip()


def commas(cell: Any) -> Literal["decimal", "thousands", "either", "list", ""]:
    """The meaning of the commas in a value: "decimal", "thousands", "either" or "list".

    It is "" if the cell has no comma, or is neither a number nor a list of numbers.

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
    """The rows of a table in which decimal commas in value columns are replaced with points.

    A value such as 1,103 is ambiguous. Its meaning is inferred from 10,000 rows of its column, beginning with
    the first value with a comma. The comma is a decimal comma if some value has an unambiguous decimal comma
    (1,5) and none has an unambiguous thousands separator (1,103.5). Otherwise it separates thousands. A
    column with a list (1,2,3) among these rows is not changed, because its 1,2 can be a list too.
    """
    head: list[tuple[int, tuple[Any, ...]]] = []
    for line, row in rows:
        for place in places:  # most cells are numbers, which the first check excludes fast
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
    """The number in a value with a sign, a percent sign or thousands separators, as laboratories write it.

    It is infinite if the number is too large for a float, and None if the value is not a number.

    >>> amount("1,103"), amount("< 2.5"), amount("91 %"), amount("1,4")
    (1103.0, 2.5, 91.0, None)
    """
    text = _bare_value(cell)
    try:
        return float(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
    except ValueError:
        return None


def words(cell: Any) -> str:
    """The text of a cell without outer white space, and with spaces for tabs and line ends; 7.0 is "7"."""
    if isinstance(cell, str):
        text = cell.strip()
        return text if text.isprintable() else _SPACE.sub(" ", text)
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


@lru_cache(maxsize=1 << 14)
def unit(cell: Any) -> str | None:
    """The unit of a value as spelled in the source; None if the cell is empty or too long for a unit."""
    text = words(cell)
    if text.endswith(".0") and text[:-2].isdecimal():  # a concept id that was read as a float
        text = text[:-2]
    return text if text and len(text) <= _LONGEST_UNIT else None


def kind_of(word: str) -> str:
    """The kind of visit for the word of a source: "inpatient", "outpatient" or "emergency"; "" if unknown."""
    return _KIND_OF.get(word.strip().lower(), "")


_FAULTS = {
    "patient": ("no patient in the row", "fill in the id of the patient"),
    "code": ("no code in the row", "fill in the code, or remove the row"),
    "time": ("the time cannot be read", _REMEDY),
}


def fault(problem: str, source: str, line: int, field: str) -> DataError:
    """The error for a row without a valid "patient", "code" or "time" (`problem`).

    It names the column (`field`), and never quotes a value.
    """
    reason, remedy = _FAULTS[problem]
    return DataError(reason, source=source, line=line, field=field, remedy=remedy)
