"""The levels of patient histories: how unusual visits, events and patients are.

By default, a visit is scored given the past. The levels `visit`, `event` and `patient` use only what a
reviewer could have known on that day. The model sees the background and the earlier visits, or the most
recent of them if all are too long. It also sees the time of the visit itself, its class and its number of
codes. All codes are [MASK], so the model gives p(code | history). If codes were masked one by one, they would
be nearly certain, because a diagnosis comes with its drugs. A visit takes one forward pass, so the scoring
mode does not matter.

The levels `visit-whole`, `event-whole` and `patient-whole` use the whole record. They find codes that do not
fit in hindsight, such as coding errors.

The score of a visit is the largest surprisal of its codes, because one wrong code among ten hardly changes
the mean. The mean is a second statistic. The third is pairs of codes that rarely occur in the same patient,
such as a code of women and a code of men. The fourth is the number of codes outside the vocabulary, for which
the model has no surprisal.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from seqmlm.anomaly.judge import HARMONIC
from seqmlm.anomaly.levels import (
    SURPRISAL,
    UNKNOWN,
    WHOLE,
    Background,
    Level,
    View,
    named_row,
    part_row,
    record_row,
)
from seqmlm.anomaly.reasons import Reasons
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import Bools, Doubles, Longs, Row, ScoredRecord
from seqmlm.data.counts import SMALLEST
from seqmlm.domains.ehr.history import iso
from seqmlm.domains.ehr.layout import CLS, SEP, UNK, visit_starts
from seqmlm.engine.query import Query
from seqmlm.engine.reductions import TopIds, TopLogProbs, top
from seqmlm.engine.types import Encoding, Sequences
from seqmlm.engine.units import EXACT, Mode, Units
from seqmlm.errors import StateError
from seqmlm.tokenizers.base import Tokenizer


class CodeCounts(Background):
    """The numbers of training patients who have a code or a pair of codes.

    Args:
        pairs: the counts.
        names: (V,) the codes as written in the data.
        clinical: (V,) whether a code is a clinical event, which can be reported as missing. Codes that only
            open visits or are background are not.
    """

    def __init__(self, pairs: CodePairs, names: Sequence[str], clinical: Sequence[bool]) -> None:
        self.pairs, self.names, self.clinical = pairs, names, clinical

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        counts = np.zeros(tokenizer.space.size, dtype=np.int64)
        patients: list[NDArray[Any]] = []
        for index in range(len(train)):
            encoding = train[index]
            tokens = encoding.ids[encoding.groups >= 0]
            counts += np.bincount(tokens, minlength=len(counts))
            if len(patients) < _PATIENTS_MET:
                patients.append(np.unique(tokens))
        return cls._of(CodePairs.of(patients, counts), tokenizer)

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        return cls._of(CodePairs(**{name: arrays[name] for name in CodePairs._fields}), tokenizer)

    @classmethod
    def _of(cls, pairs: CodePairs, tokenizer: Tokenizer) -> Self:
        """The background with these counts. The names of codes come from the tokenizer."""
        names = [tokenizer.spelling.surface(token) for token in range(tokenizer.space.size)]
        clinical = [tokenizer.spelling.unit_text(token) is not None for token in range(tokenizer.space.size)]
        return cls(pairs, names, clinical)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.pairs._asdict()


_MOST_CODES, _PATIENTS_MET = 1_000, 20_000


class CodePairs(NamedTuple):
    """The numbers of patients who have each of the most frequent codes, and each pair of these codes.

    A pair that fewer than 11 patients have is counted as 5, so that no number describes single people. A pair
    is therefore rarer than by chance only if more than 5 patients would be expected to have both codes.

    Attributes:
        known: (K,) the tokens of the codes, ascending.
        alone: (K,) the patients with each code.
        together: (K, K) the patients with both codes.
        patients: (1,) the number of all patients.
    """

    known: Longs
    alone: NDArray[np.int32]
    together: NDArray[np.int32]
    patients: Longs

    @classmethod
    def of(cls, patients: Sequence[NDArray[Any]], counts: Longs) -> CodePairs:
        """Count the codes of patients.

        Args:
            patients: the distinct tokens of each patient.
            counts: (V,) the frequency of each token. The most frequent tokens become `known`.
        """
        frequent = np.sort(np.argsort(-counts, kind="stable")[: min(_MOST_CODES, int((counts > 0).sum()))])
        has = np.zeros(len(counts), dtype=np.bool_)
        has[frequent] = True
        places = [np.searchsorted(frequent, tokens[has[tokens]]) for tokens in patients]
        rows = csr_array(
            (
                np.ones(sum(map(len, places)), dtype=np.float64),
                np.concatenate([*places, np.zeros(0, dtype=np.int64)]).astype(np.int64),
                np.cumsum([0, *map(len, places)]),
            ),
            shape=(len(places), len(frequent)),
        )
        together = np.asarray((rows.T @ rows).todense()).astype(np.int32)
        np.maximum(together, SMALLEST // 2, out=together, where=together < SMALLEST)
        return cls(frequent, np.diagonal(together).copy(), together, np.array([len(places)]))

    def bits(self, tokens: Longs) -> Doubles:
        """(N, N) how much rarer each pair of (N,) codes is than by chance: minus the PMI (pointwise mutual
        information), in bits.

        The value is 0 for a code with itself, and for codes that are not in `known`.
        """
        place = np.minimum(np.searchsorted(self.known, tokens), max(len(self.known) - 1, 0))
        if not len(self.known):
            return np.zeros((len(tokens), len(tokens)))
        patients = self.alone[place].astype(np.float64)
        log2_ratios = np.log2(
            np.outer(patients, patients) / float(self.patients[0]) / self.together[np.ix_(place, place)]
        )
        unknown = self.known[place] != tokens
        log2_ratios[unknown, :] = log2_ratios[:, unknown] = 0.0
        log2_ratios[tokens[:, None] == tokens[None, :]] = 0.0
        return np.asarray(log2_ratios, dtype=np.float64)


def code_places(scored: ScoredRecord) -> Longs:
    """(U,) the index of the token that is the code of each event."""
    groups = scored.encoding.groups
    places = np.flatnonzero(groups >= 0)
    return places[np.searchsorted(groups[places], scored.number)]


# What was known before a visit

Places = NDArray[np.intp]


class PastUnits(Units):
    """The unit rule that masks all events of the last visit of a window together."""

    def questions(
        self, encoding: Encoding, owned: Bools | None = None, mode: Mode = EXACT
    ) -> Iterator[Query]:
        starts = visit_starts(encoding.ids)
        hidden = (encoding.groups >= 0) & ~self.space.is_special[encoding.ids]
        hidden[: int(starts[-1]) if len(starts) else 0] = False
        masked = np.flatnonzero(hidden)
        places = masked if owned is None else masked[owned[masked]]
        if len(places):
            yield Query(encoding=encoding, masked=masked.astype(np.int32), asked=places.astype(np.int32))


class PastView(View):
    """The view in which each visit has its own window, which ends with the visit."""

    def units(self, tokenizer: Tokenizer) -> Units:
        return PastUnits(tokenizer.space)

    def windows(
        self, encoding: Encoding, tokenizer: Tokenizer, max_length: int, selected: Bools | None = None
    ) -> list[tuple[Encoding, Bools]]:
        is_asked = (encoding.groups >= 0) & ~tokenizer.space.is_special[encoding.ids]
        if selected is not None:
            is_asked &= selected
        windows = []
        for places, visit_places in _windows(encoding, is_asked, max_length):
            is_owned = is_asked[places] & np.isin(places, visit_places)
            if is_owned.any():
                windows.append(
                    (replace(encoding.take(places), positions=_joined_positions(encoding, places)), is_owned)
                )
        return windows


def _windows(encoding: Encoding, is_asked: Bools, max_length: int) -> Iterator[tuple[Places, Places]]:
    """The indexes of the window's tokens and of the scored tokens, for each visit or part of a long visit."""
    ids = encoding.ids
    starts = visit_starts(ids)
    stop = len(ids) - int(len(ids) > 0 and ids[-1] == SEP)
    head = np.arange(int(starts[0]) if len(starts) else stop)
    end = np.arange(stop, len(ids))
    if len(head) and is_asked[head].any():
        for part in _parts(encoding, head, max(max_length - len(end) - 1, 1)):
            first = head[:1] if ids[0] == CLS and part[0] else head[:0]
            yield np.concatenate([first, part, end]), part
    front = head[: max_length // 2]
    bounds = [*starts.tolist(), stop]
    for begin, close in pairwise(bounds):
        visit = np.arange(begin, close)
        if not is_asked[visit].any():
            continue
        room = max_length - len(front) - len(end)
        for part in _parts(encoding, visit, room):
            earlier = starts[(starts <= begin) & (starts >= begin - (room - len(part)))]
            past = np.arange(int(earlier[0]) if len(earlier) else begin, begin)
            yield np.concatenate([front, past, part, end]), part


def _parts(encoding: Encoding, segment: Places, room: int) -> list[Places]:
    """The indexes of a visit's tokens, in parts if the visit is longer than `room`.

    Each part has the tokens around the codes ([VS], class, [VE]) and some of the codes.
    """
    if len(segment) <= room:
        return [segment]
    groups = encoding.groups[segment]
    frame = segment[(groups < 0) & (encoding.ids[segment] != UNK)]
    codes = segment[groups >= 0]
    size = max((room - len(frame)) // 2, 1)  # the other half is for earlier visits
    parts = (codes[begin : begin + size] for begin in range(0, len(codes), size))
    return [np.sort(np.concatenate([frame, part])) for part in parts]


def _joined_positions(encoding: Encoding, places: Places) -> Any:
    """The positions of the tokens at `places`.

    They are shifted so that the first visit of the window has the position of the first visit of the history.
    """
    if encoding.positions is None:
        return None
    positions = encoding.positions[places].astype(np.int64)
    starts = visit_starts(encoding.ids)
    if len(starts) and (places >= starts[0]).any():
        inside = places >= starts[0]
        first = int(np.flatnonzero(inside)[0])
        positions[inside] -= int(positions[first]) - int(encoding.positions[starts[0]])
        if encoding.ids[places[-1]] == SEP:
            tail = int(encoding.positions[-1]) - int(encoding.positions[-2])
            positions[-1] = positions[-2] + tail
    return positions.astype(encoding.positions.dtype)


def visit_numbers(encoding: Encoding, positions: Longs) -> Longs:
    """(N,) the 0-based number of the visit of each token index; -1 for the background."""
    return np.searchsorted(visit_starts(encoding.ids), positions, side="right").astype(np.int64) - 1


# Rows

EXPECTED = 10
"""Most probable codes per event among which missing codes are searched."""
MISSING = 0.5
"""Probability above which the absence of a code is reported."""

_NAMED = 5  # maximum number of unknown codes that are named

_MEAN = {"mean": "mean surprisal of the codes"}
_MAX = {"max": "largest surprisal of a code"}
_PAIR = {"pair": "codes that rarely occur in the same patient"}
_UNKNOWN = {UNKNOWN: "codes outside the vocabulary"}


class PatientUnits:
    """The events of a scored `History`, by visit."""

    def __init__(self, scored: ScoredRecord) -> None:
        self.scored = scored
        self.history: Any = scored.record.raw
        self._codes = [start for start, _ in self.history.code_spans()]
        encoding = scored.encoding
        strange = np.flatnonzero(encoding.ids == UNK)
        self.unknown = visit_numbers(encoding, strange)
        """(K,) the 0-based visit of each code outside the vocabulary."""
        spans = encoding.spans
        assert spans is not None
        self.unknown_spans: Longs = spans[strange].astype(np.int64)
        self._of_visits = self._events(visit_numbers(encoding, np.arange(len(encoding))), spans)

    def _events(self, number: Longs, spans: Any) -> dict[int, list[Any]]:
        """The events of each visit, by the 0-based number of the visit."""
        by_visit: dict[int, list[Any]] = {}
        for visit, (start, end) in zip(number.tolist(), spans.tolist(), strict=True):
            if end > start:
                event = self.history.events[bisect_right(self._codes, start) - 1]
                by_visit.setdefault(visit, []).append(event)
        return by_visit

    @cached_property
    def visits(self) -> Longs:
        """(U,) the 0-based visit of each unit; -1 for the background."""
        return visit_numbers(self.scored.encoding, self.scored.position)

    @cached_property
    def times(self) -> list[float | None]:
        """The start of each visit in seconds since 1970. The first item is None, for the background."""
        begun: list[float | None] = [None]
        for visit in range(max(self._of_visits, default=-1) + 1):
            times = [event.time for event in self._of_visits.get(visit, ()) if event.time is not None]
            begun.append(min(times, default=None))
        return begun

    def rarest_pairs(self, counts: CodeCounts) -> tuple[Doubles, Longs]:
        """The rarest pair of each event's code with a code of the same or an earlier visit.

        Returns:
            (U,) minus the PMI of the pair, in bits; (U,) the token of the other code.
        """
        if not len(self.visits):
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        tokens, place = np.unique(self.scored.encoding.ids[code_places(self.scored)], return_inverse=True)
        bits = counts.pairs.bits(tokens.astype(np.int64))
        first = np.full(len(tokens), np.iinfo(np.int64).max)
        np.minimum.at(first, place, self.visits)
        rarer = np.where(first[None, :] <= self.visits[:, None], bits[place], 0.0)
        partner = rarer.argmax(axis=1)
        return rarer[np.arange(len(place)), partner], tokens[partner].astype(np.int64)

    def rare_pair(self, units: Longs, pair: tuple[Doubles, Longs], counts: CodeCounts) -> dict[str, Any]:
        """The rarest pair of codes among the given units, as fields of a row; empty if no pair is rare."""
        bits, partners = (column[units] for column in pair)
        if not len(units) or bits.max() <= 0.0:
            return {}
        worst = int(bits.argmax())
        token = int(self.scored.encoding.ids[code_places(self.scored)[units[worst]]])
        return {"pair": [counts.names[token], counts.names[int(partners[worst])]]}

    def unknown_codes(self, visit: int | None = None) -> dict[str, Any]:
        """The first few unknown codes of one visit or of all visits, as fields of a row."""
        spans = self.unknown_spans if visit is None else self.unknown_spans[self.unknown == visit]
        text = str(self.history)
        texts = list(dict.fromkeys(text[start:end] for start, end in spans.tolist()))
        return {"unknown": texts[:_NAMED]} if texts else {}

    def visit_facts(self, visit: int) -> dict[str, Any]:
        """The position of a row, as fields: its visit counted from 1 (0: background), the id of the visit in
        the source, and its date."""
        facts: dict[str, Any] = {"visit": visit + 1}
        ids = [event.visit for event in self._of_visits.get(visit, ()) if event.visit is not None]
        if ids:
            facts["visit_id"] = ids[0]
        time = self.times[visit + 1]
        if time is not None:
            facts["date"] = iso(time)[:10]
        return facts

    def missing(self, units: Longs, counts: CodeCounts) -> list[dict[str, Any]]:
        """The codes that were likely at a visit but are missing, the most likely code first.

        A code is likely if 1 - prod(1 - p), over the events of the visit, is above `MISSING`. Only the
        `EXPECTED` most probable codes of each event are known, so a code slightly above the limit can be
        missed.
        """
        values = self.scored.values
        ids, log_probs = values.get(TopIds.name), values.get(TopLogProbs.name)
        if ids is None or log_probs is None or not len(units):
            return []
        candidates = ids[units]
        absent: dict[int, float] = {}
        for token, p in zip(
            candidates.ravel().tolist(), np.exp(log_probs[units]).ravel().tolist(), strict=True
        ):
            absent[token] = absent.get(token, 1.0) * (1.0 - p)
        present = set(self.scored.encoding.ids[code_places(self.scored)[units]].tolist()) | {-1}
        likely = [
            (1.0 - q, token)
            for token, q in absent.items()
            if token not in present and counts.clinical[token] and 1.0 - q > MISSING
        ]
        ordered = sorted(likely, key=lambda pair: (-pair[0], pair[1]))
        return [{"unit": counts.names[token], "p": p} for p, token in ordered]


_OF_ROWS = ("pair", UNKNOWN)


class PatientLevel(Level):
    """Base class of the levels of histories.

    Args:
        past: whether a visit is scored only given the past. Otherwise, the whole record is used.
    """

    background: ClassVar[type[Background] | None] = CodeCounts
    want = top(EXPECTED)
    kind: ClassVar[str]

    def __init__(self, *, past: bool = True) -> None:
        self.name = self.kind if past else f"{self.kind}-whole"
        self.view = PastView() if past else WHOLE

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        if not isinstance(background, CodeCounts):
            raise StateError(
                f"level {self.name!r} needs code frequencies, which this model does not have: run "
                "seqmlm calibrate on it"
            )
        return self.patient_rows(PatientUnits(scored), background)

    @property
    def reasons(self) -> Reasons:
        return PatientReasons(self.name, self.statistics)

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        """Whether each row has more unknown codes than known codes."""
        return [row.statistics.get(UNKNOWN, 0.0) > len(row.units) for row in rows]

    @abstractmethod
    def patient_rows(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        """The rows of a patient's history."""


class PatientReasons(Reasons):
    """The reasons for alarms in histories. They name the rare pair of codes and the unknown codes."""

    def meaning(self, name: str, row: Row, usual: float | None = None) -> str:
        text = super().meaning(name, row, usual)
        if name not in _OF_ROWS or name not in row.extra:
            return text
        if name == "pair":
            return "{!r} and {!r}, which rarely occur in the same patient".format(*row.extra[name])
        return f"{text}: {', '.join(map(repr, row.extra[name]))}"


class VisitLevel(PatientLevel):
    """One row per visit. Its statistics are the largest and mean surprisal of its codes, its rarest pair of
    codes, and its number of unknown codes."""

    kind = "visit"
    statistics: ClassVar[Statistics] = Statistics({**_MAX, **_MEAN, **_PAIR, **_UNKNOWN}, of_rows=_OF_ROWS)

    def patient_rows(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        bits, pair, unknown = patient.scored.surprisal, patient.rarest_pairs(counts), patient.unknown
        rows = []
        for visit in np.unique(np.concatenate([patient.visits, unknown])).tolist():
            units = np.flatnonzero(patient.visits == visit)
            statistics = {
                "max": _largest(bits[units]),
                "mean": float(bits[units].mean()) if len(units) else math.nan,
                "pair": _largest(pair[0][units]),
                "unknown": float((unknown == visit).sum()),
            }
            row = _visit_row(patient, visit, units, statistics)
            extra = patient.visit_facts(visit) | {"missing": patient.missing(units, counts)}
            extra |= patient.rare_pair(units, pair, counts) | patient.unknown_codes(visit)
            rows.append(replace(row, time=patient.times[visit + 1], extra=extra))
        return rows


class EventLevel(PatientLevel):
    """One row per event, with its surprisal and the rarest pair of its code with another code."""

    kind = "event"
    statistics: ClassVar[Statistics] = Statistics({**SURPRISAL, **_PAIR}, of_rows=_OF_ROWS)

    def patient_rows(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        scored, rows = patient.scored, []
        pair = patient.rarest_pairs(counts)
        for unit, visit in enumerate(patient.visits.tolist()):
            statistics = {"surprisal": float(scored.surprisal[unit]), "pair": float(pair[0][unit])}
            name = str(int(scored.number[unit]))
            row = part_row(scored, np.array([unit]), name, statistics, length=1)
            extra = patient.visit_facts(visit) | patient.rare_pair(np.array([unit]), pair, counts)
            rows.append(replace(row, time=patient.times[visit + 1], extra=extra))
        return rows


class HistoryLevel(PatientLevel):
    """One row per patient.

    Its statistics are the largest surprisal of an event, the mean of the most unusual visit, and the number
    of unknown codes. The mean over all events is only reported, because one wrong code hardly changes it.
    """

    kind = "patient"
    statistics: ClassVar[Statistics] = Statistics(
        {**_MEAN, **_MAX, "worst_visit": "the most unusual visit", **_UNKNOWN},
        descriptive=("mean",),
        of_rows=_OF_ROWS,
        fusion=HARMONIC,
    )

    @property
    def counts_people(self) -> bool:
        """True, because a row is a patient."""
        return True

    def patient_rows(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        bits = patient.scored.surprisal
        extra: dict[str, Any] = {}
        statistics = dict.fromkeys(("mean", "max", "worst_visit"), math.nan)
        if len(bits):
            numbers, place = np.unique(patient.visits, return_inverse=True)
            means = np.bincount(place, weights=bits) / np.bincount(place)
            statistics = {"mean": float(bits.mean()), "max": _largest(bits), "worst_visit": _largest(means)}
            worst = patient.visit_facts(int(numbers[np.argmax(means)]))
            extra = {f"worst_{name}": value for name, value in worst.items()}
        statistics["unknown"] = float(len(patient.unknown))
        extra |= patient.unknown_codes()
        first = next((time for time in patient.times if time is not None), None)
        return [replace(record_row(patient.scored, statistics), time=first, extra=extra)]


def _largest(values: Doubles) -> float:
    """The largest value, or NaN if there are no values."""
    return float(values.max()) if len(values) else math.nan


def _visit_row(patient: PatientUnits, visit: int, units: Longs, statistics: dict[str, float]) -> Row:
    """The row of a visit. A visit can have only unknown codes, and then no units."""
    if len(units):
        return part_row(patient.scored, units, str(visit + 1), statistics)
    spans = patient.unknown_spans[patient.unknown == visit]
    return named_row(patient.scored.record, str(visit + 1), spans, units, statistics)


LEVELS: tuple[Level, ...] = tuple(
    kind(past=past) for past in (True, False) for kind in (VisitLevel, EventLevel, HistoryLevel)
)
