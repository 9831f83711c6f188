"""Writing a sample and its planted truth: the same seed gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seqmlm.domains.base import Sample
from seqmlm.errors import UsageError

TRUTH = "truth.json"


def write_sample(out: Path, name: str, lines: Iterable[str], truth: Mapping[str, Any]) -> Sample:
    """Write the data file `name` and `truth.json` into the folder `out`, made if missing."""
    out.mkdir(parents=True, exist_ok=True)
    with open(out / name, "w", encoding="utf-8", newline="\n") as handle:
        handle.writelines(line + "\n" for line in lines)
    return Sample(files=(out / name,), truth=write_truth(out, truth))


def write_truth(out: Path, truth: Mapping[str, Any]) -> Path:
    """Write `truth.json` alone, for a sample whose data is not one file of lines.

    Every top-level key has its line, and so has every item of a top-level list of objects, so that people can
    read it and `diff` can compare it.
    """
    out.mkdir(parents=True, exist_ok=True)
    body = ",\n".join(f"{json.dumps(key)}: {_value(value)}" for key, value in truth.items())
    (out / TRUTH).write_text("{\n" + body + "\n}\n", encoding="utf-8", newline="\n")
    return out / TRUTH


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
