"""What a fine-tuned model is worth: figures of its test data beside those of cheap rivals, and a sentence.

The rivals see the same examples. That a model is better is said where the lower bound of the paired
difference to the best of them is above 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.data.examples import FLAGS, Label
from seqmlm.data.labels import SUBJECT, TIME, read_moments
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.rows import filled, number, read_rows
from seqmlm.errors import DataError
from seqmlm.evaluation import rivals
from seqmlm.evaluation.intervals import Difference
from seqmlm.evaluation.predictions import difference, measures
from seqmlm.inference.labeller import HeadCard
from seqmlm.tasks.cases import Case, items_of, truth_of
from seqmlm.tasks.labelled import Parts
from seqmlm.tasks.task import Table

Predictions = Any
"""As `seqmlm.evaluation.predictions.measures` takes them."""
COLUMNS, BOTH = "boosted columns", "model and columns"
FEWEST = 20
"""Rows from which on values that go with the classes are the classes by other names."""


def worth(
    card: HeadCard, own: Sequence[Case], said: Predictions, *, draws: int = 1000
) -> dict[str, Difference]:
    """Measures of predictions, by name; those that cannot be had are absent."""
    groups = [one.group for one in items_of(card, own)]
    return measures(card.kind, truth_of(card, own), said, groups=groups, names=card.names, draws=draws)


def of_rivals(card: HeadCard, train: Sequence[Case], test: Sequence[Case]) -> dict[str, Predictions]:
    """Predictions of what needs no model, by name."""
    kind, names = card.kind, card.names
    told, truth = truth_of(card, train), truth_of(card, test)
    sizes = [len(one) for one in truth] if kind == "entities" else len(truth)
    said = {"most frequent": rivals.majority(kind, told, sizes, names=names)}
    of_train, of_test = ([one.units for one in own] for own in (train, test))
    if card.of_parts:
        lists = told if kind == "entities" else [one.targets[:, 0].astype(int) for one in train]
        found = rivals.windowed(kind, of_train, lists, of_test, names=names)
        said["neighbouring units"] = found if kind == "entities" else np.concatenate(found)
    elif any(of_train):
        said["bags of units"] = rivals.bag(kind, of_train, told, of_test, names=names)
        if (found := rivals.placed(kind, of_train, told, of_test, names=names)) is not None:
            said["unit at each place"] = found
    return said


class Columns:
    """Columns beside the sequences: the rows of a table, by the id of a record, or by it and a time.

    Raises:
        DataError: a table that cannot be read, that is about none of the examples, or only about their label.
    """

    def __init__(self, file: Path, card: HeadCard, parts: Parts, problems: Problems) -> None:
        rows, source = list(read_rows(str(file), problems)), str(file)
        names = dict.fromkeys(name for _, row in rows for name in row)
        key = next((name for name in ("id", SUBJECT) if name in names), next(iter(names), "id"))
        self.rows: dict[Any, Mapping[str, Any]] = {}
        if {SUBJECT, TIME} <= names.keys():
            for subject, own in read_moments(rows, source, problems).items():
                self.rows |= {(subject, time): row for time, (_, row) in own.items()}
        else:
            for line, row in rows:
                if self.rows.setdefault(str(row.get(key)), row) is not row:
                    twice = DataError("an id that was there", source=source, line=line, remedy="keep one")
                    problems.bad(twice, str(row))
        told = [(one, self.row(one.record)) for part in ("train", "test") for one in parts[part]]
        missing = sum(row is None for _, row in told)
        if missing == len(told):
            raise DataError("none of its ids is that of an example", source=source, remedy="compare them")
        problems.note("an example without a row in --table: its columns are missing", missing, source=source)
        labels = [(one.label, row) for one, row in told if row is not None]
        least = max(FEWEST, len(told) / 2)
        self.names = [name for name in names if name not in (key, SUBJECT, TIME)]
        for name in [name for name in self.names if _is_label(name, card, labels, least)]:
            which = "a column" if problems.sensitive else f"the column {name!r}"
            problems.note(f"{which} of --table is the label, left out", source=source)
            self.names.remove(name)
        if not self.names:
            raise DataError("no column beside ids and labels", source=source, remedy="add some to learn from")

    def row(self, record: Record) -> Mapping[str, Any] | None:
        """What the table says of a record."""
        if TIME in record.meta:
            time = round(datetime.fromisoformat(record.meta[TIME]).timestamp(), 6)
            if (found := self.rows.get((record.id, time))) is not None:
                return found
        return self.rows.get(record.id) or self.rows.get(record.document)

    def of(self, own: Sequence[Case]) -> dict[str, list[Any]]:
        """The values of each column; None where there are none."""
        rows = [self.row(one.record) or {} for one in own]
        return {name: [row.get(name) for row in rows] for name in self.names}


def _is_label(
    name: str, card: HeadCard, told: Iterable[tuple[Label, Mapping[str, Any]]], least: float
) -> bool:
    """Whether a column has the name of the label, or its values wherever it has any, perhaps renamed.

    Renamed classes are as many as the label has, one for each, in at least `least` rows.
    """
    pairs = [(row[name], label) for label, row in told if filled(row.get(name))]
    if name in card.label.split(",") or (pairs and all(_equal(*pair) for pair in pairs)):
        return True
    both = {(_text(value), label) for value, label in pairs}
    sizes = {len(both), *(len(set(one)) for one in zip(*both, strict=True)), len(card.names)}
    return card.kind == "class" and len(pairs) >= least and len(sizes) == 1


def _equal(value: Any, label: Label) -> bool:
    """Whether a value is a class, 1 that which is true, or one of some numbers."""
    if isinstance(label, tuple):
        return any(math.isclose(number(value), number(one), rel_tol=1e-5) for one in label)
    same = math.isclose(number(value), number(label), rel_tol=1e-5)
    return same or _text(value) == _text(label)


def _text(value: Any) -> str | bool:
    """A value as it compares with others, whatever its case and type."""
    text = str(value).strip().lower()
    return FLAGS.get(text, text)


def of_columns(
    card: HeadCard, columns: Columns, train: Sequence[Case], test: Sequence[Case], ours: Predictions
) -> dict[str, Predictions]:
    """Predictions of gradient boosting on columns of a table, and of its mean with the model's."""
    told = truth_of(card, train)
    found = rivals.boosted(card.kind, columns.of(train), told, columns.of(test), names=card.names)
    return {COLUMNS: found, BOTH: (found + ours) / 2}


def figures_of(
    card: HeadCard, primary: str, test: Sequence[Case], ours: Predictions, others: Mapping[str, Predictions]
) -> tuple[dict[str, Any], Table]:
    """Figures of a model's predictions, with intervals, and beside those of rivals.

    Args:
        primary: the measure that decides.
        ours, others: predictions of the test cases, of the model and of rivals by name.

    Returns:
        Measures by name, `intervals`, those of `rivals`, the `lead` over the best of these, and, where there
        are `of_columns`, differences `over_columns`; and a table.
    """
    own, beside = worth(card, test, ours), {who: worth(card, test, said) for who, said in others.items()}
    figures: dict[str, Any] = {name: one.value for name, one in own.items()}
    figures["intervals"] = {name: [one.low, one.high] for name, one in own.items()}
    figures["rivals"] = {who: {name: one.value for name, one in said.items()} for who, said in beside.items()}

    def over(first: Predictions, second: Predictions) -> dict[str, float]:
        truth, groups = truth_of(card, test), [one.group for one in items_of(card, test)]
        led = difference(card.kind, primary, truth, first, second, groups=groups, names=card.names)
        return led._asdict()

    ranked = [(said[primary].value, who) for who, said in beside.items() if primary in said and who != BOTH]
    if ranked and primary in own:
        best = max(ranked)[1]
        figures["lead"] = {"over": best, **over(ours, others[best])}
    if primary in own and primary in beside.get(COLUMNS, {}):
        mixed = {"this model": ours, BOTH: others[BOTH]}
        figures["over_columns"] = {who: over(said, others[COLUMNS]) for who, said in mixed.items()}
    every = {"this model": own, **beside}
    names = dict.fromkeys(name for said in every.values() for name in said)
    shown = [name for name in names if not name.startswith("f1_")]
    cells = [[who, *(_shown(said.get(name)) for name in shown)] for who, said in every.items()]
    if over_columns := figures.get("over_columns"):
        shown.append(f"{primary} over columns")
        for row in cells:
            led = over_columns.get(row[0])
            row.append(led and "{difference:+.3f} ({low:+.3f} to {high:+.3f})".format_map(led))
    return figures, Table("Figures of the test data (95 % intervals)", ["", *shown], cells)


def verdict(figures: Mapping[str, Any], primary: str) -> str:
    """The figure that decides, and how it stands beside the best rival."""
    if primary not in figures:
        return f"the test data have no {primary}, being all alike: give others with --test"
    low, high = figures["intervals"][primary]
    text = f"{primary} {figures[primary]:.3f} ({low:.3f} to {high:.3f}), {figures['test']} tested"
    if seeds := figures.get("seeds"):
        text += f", {figures['mean']:.3f} (sd {figures['sd']:.3f}) on average of {len(seeds)} seeds"
    if lead := figures.get("lead"):
        text += f", {lead['over']} {figures['rivals'][lead['over']][primary]:.3f}"
        if lead["difference"] == 0:
            text += "; no better than that"
        elif lead["difference"] < 0:
            text += "; it is no better than that: give it more examples, or a model with more pretraining"
        elif not lead["low"] > 0:
            text += "; not clearly better"
    if BOTH in figures["rivals"]:
        text += f"; {BOTH} {figures['rivals'][BOTH][primary]:.3f}"
    if alike := figures.get("resembling"):
        text += f"; {alike} of the test records resemble training ones"
    return text


def _shown(one: Difference | None) -> str | None:
    if one is None:
        return None
    return f"{one.value:.3f}" if np.isnan(one.low) else f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"
