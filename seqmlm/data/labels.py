"""Labels of subjects at times, as MEDS has them: `subject_id`, `prediction_time`, perhaps `boolean_value`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqmlm.data.rows import read_rows, required
from seqmlm.data.timestamps import Clock
from seqmlm.errors import DataError

Labels = dict[str, list[tuple[float, bool | None]]]
"""Subject to times, seconds since 1970-01-01 UTC, and labels; None where that is not known."""

_TRUTH = {"1": True, "true": True, "0": False, "false": False, "": None}


def read_labels(path: Path) -> Labels:
    """Read a table.

    Raises:
        DataError: a column that is missing, a time or a label that cannot be read.
    """
    clock, found = Clock(), Labels()
    for line, row in read_rows(str(path)):
        at: dict[str, Any] = {"source": str(path), "line": line}
        subject, given = (required(row, name, str(path), line) for name in ("subject_id", "prediction_time"))
        dated = isinstance(given, datetime)
        time = given.replace(tzinfo=given.tzinfo or UTC).timestamp() if dated else clock[str(given)]
        if time != time:
            raise DataError("no time", **at, field="prediction_time", remedy="ISO 8601")
        value = row.get("boolean_value")
        text = "" if value is None else str(value).lower()
        if text not in _TRUTH:
            raise DataError("no truth value", **at, field="boolean_value", remedy="write true or false")
        found.setdefault(str(subject), []).append((time, _TRUTH[text]))
    if not found:
        raise DataError("no labels", source=str(path), remedy="give subject_id and prediction_time")
    return found
