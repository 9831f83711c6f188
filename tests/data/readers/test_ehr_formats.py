"""Every format of patient records, made here: the same life must come out of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seqmlm.data.events import Event, History, iso
from seqmlm.data.problems import Problems
from seqmlm.data.readers import ehr
from seqmlm.errors import DataError, UsageError

FORMATS = (ehr.is_meds, ehr.is_synthea, ehr.is_omop, ehr.is_mimic3, ehr.is_fhir)


def write(folder: Path, tables: dict[str, str], ending: str = ".csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        (folder / (name + ending)).write_text(
            "\n".join(line.strip() for line in text.strip().splitlines()) + "\n"
        )
    return folder


def lines(history: History) -> list[str]:
    """The events as "day code value text visit kind", short enough to compare by eye."""
    return [
        " ".join(
            str(cell)
            for cell in (iso(e.time)[:10], e.code, e.value, e.text, e.visit, e.kind)
            if cell is not None and cell != ""
        )
        for e in history.events
    ]


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
    one, two = ehr.read_synthea(write(tmp_path, SYNTHEA), problems)
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
    assert ehr.descriptions(tmp_path)["CONDITION//44054006"] == "Diabetes mellitus type 2"


def test_synthea_with_other_capitals_compressed_and_without_most_tables(tmp_path: Path) -> None:
    tables = {name.upper(): SYNTHEA[name].upper() for name in ("patients", "conditions")}
    problems = Problems()
    (record,) = ehr.read_synthea(write(tmp_path, tables), problems)
    assert [line for line in lines(record.raw) if "CONDITION" in line] == [
        "2010-01-02 CONDITION//59621000 E1",
        "2011-01-02 CONDITION//44054006 E2",
    ]
    assert problems.counts == {
        "a subject without dated events, left out": 1,
        **{
            f"no table {name} in the folder": 1
            for name in (
                "allergies",
                "encounters",
                "immunizations",
                "medications",
                "observations",
                "procedures",
            )
        },
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
    "a value that is no number, left out": 1,
}


def test_omop_with_concepts(tmp_path: Path) -> None:
    problems = Problems()
    one, two = ehr.read_omop(write(tmp_path, OMOP | CONCEPTS), problems)
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
    assert ehr.descriptions(tmp_path)["RxNorm//6809"] == "metformin"


def test_omop_as_parquet_without_concepts(tmp_path: Path) -> None:
    import pyarrow.csv

    folder = write(tmp_path / "csv", OMOP)
    for path in folder.glob("*.csv"):
        part = tmp_path / "omop" / path.stem / "part-0.parquet"
        part.parent.mkdir(parents=True)
        pq.write_table(pyarrow.csv.read_csv(path), part)
    from_csv = list(ehr.read_omop(folder, Problems()))
    assert ehr.is_omop(tmp_path / "omop")
    found = list(ehr.read_omop(tmp_path / "omop", Problems()))
    assert [str(record.raw) for record in found] == [str(record.raw) for record in from_csv]
    assert "2011-01-02 CONDITION//201826 11" in lines(found[0].raw)
    assert "- RACE//8527" in lines(found[0].raw)


def fhir() -> list[dict[str, Any]]:
    person, visit = {"reference": "Patient/p1"}, {"reference": "urn:uuid:e2"}

    def coded(code: str, system: str = "http://snomed.info/sct") -> dict[str, Any]:
        return {"coding": [{"system": system, "code": code, "display": "Canary"}], "text": "Canary"}

    race = {"url": "ombCategory", "valueCoding": {"code": "2106-3"}}
    return [
        {
            "resourceType": "Patient",
            "id": "p1",
            "name": [{"family": "Canary"}],
            "gender": "female",
            "birthDate": "1980-02-03",
            "extension": [
                {"url": "http://hl7.org/fhir/us/core/StructureDefinition/us-core-race", "extension": [race]}
            ],
        },
        {
            "resourceType": "Encounter",
            "id": "e2",
            "subject": person,
            "class": {"code": "IMP"},
            "period": {"start": "2011-01-02T10:00:00Z"},
        },
        {
            "resourceType": "Condition",
            "subject": person,
            "encounter": visit,
            "code": coded("44054006"),
            "onsetDateTime": "2011-01-02",
            "note": [{"text": "Canary"}],
        },
        {
            "resourceType": "Condition",
            "subject": person,
            "code": coded("E11.9", "http://hl7.org/fhir/sid/icd-10-cm"),
            "recordedDate": "2011-02",
        },
        {
            "resourceType": "MedicationRequest",
            "subject": person,
            "encounter": visit,
            "medicationCodeableConcept": coded("860975"),
            "authoredOn": "2011-01-02T12:00:00+00:00",
        },
        {
            "resourceType": "Observation",
            "subject": person,
            "code": coded("85354-9"),
            "effectiveDateTime": "2011-01-03",
            "component": [
                {"code": coded("8480-6"), "valueQuantity": {"value": 120, "unit": "mm[Hg]"}},
                {"code": coded("8462-4"), "valueQuantity": {"value": 80.5}},
            ],
        },
        {
            "resourceType": "Observation",
            "subject": person,
            "code": coded("72166-2"),
            "effectiveDateTime": "2011-01-03",
            "valueString": "Canary",
        },
        {
            "resourceType": "Immunization",
            "patient": person,
            "vaccineCode": coded("140"),
            "occurrenceDateTime": "2012",
        },
        {
            "resourceType": "Procedure",
            "subject": person,
            "code": coded("9"),
            "performedPeriod": {"start": "2013-01-01"},
        },
        {
            "resourceType": "AllergyIntolerance",
            "patient": person,
            "code": coded("3"),
            "recordedDate": "2014-01-01",
        },
        {
            "resourceType": "Condition",
            "subject": person,
            "code": coded("1"),
            "verificationStatus": coded("entered-in-error"),
        },
        {"resourceType": "Organization", "name": "Canary"},
    ]


FHIR_LIFE = [
    "- SEX//F",
    "- RACE//2106-3",
    "1980-02-03 MEDS_BIRTH",
    "2011-01-02 CONDITION//44054006 e2",
    "2011-01-02 VISIT//inpatient e2 inpatient",
    "2011-01-02 DRUG//860975 e2",
    "2011-01-03 LAB//85354-9",
    "2011-01-03 LAB//8480-6 120.0",
    "2011-01-03 LAB//8462-4 80.5",
    "2011-01-03 LAB//72166-2",
    "2011-02-01 ICD10//E11.9",
    "2012-01-01 IMMUNIZATION//140",
    "2013-01-01 PROCEDURE//9",
    "2014-01-01 ALLERGY//3",
]


@pytest.mark.parametrize("form", ["mixed", "by type", "bundle"])
def test_fhir(form: str, tmp_path: Path) -> None:
    resources = fhir()
    if form == "bundle":
        bundle = {"resourceType": "Bundle", "entry": [{"resource": resource} for resource in resources]}
        (tmp_path / "p1.json").write_text(json.dumps(bundle, indent=1))
    else:
        for resource in resources:
            name = "all.ndjson" if form == "mixed" else f"{resource['resourceType']}.ndjson"
            with (tmp_path / name).open("a") as handle:
                handle.write(json.dumps(resource) + "\n")
    problems = Problems(sensitive=True)
    (record,) = ehr.read_fhir(tmp_path, problems)
    assert sorted(lines(record.raw)) == sorted(FHIR_LIFE)
    assert record.id == "p1"
    assert "Canary" not in str(record.raw)
    assert problems.counts == {
        "a resource entered in error, left out": 1,
        "a resource of a type that holds no events": 1,
    }
    assert [is_one(tmp_path) for is_one in FORMATS] == [False, False, False, False, True]


def test_fhir_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    broken = [
        {"resourceType": "Patient"},
        {"resourceType": "Condition", "code": {"coding": [{"code": "1"}]}, "onsetDateTime": "2011"},
        {"resourceType": "Condition", "subject": {"reference": "Patient/1"}, "onsetDateTime": "2011"},
        {
            "resourceType": "Condition",
            "subject": {"reference": "Patient/1"},
            "code": {"coding": [{"code": "1"}]},
            "onsetDateTime": "soon",
        },
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in broken) + "{oops\n[1]\n")
    problems = Problems("skip")
    assert list(ehr.read_fhir(path, problems)) == []
    assert problems.counts == {
        "no patient in the row": 2,
        "no code in the row": 1,
        "the time cannot be read": 1,
        "not a JSON object": 2,
    }
    bundle = tmp_path / "b.json"
    bundle.write_bytes(b'{"resourceType": "\xff"}')
    with pytest.raises(DataError, match=r"b.json: bytes that are not UTF-8"):
        list(ehr.read_fhir(bundle, Problems()))
    with pytest.raises(DataError, match=r"b.json:1: a bundle longer than the limit"):
        list(ehr.read_fhir(bundle, Problems(), max_bytes=5))
    with pytest.raises(DataError, match=r"a.ndjson:1: field 'id': no patient"):
        list(ehr.read_fhir(path, Problems()))


def shard(path: Path, **columns: Sequence[Any]) -> Path:
    kinds = {"time": pa.timestamp("us"), "numeric_value": pa.float32()}
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays), path, row_group_size=3)
    return path


def day(number: int) -> int:
    return number * 86_400_000_000


def meds(folder: Path) -> Path:
    shard(
        folder / "data" / "train" / "0.parquet",
        subject_id=[1, 1, 1, 1, 1, 2, 2],
        time=[None, day(-9000), day(9), day(9), day(8), None, day(3)],
        code=["SEX//F", "MEDS_BIRTH//x", "VISIT//ED", "LAB//1", "ICD9//2", "SEX//M", "ICD9//2"],
        numeric_value=[None, None, None, 5.1, float("nan"), None, None],
        text_value=[None, None, None, "high", None, None, None],
        encounter_id=[None, None, 77, 77, 76, None, None],
        other_column=[{"anything": 1}] * 7,
    )
    shard(
        folder / "data" / "tuning.parquet",
        subject_id=[9, 5, 9, 2],
        time=[day(1), day(2), day(3), day(4)],
        code=["A//1", "MEDS_BIRTH", "A//2", "A//3"],
    )
    shard(folder / "metadata" / "codes.parquet", code=["A//1", "A//2"], description=["One", None])
    shard(
        folder / "metadata" / "subject_splits.parquet",
        subject_id=[1, 2, 5, 9],
        split=["train", "tuning", "held_out", "held_out"],
    )
    return folder


def test_meds(tmp_path: Path) -> None:
    problems = Problems(sensitive=True)
    found = list(ehr.read_meds(meds(tmp_path), problems))
    assert [(r.id, r.meta.get("split"), Path(r.source).name, r.line) for r in found] == [
        ("1", "train", "0.parquet", 1),
        ("2", "validation", "0.parquet", 6),
        ("9", "test", "tuning.parquet", 1),
        ("2", "validation", "tuning.parquet", 4),
    ]
    assert lines(found[0].raw) == [
        "- SEX//F",
        "1945-05-12 MEDS_BIRTH//x",
        "1970-01-09 ICD9//2 76",
        "1970-01-10 VISIT//ED 77 emergency",
        "1970-01-10 LAB//1 5.1 high 77",
    ]
    assert iso(found[0].raw.birth) == "1945-05-12T00:00:00"
    assert problems.counts == {
        "a shard that is not in order of subjects": 1,
        "a subject whose events are not together in one shard": 1,
        "a subject without date of birth": 3,
        "a subject without dated events, left out": 1,
        "an event earlier than the one before it, put in its place": 1,
    }
    assert [is_one(tmp_path) for is_one in FORMATS] == [True, False, False, False, False]
    assert ehr.descriptions(tmp_path) == {"A//1": "One"}
    (single,) = list(ehr.read_meds(tmp_path / "data" / "train" / "0.parquet", Problems()))[:1]
    assert (str(single.raw), dict(single.meta)) == (str(found[0].raw), {})


LONG = """
    pid,when,concept,result,stay
    1,1980-02-03,DOB,,
    1,,female,,
    2,2012-01-02,ICD9//250.00,,b
    1,2011-01-02,4548-4,6.5,a
    1,2011-01-02,smoker,never,a
    1,2020-05-06,death,,
"""
NAMES = {"time": "when", "code": "concept", "value": "result", "visit": "stay"}


def test_a_long_table(tmp_path: Path) -> None:
    path = write(tmp_path, {"events": LONG}) / "events.csv"
    problems = Problems()
    one, two = ehr.read_long(path, problems, **NAMES)
    assert lines(one.raw) == [
        "- CODE//female",
        "1980-02-03 MEDS_BIRTH",
        "2011-01-02 CODE//4548-4 6.5 a",
        "2011-01-02 CODE//smoker never a",
        "2020-05-06 MEDS_DEATH",
    ]
    assert lines(two.raw) == ["2012-01-02 ICD9//250.00 b"]
    assert problems.counts == {
        "a subject without date of birth": 1,
        "an event without time, taken as background": 1,
    }
    named, _ = ehr.read_long(path, Problems(), vocabulary="LOCAL", **NAMES)
    assert "LOCAL//smoker" in str(named.raw)


def test_a_long_table_with_usual_names_and_epoch_numbers_as_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = {
        "subject_id": [3, 3],
        "timestamp": [86_400, 0],
        "event": ["b", "a"],
        "code_system": ["X", None],
    }
    pq.write_table(pa.table(columns), path)
    problems = Problems()
    (record,) = ehr.read_long(path, problems)
    assert record.raw.events == (Event(time=0.0, code="CODE//a"), Event(time=86_400.0, code="X//b"))
    assert problems.counts["an event earlier than the one before it, put in its place"] == 1


WIDE = """
    patient_nbr,encounter_id,gender,age,diag_1,diag_2,insulin,days
    7,20,F,[60-70),250.00,?,Up,3
    8,5,M,?,401,401,No,1
    7,3,F,[50-60),428,?,No,x
"""
WIDE_OPTIONS: dict[str, Any] = {
    "patient": "patient_nbr",
    "kind": "inpatient",
    "static": ["gender=SEX", "age=AGE"],
    "columns": ["diag_1=ICD9", "diag_2=ICD9"],
    "flags": ["insulin=DRUG"],
    "values": ["days"],
}


def test_a_wide_table_without_dates(tmp_path: Path) -> None:
    path = write(tmp_path, {"wide": WIDE}) / "wide.csv"
    problems = Problems()
    one, two = ehr.read_wide(path, problems, **WIDE_OPTIONS)
    assert lines(one.raw) == [
        "- SEX//F",
        "- AGE//[50-60)",
        "1970-01-01 VISIT//inpatient 3 inpatient",
        "1970-01-01 ICD9//428 3",
        "1970-01-02 VISIT//inpatient 20 inpatient",
        "1970-01-02 ICD9//250.00 20",
        "1970-01-02 DRUG//insulin Up 20",
        "1970-01-02 days//days 3.0 20",
    ]
    assert lines(two.raw)[2:] == ["1970-01-01 ICD9//401 5", "1970-01-01 days//days 1.0 5"]
    assert problems.counts == {
        "a repeated event, taken once": 1,
        "a subject without date of birth": 2,
        "a value that is no number, left out": 1,
        "an encounter without date, placed a day after the one before": 3,
    }
    texts = {name: ", ".join(v) if isinstance(v, list) else v for name, v in WIDE_OPTIONS.items()}
    again = [str(record.raw) for record in ehr.read_wide(path, Problems(), **texts)]
    assert again == [str(one.raw), str(two.raw)]
    with pytest.raises(UsageError, match="needs columns"):
        list(ehr.read_wide(path, Problems()))
    with pytest.raises(DataError, match="'diag_9': no column of this name"):
        list(ehr.read_wide(path, Problems(), patient="patient_nbr", columns=["diag_9"]))


def test_a_wide_table_with_dates(tmp_path: Path) -> None:
    text = "patient_id,encounter_id,seen,class,dx\n1,a,2011-01-02,ER,250\n1,b,soon,ER,251\n"
    path = write(tmp_path, {"wide": text}) / "wide.csv"
    problems = Problems("skip")
    (record,) = ehr.read_wide(path, problems, time="seen", kind="class", columns=["dx"])
    assert lines(record.raw) == ["2011-01-02 VISIT//emergency a emergency", "2011-01-02 dx//250 a"]
    assert problems.counts["the time cannot be read"] == 1


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
    (record,) = ehr.read_mimic3(tmp_path, problems)
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
