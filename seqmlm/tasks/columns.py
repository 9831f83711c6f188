"""Options for readers of labelled data: columns to keep, and which one holds the sequence.

A table is looked at before it is read, for `text,label` and `review,sentiment` say alike what they are. JSON
lines need not have the same keys everywhere: some of them are looked at together.
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
"""Options of readers that name a column of a table."""
TEXT_OPTIONS = (*NAMING, "delimiter", "header", "encoding", "language")
"""Options of readers that decide what a record's sequence and name are: a model is asked with the same."""
SAMPLE_LINES = 100
"""JSON lines that say which fields there are."""
_EXTRAS = ("set", "split", "validation", "spans", "tags")
HOLDERS = ("column", "field")
"""Options that name the column of the sequence, in tables and in JSON lines."""
_USUAL = ("text", "sequence")
_JSON = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """Settings that say where the labels of records are.

    Args:
        labels: COLUMN: of the label; several for several classes or values; of features, the labels that
            count. Default: tags, spans, or TARGET of FASTA headers.
        label_file: labels in a file of their own: a table with ids, FASTA with a letter for each unit, or
            features (BED, GFF3).
        mask: FASTA of 0 and 1 beside --label-file; 0 is no label there.
        classes: NAME=FILE: all records of a file are of this class; repeatable.
        pair: COLUMN: of the other sequence, where a label is of two.
        pairing: how two are read: concat, as one sequence, or bi, each embedded alone.
        task: class, multilabel, value, tags (of each unit) or entities (BIO tags, spans). Default: by labels.
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
    """Records of all paths with their labels beside them; in each the sequence may stand elsewhere."""
    for path in paths:
        with session.data_rules():  # an error may not quote the data
            options = reader_options(session.domain, labelling, path)
        yield from session.reader([path], format=labelling.format, options=options)(problems)


def reader_options(domain: Field, labelling: Labelling, path: str) -> dict[str, Any]:
    """Options for the readers of a path of labelled data; options of the labelling override them.

    Args:
        path: a file, a folder, of which the first file that is data stands for all, a data set or "-".

    Raises:
        DataError: no such column, as far as can be seen; nothing that can be read.
    """
    pair = (labelling.pair,) if labelling.pair else ()
    columns = () if labelling.label_file else (*labelling.labels, *pair)
    options = labelling.options
    table = _table_file(domain, path, labelling.format)
    if table is None:
        return dict(options)
    file, chosen = table
    logs = "label_field" in chosen.options  # whose records have one label, and no columns beside it
    json = bool(set(_JSON) & set(chosen.suffixes)) and not logs and not is_reference(file)
    row = _first_row(file, chosen, options)
    missing = next((column for column in columns if column not in row), None)
    if row and missing is not None:
        extent = f" in its first {SAMPLE_LINES} lines" if json else ""
        remedy = f"correct its name{names_hint(row)}"
        raise DataError(f"no column {missing!r}{extent}", source=file, line=1, remedy=remedy)
    if logs:
        return {**dict(zip(("label_field",), columns, strict=False)), **options}
    extra = (*(column for column in row if str(column).lower() in _EXTRAS), *(_EXTRAS if json else ()))
    keep = tuple(dict.fromkeys((*names_of(options.get("keep", ())), *columns, *extra)))
    return {**_holder_option(chosen, row, keep), **options, "keep": keep}


def _table_file(domain: Field, path: str, format: str | None) -> tuple[str, Format] | None:
    """The first file of a path whose reader can keep columns, and its format."""
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
    """The first row of a table, of JSON lines first values; none of standard input, which is read once."""
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
    """The option for the column of the sequence, where its name is unusual and only one can be it."""
    option = next((name for name in HOLDERS if name in chosen.options), None)
    if option is None:
        return {}
    usual = inspect.signature(chosen.read).parameters[option].default or "text"
    texts = [column for column, value in row.items() if isinstance(value, str) and column not in keep]
    named = [column for column in texts if column.lower() in _USUAL]
    candidates = named or [column for column in texts if column.lower() != "id"]
    return {option: candidates[0]} if usual not in row and len(candidates) == 1 else {}


def text_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a training that decide sequence and name of a record: its model needs them, too."""
    chosen = {name: value for name, value in options.items() if name in TEXT_OPTIONS}
    holder = next((chosen[option] for option in HOLDERS if option in chosen), None)
    return chosen if holder is None else {**dict.fromkeys(HOLDERS, holder), **chosen}
