"""Read exports of whole systems, which are folders of tables: Synthea, MIMIC-III and the OMOP common data
model.

Each export is described by a list of tables (`relational.EventTable`) and functions that spell its codes. One
loop reads all exports. Columns are found by name without regard to case, because their case and order differ
between versions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.history import DEATH
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.relational import EventTable, People, read_tables
from seqmlm.domains.ehr.readers.tables import header, scan, table_files

_SYNTHEA_PEOPLE = People(
    name="patients",
    patient=("id",),
    birth=("birthdate",),
    death=("deathdate",),
    static={"SEX": ("gender",), "RACE": ("race",), "ETHNICITY": ("ethnicity",)},
)
_CODED = EventTable(
    name="",
    patient=("patient",),
    time=("start", "date"),
    code=("code",),
    prefix="",
    visit=("encounter",),
    description=("description",),
)
_SYNTHEA_TABLES = (
    replace(
        _CODED,
        name="encounters",
        code=("encounterclass", "code"),
        prefix="VISIT",
        visit=("id",),
        opens=lambda word, _: cells.kind_of(word),
        extra_code=("code",),
        extra_prefix="ENCOUNTER",
    ),
    replace(_CODED, name="conditions", prefix="CONDITION"),
    replace(_CODED, name="medications", prefix="DRUG"),
    replace(_CODED, name="procedures", prefix="PROCEDURE"),
    replace(_CODED, name="immunizations", prefix="IMMUNIZATION"),
    replace(_CODED, name="allergies", prefix="ALLERGY"),
    replace(
        _CODED,
        name="observations",
        time=("date",),
        prefix="LAB",
        value=("value",),
        worded=True,
        unit=("units", "unit"),
    ),
)


def read_synthea(
    path: str | Path, problems: Problems, *, date_format: str | None = None, until: str | None = None
) -> Iterator[Record]:
    """Read a folder of Synthea tables (.csv, also .gz and .zst). Each patient is one record.

    Codes are CONDITION//, PROCEDURE//, ALLERGY// (SNOMED CT), DRUG// (RxNorm), IMMUNIZATION// (CVX), LAB//
    (LOINC, with value), VISIT//<class> and ENCOUNTER// (type of the encounter). Names, addresses and
    identification numbers of persons are never read.

    Args:
        path: the folder.
        problems: receives rows without patient, code or time, and counts unusual events.
        date_format: format of dates, such as %m/%d/%Y. None reads ISO 8601, or infers the order of day and
            month from the first rows of each table.
        until: the last day. Later events are left out.
    """
    yield from read_tables(
        path, problems, _SYNTHEA_PEOPLE, _SYNTHEA_TABLES, until=until, date_format=date_format
    )


def is_synthea(folder: Path) -> bool:
    """Whether a folder has Synthea tables: `patients`, with the columns `id` and `birthdate`."""
    people = table_files(folder).get("patients") if folder.is_dir() else None
    names = {name.lower() for name in header(people[0])} if people else set()
    return {"id", "birthdate"} <= names


# MIMIC-III: diagnoses and procedures have the time of their stay, and prescriptions have their own dates

_MIMIC_PEOPLE = People(
    name="patients", patient=("subject_id",), birth=("dob",), death=("dod",), static={"SEX": ("gender",)}
)
_STAY = ("hadm_id",)


def _with_point(code: str) -> str:
    """An ICD-9 diagnosis code with its point, which MIMIC leaves out."""
    at = 4 if code.startswith("E") else 3
    return code if "." in code or len(code) <= at else f"{code[:at]}.{code[at:]}"


def _procedure_with_point(code: str) -> str:
    """An ICD-9 procedure code with its point, which MIMIC leaves out."""
    return code if "." in code or len(code) <= 2 else f"{code[:2]}.{code[2:]}"


_ADMITTED = EventTable(
    name="admissions",
    patient=("subject_id",),
    time=("admittime",),
    code=("admission_type",),
    prefix="ADMISSION",
    visit=_STAY,
    opens=lambda word, _: "inpatient",
)
_ICD = EventTable(
    name="diagnoses_icd",
    patient=("subject_id",),
    code=("icd9_code",),
    prefix="ICD9",
    visit=_STAY,
    spell=_with_point,
)
_ICD_PROCEDURES = replace(_ICD, name="procedures_icd", prefix="ICD9PROC", spell=_procedure_with_point)
_PRESCRIBED = EventTable(
    name="prescriptions",
    patient=("subject_id",),
    time=("startdate",),
    code=("drug", "ndc"),
    prefix="DRUG",
    visit=_STAY,
)


def read_mimic3(
    path: str | Path, problems: Problems, *, date_format: str | None = None, until: str | None = None
) -> Iterator[Record]:
    """Read a folder of MIMIC-III tables (.csv, also .gz and .zst). Each patient is one record.

    Codes are ADMISSION//<type>, ICD9//, ICD9PROC// and DRUG//<name>. ICD-9 codes have the time of discharge,
    because they are assigned at discharge. Their descriptions come from the tables D_ICD_DIAGNOSES and
    D_ICD_PROCEDURES, if the folder has them. This data set shifts dates into the future on purpose. The
    shifted dates are kept.

    Args:
        path: the folder.
        problems: receives rows without patient, code or time, and counts unusual events.
        date_format: format of dates, such as %m/%d/%Y. None reads ISO 8601, or infers the order of day and
            month from the first rows of each table.
        until: the last day. Later events are left out.
    """
    files = table_files(Path(path))
    stays = files.get("admissions", ())
    columns = {"stay": _STAY, "out": ("dischtime",)}
    visits: dict[str, float] = {}
    for file in stays:
        rows = scan(file, Problems("skip"), columns, list(columns))
        rows, reader = cells.dated_rows(rows, Problems("skip"), str(file), {1: "dischtime"}, date_format)
        for _, (stay, out) in rows:
            seconds = reader(out)
            if seconds is not None:  # otherwise each of its diagnoses is reported as a row without time
                visits[cells.words(stay)] = seconds
    tables = [_ADMITTED, *(_with_titles(table, files) for table in (_ICD, _ICD_PROCEDURES)), _PRESCRIBED]
    yield from read_tables(
        path, problems, _MIMIC_PEOPLE, tables, until=until, date_format=date_format, visits=visits
    )


def _with_titles(table: EventTable, files: Mapping[str, Sequence[Path]]) -> EventTable:
    """The description of a table, with the titles of its codes from the matching table `d_icd_...`."""
    columns = {"code": ("icd9_code", "icd_code"), "title": ("long_title", "short_title")}
    titles: dict[str, str] = {}
    for file in files.get(f"d_icd_{table.name.removesuffix('_icd')}", ()):
        for _, (code, title) in scan(file, Problems("skip"), columns, list(columns)):
            titles[cells.words(code)] = cells.words(title)
    return replace(table, means=titles.get)


def is_mimic3(folder: Path) -> bool:
    """Whether a folder has MIMIC-III tables: `patients` and `admissions`."""
    return folder.is_dir() and {"patients", "admissions"} <= table_files(folder).keys()


# OMOP: concept ids become codes of their vocabularies, if the table `concept` is available

_PERSON, _VISIT = ("person_id",), ("visit_occurrence_id",)
_SEX = {"8507": "M", "8532": "F"}
_KINDS = {
    "inpatient": "9201 262 8717 8920 32037 42898160",
    "outpatient": "9202 5083 581476 581477 8756 8940 32693 38004193",
    "emergency": "9203 8870",
}
_KIND_OF = {concept: kind for kind, concepts in _KINDS.items() for concept in concepts.split()}
_DIGITS = 18  # maximum digits of a concept id, so that it fits in 64 bits


def read_omop(
    path: str | Path, problems: Problems, *, date_format: str | None = None, until: str | None = None
) -> Iterator[Record]:
    """Read a folder of OMOP tables (.csv, also .gz and .zst, or .parquet). Each person is one record.

    If the folder has the table `concept`, codes have its vocabulary and code ("SNOMED//44054006"). Otherwise,
    they have the kind of the table and the concept id ("CONDITION//201826"). If the concept id is 0, the
    source value is used.

    Args:
        path: the folder with the tables person, visit_occurrence, condition_occurrence, procedure_occurrence,
            drug_exposure, measurement, observation, death and concept. Each is a file or a folder of parts.
        problems: receives rows without person or time, and counts unusual events.
        date_format: format of dates, such as %m/%d/%Y. None reads ISO 8601, or infers the order of day and
            month from the first rows of each table.
        until: the last day. Later events are left out.
    """
    with closing(Concepts(table_files(Path(path)).get("concept", []), problems)) as concepts:
        people, tables = _people(concepts), _tables(concepts)
        yield from read_tables(path, problems, people, tables, until=until, date_format=date_format)


def is_omop(folder: Path) -> bool:
    """Whether a folder has OMOP tables: `person`, and at least one table of events."""
    names = table_files(folder).keys() if folder.is_dir() else set()
    return "person" in names and any(table.name in names for table in _tables(None))


class Concepts:
    """The codes and names of OMOP concepts, by concept id.

    They are in a temporary SQLite file, because there can be ten million concepts.

    Args:
        files: the files of the table `concept`. Without files, concept ids stay numbers.
        problems: receives rows of the table that cannot be used.
    """

    def __init__(self, files: list[Path], problems: Problems) -> None:
        self._file = sqlite3.connect("", check_same_thread=False)
        self._file.execute("CREATE TABLE concepts (id INTEGER PRIMARY KEY, code, name)")
        for file in files:  # if a concept occurs twice, the first row counts
            self._file.executemany(
                "INSERT OR IGNORE INTO concepts VALUES (?, ?, ?)", _concepts(file, problems)
            )

    def close(self) -> None:
        self._file.close()

    def code(self, concept: str) -> str | None:
        """The code of a concept ("SNOMED//44054006"), or its id if it is unknown; None for concept 0."""
        return self._find(concept, "code") or (None if concept in ("", "0") else concept)

    def name(self, concept: str) -> str | None:
        """The name of a concept ("Positive"), or its id if it is unknown; None for concept 0."""
        return self.known_name(concept) or (None if concept in ("", "0") else concept)

    def known_name(self, concept: str) -> str | None:
        """The name of a concept ("Positive"), or None if it is unknown."""
        return self._find(concept, "name")

    def _find(self, concept: str, column: str) -> str | None:
        """The value of a column, "code" or "name", for a concept; None if it is unknown."""
        if not concept.isdecimal() or len(concept) > _DIGITS or concept == "0":
            return None
        cursor = self._file.execute(f"SELECT {column} FROM concepts WHERE id = ?", (int(concept),))
        row: tuple[str] | None = cursor.fetchone()
        return None if row is None else row[0]


def _concepts(file: Path, problems: Problems) -> Iterator[tuple[int, str, str]]:
    """The id, code and name of each concept in the table `concept`."""
    names = ("concept_id", "vocabulary_id", "concept_code", "concept_name")
    columns = {name: (name,) for name in names}
    for line, (concept, vocabulary, code, name) in scan(file, problems, columns, names[:3]):
        number = cells.words(concept)
        if not number.isdecimal() or len(number) > _DIGITS or not cells.words(code):
            problems.bad(cells.fault("code", str(file), line, "concept_id"))
        else:
            yield int(number), f"{cells.words(vocabulary)}//{cells.words(code)}", cells.words(name)


def _people(concepts: Concepts) -> People:
    """The description of the table `person`."""
    return People(
        name="person",
        patient=_PERSON,
        birth=("birth_datetime",),
        birth_parts=(("year_of_birth",), ("month_of_birth",), ("day_of_birth",)),
        static={
            "SEX": ("gender_concept_id",),
            "RACE": ("race_concept_id",),
            "ETHNICITY": ("ethnicity_concept_id",),
        },
        spell=lambda concept: _SEX.get(concept) or concepts.name(concept),
    )


def _table(concepts: Concepts | None, name: str, stem: str, time: str, prefix: str) -> EventTable:
    """The description of a table of events.

    Args:
        concepts: the concepts, or None to leave concept ids unchanged.
        name: the name of the table.
        stem: first part of the names of its code columns.
        time: first part of the names of its time columns.
        prefix: vocabulary of codes without a vocabulary.
    """
    table = EventTable(
        name=name,
        patient=_PERSON,
        time=(f"{time}_datetime", f"{time}_date"),
        day=(f"{time}_date",),
        code=(f"{stem}_concept_id",),
        prefix=prefix,
        visit=_VISIT,
        source_code=(f"{stem}_source_value",),
    )
    return replace(table, spell=concepts.code, means=concepts.known_name) if concepts else table


def _tables(concepts: Concepts | None) -> tuple[EventTable, ...]:
    """The descriptions of all tables of events."""
    visits = replace(
        _table(None, "visit_occurrence", "visit", "visit_start", "VISIT"),
        opens=lambda concept, _: _KIND_OF.get(concept, ""),
        spell=lambda concept: None if concept == "0" else f"VISIT//{_KIND_OF.get(concept, concept)}",
    )
    death = replace(_table(None, "death", "", "death", ""), code=_PERSON, visit=(), spell=lambda _: DEATH)
    values: dict[str, Any] = {"value": ("value_as_number",), "text": ("value_as_concept_id",)}
    values |= {"unit": ("unit_concept_id",), "source_unit": ("unit_source_value",)}
    if concepts:
        values["say"] = lambda cell: concepts.name(cells.words(cell)) or ""
        values["name_unit"] = lambda concept: (concepts.code(concept) or "").rpartition("//")[2] or None
    return (
        visits,
        _table(concepts, "condition_occurrence", "condition", "condition_start", "CONDITION"),
        _table(concepts, "procedure_occurrence", "procedure", "procedure", "PROCEDURE"),
        _table(concepts, "drug_exposure", "drug", "drug_exposure_start", "DRUG"),
        replace(_table(concepts, "measurement", "measurement", "measurement", "MEASUREMENT"), **values),
        replace(_table(concepts, "observation", "observation", "observation", "OBSERVATION"), **values),
        death,
    )
