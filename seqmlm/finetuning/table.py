"""A table with more columns for the examples. Boosting learns from them; the label is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from seqmlm.data.counts import Things
from seqmlm.data.examples import Label
from seqmlm.data.labels import SUBJECT, TIME, read_moments
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import FLAGS, filled, number, read_rows
from seqmlm.errors import DataError
from seqmlm.finetuning.cases import Case
from seqmlm.finetuning.labelled import Parts
from seqmlm.inference.pieces import HeadCard

FEWEST = 20
"""In at least this many rows, values that match the classes one to one are renamed classes."""


class Columns:
    """The rows of a table, by the id of a record, or by its id and a time.

    Raises:
        DataError: the table cannot be read, has no id of an example, or has no column except ids and labels.
    """

    def __init__(self, file: Path, card: HeadCard, parts: Parts, problems: Problems) -> None:
        rows, source = list(read_rows(str(file), problems)), str(file)
        names = dict.fromkeys(name for _, row in rows for name in row)
        key = next((name for name in ("id", SUBJECT) if name in names), next(iter(names), "id"))
        self.rows: dict[Any, Mapping[str, Any]] = {}
        if {SUBJECT, TIME} <= names.keys():
            for subject, moments in read_moments(rows, source, problems).items():
                self.rows |= {(subject, time): row for time, (_, row) in moments.items()}
        else:
            for line, row in rows:
                if self.rows.setdefault(str(row.get(key)), row) is not row:
                    reason = "a second row with the same id"
                    twice = DataError(reason, source=source, line=line, remedy="keep one")
                    problems.bad(twice, str(row))
        examples = [*parts["train"], *parts["test"]]
        labelled_rows = [(example.label, self.row(example.record)) for example in examples]
        missing = sum(row is None for _, row in labelled_rows)
        if missing == len(labelled_rows):
            reason = "no id in this table matches an example"
            raise DataError(reason, source=source, remedy="compare the ids")
        problems.note("an example without a row in --table: its columns are missing", missing, source=source)
        labels = [(label, row) for label, row in labelled_rows if row is not None]
        fewest = max(FEWEST, len(labelled_rows) / 2)
        self.names = [name for name in names if name not in (key, SUBJECT, TIME)]
        for name in [name for name in self.names if _is_label(name, card, labels, fewest)]:
            which = problems.quoted(f"the column {name!r}", "a column")
            problems.note(f"{which} of --table is the label, left out", Things(1), source=source)
            self.names.remove(name)
        if not self.names:
            raise DataError(
                "no column besides ids and labels", source=source, remedy="add some to learn from"
            )

    def row(self, record: Record) -> Mapping[str, Any] | None:
        """The row of a record, by its id and time, its id or its document; None without such a row."""
        if TIME in record.meta:
            time = round(datetime.fromisoformat(record.meta[TIME]).timestamp(), 6)
            if (row_at_time := self.rows.get((record.id, time))) is not None:
                return row_at_time
        return self.rows.get(record.id) or self.rows.get(record.document)

    def values_of(self, cases: Sequence[Case]) -> dict[str, list[Any]]:
        """The values of each column; missing values are None."""
        rows = [self.row(case.record) or {} for case in cases]
        return {name: [row.get(name) for row in rows] for name in self.names}


def _is_label(
    name: str, card: HeadCard, labelled_rows: Iterable[tuple[Label, Mapping[str, Any]]], fewest: float
) -> bool:
    """Whether a column is the label: by its name, or by its values in all rows that have one.

    The values may also be renamed classes: each class has one value and each value one class, in at least
    `fewest` rows.
    """
    pairs = [(row[name], label) for label, row in labelled_rows if filled(row.get(name))]
    if name in card.label.split(",") or (pairs and all(_is_same_label(*pair) for pair in pairs)):
        return True
    renamings = {(_folded_text(value), label) for value, label in pairs}
    sizes = {len(renamings), *(len(set(side)) for side in zip(*renamings, strict=True)), len(card.names)}
    return card.kind == "class" and len(pairs) >= fewest and len(sizes) == 1


def _is_same_label(value: Any, label: Label) -> bool:
    """Whether a value equals a label: the same class or number, or one of several numbers."""
    if isinstance(label, tuple):
        return any(math.isclose(number(value), number(numeral), rel_tol=1e-5) for numeral in label)
    same = math.isclose(number(value), number(label), rel_tol=1e-5)
    return same or _folded_text(value) == _folded_text(label)


def _folded_text(value: Any) -> str | bool:
    """A value as text for comparisons, without regard to case and type."""
    text = str(value).strip().lower()
    return FLAGS.get(text, text)
