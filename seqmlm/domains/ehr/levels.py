"""How unusual visits, events and patients are: by default against what was known before the visit.

`visit`, `event` and `patient` see a visit with what came before it alone: what a reviewer could have known
that day. The model sees the background, the visits before (the most recent ones, where all are too long),
when the visit was and of which class, and how many codes it has, all of them [MASK]: what it says of them
is p(code | history). Asked one by one beside the others of the visit they would be nearly certain, for a
diagnosis comes with its drugs. It takes one pass a visit, so the modes of scoring make no difference.
`visit-whole` and so on see the whole record: what does not fit in hindsight, and what coding errors stand
out by.

A visit's score is the largest surprisal of its codes: one wrong code among ten hardly moves the mean.
Beside it stand the mean, the largest that a code has by its frequency alone, which a history of few visits
says little beyond, two codes that patients rarely have both (a woman's and a man's), and the codes too rare
to be in the vocabulary, of which a model can say nothing.
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
    """In how many patients of the training split codes occur, and meet; (V,) the codes as the data has them,
    and whether each is named as missing: what frames visits is not.
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
        """The background of counted codes, whose names the tokenizer has."""
        names = [tokenizer.spelling.surface(token) for token in range(tokenizer.space.size)]
        clinical = [tokenizer.spelling.unit_text(token) is not None for token in range(tokenizer.space.size)]
        return cls(pairs, names, clinical)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return self.pairs._asdict()


_MOST_CODES, _PATIENTS_MET = 1_000, 20_000


class CodePairs(NamedTuple):
    """In how many patients the most frequent codes occur, and in how many two of them meet.

    What fewer than 11 patients have is counted as 5, so that no number tells of single people; codes are then
    known to avoid each other only where more patients would be expected to have both.

    known, alone: (K,) tokens, ascending, and patients. together: (K, K) patients. patients: (1,) of all.
    """

    known: Longs
    alone: NDArray[np.int32]
    together: NDArray[np.int32]
    patients: Longs

    @classmethod
    def of(cls, patients: Sequence[NDArray[Any]], counts: Longs) -> CodePairs:
        """Count the codes (each once) of patients; the most frequent by (V,) `counts` are `known`."""
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
        """(N, N) how much rarer each two of (N,) codes meet than they would by chance: -PMI, in bits; 0 for a
        code and itself, and for codes that are not known."""
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
    """(U,) the place of the token that is each event's code."""
    groups = scored.encoding.groups
    places = np.flatnonzero(groups >= 0)
    return places[np.searchsorted(groups[places], scored.number)]


# What was known before a visit

Places = NDArray[np.intp]


class PastUnits(Units):
    """Events of the last visit of a window, hidden together."""

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
    """Each visit in a window of its own, at its end."""

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
    """(places of a window's tokens; those it asks about) for each visit, long ones in parts."""
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
    """The places of a visit, or of parts of one that is longer than `room`: its frame and some of its
    codes."""
    if len(segment) <= room:
        return [segment]
    groups = encoding.groups[segment]
    frame = segment[(groups < 0) & (encoding.ids[segment] != UNK)]
    codes = segment[groups >= 0]
    size = max((room - len(frame)) // 2, 1)  # the other half is for what came before
    parts = (codes[begin : begin + size] for begin in range(0, len(codes), size))
    return [np.sort(np.concatenate([frame, part])) for part in parts]


def _joined_positions(encoding: Encoding, places: Places) -> Any:
    """Positions of the tokens at `places`: their first visit stands where the first visit of all stood."""
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
    """(N,) 0-based number of the visit each token place is in; -1 for the background."""
    return np.searchsorted(visit_starts(encoding.ids), positions, side="right").astype(np.int64) - 1


# Rows

EXPECTED = 10
"""Alternatives of an event that missing codes are looked for among."""
MISSING = 0.5
"""Probability from which the absence of a code is told."""

_NAMED = 5  # codes that the vocabulary does not have

_MEAN = {"mean": "mean surprisal of the codes"}
_MAX = {"max": "largest surprisal of a code"}
_PAIR = {"pair": "codes of which patients with one rarely have the other"}
_UNKNOWN = {UNKNOWN: "codes that the vocabulary does not have"}


class PatientUnits:
    """The events of a scored `History`, and the visits they are in."""

    def __init__(self, scored: ScoredRecord) -> None:
        self.scored = scored
        self.history: Any = scored.record.raw
        self._codes = [start for start, _ in self.history.code_spans()]
        encoding = scored.encoding
        strange = np.flatnonzero(encoding.ids == UNK)
        self.unknown = visit_numbers(encoding, strange)
        """(K,) 0-based visit of each code that the vocabulary does not have."""
        spans = encoding.spans
        assert spans is not None
        self.unknown_spans: Longs = spans[strange].astype(np.int64)
        self._of_visits = self._events(visit_numbers(encoding, np.arange(len(encoding))), spans)

    def _events(self, number: Longs, spans: Any) -> dict[int, list[Any]]:
        """The events of each visit, by its 0-based number."""
        by_visit: dict[int, list[Any]] = {}
        for visit, (start, end) in zip(number.tolist(), spans.tolist(), strict=True):
            if end > start:
                event = self.history.events[bisect_right(self._codes, start) - 1]
                by_visit.setdefault(visit, []).append(event)
        return by_visit

    @cached_property
    def visits(self) -> Longs:
        """(U,) 0-based visit of each unit; -1 for the background."""
        return visit_numbers(self.scored.encoding, self.scored.position)

    @cached_property
    def times(self) -> list[float | None]:
        """Seconds since 1970 at which each visit begins, the background's None in front."""
        begun: list[float | None] = [None]
        for visit in range(max(self._of_visits, default=-1) + 1):
            times = [event.time for event in self._of_visits.get(visit, ()) if event.time is not None]
            begun.append(min(times, default=None))
        return begun

    def rarest_pairs(self, counts: CodeCounts) -> tuple[Doubles, Longs]:
        """(U,) the largest -PMI in bits of each event's code with a code known at its visit, and (U,) that
        code's token."""
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
        """The two codes that patients most rarely have both, among the pairs of some units, as fields of a
        row; empty where no pair is rare."""
        bits, partners = (column[units] for column in pair)
        if not len(units) or bits.max() <= 0.0:
            return {}
        worst = int(bits.argmax())
        token = int(self.scored.encoding.ids[code_places(self.scored)[units[worst]]])
        return {"pair": [counts.names[token], counts.names[int(partners[worst])]]}

    def unknown_codes(self, visit: int | None = None) -> dict[str, Any]:
        """The first few codes of one visit or of all that the vocabulary lacks, as fields of a row."""
        spans = self.unknown_spans if visit is None else self.unknown_spans[self.unknown == visit]
        text = str(self.history)
        texts = list(dict.fromkeys(text[start:end] for start, end in spans.tolist()))
        return {"unknown": texts[:_NAMED]} if texts else {}

    def visit_facts(self, visit: int) -> dict[str, Any]:
        """The place of a row, as its fields: visit from 1 (0: background), its id in the source, its date."""
        facts: dict[str, Any] = {"visit": visit + 1}
        ids = [event.visit for event in self._of_visits.get(visit, ()) if event.visit is not None]
        if ids:
            facts["visit_id"] = ids[0]
        time = self.times[visit + 1]
        if time is not None:
            facts["date"] = iso(time)[:10]
        return facts

    def missing(self, units: Longs, counts: CodeCounts) -> list[dict[str, Any]]:
        """Codes that were likely at a visit and are not there, most likely first.

        Likely: 1 - prod(1 - p) over the visit's events is above `MISSING`; of each event only the `EXPECTED`
        most probable codes are known, so a code just above it may be passed over.
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
    """A level of histories.

    Args:
        past: whether a visit is seen with what came before it alone; else the whole record is.
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
                f"level {self.name!r} compares codes with how common they are, which this model does not "
                "know: run seqmlm calibrate on it"
            )
        return self.patient_rows(PatientUnits(scored), background)

    @property
    def reasons(self) -> Reasons:
        return PatientReasons(self.name, self.statistics)

    def unfamiliar(
        self, scored: ScoredRecord, background: Background | None, rows: Sequence[Row]
    ) -> Sequence[bool]:
        """Whether a row has more codes that the vocabulary lacks than others."""
        return [row.statistics.get(UNKNOWN, 0.0) > len(row.units) for row in rows]

    @abstractmethod
    def patient_rows(self, patient: PatientUnits, counts: CodeCounts) -> list[Row]:
        """The rows of a patient's history."""


class PatientReasons(Reasons):
    """Words about histories: a pair of codes and unknown codes are named."""

    def meaning(self, name: str, row: Row, usual: float | None = None) -> str:
        text = super().meaning(name, row, usual)
        if name not in _OF_ROWS or name not in row.extra:
            return text
        if name == "pair":
            return "{!r} and {!r}, which patients rarely have both".format(*row.extra[name])
        return f"{text}: {', '.join(map(repr, row.extra[name]))}"


class VisitLevel(PatientLevel):
    """Visits: largest and mean surprisal of the codes, codes that rarely meet, codes not known."""

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
    """Events: the surprisal of each, and whether its code avoids another."""

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
    """Patients: the mean surprisal of all events, the largest and that of the most unusual visit, unknown
    codes. The mean is only told: one wrong code of many does not move it."""

    kind = "patient"
    statistics: ClassVar[Statistics] = Statistics(
        {**_MEAN, **_MAX, "worst_visit": "the most unusual visit", **_UNKNOWN},
        descriptive=("mean",),
        of_rows=_OF_ROWS,
        fusion=HARMONIC,
    )

    @property
    def counts_people(self) -> bool:
        """Yes: a row is a patient."""
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
    """The largest value; NaN where there is none."""
    return float(values.max()) if len(values) else math.nan


def _visit_row(patient: PatientUnits, visit: int, units: Longs, statistics: dict[str, float]) -> Row:
    """The row of a visit, which may consist of unknown codes alone."""
    if len(units):
        return part_row(patient.scored, units, str(visit + 1), statistics)
    spans = patient.unknown_spans[patient.unknown == visit]
    return named_row(patient.scored.record, str(visit + 1), spans, units, statistics)


LEVELS: tuple[Level, ...] = tuple(
    kind(past=past) for past in (True, False) for kind in (VisitLevel, EventLevel, HistoryLevel)
)
