"""Write and read samples. The same seed writes the same bytes, with the truth next to them."""

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
        files: the data, in the main format of the field.
        truth: the JSON file with the planted patterns (docs/reference/samples.md).
        extra_files: more data, which commands read only if they are named.
    """

    files: tuple[Path, ...]
    truth: Path
    extra_files: tuple[Path, ...] = ()


TRUTH = "truth.json"
LABELS = "labels.json"
"""Labels of the records for fine-tuning, one JSON object per line. A table in a folder could be data."""


def heading(domain: str, n: int, seed: int, file: str, positions: str) -> dict[str, Any]:
    """The first keys of every truth: field, seed, number of records, data file, and how positions count."""
    schema = f"seqmlm.sample.{domain}.v1"
    return {"schema": schema, "domain": domain, "seed": seed, "n": n, "file": file, "positions": positions}


def write_sample(
    out: Path,
    name: str,
    lines: Iterable[str] | Mapping[str, Iterable[str]],
    truth: Mapping[str, Any],
    extra_lines: Mapping[str, Iterable[str]] | None = None,
) -> Sample:
    """Write the data `name` and `truth.json` into the folder `out`, which is created if missing.

    Args:
        out: the folder.
        name: name of the data file, or of the folder for several data files.
        lines: the lines of the file, or of each file by its path below the folder.
        truth: see `write_truth`.
        extra_lines: lines of other files, by name.
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
    """Write a file of lines; its folder is created if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as handle:
        handle.writelines(line + "\n" for line in lines)


def write_truth(out: Path, truth: Mapping[str, Any]) -> Path:
    """Write only `truth.json`, for a sample whose data are not lines.

    Every top-level key is on its own line, and so is every item of a top-level list of objects. People can
    then read the file, and `diff` can compare it.
    """
    out.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(f"{json.dumps(key)}: {_value(value)}" for key, value in truth.items())
    (out / TRUTH).write_text("{\n" + body + "\n}\n", encoding="utf-8", newline="\n")
    return out / TRUTH


def read_truth(path: Path, schema: str, keys: Iterable[str]) -> dict[str, Any]:
    """Read a `truth.json`, and check that it belongs to one field.

    Args:
        path: `truth.json`, or the folder that contains it.
        schema: the schema that it must have.
        keys: the keys that it must have, each with a list.

    Raises:
        DataError: the file does not exist, or is something else.
    """
    file = path / TRUTH if path.is_dir() else path
    remedy = "give the truth.json that 'seqmlm sample' wrote next to the data"
    try:
        truth = read_json(file)
    except OSError as error:
        raise DataError(
            f"the truth could not be read: {error.strerror}", source=str(file), remedy=remedy
        ) from None
    except ValueError:
        raise DataError("this is not JSON", source=str(file), remedy=remedy) from None
    if not isinstance(truth, dict) or truth.get("schema") != schema:
        raise DataError(f"this is not a truth file with the schema {schema}", source=str(file), remedy=remedy)
    if missing := [key for key in keys if not isinstance(truth.get(key), list)]:
        reason = f"this truth has no list {missing[0]!r}"
        raise DataError(reason, source=str(file), remedy="draw the sample again")
    return truth


def overlap(start: Any, end: Any, anomaly: Mapping[str, Any]) -> bool:
    """Whether a stretch and an anomaly share at least half of the shorter of the two.

    Args:
        start, end: half-open offsets as in a table, such as "1.0" if the column has empty cells.
        anomaly: an object with `start` and `end`.
    """
    first, last = cell_number(start), cell_number(end)
    shared = min(last, int(anomaly["end"])) - max(first, int(anomaly["start"]))
    return shared > 0 and 2 * shared >= min(last - first, int(anomaly["end"]) - int(anomaly["start"]))


def cell_number(value: Any) -> int:
    """The value of a cell in a scored row, text or not, as a whole number; -1 if it is empty."""
    return int(float(value)) if value not in (None, "") else -1


def checked_count(n: int | None, default: int) -> int:
    """`n` if it is given, otherwise the default.

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
