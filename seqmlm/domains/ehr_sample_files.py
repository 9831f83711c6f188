"""The drawn patients as files: one folder in the Medical Event Data Standard, one in Synthea's tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqmlm.data.events import BIRTH, iso
from seqmlm.domains.base import Sample
from seqmlm.domains.ehr_graph import CONDITIONS, DRUGS, LABS
from seqmlm.domains.samples import write_truth

if TYPE_CHECKING:
    from seqmlm.domains.ehr_sample import Patient, Visit

MEDS, SYNTHEA = "meds", "synthea"

_MICRO = 1_000_000
_SHARDS = {"train": "train", "tuning": "tuning", "held_out": "held_out"}
_TABLES = {"conditions": "CONDITION//", "medications": "DRUG//"}
_NAMES = {
    **{f"CONDITION//{c.code}": c.name for c in CONDITIONS},
    **{f"DRUG//{d.code}": d.name for d in DRUGS},
    **{f"LAB//{lab.code}": lab.name for lab in LABS},
}


def write(out: Path, patients: Sequence[Patient], truth: dict[str, Any]) -> Sample:
    """Write both folders and `truth.json`; the MEDS folder is the sample's data."""
    _write_meds(out / MEDS, patients)
    _write_synthea(out / SYNTHEA, patients)
    return Sample(files=(out / MEDS,), truth=write_truth(out, truth))


def _write_meds(folder: Path, patients: Sequence[Patient]) -> None:
    import pyarrow as pa

    names = ("subject_id", "time", "code", "numeric_value", "visit_id")
    types = (pa.int64(), pa.timestamp("us"), pa.string(), pa.float32(), pa.string())
    schema = pa.schema(list(zip(names, types, strict=True)))
    for split, name in _SHARDS.items():
        rows = [row for patient in patients if patient.split == split for row in _events(patient)]
        if rows:
            _parquet(folder / "data" / name / "0.parquet", rows, schema)
    codes = pa.schema([("code", pa.string()), ("description", pa.string())])
    _parquet(folder / "metadata" / "codes.parquet", list(_NAMES.items()), codes)
    splits = pa.schema([("subject_id", pa.int64()), ("split", pa.string())])
    _parquet(folder / "metadata" / "subject_splits.parquet", [(p.subject, p.split) for p in patients], splits)
    about = {"dataset_name": "seqmlm sample", "meds_version": "0.4.0"}
    (folder / "metadata" / "dataset.json").write_text(
        json.dumps(about) + "\n", encoding="utf-8", newline="\n"
    )


def _events(patient: Patient) -> Iterator[tuple[int, int | None, str, float | None, str | None]]:
    """(subject, microseconds, code, value, visit): what has no time first, then in order of time."""
    subject = patient.subject
    yield subject, None, f"SEX//{patient.sex}", None, None
    yield subject, None, f"RACE//{patient.race}", None, None
    yield subject, patient.birth * _MICRO, BIRTH, None, None
    for visit in patient.visits:
        at = visit.time * _MICRO
        yield subject, at, f"VISIT//{visit.kind}", None, visit.id
        for code in _sorted(visit):
            yield subject, at, code, None, visit.id
        for code, value in visit.labs:
            yield subject, at, code, value, visit.id


def _sorted(visit: Visit) -> list[str]:
    """Conditions before drugs, as the tables hold them; a code once."""
    return [
        code for front in _TABLES.values() for code in dict.fromkeys(visit.codes) if code.startswith(front)
    ]


def _parquet(path: Path, rows: Sequence[tuple[Any, ...]], schema: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    # What could depend on the writer's defaults is said, so that a seed always gives the same bytes.
    pq.write_table(
        pa.table(arrays, schema=schema),
        path,
        compression="zstd",
        compression_level=3,
        row_group_size=65_536,
        version="2.6",
        data_page_version="1.0",
        store_schema=False,
    )


def _write_synthea(folder: Path, patients: Sequence[Patient]) -> None:
    visits = [(patient, visit) for patient in patients for visit in patient.visits]
    _csv(
        folder / "patients.csv",
        "Id,BIRTHDATE,DEATHDATE,RACE,GENDER",
        ((p.subject, iso(p.birth)[:10], "", p.race, p.sex) for p in patients),
    )
    _csv(
        folder / "encounters.csv",
        "Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE,DESCRIPTION",
        ((v.id, _zulu(v), "", p.subject, v.kind, "", "") for p, v in visits),
    )
    for name, front in _TABLES.items():
        _csv(
            folder / f"{name}.csv",
            "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION",
            (
                (_zulu(v), "", p.subject, v.id, code.removeprefix(front), _NAMES[code])
                for p, v in visits
                for code in dict.fromkeys(v.codes)
                if code.startswith(front)
            ),
        )
    _csv(
        folder / "observations.csv",
        "DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION,VALUE,UNITS,TYPE",
        (
            (_zulu(v), p.subject, v.id, code.removeprefix("LAB//"), _NAMES[code], value, "", "numeric")
            for p, v in visits
            for code, value in v.labs
        ),
    )


def _zulu(visit: Visit) -> str:
    return iso(visit.time) + "Z"


def _csv(path: Path, header: str, rows: Iterable[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as handle:
        handle.write(header + "\n")
        csv.writer(handle, lineterminator="\n").writerows(rows)
