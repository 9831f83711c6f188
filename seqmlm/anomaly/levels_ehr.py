"""Levels of patient histories: visit, event, patient; by default against what was known before the visit.

`visit`, `event` and `patient` see a visit with what came before it alone (`seqmlm.anomaly.ehr_past`): what a
reviewer could have known that day. `visit-whole` and so on see the whole record, the other codes of the visit
and all later ones included: what does not fit a life in hindsight, and what coding errors stand out by.

A visit's score is the largest surprisal of its codes in bits: one wrong code among ten hardly moves the mean.
That stands beside it, as do the largest that a code has by its frequency alone, which a history of few visits
says little beyond; and the codes too rare to be in the vocabulary, of which a model can say nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.ehr_codes import CodeCounts, codes
from seqmlm.anomaly.ehr_past import PastView, visits
from seqmlm.anomaly.levels import Level, part_row, record_row
from seqmlm.anomaly.values import Doubles, Longs, Row, Scored
from seqmlm.anomaly.view import WHOLE
from seqmlm.engine.reductions import TopIds, TopLogProbs, top
from seqmlm.errors import StateError
from seqmlm.tokenizers.events_layout import UNK

EXPECTED = 10
"""Alternatives of an event that missing codes are looked for among."""
MISSING = 0.5
"""Probability from which the absence of a code is told."""

_EPOCH = datetime(1970, 1, 1)


class PatientUnits:
    """The events of a scored history, and the visits they are in.

    Args:
        scored: the history; its raw form is a `seqmlm.data.events.History`.
    """

    def __init__(self, scored: Scored) -> None:
        self.scored = scored
        self.history: Any = scored.record.raw
        self._codes = [start for start, _ in self.history.code_spans()]
        encoding = scored.encoding
        strange = np.flatnonzero(encoding.ids == UNK)
        self.unknown = visits(encoding, strange)
        """(K,) 0-based visit of each code that the vocabulary does not have."""
        spans = encoding.spans
        assert spans is not None
        self.unknown_spans: Longs = spans[strange].astype(np.int64)
        self._of_visits = self._events(visits(encoding, np.arange(len(encoding))), spans)

    def _events(self, number: Longs, spans: Any) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for visit, (start, end) in zip(number.tolist(), spans.tolist(), strict=True):
            if end > start:
                event = self.history.events[bisect_right(self._codes, start) - 1]
                found.setdefault(visit, []).append(event)
        return found

    @cached_property
    def visits(self) -> Longs:
        """(U,) 0-based visit of each unit; -1 for the background."""
        return visits(self.scored.encoding, self.scored.position)

    @cached_property
    def times(self) -> list[float | None]:
        """Seconds since 1970 at which each visit begins, the background's None in front."""
        begun: list[float | None] = [None]
        for visit in range(max(self._of_visits, default=-1) + 1):
            times = [event.time for event in self._of_visits.get(visit, ()) if event.time is not None]
            begun.append(min(times, default=None))
        return begun

    def named(self, visit: int) -> dict[str, Any]:
        """What a row says of where it is: visit from 1 (0: background), its id in the source, its date."""
        named: dict[str, Any] = {"visit": visit + 1}
        ids = [event.visit for event in self._of_visits.get(visit, ()) if event.visit is not None]
        if ids:
            named["visit_id"] = ids[0]
        time = self.times[visit + 1]
        if time is not None:
            named["date"] = (_EPOCH + timedelta(seconds=time)).date().isoformat()
        return named

    def missing(self, units: Longs, names: Sequence[str]) -> list[dict[str, Any]]:
        """Codes that were likely at a visit and are not there, most likely first.

        Likely: 1 - prod(1 - p) over the visit's events is above `MISSING`; of each event only the `EXPECTED`
        most probable codes are known, so a code just above it may be passed over.
        """
        values = self.scored.values
        ids, log_probs = values.get(TopIds.name), values.get(TopLogProbs.name)
        if ids is None or log_probs is None or not len(units):
            return []
        own = ids[units]
        absent: dict[int, float] = {}
        for token, p in zip(own.ravel().tolist(), np.exp(log_probs[units]).ravel().tolist(), strict=True):
            absent[token] = absent.get(token, 1.0) * (1.0 - p)
        there = set(self.scored.encoding.ids[codes(self.scored)[units]].tolist()) | {-1}
        found = [(1.0 - q, token) for token, q in absent.items() if token not in there and 1.0 - q > MISSING]
        return [
            {"unit": names[token], "p": p} for p, token in sorted(found, key=lambda one: (-one[0], one[1]))
        ]


class PatientLevel(Level):
    """What the levels of histories share.

    Args:
        past: whether a visit is seen with what came before it alone; else the whole record is.
    """

    background: ClassVar[type[Background] | None] = CodeCounts
    pictures = ("timeline", "history")
    want = top(EXPECTED)
    kind: ClassVar[str]

    def __init__(self, *, past: bool = True) -> None:
        self.name = self.kind if past else f"{self.kind}-whole"
        self.view = PastView() if past else WHOLE

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        if not isinstance(background, CodeCounts):
            raise StateError(
                f"level {self.name!r} compares codes with how common they are, which this model does not "
                "know: run seqmlm calibrate on it"
            )
        return self.of(PatientUnits(scored), background)

    @abstractmethod
    def of(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        """The rows of a history."""


class VisitLevel(PatientLevel):
    """Visits: largest and mean surprisal of the codes, the largest by frequency alone, codes not known."""

    kind = "visit"
    channels = ("max", "mean", "rarity", "unknown")

    def of(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        scored, rows = patient.scored, []
        rarity = counts.surprisal(scored)
        unknown = patient.unknown
        for visit in np.unique(np.concatenate([patient.visits, unknown])).tolist():
            units = np.flatnonzero(patient.visits == visit)
            found = _statistics(scored.surprisal, rarity, units)
            statistics = {name: found[name] for name in ("max", "mean", "rarity")}
            statistics["unknown"] = float((unknown == visit).sum())
            made = _visit_row(patient, visit, units, statistics)
            extra = patient.named(visit) | {"missing": patient.missing(units, counts.names)}
            rows.append(replace(made, time=patient.times[visit + 1], extra=extra))
        return rows


class EventLevel(PatientLevel):
    """Events: the surprisal of each, and what it would be by the code's frequency alone."""

    kind = "event"
    channels = ("surprisal", "rarity")

    def of(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        scored, rows = patient.scored, []
        rarity = counts.surprisal(scored)
        for unit, visit in enumerate(patient.visits.tolist()):
            statistics = {"surprisal": float(scored.surprisal[unit]), "rarity": float(rarity[unit])}
            name = str(int(scored.number[unit]))
            made = part_row(scored, np.array([unit]), name, statistics, length=1)
            rows.append(replace(made, time=patient.times[visit + 1], extra=patient.named(visit)))
        return rows


class HistoryLevel(PatientLevel):
    """Patients: mean and largest surprisal of all events, the most unusual visit, rare and unknown codes."""

    kind = "patient"
    channels = ("mean", "max", "worst_visit", "rarity", "unknown")

    def of(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        scored = patient.scored
        statistics = _statistics(scored.surprisal, counts.surprisal(scored), np.arange(len(scored)))
        statistics |= {"unknown": float(len(patient.unknown)), "worst_visit": float("nan")}
        extra: dict[str, Any] = {}
        if len(scored):
            numbers, place = np.unique(patient.visits, return_inverse=True)
            means = np.bincount(place, weights=scored.surprisal) / np.bincount(place)
            statistics["worst_visit"] = float(means.max())
            worst = patient.named(int(numbers[np.argmax(means)]))
            extra = {f"worst_{name}": value for name, value in worst.items()}
        first = next((time for time in patient.times if time is not None), None)
        return [replace(record_row(scored, statistics), time=first, extra=extra)]


def _visit_row(patient: PatientUnits, visit: int, units: Longs, statistics: dict[str, float]) -> Row:
    """The row of a visit, which may consist of unknown codes alone."""
    if len(units):
        return part_row(patient.scored, units, str(visit + 1), statistics)
    record = patient.scored.record
    spans = patient.unknown_spans[patient.unknown == visit]
    return Row(
        id=f"{record.id}#{visit + 1}",
        source=record.source,
        line=record.line,
        start=int(spans[:, 0].min()),
        end=int(spans[:, 1].max()),
        units=units,
        length=0,
        statistics=statistics,
        score=None,
    )


def _statistics(bits: Doubles, rarity: Doubles, units: Longs) -> dict[str, float]:
    if not len(units):
        return dict.fromkeys(("mean", "max", "rarity"), float("nan"))
    return {
        "mean": float(bits[units].mean()),
        "max": float(bits[units].max()),
        "rarity": float(rarity[units].max()),
    }


LEVELS: tuple[Level, ...] = tuple(
    kind(past=past) for past in (True, False) for kind in (VisitLevel, EventLevel, HistoryLevel)
)
