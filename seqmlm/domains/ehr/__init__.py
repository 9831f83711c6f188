"""The field of patient histories: it reads tables from hospitals or insurers, and its units are events.

A record is one subject, and its raw form is a `History` (`ehr.history`). Every layer attends to the whole
history. A visit is a set of events, and a window of neighbouring tokens would cut it at an arbitrary point.

In training, single codes, whole visits and whole families of codes are masked in turn. Chronic codes repeat,
so that a model could otherwise copy a masked code from the next visit.
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
    """The numbers of subjects, visits, events and codes. Counts below the privacy limit are withheld."""
    from seqmlm.domains.ehr.audit import audit

    figures = audit(records, problems)
    return {key: value for key, value in figures.items() if key != "problems"}


def _first_seen(record: Record) -> float | None:
    """The time of a subject's first event except birth, in seconds since 1970.

    It orders the subjects, so that a model is validated on the subjects that were first seen last.
    """
    events = record.raw.events
    return next((event.time for event in events if event.time is not None and not is_birth(event.code)), None)


def _pictures(level: Level) -> Sequence[Picture]:
    """The pictures of a report: rows over time, and each patient visit by visit."""
    from seqmlm.domains.ehr.picture import History
    from seqmlm.reports.pictures import Timeline

    return Timeline(), History()


def _shows(row: Mapping[str, Any], anomaly: Mapping[str, Any]) -> bool:
    """Whether a row has the visit of an anomaly. The row of an event must also have the code."""
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
    # Visits are first, because a clinician reviews visits. Each level is given the past, or the whole record.
    levels=LEVELS,
    pictures=_pictures,
    gaps=HistoryGaps(),
    times=HistoryTimes(),
    structure=chapter(__name__, "structure.CodesDecoder"),
    sample=BuiltInSample(write=chapter(__name__, "sample.write"), planted_in="subject", shows=_shows),
    sensitive=True,
)
