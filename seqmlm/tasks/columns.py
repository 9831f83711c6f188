"""Reader options for labelled data: the columns to keep, and the column with the sequence.

The first row of a table tells which columns it has. A header such as `text,label` or `review,sentiment`
shows what the columns contain. JSON lines can have different keys, so the keys of several lines are combined.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqmlm.data.files import expand, is_reference
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems, names_hint
from seqmlm.data.readers.huggingface import by_split, is_table, numbered_rows
from seqmlm.data.readers.objects import json_object
from seqmlm.data.readers.tables import names_of, table_rows
from seqmlm.data.record import Record
from seqmlm.engine.labels import Kind, Pairing
from seqmlm.errors import DataError
from seqmlm.inference.session import Session

if TYPE_CHECKING:
    from seqmlm.domains.field import Field
    from seqmlm.domains.files import Format

NAMING = ("column", "field", "text", "id_column", "id_field", "document_column", "document_field")
"""Reader options that name a column of a table."""
TEXT_OPTIONS = (*NAMING, "delimiter", "header", "encoding", "language")
"""Reader options that determine the sequence and the name of a record. Predictions need the same values."""
SAMPLE_LINES = 100
"""Number of JSON lines that are read to find the fields."""
_EXTRAS = ("set", "split", "validation", "spans", "tags")
HOLDERS = ("column", "field")
"""Reader options that name the column of the sequence, in tables and in JSON lines."""
_USUAL = ("text", "sequence")
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """Settings that say where the labels of records are.

    Args:
        labels: COLUMN: column of the label; repeatable for several classes or values. For features, the
            labels to use. Default: tags, spans, or TARGET in FASTA headers.
        label_file: separate file with the labels: a table with ids, FASTA with a letter per unit, or features
            (BED, GFF3).
        mask: FASTA of 0 and 1 for --label-file: units with 0 have no label.
        classes: NAME=FILE: give all records of a file this class; repeatable.
        pair: COLUMN: column of the second sequence, if a label belongs to two sequences.
        pairing: how to read two sequences: concat (as one sequence) or bi (embed each separately).
        task: kind of labels: class, multilabel, value, tags (one per unit) or entities (BIO tags, spans).
            Default: chosen from the labels.
    """

    labels: tuple[str, ...] = ()
    label_file: str | None = None
    mask: str | None = None
    classes: tuple[str, ...] = ()
    pair: str | None = None
    pairing: Pairing = "concat"
    task: Kind | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def labelled_records(
    session: Session, labelling: Labelling, paths: Sequence[str], problems: Problems
) -> Iterator[Record]:
    """Yield the records of all paths with their labels.

    The column of the sequence can differ between paths.
    """
    for path in paths:
        with session.data_rules():  # an error may not quote the data
            options = reader_options(session.domain, labelling, path)
        yield from session.reader([path], format=labelling.format, options=options)(problems)


def reader_options(domain: Field, labelling: Labelling, path: str) -> dict[str, Any]:
    """Reader options for one path with labelled data. Options of the labelling take precedence.

    Args:
        path: a file, a folder, a data set or "-". For a folder, the first data file represents all files.

    Raises:
        DataError: a column does not exist in the inspected rows, or nothing can be read.
    """
    pair = (labelling.pair,) if labelling.pair else ()
    columns = () if labelling.label_file else (*labelling.labels, *pair)
    options = labelling.options
    table = _table_file(domain, path, labelling.format)
    if table is None:
        return dict(options)
    file, chosen = table
    logs = "label_field" in chosen.options  # their records have one label and no other columns
    json = bool(set(_JSON) & set(chosen.suffixes)) and not logs and not is_reference(file)
    row = _first_row(file, chosen, options)
    missing = next((column for column in columns if column not in row), None)
    if row and missing is not None:
        extent = f" in its first {SAMPLE_LINES} lines" if json else ""
        remedy = f"correct the name{names_hint(row)}"
        raise DataError(f"no column {missing!r}{extent}", source=file, line=1, remedy=remedy)
    if logs:
        return {**dict(zip(("label_field",), columns, strict=False)), **options}
    extra = (*(column for column in row if str(column).lower() in _EXTRAS), *(_EXTRAS if json else ()))
    keep = tuple(dict.fromkeys((*names_of(options.get("keep", ())), *columns, *extra)))
    return {**_holder_option(chosen, row, keep), **options, "keep": keep}


def _table_file(domain: Field, path: str, format: str | None) -> tuple[str, Format] | None:
    """The first file of a path whose reader can keep columns, with its format."""
    formats = domain.files.formats
    named = formats.get(format or "")
    folder = path != "-" and not is_reference(path) and Path(path).is_dir()
    path_format = named or domain.files.format_of(path)
    files = expand([path]) if folder and (path_format is None or path_format.folder is None) else [path]
    for file in files:
        by_name, inside = named or domain.files.format_of(file), file != path and named is None
        chosen = by_name or domain.files.usual_format(file)
        if "keep" in chosen.options and (not inside or domain.files.in_folders(by_name)):
            return file, chosen
    return None


def _first_row(path: str, chosen: Format, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first row of a table, or the first value of each field in JSON lines.

    Standard input can be read only once, so it gives no row.
    """
    accepted, options = chosen.options, chosen.select_options(options)
    encoding = options.get("encoding", "utf-8")
    if path == "-":
        return {}
    if is_table(path):
        source = path if path.lower().endswith(".parquet") else by_split(path)[0][0]
        return next((row for _, row in numbered_rows(source, Problems())), {})
    if "header" not in accepted:
        texts = lines(path, Problems("skip"), encoding=encoding)
        objects = (json_object(text) or {} for _, text in islice(texts, SAMPLE_LINES))
        return {name: value for row in reversed([*objects]) for name, value in row.items()}
    usual = inspect.signature(chosen.read).parameters["delimiter"].default
    delimiter, header = options.get("delimiter", usual), bool(options.get("header", True))
    _, rows = table_rows(path, Problems("skip"), delimiter, encoding=encoding, header=header)
    first = next((fields for _, fields in rows), [])
    names = first if header else [str(n) for n in range(1, len(first) + 1)]
    second = next((fields for _, fields in rows), first)
    return dict(zip(names, second, strict=False)) if len(second) >= len(names) else dict.fromkeys(names, "")


def _holder_option(chosen: Format, row: Mapping[str, Any], keep: Sequence[str]) -> dict[str, str]:
    """The option for the column of the sequence, if its name is unusual and only one column is possible."""
    option = next((name for name in HOLDERS if name in chosen.options), None)
    if option is None:
        return {}
    usual = inspect.signature(chosen.read).parameters[option].default or "text"
    texts = [column for column, value in row.items() if isinstance(value, str) and column not in keep]
    named = [column for column in texts if column.lower() in _USUAL]
    candidates = named or [column for column in texts if column.lower() != "id"]
    return {option: candidates[0]} if usual not in row and len(candidates) == 1 else {}


def text_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The training options that determine the sequence and name of a record.

    The model needs the same ones.
    """
    chosen = {name: value for name, value in options.items() if name in TEXT_OPTIONS}
    holder = next((chosen[option] for option in HOLDERS if option in chosen), None)
    return chosen if holder is None else {**dict.fromkeys(HOLDERS, holder), **chosen}
