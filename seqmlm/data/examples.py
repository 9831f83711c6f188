"""Examples: records with their labels, from all places where data have labels.

A label is in a column, in a list next to words, in spans, in a FASTA header or in a separate file. It can
also apply to a whole file. The label of a part belongs to a span of the raw text, not to a token. The reason:
people label words and places in a sequence, and a model may split or merge these.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.files import stem_suffix
from seqmlm.data.labels import SUBJECT, TIME, VALUE, at_moments, read_moments
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_fasta
from seqmlm.data.readers.features import FEATURES, Stretch, labelled, name_among
from seqmlm.data.readers.huggingface import SPLITS
from seqmlm.data.record import Record
from seqmlm.data.rows import FLAGS, FieldRow, read_rows
from seqmlm.errors import DataError, UsageError

Part = Literal["train", "validation", "test"]

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
_PARTS = ("set", "split", "validation")
_DEFAULTS = ("tags", "spans", "TARGET")
_KEY = re.compile(r"(?:^|\s)(\w+)=")
_MISSING = ("", "nan")
_FILL_IN = "fill it in, or leave such records out with --on-error skip"
_ONE_SIDE = "a pair with an empty side", "fill it in, or name another column with --pair"

_Place = Mapping[str, Any]  # source, line and perhaps field: the place of an error


@dataclass(frozen=True, eq=False)
class Spans:
    """Labels of parts of a record.

    Args:
        bounds: (S, 2) start and end in characters of `str(record.raw)`, half open, ascending, without
            overlap.
        labels: (S,) label of each span.
        entities_only: whether text between the spans is outside of all entities. If not, it has no label.
    """

    bounds: NDArray[np.int32]
    labels: tuple[str, ...]
    entities_only: bool = False


NO_ENTITIES = Spans(np.zeros((0, 2), np.int32), (), entities_only=True)

Label = str | tuple[str, ...] | tuple[float, ...] | Spans
"""A class, the classes that are true (perhaps none), numbers, or labels of spans."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Example:
    """A record with its label.

    Args:
        record: the record.
        label: its label.
        second: the other sequence of a pair.
        part: the part of the data that the example belongs to, if the data name it.
    """

    record: Record
    label: Label
    second: Record | None = None
    part: Part | None = None


@dataclass(frozen=True, kw_only=True)
class LabelSource:
    """The place of the labels.

    A text or a number in a column is a single class. A list of texts has several classes, or a label for each
    word if it is next to words. A list of {start, end, label} has spans. Several columns with 0 and 1 (or
    false and true) in the first record name the classes that are true. Other columns are numbers.

    Args:
        columns: names in `record.meta`, names of KEY=VALUE in a FASTA header, or numbers of words in the
            header. None selects `tags` next to words, else `spans`, else TARGET. For features, the labels to
            use.
        numeric: whether the labels are numbers.
        letters: whether a text has a letter for each character of the record.
        dense: whether features label each character, with "none" between them. If not, they are entities.
        labels: a file of labels. A table (JSON lines, CSV, TSV, Parquet) has ids in "id", or else in its
            first column. FASTA has a letter for each character of the record with that id. Features (BED,
            GFF3) have the name of the record, where chr1 may be written 1. The id or name may also belong to
            the document of which the record is a part.
        mask: FASTA file for `labels`, with 0 (no label) and 1.
        classes: file or folder -> class of all records in it.
        pair: column of the other sequence of a pair. In a table of labels, column of its id.
        raw: creates the raw sequence of the field from a text and the other columns of the record.
        until: returns a sequence as known at a time (`Times.history_at`). A table with the columns subject_id
            and prediction_time then has labels of each record at several times. Without `columns`, these are
            true and false in boolean_value.

    Raises:
        UsageError: the sources exclude each other.
    """

    columns: Sequence[str] = ()
    numeric: bool = False
    letters: bool = False
    dense: bool = False
    labels: str | None = None
    mask: str | None = None
    classes: Mapping[str, str] = field(default_factory=dict)
    pair: str | None = None
    raw: Callable[[str, Mapping[str, Any]], Any] = lambda text, fields: text
    until: Callable[[Any, float], Any] | None = None

    def __post_init__(self) -> None:
        if self.classes and (self.columns or self.labels):
            raise UsageError("the class of a whole file excludes other labels; give only one of them")
        if self.mask is not None and self.kind != "letters":
            raise UsageError("a mask needs labels in FASTA; name their file with --label-file")
        if self.columns and self.kind == "letters":
            raise UsageError("labels in FASTA have no columns; leave --label or --label-file out")

    @property
    def kind(self) -> Literal["table", "features", "letters"] | None:
        """The kind of the file of labels. None without such a file."""
        if self.labels is None:
            return None
        suffix = stem_suffix(self.labels)
        return "table" if suffix in _TABLES else "features" if suffix in FEATURES else "letters"


def examples(records: Iterable[Record], problems: Problems, source: LabelSource) -> Iterator[Example]:
    """Read the examples one by one.

    Only a file of labels, and the records that its pairs name, are kept in memory. Records that a file of
    labels does not name are left out.

    Args:
        records: records in any order.
        problems: receives records whose label is missing or cannot be read. It also counts records that a
            file of labels does not name, and labels without a record.
        source: the place of the labels.

    Raises:
        DataError: a file of labels names none of the records.
    """
    reading = _Reading(source, problems)
    for record, second, about in reading.with_labels(records):
        try:
            example = reading.example(record, second, about)
        except DataError as error:
            problems.bad(error, str(record.raw))
        else:
            yield example


class _Features(NamedTuple):
    """Labelled stretches of the sequence with a name."""

    id: str
    stretches: list[Stretch]


_About = FieldRow | Record | _Features | None
"""The labels of a record in a file: a row with its line, letters, or features."""


class _Reading:
    """The state of reading labels."""

    def __init__(self, source: LabelSource, problems: Problems) -> None:
        self._source, self._problems = source, problems
        self._columns = tuple(source.columns)
        self._classes = {Path(path): name for path, name in source.classes.items()}
        self._flags: bool | None = None  # whether several columns contain only 0 and 1
        self._masks = {} if source.mask is None else _by_id(source.mask, problems)

    def with_labels(self, records: Iterable[Record]) -> Iterator[tuple[Record, Record | None, _About]]:
        """Each record, the other record of a pair, and the entry for the record in a file of labels."""
        file, problems = self._source.labels, self._problems
        if file is None:
            yield from ((record, None, None) for record in records)
            return
        by_name: dict[str, Any] = {}
        if self._source.kind == "features":
            tables = labelled(file, problems, self._columns)
            by_name |= {name: _Features(name, features) for name, features in tables.items()}
        elif self._source.kind == "letters":
            by_name |= _by_id(file, problems)
        elif self._source.pair is not None:
            yield from self._pairs(records, file)
            return
        elif self._timed(file) and self._source.until is not None:
            times = read_moments((row[1:] for row in self._rows(file)), file, problems)
            moments = at_moments(records, times, file, self._source.until, problems)
            yield from ((record, None, about) for record, about in moments)
            return
        else:
            for (name,), line, row in self._rows(file):
                _put_label(by_name, name, (line, row), file, line, problems)
        ids_met, first = set(), None
        for record in records:
            first = first or record
            name = record.id if record.id in by_name else record.document or record.id
            if self._source.kind == "features":
                name = name_among(name, by_name) or ""
            if name not in by_name:
                problems.note("a record without a label, left out", source=record.source, line=record.line)
            else:
                ids_met.add(name)
                yield record, None, by_name[name]
        if by_name and first is not None and not ids_met:
            ids = problems.quoted(f": {next(iter(by_name))!r} in this file, {first.id!r} in the records")
            reason = "no id in this file matches the id of a record"
            raise DataError(reason, source=file, remedy=f"compare the ids{ids}")
        problems.note(
            "a label whose id matches no record, ignored", len(by_name.keys() - ids_met), source=file
        )

    def _timed(self, file: str) -> bool:
        """Whether a table has labels of subjects at times.

        If no column was named, its value column is used.
        """
        _, row = next(read_rows(file), (0, {}))
        has_times = self._source.until is not None and {SUBJECT, TIME} <= row.keys()
        if has_times and not self._columns and VALUE in row:
            self._columns = (VALUE,)
        return has_times

    def _pairs(
        self, records: Iterable[Record], file: str
    ) -> Iterator[tuple[Record, Record, tuple[int, dict[str, Any]]]]:
        by_id = {record.id: record for record in records}
        for names, line, row in self._rows(file):
            if all(name in by_id for name in names):
                yield by_id[names[0]], by_id[names[1]], (line, row)
            else:
                why = "a pair of which a record is missing, left out"
                self._problems.note(why, source=file, line=line)

    def _rows(self, file: str) -> Iterator[tuple[tuple[str, ...], int, dict[str, Any]]]:
        """The ids of each row of a table, its line and the row.

        Selects the label columns from the first row.
        """
        ids: list[str] = []
        columns: tuple[str, ...] = ()
        for line, row in read_rows(file, self._problems, names={self._source.pair or ""}):
            if not ids:
                usual = next((column for column in ("id", SUBJECT) if column in row), next(iter(row), "id"))
                ids = [usual, *([self._source.pair] if self._source.pair else [])]
                apart_from = (*ids, *_PARTS, TIME)
                columns = tuple(
                    name for name in row if name not in apart_from and name.lower() not in apart_from
                )
                self._columns = self._columns or (columns if len(columns) == 1 else ())
            there = self._problems.quoted(f"; the columns are: {', '.join(list(row)[:30])}")
            absent = next((name for name in (*ids, *self._columns) if name not in row), None)
            if absent is None and self._columns:
                yield tuple(str(row[name]) for name in ids), line, row
                continue
            reason = "no such column" if absent else "no column of labels"
            option = "--pair" if absent is not None and absent in ids[1:] else "--label"
            choose = f"name it with {option}"
            if absent is None and len(columns) > 1:
                reason, choose = "several columns could be the label", f"choose one with {option}"
            remedy = f"{choose}{there}" if absent not in ids[:1] else "give each row an id"
            error = DataError(reason, source=file, line=line, field=absent, remedy=remedy)
            self._problems.bad(error, str(row))
        if not ids:
            raise DataError("no labels", source=file, remedy="give an id and a label in each row")

    def example(self, record: Record, second: Record | None, about: _About) -> Example:
        """The example for a record."""
        at: _Place = {"source": record.source, "line": record.line}
        fields: Mapping[str, Any] = {**_header_fields(record), **record.meta}
        label: Label
        if isinstance(about, Record):
            fields, label = {**fields, **_header_fields(about)}, self._lettered(record, about)
        elif isinstance(about, _Features):
            label = self._featured(record, about)
        elif about is not None:
            at, fields = {"source": str(self._source.labels), "line": about[0]}, {**fields, **about[1]}
            label = self._label(record, fields, at)
        else:
            label = self._class(record) if self._source.classes else self._label(record, fields, at)
            if self._source.pair is not None:
                text = _text(fields.get(self._source.pair), {**at, "field": self._source.pair}, _ONE_SIDE)
                second = replace(record, raw=self._source.raw(text, fields))
        return Example(record=record, label=label, second=second, part=self._part(fields, at))

    def _class(self, record: Record) -> str:
        path = Path(record.source)
        label = next(
            (self._classes[folder] for folder in (path, *path.parents) if folder in self._classes), None
        )
        if label is None:
            remedy = "give it one with --class NAME=FILE"
            raise DataError("a file without a class", source=record.source, remedy=remedy)
        return label

    def _part(self, fields: Mapping[str, Any], at: _Place) -> Part | None:
        options = {
            name.lower(): str(value).strip().lower()
            for name, value in fields.items()
            if name.lower() in _PARTS and name not in self._columns
        }
        name = options.get("set") or options.get("split") or ""
        part = SPLITS.get(name)
        if part is None and name not in ("none", *_MISSING):
            self._problems.note("an unknown split, other than train, validation or test: ignored", **at)
        held_out = part == "calibration" or (part != "test" and FLAGS.get(options.get("validation", "")))
        return "validation" if held_out else cast("Part | None", part)

    def _label(self, record: Record, fields: Mapping[str, Any], at: _Place) -> Label:
        """The label in the columns of a record, or of a row about it."""
        if len(self._columns) > 1:
            return self._several(fields, at)
        name = next(iter(self._columns), None) or next(
            (column for column in _DEFAULTS if column in fields), None
        )
        if name is None or (name == "spans" and "words" in fields):
            second = self._problems.quoted(fields.get("2", ""))
            which = f"; --label 2 is the second word of the header, {second!r}" if second else ""
            raise DataError("no label", **at, remedy=f"name its column with --label{which}")
        value, here = _field(name, fields, at), {**at, "field": name}
        if isinstance(value, list | tuple):
            return self._listed(value, record, fields, here)
        text = _text(value, here)
        if name == VALUE and TIME in fields:
            if text.lower() not in FLAGS:
                raise DataError("neither true nor false", **here, remedy="write true or false")
            return str(FLAGS[text.lower()]).lower()
        if self._source.letters:
            return _of_letters(text, None, record, here)
        return (_number(text, here),) if self._source.numeric else text

    def _several(self, fields: Mapping[str, Any], at: _Place) -> Label:
        texts = {name: _text(_field(name, fields, at), {**at, "field": name}) for name in self._columns}
        true = {name: FLAGS.get(text.lower()) for name, text in texts.items()}
        if self._flags is None:
            self._flags = not self._source.numeric and None not in true.values()
        if not self._flags:
            return tuple(_number(text, {**at, "field": name}) for name, text in texts.items())
        odd = next((name for name, value in true.items() if value is None), None)
        if odd is not None:
            remedy = (
                "the first record has only 0 and 1, so the columns were read as classes: for numbers add "
                "--task value"
            )
            raise DataError("neither 0 nor 1", **at, field=odd, remedy=remedy)
        return tuple(name for name, value in true.items() if value)

    def _listed(self, values: Sequence[Any], record: Record, fields: Mapping[str, Any], at: _Place) -> Label:
        parts = values and all(isinstance(element, Mapping | list | tuple) for element in values)
        if parts or at["field"] == "spans":
            return _of_spans(values, str(record.raw), at)
        if isinstance(words := fields.get("spans"), list):
            return _of_words(values, words, at)
        if self._source.numeric:
            return tuple(_number(element, at) for element in values)
        return tuple(dict.fromkeys(_text(element, at) for element in values))

    def _lettered(self, record: Record, letters: Record) -> Spans:
        """The label letters of a record, or of its part of the document, perhaps in reverse order."""
        begin, reverse = _place_of_part(record, letters.id)
        inside = slice(begin, None if letters.id == record.id else begin + len(str(record.raw)))
        at: _Place = {"source": letters.source, "line": letters.line}
        mask = None
        if self._source.mask is not None:
            if letters.id not in self._masks:
                raise DataError("labels without a mask", **at, remedy=f"give them one in {self._source.mask}")
            mask = self._masks[letters.id].raw
            here: _Place = {"source": self._source.mask, "line": self._masks[letters.id].line}
            if len(mask) != len(letters.raw):
                remedy = f"{len(mask)} letters, {len(letters.raw)} labels: write one letter for each label"
                raise DataError("a mask whose length differs from its labels", **here, remedy=remedy)
            if set(mask) - {"0", "1"}:
                reason = "a mask with letters other than 0 and 1"
                raise DataError(reason, **here, remedy="write 0 where there is no label")
            mask = mask[inside][:: -1 if reverse else 1]
        return _of_letters(letters.raw[inside][:: -1 if reverse else 1], mask, record, at)

    def _featured(self, record: Record, features: _Features) -> Spans:
        """The label features of a record, or of its part of the document, perhaps on the other strand."""
        (begin, reverse), n = _place_of_part(record, features.id), len(str(record.raw))
        stretches, complete = features.stretches, features.id == record.id or "start" not in record.meta
        if complete and stretches[-1].end > n:
            reason = "a feature ends after the end of its sequence"
            remedy = (
                f"it ends at {stretches[-1].end}, the sequence at {n}: check that the features are for this "
                "sequence"
            )
            raise DataError(reason, source=record.source, line=record.line, remedy=remedy)
        first = bisect_right(stretches, begin, key=lambda stretch: stretch.end)
        last = bisect_left(stretches, begin + n, key=lambda stretch: stretch.start)
        parts = [
            (max(start - begin, 0), min(end - begin, n), label) for start, end, label in stretches[first:last]
        ]
        if reverse:
            parts = [(n - end, n - start, label) for start, end, label in reversed(parts)]
        if not self._source.dense:
            return _spans(parts, entities_only=True)
        labels = ["none"] * n
        for start, end, label in parts:
            labels[start:end] = [label] * (end - start)
        return _of_letters(labels, None, record, {})


def _place_of_part(record: Record, name: str) -> tuple[int, bool]:
    """Where a record begins in the named sequence, its own or its document's, and whether it is reversed."""
    if name == record.id:
        return 0, False
    return int(record.meta.get("start", 0)), record.meta.get("strand") == "-"


def _by_id(file: str, problems: Problems) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for record in read_fasta(file, problems, gaps="keep", keep_case=True):
        _put_label(records, record.id, record, file, record.line, problems)
    return records


def _put_label(
    by_name: dict[str, Any], name: str, value: Any, file: str, line: int, problems: Problems
) -> None:
    if name in by_name:
        problems.bad(DataError("a second label for the same id", source=file, line=line, remedy="keep one"))
    else:
        by_name[name] = value


def _header_fields(record: Record) -> dict[str, str]:
    """The fields of a FASTA header: KEY=VALUE pairs, as in FLIP and biotrainer, and its words by number."""
    text = str(record.meta.get("description", ""))
    _, *parts = _KEY.split(text)
    words = {str(number): word for number, word in enumerate(text.split(), 2)}  # the first word is the id
    return words | {key: value.strip() for key, value in zip(parts[::2], parts[1::2], strict=True)}


def _field(name: str, fields: Mapping[str, Any], at: _Place) -> Any:
    """The value of a record's field.

    Raises:
        DataError: the record does not have the field.
    """
    if name in fields:
        return fields[name]
    reason, remedy = "no such field", f"correct its name, give labels with --label-file, {_FILL_IN}"
    if {"labels", "lines"} <= fields.keys():  # one label for each line of a log
        reason = "its lines have no label in common"
        remedy = "give a label for each session in a separate file: --label-file"
    raise DataError(reason, **at, field=name, remedy=remedy)


def _text(value: Any, at: _Place, problem: tuple[str, str] = ("no label", _FILL_IN)) -> str:
    """A label as text.

    Raises:
        DataError: the value is empty, or has several parts.
    """
    if value is not None and not isinstance(value, str | int | float):
        raise DataError("a label of several parts", **at, remedy="give a text, a number or a list of these")
    text = str(value).lower() if isinstance(value, bool) else "" if value is None else str(value).strip()
    if text.lower() in _MISSING:
        raise DataError(problem[0], **at, remedy=problem[1])
    return text


def _number(value: Any, at: _Place) -> float:
    text = _text(value, at)
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError("a label that is not a number", **at, remedy="correct it, or predict it as a class")
    return number


def _of_spans(values: Sequence[Any], raw: str, at: _Place) -> Spans:
    spans: list[tuple[int, int, str]] = []
    for part in values:
        named = isinstance(part, Mapping)
        bounds: Any = [part.get(name) for name in ("start", "end", "label")] if named else part
        if len(bounds) != 3 or any(not isinstance(n, int) or isinstance(n, bool) for n in bounds[:2]):
            raise DataError("a span without start, end and label", **at, remedy="start and end are numbers")
        spans.append((bounds[0], bounds[1], _text(bounds[2], at)))
    spans.sort()
    if any(not 0 <= start < end <= len(raw) for start, end, _ in spans):
        remedy = f"start and end count the {len(raw)} characters of the record from 0; end is after the last"
        raise DataError("a span that is not within its record", **at, remedy=remedy)
    if any(part[1] > later[0] for part, later in pairwise(spans)):
        raise DataError("spans that overlap", **at, remedy="keep one label for each place")
    return _spans(spans, entities_only=True)


def _of_words(values: Sequence[Any], words: Sequence[Any], at: _Place) -> Spans:
    _agree(len(values), len(words), "words", at)
    labels: dict[tuple[int, int], str] = {}
    for span, value in zip(words, values, strict=True):
        if span is not None and value not in (None, "_"):
            labels.setdefault(tuple(span), _text(value, at))  # a contraction gets the label of its first word
    if not labels:
        raise DataError("no label", **at, remedy="fill it in, or name another column with --label")
    return _spans([(*span, labels[span]) for span in sorted(labels)])


def _of_letters(letters: Sequence[str], mask: str | None, record: Record, at: _Place) -> Spans:
    n = len(str(record.raw))
    _agree(len(letters), n, "characters", at)
    # the context that is shown with a record belongs to another record
    inside = range(*record.meta.get("own", (0, n)))
    labelled_places = [n for n in inside if mask is None or mask[n] == "1"]
    if not labelled_places:
        raise DataError("no label", **at, remedy="its mask hides all of them")
    return _spans([(n, n + 1, letters[n]) for n in labelled_places])


def _agree(labels: int, units: int, name: str, at: _Place) -> None:
    if labels != units:
        comparison = "more" if labels > units else "fewer"
        raise DataError(
            f"{comparison} labels than {name}", **at, remedy=f"{labels} labels for {units} {name}"
        )


def _spans(parts: Sequence[tuple[int, int, str]], *, entities_only: bool = False) -> Spans:
    bounds = np.array([part[:2] for part in parts], np.int32).reshape(-1, 2)
    return Spans(bounds=bounds, labels=tuple(label for *_, label in parts), entities_only=entities_only)
