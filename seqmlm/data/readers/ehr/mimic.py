"""MIMIC-III's tables: diagnoses and procedures belong to stays, prescriptions have days of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seqmlm.data.problems import Problems
from seqmlm.data.readers.ehr import cells
from seqmlm.data.readers.ehr.relational import People, Table, read_tables
from seqmlm.data.readers.ehr.tables import scan, table_files
from seqmlm.data.record import Record

_PEOPLE = People(
    name="patients", subject=("subject_id",), birth=("dob",), death=("dod",), static={"SEX": ("gender",)}
)
_STAY = ("hadm_id",)


def _dotted(code: str) -> str:
    """An ICD-9 diagnosis with its point, which MIMIC leaves out."""
    at = 4 if code.startswith("E") else 3
    return code if "." in code or len(code) <= at else f"{code[:at]}.{code[at:]}"


def _dotted_procedure(code: str) -> str:
    return code if "." in code or len(code) <= 2 else f"{code[:2]}.{code[2:]}"


_TABLES = (
    Table(
        name="admissions",
        subject=("subject_id",),
        time=("admittime",),
        code=("admission_type",),
        vocabulary="ADMISSION",
        visit=_STAY,
        opens=True,
        kind=lambda _: "inpatient",
    ),
    Table(
        name="diagnoses_icd",
        subject=("subject_id",),
        code=("icd9_code",),
        vocabulary="ICD9",
        visit=_STAY,
        spell=_dotted,
    ),
    Table(
        name="procedures_icd",
        subject=("subject_id",),
        code=("icd9_code",),
        vocabulary="ICD9PROC",
        visit=_STAY,
        spell=_dotted_procedure,
    ),
    Table(
        name="prescriptions",
        subject=("subject_id",),
        time=("startdate",),
        code=("drug", "ndc"),
        vocabulary="DRUG",
        visit=_STAY,
    ),
)


def read_mimic3(path: str | Path, problems: Problems, *, until: str | None = None) -> Iterator[Record]:
    """Read a folder of MIMIC-III tables (.csv, also .gz and .zst), one record a patient.

    Codes are ADMISSION//<type>, ICD9// and ICD9PROC// (at discharge, when they were given), DRUG//<name>.
    Dates of this data set are shifted into the future on purpose; they are kept.

    Args:
        path: the folder.
        problems: receives rows without patient, code or time, and counts of what is odd.
        until: the last day of events; later ones are left out.
    """
    stays = table_files(Path(path)).get("admissions", ())
    columns = {"stay": _STAY, "out": ("dischtime",)}
    visits: dict[str, float] = {}
    for file in stays:
        for _, (stay, out) in scan(file, Problems("skip"), columns, list(columns)):
            at = cells.when(out)
            if at is not None:  # else its diagnoses have no time, and say so
                visits[cells.words(stay)] = at
    yield from read_tables(path, problems, _PEOPLE, _TABLES, until=until, visits=visits)


def is_mimic3(folder: Path) -> bool:
    """Whether a folder holds MIMIC-III's tables."""
    return folder.is_dir() and {"patients", "admissions"} <= table_files(folder).keys()
