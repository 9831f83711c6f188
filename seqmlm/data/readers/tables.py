"""Shared parts of readers of named fields: find the sequence, id and document in a row."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from seqmlm.data.counts import Things
from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.objects import json_rows
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_LISTED = 30  # largest number of column names in a message
DECIMAL = "a value with a decimal comma, between semicolons"
_COMMA = re.compile(r"[<>=≤≥~\s]*[+-]?\d+,\d+\s*%?\s*")
# Columns of names: patient_id, HADM_ID, patientID, icd_code, but not URIC_ACID or PAID.
_NAMES = re.compile(r"^id$|(?:[_ -]id|(?<![A-Z])ID|Id|[Cc]ode|CODE)$")
_QUOTED = re.compile(r'(?<![^,\t;|])"[^"]*"?')


def missing(
    name: str,
    present: Iterable[str],
    source: str,
    line: int | None,
    option: str,
    problems: Problems,
    header: bool = False,
) -> DataError:
    """The error for a row or table without a required field.

    `header` means that the first line names the columns.

    The existing names are quoted only if data may be quoted, because they are values in a table without a
    header.
    """
    there = [str(p) for p in present]
    omitted = f" and {len(there) - _LISTED} more" if len(there) > _LISTED else ""
    listed = problems.quoted(f"there are: {', '.join(there[:_LISTED])}{omitted}; ")
    remedy = f"{listed}choose one with --option {option}=NAME"
    remedy += "; if the first line has data, use --option header=false" if header else ""
    return DataError(f"no {option} of this name", source=source, line=line, field=name, remedy=remedy)


def names_of(columns: str | Sequence[str]) -> Sequence[str]:
    """Names of columns. A text, as in `--option keep=a,b`, has them separated by commas."""
    return [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns


def torn(text: str) -> bool:
    """Whether a text contains a lone surrogate. JSON may escape it (`\\ud800`), but UTF-8 cannot write it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def torn_value(text: str, value: Any) -> bool:
    """Whether a JSON value that was read from a text contains a lone surrogate anywhere."""
    return "\\u" in text and torn(json.dumps(value, ensure_ascii=False))


def torn_text(source: str, line: int | None = None, name: str | None = None) -> DataError:
    """The error for a text with a lone surrogate."""
    reason, remedy = "half a character (a lone surrogate)", "write the text again as UTF-8, or leave it out"
    return DataError(reason, source=source, line=line, field=name, remedy=remedy)


@dataclass(frozen=True)
class Fields:
    """Names of the fields of a row that make up a record.

    Args:
        text: the sequence.
        id: its id. None selects a field `id` with text or a number, or else the line.
        document: the document that it belongs to.
        keep: other fields for `meta`, if they exist.
    """

    text: str
    id: str | None
    document: str | None
    keep: Sequence[str] = ()

    @property
    def needed(self) -> list[str]:
        return [name for name in (self.text, self.id, self.document) if name is not None]

    def record(self, row: Mapping[str, Any], source: str, line: int, problems: Problems) -> Record | None:
        """The record of a row. A row without text goes to `problems`, and the result is None."""
        raw = row[self.text]
        if not isinstance(raw, str) or not raw or raw.isspace():
            no_text = raw is None or isinstance(raw, str)
            reason = "no text in the field" if no_text else "the field holds no text"
            remedy = "fill it in, or name another field"
            problems.bad(DataError(reason, source=source, line=line, field=self.text, remedy=remedy))
            return None
        if torn(raw):
            problems.bad(torn_text(source, line, self.text), json.dumps(row, default=str))
            return None
        document = None if self.document is None else row[self.document]
        id_text = self._id(row)
        return Record(
            id=f"{Path(source).name}:{line}" if id_text is None else id_text,
            raw=raw,
            source=source,
            line=line,
            document=None if document is None else str(document),
            meta={key: row[key] for key in self.keep if key in row},
        )

    def _id(self, row: Mapping[str, Any]) -> str | None:
        """The id of a row. None if it has no id that can be written."""
        if self.id is not None:
            return str(row[self.id])
        value = None if self.text == "id" else row.get("id")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        id_text = str(value)
        return None if not id_text or id_text.isspace() or torn(id_text) else id_text


# JSON: the sequence in one of the fields of an object.


def read_jsonl(
    path: str | Path,
    problems: Problems,
    *,
    field: str = "text",
    id_field: str | None = None,
    document_field: str | None = None,
    keep: Sequence[str] = (),
    encoding: str = "utf-8",
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a file of JSON objects, one per line, or an array of objects (also .gz, .zst, "-").

    Args:
        path: the file.
        problems: receives lines that are not JSON objects, and objects without text in the field.
        field: key of the sequence.
        id_field: key of the record's id. Default: "id" if it has text or a number, else the line.
        document_field: key of the document that the record belongs to.
        keep: other keys for `meta`, if they exist (as an option: names separated by commas).
        encoding: encoding of the file, by a name that Python knows (latin-1, cp1252, utf-16).
        max_bytes: largest size of a line or object.
    """
    source, fields = source_of(path), Fields(field, id_field, document_field, names_of(keep))
    for number, text, row in json_rows(source, problems, max_bytes=max_bytes, encoding=str(encoding)):
        absent = next((name for name in fields.needed if name not in row), None)
        if absent is not None:
            problems.bad(missing(absent, row, source, number, "field", problems), text)
        elif (record := fields.record(row, source, number, problems)) is not None:
            yield record


# CSV and TSV: the sequence in one named column.

RecordMaker = Callable[[Record, Problems], Iterable[Record]]
"""Creates records of a field from a record whose raw data is the text of a cell."""


def complete_row(record: Record, problems: Problems) -> Iterable[Record]:
    """Return the record unchanged: the records of a row in a field of plain text."""
    return (record,)


def csv_records(
    record_of: RecordMaker,
    path: str | Path,
    problems: Problems,
    *,
    column: str = "text",
    id_column: str | None = None,
    document_column: str | None = None,
    keep: Sequence[str] = (),
    delimiter: str | None = None,
    header: bool = True,
    encoding: str = "utf-8",
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a table of text (also .gz, .zst, "-"). Fields may be quoted and span several lines.

    Args:
        record_of: creates the record of the field from a record whose raw data is the text of the column.
        path: the file.
        problems: receives a missing column, rows with too few fields, and rows without text.
        column: name of the sequence's column. A table with a single column needs no name.
        id_column: column of the record's id. Default: "id" if it is not empty, else the line.
        document_column: column of the document that the record belongs to.
        keep: other columns for `meta` (as an option: names separated by commas).
        delimiter: one character. Default: found from the header, or a comma without a header. With a tab,
            quotation marks are ordinary characters. With a semicolon, decimal commas in kept columns become
            points.
        header: False if the first line is data. The columns are then named "1", "2", ...
        encoding: encoding of the file, by a name that Python knows (latin-1, cp1252, utf-16).
        max_bytes: largest size of a line and of a field.
    """
    source, columns, numbers = source_of(path), list[str](), list[int]()
    picked = Fields(column, id_column, document_column, names_of(keep))
    delimiter, rows = table_rows(
        source, problems, delimiter, max_bytes, encoding=str(encoding), header=header
    )
    for line, fields in rows:
        if not columns:
            columns = fields if header else [str(i) for i in range(1, len(fields) + 1)]
            picked = replace(picked, text=columns[0]) if len(columns) == 1 else picked
            names = [*picked.needed, *picked.keep]
            at = None if header else line  # a table is never skipped
            absent = next((name for name in names if name not in columns), None)
            if absent is not None:
                problems.bad(missing(absent, columns, source, at, "column", problems, header))
                return
            twice = next((name for name in names if columns.count(name) > 1), None)
            if twice is not None:
                problems.bad(ambiguous(twice, source, at))
                return
            numbers = numeric(columns, {*columns} - {*picked.keep} | {*picked.needed})
            if header:
                continue
        if len(fields) < len(columns):
            problems.bad(too_few_fields(source, line, len(columns)), delimiter.join(fields))
            continue
        if len(fields) > len(columns):
            problems.note("a row with more fields than the table has columns", source=source, line=line)
        if delimiter == ";":
            decimal_points(fields, numbers, source, line, problems)
        row = dict(zip(columns, fields, strict=False))
        if columns.count("id") > 1:
            del row["id"]  # it is unknown which column is meant
        if (record := picked.record(row, source, line, problems)) is not None:
            yield from record_of(record, problems)


read_csv, read_tsv = partial(csv_records, complete_row), partial(csv_records, complete_row, delimiter="\t")
"""Read rows of plain text."""


def endless_field(source: str, line: int, last: int) -> DataError:
    """The error for a quotation mark that is not closed, and includes all lines up to `last`."""
    lost = f"it continues to line {last}; " if last > line else ""
    remedy = f"{lost}close the quotation mark, or raise the limit with --option max_bytes=N"
    return DataError("a field without end", source=source, line=line, remedy=remedy)


def too_few_fields(source: str, line: int, width: int) -> DataError:
    """The error for a row with fewer fields than the table has columns."""
    remedy = f"the table has {width} columns; quote fields that contain the delimiter"
    return DataError("a row with too few fields", source=source, line=line, remedy=remedy)


def ambiguous(name: str, source: str, line: int | None) -> DataError:
    """The error for a required column name that occurs twice."""
    remedy = "rename one of them, because it is unknown which is meant"
    return DataError("two columns of this name", source=source, line=line, field=name, remedy=remedy)


def delimiter_of(header: str) -> str:
    """The delimiter of a table: the most frequent of comma, tab, semicolon and bar outside quotation marks.

    >>> delimiter_of('"name; given; family",label')
    ','
    """
    return max(",\t;|", key=_QUOTED.sub("", header).count)


def table_rows(
    source: str,
    problems: Problems,
    delimiter: str | None,
    max_bytes: int = MAX_BYTES,
    *,
    encoding: str | None = None,
    quoting: int | None = None,
    header: bool = True,
) -> tuple[str, Iterator[tuple[int, list[str]]]]:
    """The delimiter of a table, and (first line, fields) for every row that is not blank.

    Args:
        source, encoding: see `seqmlm.data.lines.lines`.
        problems: receives rows that cannot be divided into fields. If a line of a row was refused, the row is
            left out with it.
        delimiter: one character. None finds it from the first line that is not blank.
        header: whether that line names columns. Lines above it that begin with # are then left out, unless
            they have as many columns. Without a header, a delimiter of None is a comma, because data may
            contain others.
        max_bytes: largest size of a line and of a field.
        quoting: quoting mode of the csv module. None disables quoting if the delimiter is a tab.
    """
    numbered = lines(source, problems, max_bytes=max_bytes, encoding=encoding)
    lines_read = list(islice((line_of for line_of in numbered if line_of[1].strip()), 1))
    if header:
        lines_read = _below_comments(lines_read, numbered, source, problems, delimiter)
    if not lines_read:
        return delimiter or ",", iter(())
    used = delimiter or (delimiter_of(lines_read[0][1]) if header else ",")
    if quoting is None:
        quoting = csv.QUOTE_NONE if used == "\t" else csv.QUOTE_MINIMAL
    style = {"delimiter": used, "quoting": quoting}
    return used, filter(None, rows_of(chain(lines_read, numbered), source, problems, style, max_bytes))


def _below_comments(
    lines_read: list[tuple[int, str]],
    numbered: Iterator[tuple[int, str]],
    source: str,
    problems: Problems,
    delimiter: str | None,
) -> list[tuple[int, str]]:
    """The first line of a table that is not a comment, and the next line if it had to be read."""
    while lines_read and lines_read[0][1].startswith("#"):
        lines_read += islice((line_of for line_of in numbered if line_of[1].strip()), 1)
        if len(lines_read) == 1:
            break
        above, below = lines_read
        used = delimiter or delimiter_of(below[1])
        if not below[1].startswith("#") and above[1].count(used) == below[1].count(used):
            break  # "#id,label" names columns
        problems.note(
            "a comment above the header of a table, skipped", Things(1), source=source, line=above[0]
        )
        del lines_read[0]
    return lines_read


def numeric(names: Sequence[str], other_names: Container[str] = ()) -> list[int]:
    """Places of columns in which 1,5 may be a number: not named like ids or codes, nor in `other_names`."""
    return [at for at, name in enumerate(names) if name not in other_names and not _NAMES.search(name)]


def decimal_points(
    fields: list[str], places: Iterable[int], source: str, line: int, problems: Problems
) -> None:
    """Replace decimal commas with points, in place, in some fields of a table with semicolons."""
    for at in places:
        if at < len(fields) and _COMMA.fullmatch(fields[at]):
            fields[at] = fields[at].replace(",", ".")
            problems.note(DECIMAL, source=source, line=line)


def rows_of(
    numbered: Iterator[tuple[int, str]],
    source: str,
    problems: Problems,
    style: Mapping[str, Any],
    max_bytes: int,
) -> Iterator[tuple[int, list[str]] | None]:
    """Yield (first line, fields) for each row of numbered lines, and None for a pause (a line 0)."""
    under_way: list[int] = []  # numbers of the lines of a row; a number is missing if its line was refused
    torn = False  # whether the lines ended within a row, because a quotation mark is open

    def feed() -> Iterator[str]:
        nonlocal torn
        for number, text in numbered:
            under_way.extend([number] if number else [])
            if number or not under_way:
                yield text + "\n"
        torn = bool(under_way)

    rows = csv.reader(feed(), **style)
    while True:
        csv.field_size_limit(max_bytes)  # a global setting of the module, so it is set again before each row
        under_way.clear()
        try:
            for fields in rows:
                if torn:
                    fault = endless_field(source, under_way[0], under_way[-1])
                    problems.bad(fault, style["delimiter"].join(fields))
                elif not under_way:
                    yield None
                elif fields and fields != [""] and under_way[-1] - under_way[0] < len(under_way):
                    yield under_way[0], fields
                    csv.field_size_limit(max_bytes)
                under_way.clear()
            return
        except csv.Error as error:
            fault = endless_field(source, under_way[0], under_way[-1])
            if str(error).startswith("new-line"):
                reason, remedy = "a CR in a field without quotes", "quote the field, or remove the CR"
                fault = DataError(reason, source=source, line=under_way[0], remedy=remedy)
            problems.bad(fault)
