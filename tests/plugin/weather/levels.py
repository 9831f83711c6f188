"""The month whole, with the time it began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from seqmlm.anomaly.levels import Background, RecordLevel
from seqmlm.anomaly.values import Row, Scored


class MonthLevel(RecordLevel):
    """A month by its bits a day."""

    def __init__(self) -> None:
        super().__init__("month")

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        began = datetime.strptime(scored.record.meta["month"], "%Y-%m").replace(tzinfo=UTC).timestamp()
        return [replace(row, time=began) for row in super().rows(scored, background)]
