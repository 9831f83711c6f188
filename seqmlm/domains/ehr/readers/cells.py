"""Single cells of medical tables: times, values, short words, kinds of visit; what each error may say."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any

from seqmlm.errors import DataError, UsageError

TEXT_LIMIT = 64  # characters: beyond this a value is prose, and prose may name people

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_PARTIAL = re.compile(r"(\d{4})(?:-(\d{2}))?")
_SPACE = re.compile(r"\s+")
_LAST = 253_402_300_800.0  # the year 10000; the year 1 is _FIRST
_FIRST = -62_135_596_800.0

_KINDS = {
    "inpatient": "acute eip hospice imp inpatient ip nonac obsenc prenc ss snf",
    "outpatient": "amb ambulatory fld hh home op outpatient urgentcare virtual vr wellness",
    "emergency": "ed emer emergency er",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def seconds(cell: Any) -> float:
    """A time in seconds since 1970-01-01 UTC; a time without zone is taken as UTC.

    Args:
        cell: ISO 8601 text (also a year, or year and month, alone), or a number since 1970 whose unit follows
            from its size: seconds below 1e11, then milliseconds, microseconds, nanoseconds. Eight digits are
            a date, four a year.

    Raises:
        ValueError: it is none of these; its message may hold the value and is not for showing.
    """
    if not isinstance(cell, str):
        return _since(float(cell))
    if cell[4:5] == "-" and cell[7:8] == "-":  # nearly always, and decided at once
        return _counted(datetime.fromisoformat(cell.strip()))
    text = cell.strip()
    if _PARTIAL.fullmatch(text):
        return (datetime(int(text[:4]), int(text[5:] or 1), 1) - _EPOCH).total_seconds()
    if len(text) != 8 and _NUMBER.fullmatch(text):
        return _since(float(text))
    return _counted(datetime.fromisoformat(text))


def when(cell: Any) -> float | None:
    """As `seconds`, but None for what is no time: the caller's error then has no cause that quotes it."""
    if type(cell) is float and _FIRST <= cell < 1e11:
        return cell  # seconds already: a time stamp of a parquet file
    try:
        return None if cell is None else seconds(cell)
    except (ValueError, TypeError, OverflowError):
        return None


def _counted(moment: datetime) -> float:
    return (moment - (_EPOCH if moment.tzinfo is None else _EPOCH_UTC)).total_seconds()


def _since(number: float) -> float:
    size = abs(number)
    for limit, unit in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (math.inf, 1e9)):
        if size < limit:
            found = number / unit
            break
    else:  # infinity, not a number
        raise ValueError("not a time")
    if not _FIRST <= found < _LAST:
        raise ValueError("outside the calendar")
    return found


def until_seconds(until: str | None) -> float | None:
    """The option `until` in seconds; a day counts to its end.

    Raises:
        UsageError: it is no time.
    """
    if until is None:
        return None
    try:
        return seconds(str(until)) + (86_400.0 if len(str(until).strip()) <= 10 else 0.0)
    except ValueError:
        raise UsageError("until takes a date such as 2024-12-31") from None


def number(cell: Any) -> float | None:
    """A finite number, or None where the cell holds none."""
    try:
        found = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def words(cell: Any) -> str:
    """The text of a cell without tabs, line ends and outer white space; 7.0 is "7"."""
    if isinstance(cell, str):
        text = cell.strip()
        return text if text.isprintable() else _SPACE.sub(" ", text)
    if cell is None:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def kind_of(word: str) -> str:
    """ "inpatient", "outpatient" or "emergency" for what a source calls a class of visit, else ""."""
    return _KIND_OF.get(word.strip().lower(), "")


def bad_cell(reason: str, source: str, line: int, field: str, remedy: str) -> DataError:
    """The error for a row that cannot be used; it names the column and never a value."""
    return DataError(reason, source=source, line=line, field=field, remedy=remedy)


def no_subject(source: str, line: int, field: str) -> DataError:
    """The error for a row that says nothing of whom it speaks."""
    return bad_cell("no patient in the row", source, line, field, "fill in the patient's id")


def no_code(source: str, line: int, field: str) -> DataError:
    """The error for a row without a code."""
    return bad_cell("no code in the row", source, line, field, "fill in the code, or leave the row out")


def no_time(source: str, line: int, field: str) -> DataError:
    """The error for a row whose time is missing or cannot be read."""
    return bad_cell(
        "the time cannot be read", source, line, field, "write ISO 8601, or a number counted from 1970"
    )
