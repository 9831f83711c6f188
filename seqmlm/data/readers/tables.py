"""What readers of named fields share: picking the sequence, id and document out of a row."""

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

_LISTED = 30  # names shown of a table with very many columns
DECIMAL = "a value with a decimal comma, between semicolons"
_COMMA = re.compile(r"[<>=≤≥~\s]*[+-]?\d+,\d+\s*%?\s*")
# Of columns of names: patient_id, HADM_ID, patientID, icd_code, but not URIC_ACID, or PAID.
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
    """The error for a row or table without a wanted field; with `header` a first line says which there are.

    It quotes those there are only where data may be quoted: in a table without a header they are values.
    """
    there = [str(p) for p in present]
    omitted = f" and {len(there) - _LISTED} more" if len(there) > _LISTED else ""
    listed = problems.quoted(f"there are: {', '.join(there[:_LISTED])}{omitted}; ")
    remedy = f"{listed}choose one with --option {option}=NAME"
    remedy += "; if the first line holds data, --option header=false" if header else ""
    return DataError(f"no {option} of this name", source=source, line=line, field=name, remedy=remedy)


def names_of(columns: str | Sequence[str]) -> Sequence[str]:
    """Names of columns; a text, as `--option keep=a,b` gives it, has them between commas."""
    return [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns


def torn(text: str) -> bool:
    """Whether a text holds half a character: JSON may escape one (`\\ud800`), UTF-8 cannot write it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def torn_value(text: str, value: Any) -> bool:
    """Whether a value of JSON, read from a text, or anything within it, holds half a character."""
    return "\\u" in text and torn(json.dumps(value, ensure_ascii=False))


def torn_text(source: str, line: int | None = None, name: str | None = None) -> DataError:
    """The error for a text that is `torn`."""
    reason, remedy = "half a character (a lone surrogate)", "write the text again as UTF-8, or leave it out"
    return DataError(reason, source=source, line=line, field=name, remedy=remedy)


@dataclass(frozen=True)
class Fields:
    """Names of the fields of a row that make a record.

    Args:
        text: the sequence.
        id: its id; None takes a field `id` that holds text or a number, else the line.
        document: what it belongs to.
        keep: further ones for `meta`, where present.
    """

    text: str
    id: str | None
    document: str | None
    keep: Sequence[str] = ()

    @property
    def needed(self) -> list[str]:
        return [name for name in (self.text, self.id, self.document) if name is not None]

    def record(self, row: Mapping[str, Any], source: str, line: int, problems: Problems) -> Record | None:
        """The record of one row, or None after handing a row without text to `problems`."""
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
        """The id of a row; None where it has none that could be written."""
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
    """Read a file of JSON objects, one a line, or an array of them (also .gz, .zst, "-").

    Args:
        path: the file.
        problems: receives what is not a JSON object, and objects without text in the field.
        field: key of the sequence.
        id_field: key of the record's id; None takes "id" where it holds text or a number, else the line.
        document_field: key of what the record belongs to.
        keep: further keys that go into `meta`, where present (as an option: names between commas).
        encoding: of the file, by a name that Python knows (latin-1, cp1252, utf-16).
        max_bytes: longest line, or object.
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
"""What a field makes of a record whose raw is the text of a cell."""


def complete_row(record: Record, problems: Problems) -> Iterable[Record]:
    """The record as it is: what a field of plain text makes of a row."""
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
    """Read a table of text (also .gz, .zst, "-"); fields may be quoted and span lines.

    Args:
        record_of: makes the record of the field from one whose raw is the text of the column.
        path: the file.
        problems: receives a missing column, rows with too few fields, rows without text.
        column: name of the sequence's column; a table with a single column needs no name.
        id_column: column of the record's id; None takes "id" where it is filled in, else the line.
        document_column: column of what the record belongs to.
        keep: further columns that go into `meta` (as an option: names between commas).
        delimiter: one character; None looks at the header, and is a comma without one. With a tab, quotation
            marks are ordinary characters; with a semicolon, decimal commas of kept columns are points.
        header: False when the first line is data; the columns are then called "1", "2", ...
        encoding: of the file, by a name that Python knows (latin-1, cp1252, utf-16).
        max_bytes: longest line and longest field.
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
            at = None if header else line  # a table is not skipped
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
            del row["id"]  # which is meant cannot be told
        if (record := picked.record(row, source, line, problems)) is not None:
            yield from record_of(record, problems)


read_csv, read_tsv = partial(csv_records, complete_row), partial(csv_records, complete_row, delimiter="\t")
"""Rows of plain text."""


def endless_field(source: str, line: int, last: int) -> DataError:
    """The error for a quotation mark that is not closed, and swallows the lines up to `last`."""
    lost = f"it goes on to line {last}; " if last > line else ""
    remedy = f"{lost}close the quotation mark, or raise the limit with --option max_bytes=N"
    return DataError("a field without end", source=source, line=line, remedy=remedy)


def too_few_fields(source: str, line: int, width: int) -> DataError:
    """The error for a row that is shorter than the table is wide."""
    remedy = f"the table has {width} columns; quote fields that hold the delimiter"
    return DataError("a row with too few fields", source=source, line=line, remedy=remedy)


def ambiguous(name: str, source: str, line: int | None) -> DataError:
    """The error for a wanted column of which there are two."""
    remedy = "rename one of them: which is meant cannot be told"
    return DataError("two columns of this name", source=source, line=line, field=name, remedy=remedy)


def delimiter_of(header: str) -> str:
    """The delimiter of a table: the most frequent of comma, tab, semicolon and bar, outside quotation marks.

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
    """The delimiter of a table, and (line it begins on, fields) of every row that is not blank.

    Args:
        source, encoding: see `seqmlm.data.lines.lines`.
        problems: receives rows that cannot be cut into fields. A row over several lines of which one was
            refused goes with that line.
        delimiter: one character; None looks at the first line that is not blank.
        header: that line names columns, and what begins with # above it is left out, unless it has as many
            columns; None for a delimiter is a comma otherwise, for data may hold others.
        max_bytes: longest line and longest field.
        quoting: as the csv module has it; None for none where a tab is between columns.
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
    """The first line of a table that is no comment, and the line behind it where that had to be read."""
    while lines_read and lines_read[0][1].startswith("#"):
        lines_read += islice((line_of for line_of in numbered if line_of[1].strip()), 1)
        if len(lines_read) == 1:
            break
        above, below = lines_read
        used = delimiter or delimiter_of(below[1])
        if not below[1].startswith("#") and above[1].count(used) == below[1].count(used):
            break  # "#id,label" names columns
        problems.note("a comment above the header of a table", Things(1), source=source, line=above[0])
        del lines_read[0]
    return lines_read


def numeric(names: Sequence[str], other_names: Container[str] = ()) -> list[int]:
    """Places of columns in which 1,5 may be a number: not named as ids or codes, nor among `other_names`."""
    return [at for at, name in enumerate(names) if name not in other_names and not _NAMES.search(name)]


def decimal_points(
    fields: list[str], places: Iterable[int], source: str, line: int, problems: Problems
) -> None:
    """Write the decimal commas of some fields as points, in place: of a table with semicolons."""
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
    """(Line it begins on, fields) of each row of numbered lines; None for a pause: a line 0 between rows."""
    under_way: list[int] = []  # numbers of the lines of a row; one is left out where a line was refused
    torn = False  # whether the lines ended within a row: a quotation mark is open

    def feed() -> Iterator[str]:
        nonlocal torn
        for number, text in numbered:
            under_way.extend([number] if number else [])
            if number or not under_way:
                yield text + "\n"
        torn = bool(under_way)

    rows = csv.reader(feed(), **style)
    while True:
        csv.field_size_limit(max_bytes)  # of the module as a whole, so set anew before each row
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
                reason, remedy = "a CR in a field without quotes", "quote the field, or take the CR out"
                fault = DataError(reason, source=source, line=under_way[0], remedy=remedy)
            problems.bad(fault)
