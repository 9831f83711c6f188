"""The month whole, with the time it began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from seqmlm.anomaly.levels import Background, RecordLevel
from seqmlm.anomaly.values import Row, ScoredRecord


class MonthLevel(RecordLevel):
    """A month by its bits a day."""

    def __init__(self) -> None:
        super().__init__("month")

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        began = datetime.strptime(scored.record.meta["month"], "%Y-%m").replace(tzinfo=UTC)
        return [
            replace(row, time=began.timestamp(), extra={**row.extra, "time": began.isoformat()})
            for row in super().rows(scored, background)
        ]
