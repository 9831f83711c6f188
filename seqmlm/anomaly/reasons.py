"""Why a row raised an alarm: words for its statistics, and for the incidents that alarms become."""

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
    """Words about the rows of a level.

    Args:
        level: name of the level.
        statistics: of its rows.
    """

    level: str
    statistics: Statistics

    def noun(self, record: Record) -> str:
        """The noun for a row of a record in a sentence: a row of `visit-whole` is a visit."""
        return self.level.removesuffix("-whole")

    def naming_statistics(self, row: Row) -> Collection[str]:
        """The statistics that name an event in a row: a reason prefers them, if they are as rare as asked, to
        those that sum up many units."""
        return ()

    def pause_statistics(self, seconds: float) -> dict[str, float]:
        """The statistic of a pause of so many seconds, by name; nothing of levels that know no times."""
        return {}

    def meaning(self, name: str, row: Row, usual: float | None = None) -> str:
        """The meaning of a statistic in a row, in a few words.

        Args:
            name: of the statistic.
            row: that has it.
            usual: the value that one in a hundred normal rows exceeds, where it is known.
        """
        value = row.statistics.get(name, math.nan)
        shares = self.statistics.shares
        if name not in shares or math.isnan(value):
            return self.statistics[name]
        return shares[name].format(f"{100 * value:.3g} %")

    def alarm_facts(
        self, row: Row, scored: ScoredRecord, background: Any, fired: str | None
    ) -> dict[str, Any]:
        """Facts of an alarm by which alarms are put together.

        Args:
            row, scored: the row that alarmed, and its record.
            background: the `Background` that `Level.rows` took, or None.
            fired: name of the statistic that says most; None where none does.

        Returns:
            `what` is wrong, in some words that are equal where the same is wrong. Where it is known also:
            `unit`, the index of the unit that says most, and its `template`, which is it without its values;
            `scale` of a pause that says most, "seconds" to "days";
            `times` of the first and last unit, in seconds; `lines` of the file, and their `last_line`;
            `new_lines`, how many of them training never had, and `never_seen`, what is new in them, or else
            `new_kinds`, their templates.
        """
        return {"what": f"an unusual {self.noun(scored.record)}" if fired is None else self.statistics[fired]}
