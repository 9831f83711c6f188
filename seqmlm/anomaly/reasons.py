"""Texts that explain an alarm, and facts by which alarms are grouped into incidents."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Row, ScoredRecord
from seqmlm.data.record import Record


@dataclass(frozen=True, eq=False)
class Reasons:
    """Texts about the rows of a level.

    Args:
        level: the name of the level.
        statistics: the statistics of its rows.
    """

    level: str
    statistics: Statistics

    def noun(self, record: Record) -> str:
        """The noun for a row in a sentence: a row of `visit-whole` is a visit."""
        return self.level.removesuffix("-whole")

    def naming_statistics(self, row: Row) -> Collection[str]:
        """The statistics that name an event in a row.

        If the p-value of such a statistic is within the requested rate, the reason of an alarm prefers it to
        statistics that summarize many units.
        """
        return ()

    def pause_statistics(self, seconds: float) -> dict[str, float]:
        """Name -> value of the statistic of a pause of `seconds`; empty for levels without times."""
        return {}

    def meaning(self, name: str, row: Row, usual: float | None = None) -> str:
        """The meaning of a statistic in a row, in a few words.

        Args:
            name: the name of the statistic.
            row: the row.
            usual: the 99th percentile of the statistic among normal rows, if it is known.
        """
        value = row.statistics.get(name, math.nan)
        shares = self.statistics.shares
        if name not in shares or math.isnan(value):
            return self.statistics[name]
        return shares[name].format(f"{100 * value:.3g} %")

    def alarm_facts(
        self, row: Row, scored: ScoredRecord, background: Any, fired: str | None
    ) -> dict[str, Any]:
        """Facts about an alarm, by which alarms are grouped.

        Args:
            row, scored: the row with the alarm, and its record.
            background: the `Background` passed to `Level.rows`, or None.
            fired: the statistic that explains the alarm best, or None.

        Returns:
            Always `what`: a short text about the fault. Equal faults have equal texts.
            If known, `unit`: the index of the unit that explains the alarm best. Its `template` is the unit
            without its values.
            For a pause, its `scale`: "seconds" to "days".
            If known, `times`: the times of the first and last unit, in seconds.
            For logs, `lines` and `last_line`: the lines of the file.
            For lines that are not in the training data, `new_lines`: their number. Their new content is in
            `never_seen`, or their templates are in `new_kinds`.
        """
        return {"what": f"an unusual {self.noun(scored.record)}" if fired is None else self.statistics[fired]}
