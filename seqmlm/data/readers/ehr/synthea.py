"""Synthea's CSV export: a folder of tables, of any version (column names differ in capitals and order)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from seqmlm.data.problems import Problems
from seqmlm.data.readers.ehr.relational import People, Table, read_tables
from seqmlm.data.readers.ehr.tables import header, table_files
from seqmlm.data.record import Record

_PEOPLE = People(
    name="patients",
    subject=("id",),
    birth=("birthdate",),
    death=("deathdate",),
    static={"SEX": ("gender",), "RACE": ("race",), "ETHNICITY": ("ethnicity",)},
)


def _coded(name: str, vocabulary: str) -> Table:
    return Table(
        name=name,
        subject=("patient",),
        time=("start", "date"),
        code=("code",),
        vocabulary=vocabulary,
        visit=("encounter",),
    )


_VISITS = Table(
    name="encounters",
    subject=("patient",),
    time=("start", "date"),
    code=("encounterclass", "code"),
    vocabulary="VISIT",
    visit=("id",),
    opens=True,
    further=(("code",), "ENCOUNTER"),
)
_MEASURED = Table(
    name="observations",
    subject=("patient",),
    time=("date",),
    code=("code",),
    vocabulary="LAB",
    visit=("encounter",),
    value=("value",),
)
_CODED = {
    "conditions": "CONDITION",
    "medications": "DRUG",
    "procedures": "PROCEDURE",
    "immunizations": "IMMUNIZATION",
    "allergies": "ALLERGY",
}
_TABLES = (_VISITS, *(_coded(name, vocabulary) for name, vocabulary in _CODED.items()), _MEASURED)

# Table -> what stands in front of its codes.
VOCABULARIES = {**_CODED, "observations": "LAB", "encounters": "ENCOUNTER"}


def read_synthea(path: str | Path, problems: Problems, *, until: str | None = None) -> Iterator[Record]:
    """Read a folder of Synthea tables (.csv, also .gz and .zst), one record a patient.

    Codes are CONDITION//, PROCEDURE//, ALLERGY// (SNOMED CT), DRUG// (RxNorm), IMMUNIZATION// (CVX), LAB//
    (LOINC, with value) and VISIT//<class>. Names, addresses and numbers of persons are never read.

    Args:
        path: the folder.
        problems: receives rows without patient, code or time, and counts of what is odd.
        until: the last day of events; later ones are left out.
    """
    yield from read_tables(path, problems, _PEOPLE, _TABLES, until=until)


def is_synthea(folder: Path) -> bool:
    """Whether a folder holds Synthea's tables: patients, with an id and a date of birth."""
    people = table_files(folder).get("patients") if folder.is_dir() else None
    names = {name.lower() for name in header(people[0])} if people else set()
    return {"id", "birthdate"} <= names
