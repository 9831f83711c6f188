"""What a scoring did: counts, alarms, incidents; told to people in lines and to machines as an object."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seqmlm.data.small_cells import told
from seqmlm.evaluation.incidents import Alarm, Incidents
from seqmlm.tasks.judging import JudgedRow


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What a scoring did.

    Args:
        records, rows, units: scored, those before a `--resume` included.
        bad: records left out.
        problems: bad records and oddities, by reason.
        seconds: of this process.
        rate: records a second of this process.
        unit: what the model's domain counts.
        level, mode, precision: of the rows.
        alarms, incidents: rows that alarmed, and groups of those that overlap; None where no rate was asked.
        stopped: the signal that ended it early, or None.
        quarantine: where bad records went, or None.
        notes: what happened on the way that a person should know.
    """

    records: int
    rows: int
    units: int
    bad: int
    problems: Mapping[str, Any]
    seconds: float
    rate: float
    unit: str
    level: str
    mode: str
    precision: str
    alarms: int | str | None = None
    incidents: int | str | None = None
    stopped: int | None = None
    quarantine: str | None = None
    run: str | None = None

    def sentence(self) -> str:
        """For stderr: a line for each reason, and one for the whole."""
        reasons = "".join(f"{count} x {reason}\n" for reason, count in self.problems.items())
        bad = f", {self.bad} bad records left out" if self.bad else ""
        if self.bad and self.quarantine is not None:
            bad += f" ({self.quarantine})"
        alarms = ""
        if self.alarms is not None:
            alarms = f", {self.alarms} alarms in {self.incidents} incidents"
        stopped = ", stopped early" if self.stopped is not None else ""
        return (
            f"{reasons}scored {self.records:,} records, {self.units:,} {self.unit}s in {self.seconds:.1f} s"
            f" ({_rate(self.rate)} records/s){alarms}{bad}{stopped}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


class Tally:
    """Counts rows as they are judged; goes on from what a cursor remembers.

    Args:
        counts: what `snapshot` gave when the last commit was made; empty at the beginning.
    """

    def __init__(self, counts: Mapping[str, Any]) -> None:
        self.rows = int(counts.get("rows", 0))
        self.units = int(counts.get("units", 0))
        self.alarms = int(counts.get("alarms", 0))
        self._over = int(counts.get("incidents_over", 0))
        self._incidents = Incidents()
        for one in counts.get("incidents_open", ()):
            self._incidents.add(Alarm(**one))
        self._began = time.monotonic()

    def add(self, judged: JudgedRow, *, first: bool) -> None:
        """Count a row; `first` where it is the first of its record, whose units are counted then."""
        self.rows += 1
        self.units += len(judged.scored) if first else 0
        if judged.alarm:
            self.alarms += 1
            self._over += len(self._incidents.add(_alarm(judged)))

    @property
    def seconds(self) -> float:
        """Since this process began to score."""
        return time.monotonic() - self._began

    def snapshot(self) -> dict[str, Any]:
        """What a cursor remembers; JSON can hold it."""
        open_ones = [
            Alarm(id=one.worst, place=one.place, start=one.start, end=one.end, p_value=one.p_value)
            for one in self._incidents.close()
        ]
        for one in open_ones:
            self._incidents.add(one)
        return {
            "rows": self.rows,
            "units": self.units,
            "alarms": self.alarms,
            "incidents_over": self._over,
            "incidents_open": [asdict(one) for one in open_ones],
        }

    def incidents(self) -> int:
        """Groups of alarms that overlap or touch, those still open included."""
        return self._over + len(self.snapshot()["incidents_open"])


def tellable_count(count: int, *, sensitive: bool) -> int | str:
    """A number of alarms as it may be shown: of sensitive data not from 1 to 10."""
    return told(count) if sensitive else count


def _alarm(judged: JudgedRow) -> Alarm:
    """Where an alarm lies: by lines where the record is made of lines, else by characters."""
    row, record = judged.row, judged.scored.record
    place = f"{record.source}\0{record.document or record.id}"
    lines = record.meta.get("lines")
    start, end = (lines[0], lines[-1]) if lines and row.id == record.id else (row.start, row.end)
    p_value = 1.0 if judged.p_value is None else judged.p_value
    return Alarm(id=row.id, place=place, start=float(start), end=float(end), p_value=p_value)


def _rate(rate: float) -> str:
    """Records a second; of slow ones, as with long records, more than "0"."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
