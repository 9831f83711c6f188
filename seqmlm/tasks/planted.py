"""Scored rows and what was planted in a sample: its `truth.json` in the place of a file of labels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from seqmlm.errors import DataError

_SCHEMA = "seqmlm.sample."
_RECORD = ("id", "file", "session", "subject")  # what anomalies call the record they are in
_SCOPES = ("class", "module")  # of source code: their rows leave out what their functions have


class Planted:
    """The anomalies of a sample, found in rows by their places (docs/SAMPLES.md).

    A row shows an anomaly of its record where they share at least half of the shorter one (`start`, `end`),
    its line is one of `lines`, or its visit is `visit` and, of an event, its code is `code`; the row of a
    whole record shows all of them.

    Args:
        anomalies: as the truth lists them.
        file: of the sample, beside its truth; where it is a folder and the one above it was scored, ids of
            records begin with it.
    """

    def __init__(self, anomalies: list[dict[str, Any]], file: str = "") -> None:
        self._prefix = f"{file}/"
        self._of: dict[str, list[tuple[int, dict[str, Any]]]] = {}
        for number, one in enumerate(anomalies):
            self._of.setdefault(_record(one), []).append((number, one))
        self._hidden = {number: _record(one) for number, one in enumerate(anomalies)}

    @classmethod
    def read(cls, path: str) -> Self | None:
        """What a truth file plants; None where the file is none.

        Raises:
            DataError: nothing is planted in it.
        """
        if not path.endswith(".json") or not Path(path).is_file():
            return None
        try:
            truth = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, OSError):
            return None
        if not isinstance(truth, dict) or not str(truth.get("schema", "")).startswith(_SCHEMA):
            return None
        if not truth.get("anomalies"):
            raise DataError(
                f"nothing wrong is planted in this {truth.get('domain')} sample",
                source=path,
                remedy="samples of dna, code, ehr and logs have anomalies; give labels of your own",
            )
        return cls(truth["anomalies"], str(truth.get("file", "")))

    def shown(self, row: Mapping[str, Any]) -> bool:
        """Whether a row shows an anomaly, which is from then on none of the `unseen`."""
        name = str(row["id"]).removeprefix(self._prefix)
        whole = name in self._of
        found = self._of.get(name if whole else name.rpartition("#")[0], [])
        row = {**row, **_parsed(row.get("extra"), {})} if found else row
        hits = [number for number, one in found if _shows(row, one, whole)]
        for number in hits:
            self._hidden.pop(number, None)
        return bool(hits)

    @property
    def unseen(self) -> set[str]:
        """Records with an anomaly that no row has shown so far."""
        return set(self._hidden.values())


def _record(anomaly: Mapping[str, Any]) -> str:
    return str(next(anomaly[name] for name in _RECORD if name in anomaly))


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any], whole: bool) -> bool:
    if whole:
        return True
    if "start" in anomaly:
        first, last = row.get("contig_start", row.get("start")), row.get("contig_end", row.get("end"))
        return row.get("kind") not in _SCOPES and _overlap(_integer(first), _integer(last), anomaly)
    if "lines" in anomaly:
        return _integer(row.get("line")) in anomaly["lines"]
    if row.get("visit_id") != anomaly["visit"]:
        return False
    named = [unit["unit"] for unit in _parsed(row.get("top"), [])]
    return "missing" in row or anomaly["code"] in named  # only the rows of visits say what is missing


def _overlap(start: int, end: int, anomaly: Mapping[str, Any]) -> bool:
    shared = min(end, int(anomaly["end"])) - max(start, int(anomaly["start"]))
    return shared > 0 and 2 * shared >= min(end - start, int(anomaly["end"]) - int(anomaly["start"]))


def _integer(value: Any) -> int:
    """A number of a row; tables may have it as text, or not at all."""
    return int(float(value)) if value not in (None, "") else -1  # columns with gaps become "1.0"


def _parsed(value: Any, absent: Any) -> Any:
    """What tables hold as JSON text."""
    return json.loads(value) if isinstance(value, str) and value else value or absent
