"""Read scores and join them with their labels, for `seqmlm evaluate`.

Labels come from a column of the scores, from a separate file, or from the `truth.json` of a sample. Rows are
joined by id, and the anomalies of a sample by their places. An id without a partner is an error. Otherwise
records that were left out of a scoring would improve its result.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from seqmlm import plugins
from seqmlm.data.files import stem_suffix
from seqmlm.data.rows import read_rows, required
from seqmlm.errors import DataError
from seqmlm.parsing import parse_json, read_json
from seqmlm.streams.sinks import unescaped

if TYPE_CHECKING:
    from seqmlm.domains.field import Field

_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")
_LISTED = 5
# Columns where a lower value is more unusual.
P_VALUE = "p_value"
_P_VALUES = (P_VALUE, "channels.")

_SCHEMA = "seqmlm.sample."

Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns to read.

    Args:
        score: column of the scores; higher is more unusual. p-values (p_value, channels.NAME) are negated.
        label: column of the labels, in the scores or in the label file.
        positive, negative: the value of positive rows, or the value of negative rows. Neither is needed for
            0/1 or true/false.
        group: column of the group to resample, such as a patient. None resamples rows.
        baseline: column of another score of the same rows, or None.
        id: column of the ids in the label file.
    """

    score: str = "score"
    label: str = "label"
    positive: str | None = None
    negative: str | None = None
    group: str | None = None
    baseline: str | None = None
    id: str = "id"


@dataclass(eq=False)
class Labelled:
    """Rows with their labels, as columns (lists of length N).

    Args:
        keys: id, start and end of each row.
        scores: scores, -inf for rows without a score.
        labels: True for positive rows.
        alarms: alarms, or None if the scores have no alarm column.
        lengths: numbers of units, or None if the scores have no such column.
        groups: groups for resampling.
        baseline: scores of the baseline, empty without a baseline.
        sensitive: whether the scores are marked as sensitive.
        missing: number of labels without a score.
    """

    keys: list[Key] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    labels: list[bool] = field(default_factory=list)
    alarms: list[bool] | None = field(default_factory=list)
    lengths: list[float] | None = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    sensitive: bool = False
    missing: int = 0


def read_labelled(
    paths: Sequence[str],
    columns: Columns,
    *,
    labels: str | None = None,
    partial: bool = False,
    sensitive: bool = False,
) -> Labelled:
    """Read scores, with labels from one of their columns or from a separate file.

    Args:
        labels: file of ids and labels, or the truth of a sample. None if the scores have the labels.
        partial: count labels without a score instead of raising an error.
        sensitive: treat the scores as sensitive.

    Raises:
        DataError: a field is missing, a score is not a number, or an id has no partner.
    """
    planted = None if labels is None else Planted.read(labels)
    label_of = None if labels is None or planted is not None else _read_labels(labels, columns, sensitive)
    labelled, absent, joined_names = Labelled(sensitive=sensitive), list[str](), set[str]()
    for path in paths:
        for line, row in _score_rows(path):
            name = str(required(row, "id", path, line))
            labelled.sensitive = labelled.sensitive or _truth(row.get("sensitive")) is True
            if planted is not None:
                label = planted.shows_anomaly(row)
            elif label_of is None:
                value = required(row, columns.label, path, line)
                label = _label(value, columns, path, line, labelled.sensitive)
            elif name in label_of:
                label = label_of[name]
                joined_names.add(name)
            else:
                absent.append(name)
                continue
            _append(labelled, row, label, columns, path, line)
    if absent:
        raise _join_error(absent, f"scored ids are not in {labels}", str(labels), labelled.sensitive)
    unjoined = {*(label_of or ())} - joined_names if planted is None else planted.undetected
    if unjoined and not partial:
        also, reason = ", or use --set partial=true", "labelled ids have no score"
        raise _join_error(sorted(unjoined), reason, str(labels), labelled.sensitive, also)
    labelled.missing = len(unjoined)
    if not labelled.keys:
        remedy = "give a file that contains rows"
        raise DataError("there are no scores", source=", ".join(paths), remedy=remedy)
    return labelled


def scores_of_keys(
    path: str, column: str, keys: Sequence[Key], sensitive: bool
) -> tuple[list[float], list[bool] | None]:
    """The scores, and the alarms if any, of the rows `keys` in another file.

    Raises:
        DataError: a row is missing or occurs twice. The message does not name sensitive ids.
    """
    scores: dict[Key, float] = {}
    alarms: dict[Key, bool | None] = {}
    for line, row in _score_rows(path):
        key = _key(row, str(required(row, "id", path, line)))
        if key in scores:
            raise DataError("duplicate row", source=path, line=line, remedy="keep one of them")
        scores[key] = number_of(row, column, path, line)
        alarms[key] = _truth(row.get("alarm"))
    absent = [key[0] for key in keys if key not in scores]
    if absent:
        raise _join_error(absent, "rows have no such score", path, sensitive)
    raised = [alarm for alarm in (alarms[key] for key in keys) if alarm is not None]
    return [scores[key] for key in keys], raised if len(raised) == len(keys) else None


def _score_rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a file of scores. Escaped ids in CSV are unescaped."""
    escaped = stem_suffix(path) == ".csv"
    for line, row in read_rows(path):
        yield line, {**row, "id": unescaped(row["id"])} if escaped and "id" in row else row


def number_of(row: Mapping[str, Any], name: str, path: str, line: int) -> float:
    """The score of a row: higher is more unusual, and an empty cell is -inf.

    Raises:
        DataError: the column is missing, or the cell is not a number.
    """
    value = _value(row, name, path, line)
    if value is None or value == "":
        return -math.inf
    with suppress(TypeError, ValueError):
        if not math.isnan(number := float(value)):
            return -number if name.startswith(_P_VALUES) else number
    remedy = "leave the cell empty if the row has no score"
    raise DataError("not a number", source=path, line=line, field=name, remedy=remedy)


def ranked_by(paths: Sequence[str]) -> str:
    """The column that ranks rows: p-values if the first row of each file has one, else scores.

    Alarms are based on p-values. Unfamiliar rows have no p-value and are skipped.
    """

    def first_judged(path: str) -> Mapping[str, Any]:
        rows = (row for _, row in _score_rows(path) if _truth(row.get("unfamiliar")) is not True)
        return next(rows, {})

    first = (first_judged(path) for path in paths)
    have_p_values = all(row.get(P_VALUE) not in (None, "") for row in first)
    return P_VALUE if have_p_values and paths else Columns.score


def is_column(name: str) -> bool:
    """Whether a name is a column of the scores rather than an existing file."""
    return not os.path.exists(name)


def _append(
    labelled: Labelled, row: Mapping[str, Any], label: bool, columns: Columns, path: str, line: int
) -> None:
    name = str(row["id"])
    labelled.keys.append(_key(row, name))
    labelled.labels.append(label)
    labelled.scores.append(number_of(row, columns.score, path, line))
    group = name if columns.group is None else str(_value(row, columns.group, path, line))
    labelled.groups.append(group)
    if columns.baseline is not None:
        labelled.baseline.append(number_of(row, columns.baseline, path, line))
    alarm = _truth(row.get("alarm"))
    if labelled.alarms is not None and alarm is not None:
        labelled.alarms.append(alarm)
    else:
        labelled.alarms = None
    length = row.get("units")
    if labelled.lengths is not None and length is not None and length != "":
        labelled.lengths.append(float(length))
    else:
        labelled.lengths = None


def _key(row: Mapping[str, Any], name: str) -> Key:
    return name, str(row.get("start") or ""), str(row.get("end") or "")


def _value(row: Mapping[str, Any], name: str, path: str, line: int) -> Any:
    """A field of a row, or a member of an object in a field, such as "channels.pll"."""
    outer, dot, inner = name.partition(".")
    if name not in row and dot and isinstance(row.get(outer), dict):
        return required(row[outer], inner, path, line)
    return required(row, name, path, line)


def _truth(value: Any) -> bool | None:
    """The truth value in a cell, or None for any other text."""
    text = str(value).lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _read_labels(path: str, columns: Columns, sensitive: bool) -> dict[str, bool]:
    """Whether each id in a table is an anomaly, by id.

    Raises:
        DataError: an id has two different labels.
    """
    label_of: dict[str, bool] = {}
    for line, row in read_rows(path):
        name = str(required(row, columns.id, path, line))
        value = required(row, columns.label, path, line)
        label = _label(value, columns, path, line, sensitive)
        if label_of.setdefault(name, label) is not label:
            which = "an id with" if sensitive else f"{name!r} has"
            reason = f"{which} two different labels"
            raise DataError(reason, source=path, line=line, remedy="keep the correct one")
    return label_of


def _label(value: Any, columns: Columns, path: str, line: int, sensitive: bool) -> bool:
    text = str(value)
    if columns.positive is not None:
        return text == columns.positive
    if columns.negative is not None:
        return text != columns.negative
    truth = _truth(value)
    if truth is None:
        raise DataError(
            "a label that is neither 0/1 nor true/false" + ("" if sensitive else f": {text[:40]!r}"),
            source=path,
            line=line,
            field=columns.label,
            remedy="name the positive label with --positive, or the negative one with --negative",
        )
    return truth


def _join_error(ids: Iterable[str], reason: str, path: str, sensitive: bool, also: str = "") -> DataError:
    """The error for ids without a partner. It does not name sensitive ids."""
    names = list(dict.fromkeys(ids))
    listed_names = (
        "" if sensitive else f": {', '.join(names[:_LISTED])}{' ...' if len(names) > _LISTED else ''}"
    )
    remedy = f"check that both files have the same records{also}"
    return DataError(f"{len(names):,} {reason}{listed_names}", source=path, remedy=remedy)


class Planted:
    """The anomalies of a sample, which are found in rows by their places (docs/reference/samples.md).

    The row of a whole record shows all of its anomalies. For a part of a record, the field decides.

    Args:
        domain: the domain of the sample.
        anomalies: the list in the truth.
        file: name of the sample's data, next to its truth. If it is a folder and the folder above it was
            scored, record ids begin with its name.
    """

    def __init__(self, domain: Field, anomalies: list[dict[str, Any]], file: str = "") -> None:
        self._domain, self._prefix = domain, f"{file}/"
        self._hidden = {
            number: str(anomaly[domain.sample.planted_in]) for number, anomaly in enumerate(anomalies)
        }
        self._of: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for number, anomaly in enumerate(anomalies):
            self._of.setdefault(self._hidden[number], []).append((number, anomaly))

    @classmethod
    def read(cls, path: str) -> Self | None:
        """Read a truth file.

        Returns:
            None if the file is not a truth file.

        Raises:
            DataError: the file is damaged or has no anomalies.
        """
        if not path.endswith(".json") or not Path(path).is_file():
            return None
        try:
            truth = read_json(Path(path))
        except (ValueError, OSError):
            return None
        if not isinstance(truth, dict) or not str(truth.get("schema", "")).startswith(_SCHEMA):
            return None
        if not truth.get("anomalies"):
            raise DataError(
                f"this {truth.get('domain')} sample has no anomalies",
                source=path,
                remedy="give other labels; docs/reference/samples.md lists the samples with anomalies",
            )
        domain = plugins.domain(str(truth.get("domain")))
        try:
            return cls(domain, truth["anomalies"], str(truth.get("file", "")))
        except (TypeError, KeyError, ValueError, AttributeError):
            raise DataError(
                "the anomalies of this truth file cannot be read",
                source=path,
                remedy="make the sample again with seqmlm sample",
            ) from None

    def shows_anomaly(self, row: Mapping[str, Any]) -> bool:
        """Whether a row shows an anomaly. The anomaly is then no longer in `undetected`.

        Raises:
            DataError: the row is not a row of `seqmlm score`.
        """
        name = str(row["id"]).removeprefix(self._prefix)
        is_whole_record = name in self._of
        planted = self._of.get(name if is_whole_record else name.rpartition("#")[0], [])
        if planted and not is_whole_record:
            extra, top = _json_field(row, "extra", {}), _json_field(row, "top", [])
            row = {"start": None, "end": None, **row, **extra, "top": top}
        try:
            hits = [
                number
                for number, anomaly in planted
                if is_whole_record or self._domain.sample.shows(row, anomaly)
            ]
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            raise DataError(f"row {row['id']!r} is not a row of seqmlm score", remedy="score again") from None
        for number in hits:
            self._hidden.pop(number, None)
        return bool(hits)

    @property
    def undetected(self) -> set[str]:
        """Ids of the records with an anomaly that no row has shown so far."""
        return set(self._hidden.values())


def _json_field(row: Mapping[str, Any], field: str, absent: Any) -> Any:
    """A field of a row, which tables store as JSON text.

    Args:
        absent: the value for an empty field. Other values must have its type.

    Raises:
        DataError: the value is not JSON, or has another type.
    """
    value = row.get(field)
    try:
        parsed = parse_json(value) if isinstance(value, str) and value else value or absent
    except ValueError:
        parsed = None
    if not isinstance(parsed, type(absent)):
        raise DataError(f"row {row['id']!r} is not a row of seqmlm score", field=field, remedy="score again")
    return parsed
