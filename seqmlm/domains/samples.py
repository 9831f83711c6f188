"""Writing and reading of samples: the same seed writes the same bytes, with the truth beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqmlm.errors import DataError, UsageError
from seqmlm.parsing import read_json


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A drawn sample.

    Args:
        files: the data, in the domain's ordinary format.
        truth: the JSON file with what was planted (docs/reference/samples.md).
        extra_files: further data, which are read where they are named.
    """

    files: tuple[Path, ...]
    truth: Path
    extra_files: tuple[Path, ...] = ()


TRUTH = "truth.json"
LABELS = "labels.json"
"""Labels of the records, for a fine-tuning: an object a line, since a table in a folder may be data."""


def heading(domain: str, n: int, seed: int, file: str, positions: str) -> dict[str, Any]:
    """First keys of every truth: field, seed, number of records, data file, and how positions count."""
    schema = f"seqmlm.sample.{domain}.v1"
    return {"schema": schema, "domain": domain, "seed": seed, "n": n, "file": file, "positions": positions}


def write_sample(
    out: Path,
    name: str,
    lines: Iterable[str] | Mapping[str, Iterable[str]],
    truth: Mapping[str, Any],
    extra_lines: Mapping[str, Iterable[str]] | None = None,
) -> Sample:
    """Write the data `name` and `truth.json` into the folder `out`, made if missing.

    Args:
        out: the folder.
        name: of the data file; of the folder of data files, where there are several.
        lines: of the file; or of each file, by its path below the folder.
        truth: see `write_truth`.
        extra_lines: lines of further files, by name.
    """
    extra_lines = extra_lines or {}
    files = (
        {f"{name}/{inner}": file_lines for inner, file_lines in lines.items()}
        if isinstance(lines, Mapping)
        else {name: lines}
    )
    for file, file_lines in {**files, **extra_lines}.items():
        write_lines(out / file, file_lines)
    extra_files = tuple(out / file for file in extra_lines)
    return Sample(files=(out / name,), truth=write_truth(out, truth), extra_files=extra_files)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a file of lines; its folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as handle:
        handle.writelines(line + "\n" for line in lines)


def write_truth(out: Path, truth: Mapping[str, Any]) -> Path:
    """Write `truth.json` alone, for a sample whose data is not made of lines.

    Every top-level key has its line, and so has every item of a top-level list of objects, so that people can
    read it and `diff` can compare it.
    """
    out.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(f"{json.dumps(key)}: {_value(value)}" for key, value in truth.items())
    (out / TRUTH).write_text("{\n" + body + "\n}\n", encoding="utf-8", newline="\n")
    return out / TRUTH


def read_truth(path: Path, schema: str, keys: Iterable[str]) -> dict[str, Any]:
    """The content of a `truth.json`, checked to be of one field.

    Args:
        path: `truth.json`, or the folder it is in.
        schema: that it must have.
        keys: that it must have, each with a list.

    Raises:
        DataError: no such file, or one that is something else.
    """
    file = path / TRUTH if path.is_dir() else path
    remedy = "give the truth.json that seqmlm sample wrote beside the data"
    try:
        truth = read_json(file)
    except OSError as error:
        raise DataError(
            f"no truth could be read: {error.strerror}", source=str(file), remedy=remedy
        ) from None
    except ValueError:
        raise DataError("this is no JSON", source=str(file), remedy=remedy) from None
    if not isinstance(truth, dict) or truth.get("schema") != schema:
        raise DataError(f"this is no truth of the schema {schema}", source=str(file), remedy=remedy)
    if missing := [key for key in keys if not isinstance(truth.get(key), list)]:
        reason = f"this truth has no list {missing[0]!r}"
        raise DataError(reason, source=str(file), remedy="draw the sample again")
    return truth


def overlap(start: Any, end: Any, anomaly: Mapping[str, Any]) -> bool:
    """Whether a stretch and an anomaly share at least half of the shorter one.

    Args:
        start, end: half-open, as a table may have them: "1.0" where its column has gaps.
        anomaly: with `start` and `end`.
    """
    first, last = cell_number(start), cell_number(end)
    shared = min(last, int(anomaly["end"])) - max(first, int(anomaly["start"]))
    return shared > 0 and 2 * shared >= min(last - first, int(anomaly["end"]) - int(anomaly["start"]))


def cell_number(value: Any) -> int:
    """A cell of a scored row as a whole number, from text or not; -1 where it is empty."""
    return int(float(value)) if value not in (None, "") else -1


def checked_count(n: int | None, default: int) -> int:
    """`n`, or the default; at least 1.

    Raises:
        UsageError: n is below 1.
    """
    if n is not None and n < 1:
        raise UsageError(f"a sample has at least one record; got {n}")
    return default if n is None else n


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)
