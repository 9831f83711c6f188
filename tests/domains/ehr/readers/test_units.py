"""Units of values and descriptions of codes, in every format that has them; what of them may be told."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written import all_written, jsonl, written

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.readers import cells, exports, fhir, flat, meds
from seqmlm.domains.ehr.readers.histories import UNITLESS, Meanings

PATIENTS = range(12)
MEANING = "Glucose [Mass/volume] in Blood"


def _long(folder: Path) -> Iterator[Record]:
    rows = [f"{n},2011-01-02,2345-7,5.5,mmol/L,{MEANING}" for n in PATIENTS]
    text = "\n".join(["subject_id,charttime,code,valuenum,valueuom,long_title", *rows])
    return flat.read_long(written(folder / "a.csv", text), Problems(), vocabulary="LAB")


def _synthea(folder: Path) -> Iterator[Record]:
    people = "\n".join(["Id,BIRTHDATE", *(f"{n},1980-01-01" for n in PATIENTS)])
    rows = [f"2011-01-02,{n},,2345-7,{MEANING},5.5,mmol/L,numeric" for n in PATIENTS]
    values = "\n".join(["DATE,PATIENT,ENCOUNTER,CODE,DESCRIPTION,VALUE,UNITS,TYPE", *rows])
    return exports.read_synthea(
        all_written(folder, {"patients.csv": people, "observations.csv": values}), Problems()
    )


MEASURED = "person_id,measurement_concept_id,measurement_date,value_as_number,unit_concept_id"


def _omop(folder: Path) -> Iterator[Record]:
    concepts = f"""concept_id\tconcept_name\tvocabulary_id\tconcept_code
1\t{MEANING}\tLAB\t2345-7
8753\tmillimole per liter\tUCUM\tmmol/L"""
    tables = {
        "person.csv": "person_id,gender_concept_id\n7,8532",
        "measurement.csv": f"{MEASURED}\n7,1,2011-01-02,5.5,8753",
        "concept.csv": concepts,
    }
    return exports.read_omop(all_written(folder, tables), Problems())


def _omop_of_a_source(folder: Path) -> Iterator[Record]:
    tables = {
        "person.csv": "person_id,gender_concept_id\n7,8532",
        "measurement.csv": f"{MEASURED},unit_source_value,measurement_source_value\n"
        "7,0,2011-01-02,5.5,0,mmol/L,2345-7",
    }
    return exports.read_omop(all_written(folder, tables), Problems())


def _meds(folder: Path) -> Iterator[Record]:
    (folder / "data").mkdir()
    (folder / "metadata").mkdir()
    values = {
        "subject_id": [7],
        "time": pa.array([1_300_000_000_000_000], pa.timestamp("us")),
        "code": ["LAB//2345-7"],
        "numeric_value": [5.5],
        "unit": ["mmol/L"],
    }
    pq.write_table(pa.table(values), folder / "data" / "0.parquet")
    names = {"code": ["LAB//2345-7"], "description": [MEANING], "parent_codes": [["LOINC/2345-7"]]}
    pq.write_table(pa.table(names), folder / "metadata" / "codes.parquet")
    return meds.read_meds(folder, Problems())


def _fhir(folder: Path) -> Iterator[Record]:
    resources: list[dict[str, Any]] = [
        {
            "resourceType": "Observation",
            "subject": {"reference": f"Patient/{n}"},
            "code": {"coding": [{"code": "2345-7", "display": MEANING}], "text": f"of patient {n}"},
            "effectiveDateTime": "2011-01-02",
            "valueQuantity": {"value": 5.5, "unit": "millimoles", "code": "mmol/L"},
        }
        for n in PATIENTS
    ]
    return fhir.read_fhir(jsonl(folder / "a.ndjson", resources), Problems())


@pytest.mark.parametrize("read", [_long, _synthea, _omop, _omop_of_a_source, _meds, _fhir])
def test_every_format_has_units_and_descriptions(
    read: Callable[[Path], Iterator[Record]], tmp_path: Path
) -> None:
    for record in read(tmp_path):
        (event,) = [event for event in record.raw.events if event.value is not None]
        code = event.code.replace("MEASUREMENT", "LAB")
        assert (code, event.value, event.unit) == ("LAB//2345-7", 5.5, "mmol/L")
        wanted = {} if read is _omop_of_a_source else {"LAB//2345-7": MEANING}
        assert record.raw.meanings == wanted
        assert "mmol" not in str(record.raw)  # the text that models know what they were trained on by


def test_titles_of_mimic(tmp_path: Path) -> None:
    tables = {
        "PATIENTS.csv": "subject_id,gender\n1,F",
        "ADMISSIONS.csv": "subject_id,hadm_id,admittime,dischtime,admission_type\n"
        "1,11,2100-01-02,2100-01-09,EMERGENCY",
        "DIAGNOSES_ICD.csv": "subject_id,hadm_id,icd9_code\n1,11,25000\n1,11,4280",
        "PROCEDURES_ICD.csv": "subject_id,hadm_id,icd9_code\n1,11,3605",
        "D_ICD_DIAGNOSES.csv": "row_id,icd9_code,short_title,long_title\n1,25000,DMII,Diabetes mellitus",
        "D_ICD_PROCEDURES.csv": "icd9_code,short_title\n3605,Stent",
    }
    (record,) = exports.read_mimic3(all_written(tmp_path, tables), Problems())
    assert record.raw.meanings == {"ICD9//250.00": "Diabetes mellitus", "ICD9PROC//36.05": "Stent"}


def test_what_stands_beside_events_is_no_description_unless_many_have_it() -> None:
    """Free text may name people."""
    found = Meanings()
    for n in range(40):
        found.add("A//alike", "Asthma", f"p{n}")
        found.add("A//own", f"Canary {n}", f"p{n}")
        found.add("A//one patient", "Canary again", "p1")
        found.add("A//few patients", "Canary", f"p{n % 10}")
        found.add("A//long", "Canary " * 40, f"p{n}")
        found.add("A//itself", "itself", f"p{n}")
        found.add("A//versions", ("Asthma", "Asthma (disorder)")[n % 2], f"p{n}")
    assert dict(found) == {"A//alike": "Asthma", "A//versions": "Asthma"}
    assert pickle.loads(pickle.dumps(found)) == {}  # of no use elsewhere, and large


def _events(folder: Path, rows: list[str], *, sensitive: bool) -> dict[str, int]:
    path = written(folder / "a.csv", "\n".join(["patient_id,date,code,value,unit", *rows]))
    problems = Problems(sensitive=sensitive)
    list(flat.read_long(path, problems))
    return {reason: n for reason, n in problems.counts.items() if "birth" not in reason}


def test_units_that_mix_are_told_once_with_their_counts(tmp_path: Path) -> None:
    rows = [f"{n},2011-01-02,LAB//alt,30,{'U/L' if n % 3 else 'ukat/L'}" for n in range(60)]
    rows += [f"{n},2011-01-02,LAB//ast,30,{'U/L' if n % 4 else '%'}" for n in range(60)]
    rows += [f"{n},2011-01-02,LAB//glucose,{n},{'mg/dL' if n % 3 else 'mmol/L'}" for n in range(60)]
    rows += [f"{n},2011-01-03,LAB//glucose,{n},MG/DL" for n in range(60)]
    for sensitive in (True, False):
        assert _events(tmp_path, rows, sensitive=sensitive) == {
            "a value in another unit than most values of its code, for which no conversion is known "
            "(LAB//alt: 40 in u/l, 20 in ukat/l; LAB//ast: 45 in u/l, 15 in %). Training uses separate bins "
            "for each unit. Convert the values, or use one code per unit": 35,
            "a value in another unit than most values of its code, converted": 20,
        }


def test_of_units_that_few_patients_have_no_name_is_told(tmp_path: Path) -> None:
    rows = [f"{n},2011-01-02,LAB//alt,30,{'canary' if n < 5 else 'U/L'}" for n in range(60)]
    rows += [f"{n},2011-01-02,LAB//canary,30,u{n}" for n in range(5)]
    rows += [f"{n},2011-01-02,LAB//ast,30,{'' if n < 5 else 'U/L'}" for n in range(60)]
    found = _events(tmp_path, rows, sensitive=True)
    assert found == {
        "a value in another unit than most values of its code, for which no conversion is known "
        "(LAB//alt: 55 in u/l, <11 subjects in others). Training uses separate bins for each unit. Convert "
        "the values, or use one code per unit": 9,
        UNITLESS: 5,
    }
    (told,) = [reason for reason in _events(tmp_path, rows, sensitive=False) if "conversion" in reason]
    assert "5 in canary" in told


def test_prose_and_numbers_of_concepts_in_a_column_of_units() -> None:
    found = [cells.unit(cell) for cell in ("8840.0", 8840.0, " mg/dL ", "", None)]
    assert found == ["8840", "8840", "mg/dL", None, None]
    assert cells.unit("as dictated by the nurse of the night shift") is None
