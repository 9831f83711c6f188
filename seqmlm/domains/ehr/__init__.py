"""The domain of patient histories: tables of a hospital or insurer in, events as units.

A record is a subject, a `History` (`ehr.history`) its raw form. Every layer attends to the
whole history, for a visit is a set: "64 tokens to each side" would cut it somewhere. Codes, whole visits and
whole families of codes are masked in turns, since chronic codes repeat and could be copied from the next
visit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seqmlm.anomaly.levels import Level
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.gaps import Histories, HistoryGaps, HistoryTimes
from seqmlm.domains.ehr.history import is_birth
from seqmlm.domains.ehr.levels import LEVELS
from seqmlm.domains.ehr.readers import exports, fhir, flat, meds
from seqmlm.domains.field import BuiltInSample, Defaults, Field, Keys, chapter
from seqmlm.domains.files import Format, Reading, dataset_format
from seqmlm.engine.masking.base import MaskingConfig

if TYPE_CHECKING:
    from seqmlm.reports.pictures import Picture


def _audit(records: Iterator[Record], problems: Problems) -> dict[str, Any]:
    """Subjects, visits, events and codes, with no count of few people."""
    from seqmlm.domains.ehr.audit import audit

    figures = audit(records, problems)
    return {key: value for key, value in figures.items() if key != "problems"}


def _first_seen(record: Record) -> float | None:
    """Time of a subject's first event in seconds: the subjects seen last validate a model of the others."""
    events = record.raw.events
    return next((event.time for event in events if event.time is not None and not is_birth(event.code)), None)


def _pictures(level: Level) -> Sequence[Picture]:
    """Rows over time, and each patient visit by visit."""
    from seqmlm.domains.ehr.picture import History
    from seqmlm.reports.pictures import Timeline

    return Timeline(), History()


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a row shows an anomaly: its visit is the anomaly's, and of an event's row also its code."""
    if row.get("visit_id") != anomaly["visit"]:
        return False
    return "missing" in row or anomaly["code"] in [unit["unit"] for unit in row["top"]]


EHR = Field(
    name="ehr",
    title="Patient histories: MEDS, Synthea, OMOP, FHIR, event tables",
    unit="event",
    formats={
        "meds": Format(read=meds.read_meds, folder=meds.is_meds),
        "synthea": Format(read=exports.read_synthea, folder=exports.is_synthea),
        "omop": Format(read=exports.read_omop, folder=exports.is_omop),
        "mimic3": Format(read=exports.read_mimic3, folder=exports.is_mimic3),
        "fhir": Format(read=fhir.read_fhir, suffixes=(".ndjson", ".jsonl", ".json"), folder=fhir.is_fhir),
        "events": Format(read=flat.read_long, suffixes=(".csv", ".tsv", ".parquet")),
        "wide": Format(read=flat.read_wide),
    },
    reading=Reading(dataset=dataset_format(flat.read_long), audit=_audit),
    defaults=Defaults(
        tokenizer="events.v1",
        masking=MaskingConfig(masker="visit.v1", rate=0.15, mask=0.8, random=0.1, keep=0.1),
        size="small",
        max_length=512,
        model={"layers": "everywhere.v1"},
    ),
    text=Histories(),
    keys=Keys(split=lambda record: str(record.raw.subject), order=_first_seen),
    levels=LEVELS,  # visit (what a clinician reviews), event, patient; as known then, or in hindsight
    pictures=_pictures,
    gaps=HistoryGaps(),
    times=HistoryTimes(),
    structure=chapter(__name__, "structure.CodesDecoder"),
    sample=BuiltInSample(write=chapter(__name__, "sample.write"), planted_in="subject", shows=_shows),
    sensitive=True,
)
