"""The statistics that rows of a level have: their meanings, which of them judge, and how they are fused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seqmlm.anomaly.judge import Fusion


class Statistics(Mapping[str, str]):
    """Name of a statistic -> its meaning in a few words; the first one is the `score` of a row.

    Which statistics judge, and how they are fused, was chosen by `benchmarks/studies/level_statistics.py`.

    Args:
        meanings: name -> meaning.
        descriptive: names of the statistics that do not judge.
        counted: names of the statistics that judge and need no model, but the background alone.
        of_rows: names of the statistics of a row as a whole: an alarm by one of them names no unit.
        fusion: how the p-values of the statistics that judge become one.
        shares: name -> how an alarm says what a share is of that the statistic measures, with "{}" for the
            percentage.
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
        """Names of the statistics that judge."""
        return tuple(name for name in self if name not in self.descriptive)
