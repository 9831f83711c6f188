"""Minimal pairs: two sequences that differ slightly. One of them should be more probable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.rows import read_rows, required
from seqmlm.errors import DataError, UsageError

COLUMNS = (
    ("sentence_good", "sentence_bad"),  # BLiMP and data sets in its format
    ("original", "mutated"),
    ("good", "bad"),
    ("sent_more", "sent_less"),  # CrowS-Pairs: the first sentence is the more stereotypical sentence
)
GROUPS = ("UID", "bias_type", "group")
_IDS = ("pairID", "id")
_WINOGENDER = "sentid"  # the column of names, "technician.customer.1.male.txt"

Raw = Callable[[str, Mapping[str, Any]], Any]
Names = tuple[str | None, str | None, str | None]  # names of the columns of both sequences and of the group


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A sequence that should be more probable than another sequence, with the name of their group or ""."""

    id: str
    good: str
    bad: str
    group: str
    source: str
    line: int


def read_pairs(
    paths: Sequence[str],
    *,
    good: str | None = None,
    bad: str | None = None,
    group: str | None = None,
    raw: Raw = lambda text, fields: text,
    problems: Problems | None = None,
) -> Iterator[Pair]:
    """Read pairs from JSON lines, CSV, TSV or parquet.

    Without `paths`, read them from two parallel text files.

    Args:
        paths: files with the two sequences in columns. Sentences of Winogender (Rudinger et al. 2018, columns
            `sentid` and `sentence`) are paired by name, with the male form first.
        good, bad: names of the two columns. Default: the first of `COLUMNS` that the file has. Without
            `paths`, they are two files with one sequence per line.
        group: name of the column for groups. Default: the first of `GROUPS` that the file has.
        raw: creates the raw sequence of the field from a text and the other columns of its row.
        problems: receives pairs that cannot be read (a missing column, an empty sequence). None raises their
            errors.

    Raises:
        UsageError: there are no `paths`, and not both of `good` and `bad`.
        DataError: a file cannot be read, or the files have different lengths.
    """
    noted, names = problems or Problems(), (good, bad, group)
    numbered: Iterator[tuple[str, int, dict[str, Any]]]
    if paths:
        numbered = ((path, line, row) for path in paths for line, row in _paired(path, noted))
    elif good is None or bad is None:
        raise UsageError("nothing to compare: name a file of pairs, or two files with --good and --bad")
    else:
        numbered, names = _parallel(good, bad), (None, None, None)
    for path, line, row in numbered:
        try:
            pair = _pair(row, names, raw, path, line)
        except DataError as error:
            noted.bad(error, json.dumps(row, default=str))
        else:
            yield pair


def _pair(row: Mapping[str, Any], names: Names, raw: Raw, path: str, line: int) -> Pair:
    """The pair of a row."""
    texts = [
        raw(_text(required(row, key, path, line), path, line, key), row)
        for key in _columns(row, names, path, line)
    ]
    name = names[2] or next((key for key in GROUPS if key in row), None)
    return Pair(
        id=next((str(row[key]) for key in _IDS if row.get(key) is not None), f"{Path(path).name}:{line}"),
        good=texts[0],
        bad=texts[1],
        group="" if name is None else str(required(row, name, path, line)),
        source=path,
        line=line,
    )


def _paired(path: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with a pair each. Two sentences of Winogender that differ in the pronoun become one row."""
    waiting: dict[str, tuple[int, str, str]] = {}
    for line, row in read_rows(path, problems):
        if not row.keys() >= {_WINOGENDER, "sentence"}:
            yield line, row
            continue
        name, _, gender = str(row[_WINOGENDER]).removesuffix(".txt").rpartition(".")
        if gender not in ("male", "female"):
            continue  # "they" is the third form of each sentence
        if name not in waiting:
            waiting[name] = line, gender, str(row["sentence"])
            continue
        first, other_line, sentence = waiting.pop(name)
        texts = {other_line: sentence, gender: str(row["sentence"])}
        if len(texts) == 1:
            twice = DataError(f"{name!r} is there twice", source=path, line=line, remedy="keep one of them")
            problems.bad(twice, str(row["sentence"]))
            continue
        group = name.partition(".")[0]
        yield first, {"id": name, "good": texts["male"], "bad": texts["female"], "group": group}
    for name, (line, _, sentence) in waiting.items():
        remedy = "add it, or leave both out"
        problems.bad(
            DataError(f"{name!r} has no counterpart", source=path, line=line, remedy=remedy), sentence
        )


def _columns(row: Mapping[str, Any], names: Names, path: str, line: int) -> tuple[str, str]:
    columns = next((pair for pair in COLUMNS if all(key in row for key in pair)), None)
    good, bad, _ = names
    if good is not None and bad is not None:
        return good, bad
    if columns is None:
        pairs = "; ".join(" and ".join(pair) for pair in COLUMNS)
        reason = "no columns with known names for the two sequences"
        remedy = f"name them with --good and --bad; known: {pairs}"
        raise DataError(reason, source=path, line=line, remedy=remedy)
    return good or columns[0], bad or columns[1]


def _text(value: Any, path: str, line: int, field: str) -> str:
    if not isinstance(value, str) or not value or value.isspace():
        remedy = "a pair needs both its sequences"
        raise DataError("no text", source=path, line=line, field=field, remedy=remedy)
    return value


def _parallel(good: str, bad: str) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The lines of two files as rows.

    An unreadable line is an error, because it would shift the lines after it.
    """
    for good_line, bad_line in zip_longest(lines(good, Problems()), lines(bad, Problems())):
        if good_line is None or bad_line is None:
            reason = f"the file ends before line {(good_line or bad_line)[0]} of the other"
            remedy = "parallel files need one line for each pair"
            raise DataError(reason, source=good if good_line is None else bad, remedy=remedy)
        path, line = (
            (bad, bad_line[0]) if good_line[1].strip() and not bad_line[1].strip() else (good, good_line[0])
        )
        yield path, line, {"good": good_line[1], "bad": bad_line[1]}
