"""The statistics of a level: their meanings, which of them decide, and how they are combined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqmlm.anomaly.judge import Fusion


class Statistics(Mapping[str, str]):
    """Name of a statistic -> its meaning in a few words. The first statistic is the `score` of a row.

    A statistic that *decides* is used for p-values and alarms. `benchmarks/studies/level_statistics.py`
    selected the statistics that decide, and how they are combined.

    Args:
        meanings: name -> meaning.
        descriptive: names of the statistics that do not decide.
        counted: names of the statistics that decide and need no model, only the background.
        of_rows: names of the statistics of a row as a whole. An alarm by one of them names no unit.
        fusion: how the p-values of the statistics that decide are combined.
        shares: for statistics that are fractions, name -> text of an alarm, with "{}" for the percentage.
    """

    def __init__(
        self,
        meanings: Mapping[str, str],
        *,
        descriptive: tuple[str, ...] = (),
        counted: tuple[str, ...] = (),
        of_rows: tuple[str, ...] = (),
        fusion: Fusion = "fisher",
        shares: Mapping[str, str] | None = None,
    ) -> None:
        self._meanings = dict(meanings)
        self.descriptive, self.counted, self.of_rows = descriptive, counted, of_rows
        self.fusion, self.shares = fusion, shares or {}

    def __getitem__(self, name: str) -> str:
        return self._meanings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._meanings)

    def __len__(self) -> int:
        return len(self._meanings)

    @property
    def judging(self) -> tuple[str, ...]:
        """Names of the statistics that decide, i.e. are used for p-values and alarms."""
        return tuple(name for name in self if name not in self.descriptive)
