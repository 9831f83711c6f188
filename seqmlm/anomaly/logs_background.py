"""What normal logs look like to counting, as a level keeps it with the model; what it says of one record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.logs_channels import counted
from seqmlm.anomaly.logs_counts import LogCounts
from seqmlm.anomaly.logs_fit import counts_of
from seqmlm.anomaly.logs_lines import Doubles, Longs, lines_of
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.tokenizers.base import Tokenizer

RECORDS = 200_000
"""Most training records that are counted, spread evenly over all of them."""

_REMEMBERED = 1 << 14
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """What counting says of one record of n lines.

    Args:
        statistics: the channels of `logs_channels.COUNTED`.
        events: (n,) event of each line, as `LogCounts` numbers them.
        follows: (n + 1,) surprisal in bits of each line after the one before it, and of the end.
        missing: what nearly all training records have and this one lacks, the least expected first, and the
            share of training records that have it.
        unlike: what it has more (or, negative, fewer) of than the most similar training record.
    """

    statistics: Mapping[str, float]
    events: Longs
    follows: Doubles
    missing: tuple[tuple[str, float], ...]
    unlike: tuple[tuple[str, int], ...]


class LogBackground(Background):
    """Counts of the training records; remembers what it has said of equal ones.

    Args:
        counts: of the training records.
        tokenizer: names the events.
    """

    def __init__(self, counts: LogCounts, tokenizer: Tokenizer) -> None:
        self.counts, self.tokenizer = counts, tokenizer
        self._known: dict[bytes, Counted] = {}

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Count the training split, or `RECORDS` of it; nothing is drawn, so `seed` does not matter.

        Raises:
            DataError: no record has a line.
        """
        number = min(RECORDS, len(train))
        chosen = np.linspace(0, len(train) - 1, number).astype(np.int64).tolist() if number else []
        return cls(counts_of((train[index] for index in chosen), tokenizer), tokenizer)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.counts.arrays()

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls(LogCounts.of(arrays), tokenizer)

    def counted(self, encoding: Encoding) -> Counted:
        """What counting says of a window or session."""
        key = encoding.ids.tobytes()
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[key] = self._counted(encoding)
        return found

    def _counted(self, encoding: Encoding) -> Counted:
        lines = lines_of([encoding], self.tokenizer)
        counts = self.counts
        events = counts.events(lines.keys)
        statistics = {name: float(value[0]) for name, value in counted(lines, counts).items()}
        absence, usual = counts.absence(lines, events)[0], counts.usual()
        lacking = np.argsort(-absence, kind="stable")[: np.count_nonzero(absence)]
        own = dict(zip(*(one.tolist() for one in np.unique(events, return_counts=True)), strict=True))
        unlike = counts.difference(own, int(counts.nearest(lines, events)[1][0]))
        furthest = sorted(unlike.items(), key=lambda one: -abs(one[1]))
        return Counted(
            statistics=statistics,
            events=events,
            follows=counts.bigrams(lines, events)[0],
            missing=tuple(
                (self.named(event), counts.records[event] / counts.total)
                for event in usual[lacking[:_NAMED]].tolist()
            ),
            unlike=tuple((self.named(event), more) for event, more in furthest[:_NAMED]),
        )

    def named(self, event: int) -> str:
        """The template or event id; a line of a log without templates has no name but a number."""
        if event >= self.counts.size:
            return "a line never seen"
        key = int(self.counts.keys[event])
        return self.tokenizer.surface(key) if self.tokenizer.unit == "line" else f"line {key:016x}"
