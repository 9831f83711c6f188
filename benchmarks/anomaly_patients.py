"""Rows of `alarms.py` for wrong codes in the histories of patients: which visit has a wrong code?

One code of a held-out patient is replaced with another code of the same vocabulary that the patient never
had. It is drawn with its frequency in the training data. Visits are judged in two ways: with only the visits
before them (`visit`), and in the whole record (`visit-whole`). The baseline of each is counting with the same
view of the history. One half of the patients selects the best baseline. The other half is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from anomaly_field_data import patients
from anomaly_fields import RECORDS
from anomaly_metrics import gain, ranking
from anomaly_models import trained
from numpy.typing import NDArray
from planted_ehr import CodeFrequencies, WrongCode, wrong_code

from seqmlm.anomaly.values import Row
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.levels import CodeCounts, code_places
from seqmlm.inference.detector import Detector
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session

Doubles = NDArray[np.float64]

LEVELS = ("visit", "visit-whole")
MODEL = ("mean", "max")
FLOORS = ("rarity", "company max", "company mean")
EVENTS = 70  # of a history that is judged
TIMES = 3  # that a history gets a wrong code


def patient_rows(
    data: Path, out: Path, seed: int, minutes: float, records: int | None = None
) -> list[dict[str, Any]]:
    """Rows of both levels on one half of the patients; the other half selects the baseline."""
    model, train, _, planted = planted_patients(data, out, seed, minutes)
    planted = planted[: records or RECORDS]
    encoded = RecordScorer(Session(model)).encoded(train, Problems("skip"))
    counts = CodeCounts.fit([one.encoding for one in encoded], model.tokenizer, seed=0)
    company = Company([_codes(record) for record in train])
    tokens = np.bincount(np.concatenate([one.encoding.ids for one in encoded]), minlength=len(counts.names))
    return [row for level in LEVELS for row in _compared(level, model, counts, tokens, company, planted)]


def planted_patients(
    data: Path, out: Path, seed: int, minutes: float
) -> tuple[LoadedModel, list[Record], list[Record], list[tuple[int, WrongCode]]]:
    """A model, its training patients, others, and (number, history with a wrong code) of the others."""
    folders = patients(data, out)
    model = trained(out, "ehr", "ehr", [folders[0]], {}, seed, minutes)
    train, held = (list(model.domain.read([str(folder)], Problems("skip"))) for folder in folders)
    return model, train, held, list(_planted(train, held, seed))


class Company:
    """How unexpected a code is among others, from counts of two codes in one history.

    Args:
        histories: the codes of each training history.
    """

    def __init__(self, histories: Sequence[Sequence[str]]) -> None:
        self._histories = len(histories)
        self._having: Counter[str] = Counter()
        self._together: Counter[tuple[str, str]] = Counter()
        for history in histories:
            own = set(history)
            self._having.update(own)
            self._together.update((a, b) for a in own for b in own if a != b)

    def bits(self, code: str, others: Sequence[str]) -> float:
        """-log2 of the mean probability of the code given each other code; without others, of its share."""
        known = [other for other in others if other != code]
        if not known:
            return float(-np.log2((self._having[code] + 0.5) / (self._histories + 1)))
        shares = [(self._together[other, code] + 0.5) / (self._having[other] + 1) for other in known]
        return float(-np.log2(np.mean(shares)))


def _planted(train: Sequence[Record], held: Sequence[Record], seed: int) -> Iterator[tuple[int, WrongCode]]:
    """(patient, history with a wrong code): every patient once before any of them again."""
    random = np.random.default_rng(seed)
    frequencies = CodeFrequencies(record.raw for record in train)
    short = [(i, record.raw) for i, record in enumerate(held) if len(record.raw.events) <= EVENTS]
    for _ in range(TIMES):
        for number, history in short:
            wrong = wrong_code(history, frequencies, random)
            if wrong is not None:
                yield number, wrong


def _codes(record: Record) -> list[str]:
    return [event.code for event in record.raw.events]


def _compared(
    level: str,
    model: LoadedModel,
    counts: CodeCounts,
    tokens: NDArray[np.int64],
    company: Company,
    planted: Sequence[tuple[int, WrongCode]],
) -> list[dict[str, Any]]:
    detector = Detector(
        RecordScorer(Session(model, tokens_per_batch=8192)), model.domain.level(level), background=counts
    )
    records = [
        Record(id=str(i), raw=wrong.history, source="planted", line=i + 1)
        for i, (_, wrong) in enumerate(planted)
    ]
    found = detector.unit_scores(detector.scorer.encoded(records, Problems("skip")))
    patient, labels, values = [], [], []
    for scored, rows in zip(found, detector.rows(found), strict=True):
        number, wrong = planted[int(scored.record.id)]
        for row in rows:
            floors = _floors(row, wrong, company, past=level == "visit")
            if floors is not None and len(row.units):
                at = wrong.history.code_spans()[wrong.event][0]
                patient.append(number)
                labels.append(row.start <= at < row.end)
                ids = scored.encoding.ids[code_places(scored)[row.units]]
                rarity = -np.log2((tokens[ids].min() + 1) / (tokens.sum() + len(tokens)))
                values.append([*(row.statistics[name] for name in MODEL), rarity, *floors])
    return _halves(level, np.array(patient), np.array(labels), np.array(values))


def _floors(row: Row, wrong: WrongCode, company: Company, *, past: bool) -> list[float] | None:
    """Bits of the codes of a visit among the codes before it or among all codes; None if it has no codes."""
    events, spans = wrong.history.events, wrong.history.code_spans()
    own = [
        event
        for event, (start, end) in zip(events, spans, strict=True)
        if event.time is not None and row.start <= start and end <= row.end
    ]
    if not own:
        return None
    begun = min(event.time for event in own if event.time is not None)
    before = [event for event in events if event.time is not None and event.time < begun]
    around = [event.code for event in (before if past else events)]
    bits = [company.bits(event.code, around) for event in own]
    return [max(bits), float(np.mean(bits))]


def _halves(
    level: str, patient: NDArray[np.int64], labels: NDArray[np.bool_], values: Doubles
) -> list[dict[str, Any]]:
    """Rows of the reported half, with the baseline that is best on the other half."""
    names = (*MODEL, *FLOORS)
    choosing = patient % 2 == 0
    areas = [
        {name: ranking(labels[w], values[w, i])["auroc"] for i, name in enumerate(names)}
        for w in (choosing, ~choosing)
    ]
    floor = max(FLOORS, key=lambda name: areas[0][name])
    return [
        {
            "set": f"ehr: wrong code, {level}, {name}",
            "floor": floor,
            "chosen_by": areas[0][name],
            "auroc": areas[1][name],
            "unigram": areas[1]["rarity"],
            "floor_auroc": areas[1][floor],
            **gain(
                labels[~choosing],
                values[~choosing, names.index(name)],
                values[~choosing, names.index(floor)],
                patient[~choosing],
            ),
        }
        for name in MODEL
    ]
