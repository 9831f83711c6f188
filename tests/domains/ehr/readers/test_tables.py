"""Exports of several tables: Synthea, OMOP, MIMIC-III."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from histories import lines
from written import written

from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.history import iso
from seqmlm.domains.ehr.readers import exports, fhir, flat, histories, meds
from seqmlm.errors import UsageError

FORMATS = (meds.is_meds, exports.is_synthea, exports.is_omop, exports.is_mimic3, fhir.is_fhir)


def write(folder: Path, tables: dict[str, str], ending: str = ".csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        (folder / (name + ending)).write_text(
            "\n".join(line.strip() for line in text.strip().splitlines()) + "\n"
        )
    return folder


SYNTHEA = {
    "patients": """
        Id,BIRTHDATE,DEATHDATE,SSN,FIRST,LAST,RACE,ETHNICITY,GENDER,ADDRESS
        p1,1980-02-03,2020-05-06,999-11,Ada,Canary,white,hispanic,F,1 Canary Street
        p2,1990-01-01,,999-12,Bob,Canary,black,,M,2 Canary Street""",
    "encounters": """
        Id,START,STOP,PATIENT,ENCOUNTERCLASS,CODE,DESCRIPTION
        e1,2010-01-02T10:00:00Z,2010-01-02T11:00:00Z,p1,wellness,185349003,Canary visit
        e2,2011-01-02T10:00:00Z,2011-01-05T11:00:00Z,p1,inpatient,,
        e3,2012-01-02T10:00:00Z,,p2,emergency,50849002,Emergency room admission""",
    "conditions": """
        START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION
        2011-01-02,,p1,e2,44054006,Diabetes mellitus type 2
        2010-01-02,,p1,e1,59621000,Hypertension""",
    "medications": """
        START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION,REASONCODE
        2011-01-02T12:00:00Z,,p1,e2,860975,Metformin,44054006""",
    "observations": """
        DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION,VALUE,UNITS,TYPE
        2010-01-02T10:00:00Z,p1,e1,4548-4,Hemoglobin A1c,6.5,%,numeric
        2010-01-02T10:00:00Z,p1,e1,72166-2,Tobacco smoking status,Never smoker,,text""",
    "procedures": "DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n2012-01-02,p2,e3,1001,Suture",
    "immunizations": "DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n2010-01-02T10:00:00Z,p1,e1,140,Influenza",
    "allergies": "START,STOP,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n1985-01-01,,p1,,300913006,Shellfish",
}


def test_synthea(tmp_path: Path) -> None:
    problems = Problems(sensitive=True)
    one, two = exports.read_synthea(write(tmp_path, SYNTHEA), problems)
    assert problems.counts == {}
    assert (one.id, one.document, one.line, Path(one.source).name) == ("p1", "p1", 2, "patients.csv")
    assert (one.raw.subject, iso(one.raw.birth)) == ("p1", "1980-02-03T00:00:00")
    assert lines(one.raw) == [
        "- SEX//F",
        "- RACE//white",
        "- ETHNICITY//hispanic",
        "1980-02-03 MEDS_BIRTH",
        "1985-01-01 ALLERGY//300913006",
        "2010-01-02 CONDITION//59621000 e1",
        "2010-01-02 VISIT//wellness e1 outpatient",
        "2010-01-02 ENCOUNTER//185349003 e1",
        "2010-01-02 IMMUNIZATION//140 e1",
        "2010-01-02 LAB//4548-4 6.5 e1",
        "2010-01-02 LAB//72166-2 Never smoker e1",
        "2011-01-02 CONDITION//44054006 e2",
        "2011-01-02 VISIT//inpatient e2 inpatient",
        "2011-01-02 DRUG//860975 e2",
        "2020-05-06 MEDS_DEATH",
    ]
    assert lines(two.raw)[-3:] == [
        "2012-01-02 PROCEDURE//1001 e3",
        "2012-01-02 VISIT//emergency e3 emergency",
        "2012-01-02 ENCOUNTER//50849002 e3",
    ]
    assert "Canary" not in str(one.raw) + str(two.raw)
    assert [is_one(tmp_path) for is_one in FORMATS] == [False, True, False, False, False]
    assert not one.raw.meanings  # of two patients, who knows what the texts are about


def test_synthea_with_other_capitals_compressed_and_without_most_tables(tmp_path: Path) -> None:
    tables = {name.upper(): SYNTHEA[name].upper() for name in ("patients", "conditions")}
    problems = Problems()
    (record,) = exports.read_synthea(write(tmp_path, tables), problems)
    assert [line for line in lines(record.raw) if "CONDITION" in line] == [
        "2010-01-02 CONDITION//59621000 E1",
        "2011-01-02 CONDITION//44054006 E2",
    ]
    assert problems.counts == {
        "a subject without dated events, left out": 1,
        **{f"no table {name} in the folder": 1 for name in SYNTHEA.keys() - {"patients", "conditions"}},
    }


OMOP = {
    "person": """
        person_id,gender_concept_id,year_of_birth,month_of_birth,day_of_birth,birth_datetime,race_concept_id,ethnicity_concept_id
        1,8532,1980,2,3,,8527,0
        2,8507,1990,,,,0,0""",
    "visit_occurrence": """
        visit_occurrence_id,person_id,visit_concept_id,visit_start_date,visit_start_datetime
        11,1,9201,2011-01-02,2011-01-02 10:00:00
        12,2,9203,2012-01-02,""",
    "condition_occurrence": """
        condition_occurrence_id,person_id,condition_concept_id,condition_start_date,condition_start_datetime,visit_occurrence_id,condition_source_value
        1,1,201826,2011-01-02,,11,E11.9
        2,2,0,2012-01-02,2012-01-02 12:00:00,12,X99
        3,2,0,2012-01-02,,12,""",
    "drug_exposure": """
        person_id,drug_concept_id,drug_exposure_start_date,visit_occurrence_id
        1,1503297,2011-01-03,11""",
    "measurement": """
        person_id,measurement_concept_id,measurement_date,value_as_number,value_as_concept_id,visit_occurrence_id
        1,3004410,2011-01-02,6.5,0,11
        1,3000963,2011-01-02,,45884084,11
        1,3000963,2011-01-04,high,0,11""",
    "death": "person_id,death_date\n1,2020-05-06",
}
CONCEPTS = {
    "concept": """
        concept_id\tconcept_name\tdomain_id\tvocabulary_id\tconcept_code
        201826\tType 2 diabetes mellitus\tCondition\tSNOMED\t44054006
        1503297\tmetformin\tDrug\tRxNorm\t6809
        3004410\tHemoglobin A1c\tMeasurement\tLOINC\t4548-4
        45884084\tPositive\tMeas Value\tLOINC\tLA6576-8
        8527\tWhite\tRace\tRace\t5"""
}
NOT_THERE = {
    "no table observation in the folder": 1,
    "no table procedure_occurrence in the folder": 1,
    "a row whose concept is unknown, left out": 1,
    "a value that is not a number, left out": 1,
}


def test_omop_with_concepts(tmp_path: Path) -> None:
    problems = Problems()
    one, two = exports.read_omop(write(tmp_path, OMOP | CONCEPTS), problems)
    assert problems.counts == NOT_THERE
    assert lines(one.raw) == [
        "- SEX//F",
        "- RACE//White",
        "1980-02-03 MEDS_BIRTH",
        "2011-01-02 SNOMED//44054006 11",
        "2011-01-02 LOINC//4548-4 6.5 11",
        "2011-01-02 MEASUREMENT//3000963 Positive 11",
        "2011-01-02 VISIT//inpatient 11 inpatient",
        "2011-01-03 RxNorm//6809 11",
        "2011-01-04 MEASUREMENT//3000963 11",
        "2020-05-06 MEDS_DEATH",
    ]
    assert lines(two.raw) == [
        "- SEX//M",
        "1990-01-01 MEDS_BIRTH",
        "2012-01-02 VISIT//emergency 12 emergency",
        "2012-01-02 CONDITION//X99 12",
    ]
    assert [is_one(tmp_path) for is_one in FORMATS] == [False, False, True, False, False]
    assert one.raw.meanings["RxNorm//6809"] == "metformin"


def test_omop_as_parquet_without_concepts(tmp_path: Path) -> None:
    import pyarrow.csv

    folder = write(tmp_path / "csv", OMOP)
    for path in folder.glob("*.csv"):
        part = tmp_path / "omop" / path.stem / "part-0.parquet"
        part.parent.mkdir(parents=True)
        pq.write_table(pyarrow.csv.read_csv(path), part)
    from_csv = list(exports.read_omop(folder, Problems()))
    assert exports.is_omop(tmp_path / "omop")
    found = list(exports.read_omop(tmp_path / "omop", Problems()))
    assert [str(record.raw) for record in found] == [str(record.raw) for record in from_csv]
    assert "2011-01-02 CONDITION//201826 11" in lines(found[0].raw)
    assert "- RACE//8527" in lines(found[0].raw)


def test_mimic3(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "PATIENTS": "subject_id,gender,dob,dod\n1,F,2050-01-01 00:00:00,",
            "ADMISSIONS": "subject_id,hadm_id,admittime,dischtime,admission_type\n"
            "1,11,2100-01-02 10:00:00,2100-01-09 10:00:00,EMERGENCY",
            "DIAGNOSES_ICD": "subject_id,hadm_id,seq_num,icd9_code\n1,11,1,25000\n1,11,2,E8859\n1,99,1,4280",
            "PROCEDURES_ICD": "subject_id,hadm_id,seq_num,icd9_code\n1,11,1,3605",
            "PRESCRIPTIONS": "subject_id,hadm_id,startdate,drug,ndc\n1,11,2100-01-03 00:00:00,Insulin,0",
        },
    )
    problems = Problems("skip")
    (record,) = exports.read_mimic3(tmp_path, problems)
    assert lines(record.raw) == [
        "- SEX//F",
        "2050-01-01 MEDS_BIRTH",
        "2100-01-02 ADMISSION//EMERGENCY 11 inpatient",
        "2100-01-03 DRUG//Insulin 11",
        "2100-01-09 ICD9//250.00 11",
        "2100-01-09 ICD9//E885.9 11",
        "2100-01-09 ICD9PROC//36.05 11",
    ]
    assert problems.counts == {"an event later than today, kept": 6, "the time cannot be read": 1}
    assert [is_one(tmp_path) for is_one in FORMATS] == [False, False, False, True, False]


def test_a_folder_of_tables_is_a_folder(tmp_path: Path) -> None:
    file = written(tmp_path / "person.csv", "person_id\n1\n")
    for read in (exports.read_omop, exports.read_synthea, exports.read_mimic3):
        for path in ("-", file):
            with pytest.raises(UsageError, match="is not a folder"):
                list(read(path, Problems("skip")))


def test_a_subject_with_more_rows_than_memory_is_for_is_one_bad_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "LARGEST", 3)
    path = tmp_path / "events.csv"
    rows = [
        f"{who},2021-01-0{day},C{day}" for day in range(1, 6) for who in ("a", "b") if who == "b" or day < 4
    ]
    path.write_text("patient,time,code\n" + "\n".join(rows) + "\n")
    problems = Problems("skip")
    [record] = flat.read_long(path, problems)
    assert record.id == "a"
    assert problems.counts["a subject with more than 3 rows"] == 1
