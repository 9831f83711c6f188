"""FHIR resources, one a line, a file a type, or a bundle: the same life comes out of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from histories import lines
from written import jsonl, written

from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.readers import fhir
from seqmlm.errors import DataError
from tests.domains.ehr.readers.test_tables import FORMATS


def patient_resources() -> list[dict[str, Any]]:
    person, visit = {"reference": "Patient/p1"}, {"reference": "urn:uuid:e2"}

    def coded(code: str, system: str = "http://snomed.info/sct") -> dict[str, Any]:
        return {"coding": [{"system": system, "code": code, "display": "Canary"}], "text": "Canary"}

    def made(kind: str, whose: str = "subject", **fields: Any) -> dict[str, Any]:
        return {"resourceType": kind, whose: person, **fields}

    race = {"url": "ombCategory", "valueCoding": {"code": "2106-3"}}
    extension = {"url": "http://hl7.org/fhir/us/core/StructureDefinition/us-core-race", "extension": [race]}
    birth = {"gender": "female", "birthDate": "1980-02-03", "extension": [extension]}
    started = {"class": {"code": "IMP"}, "period": {"start": "2011-01-02T10:00:00Z"}}
    diabetes = coded("E11.9", "http://hl7.org/fhir/sid/icd-10-cm")
    of_visit = {"encounter": visit, "code": coded("44054006"), "note": [{"text": "Canary"}]}
    drug = {"medicationCodeableConcept": coded("860975"), "authoredOn": "2011-01-02T12:00:00+00:00"}
    pressure = [
        {"code": coded("8480-6"), "valueQuantity": {"value": 120, "unit": "mm[Hg]"}},
        {"code": coded("8462-4"), "valueQuantity": {"value": 80.5}},
    ]
    day = {"effectiveDateTime": "2011-01-03"}
    return [
        {"resourceType": "Patient", "id": "p1", "name": [{"family": "Canary"}], **birth},
        made("Encounter", id="e2", **started),
        made("Condition", onsetDateTime="2011-01-02", **of_visit),
        made("Condition", code=diabetes, recordedDate="2011-02"),
        made("MedicationRequest", encounter=visit, **drug),
        made("Observation", code=coded("85354-9"), component=pressure, **day),
        made("Observation", code=coded("72166-2"), valueString="Canary", **day),
        made("Immunization", "patient", vaccineCode=coded("140"), occurrenceDateTime="2012"),
        made("Procedure", code=coded("9"), performedPeriod={"start": "2013-01-01"}),
        made("AllergyIntolerance", "patient", code=coded("3"), recordedDate="2014-01-01"),
        made("Condition", code=coded("1"), verificationStatus=coded("entered-in-error")),
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
    resources = patient_resources()
    if form == "bundle":
        bundle = {"resourceType": "Bundle", "entry": [{"resource": resource} for resource in resources]}
        (tmp_path / "p1.json").write_text(json.dumps(bundle, indent=1))
    else:
        for resource in resources:
            name = "all.ndjson" if form == "mixed" else f"{resource['resourceType']}.ndjson"
            with (tmp_path / name).open("a") as handle:
                handle.write(json.dumps(resource) + "\n")
    problems = Problems(sensitive=True)
    (record,) = fhir.read_fhir(tmp_path, problems)
    assert sorted(lines(record.raw)) == sorted(FHIR_LIFE)
    assert record.id == "p1"
    assert "Canary" not in str(record.raw)
    assert problems.counts == {
        "a resource entered in error, left out": 1,
        "a resource of a type without events": 1,
    }
    assert [is_one(tmp_path) for is_one in FORMATS] == [False, False, False, False, True]


def test_fhir_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    broken = [
        {"resourceType": "Patient"},
        {"resourceType": "Condition", "code": {"coding": [{"code": "1"}]}, "onsetDateTime": "2011"},
        {"resourceType": "Condition", "subject": {"reference": "Patient/1"}, "onsetDateTime": "2011"},
    ]
    broken.append({**broken[1], "subject": {"reference": "Patient/1"}, "onsetDateTime": "soon"})
    path.write_text("".join(json.dumps(one) + "\n" for one in broken) + "{oops\n[1]\n")
    problems = Problems("skip")
    assert list(fhir.read_fhir(path, problems)) == []
    assert problems.counts == {
        "no patient in the row": 2,
        "no code in the row": 1,
        "the time cannot be read": 1,
        "not a JSON object": 2,
    }
    bundle = written(tmp_path / "b.json", b'{"resourceType": "\xff"}')
    with pytest.raises(DataError, match=r"b.json:1: bytes that are not UTF-8"):
        list(fhir.read_fhir(bundle, Problems()))
    bundle.write_text('{"resourceType":\n"Bundle"}\n')
    with pytest.raises(DataError, match=r"b.json:1: a bundle longer than the limit"):
        list(fhir.read_fhir(bundle, Problems(), max_bytes=20))
    with pytest.raises(DataError, match=r"a.ndjson:1: field 'id': no patient"):
        list(fhir.read_fhir(path, Problems()))


@pytest.mark.parametrize(
    "fields",
    [
        {"resourceType": "Condition", "verificationStatus": {"coding": [{"code": "refuted"}]}},
        {"resourceType": "Procedure", "status": "not-done"},
        {"resourceType": "Procedure", "status": "preparation"},
        {"resourceType": "Encounter", "status": "cancelled", "period": {"start": "2015-04-02"}},
        {"resourceType": "Encounter", "status": "planned", "period": {"start": "2015-04-02"}},
        {"resourceType": "MedicationRequest", "doNotPerform": True},
        {"resourceType": "Observation", "status": "cancelled"},
    ],
)
def test_what_did_not_happen_is_no_event(fields: dict[str, Any], tmp_path: Path) -> None:
    code = {"coding": [{"system": "http://snomed.info/sct", "code": "22298006"}]}
    where = {"code": code, "medicationCodeableConcept": code, "recordedDate": "2015-01-02"}
    where |= dict.fromkeys(("performedDateTime", "authoredOn", "effectiveDateTime"), "2015-01-02")
    happened = {"resourceType": "Condition", "code": code, "recordedDate": "2015-01-02"}
    both = [{"subject": {"reference": "Patient/p1"}, **own} for own in ({**where, **fields}, happened)]
    problems = Problems("skip")
    [record] = fhir.read_fhir(jsonl(tmp_path / "a.ndjson", both), problems)
    assert [event.code for event in record.raw.events] == ["CONDITION//22298006"]
    assert any("did not happen" in reason for reason in problems.counts)


def test_a_reference_may_name_a_version(tmp_path: Path) -> None:
    code = {"coding": [{"system": "http://snomed.info/sct", "code": "22298006"}]}
    written = [("", "/_history/1"), ("http://s/", "/_history/2"), ("", "")]
    rows = [
        {
            "resourceType": "Condition",
            "code": code,
            "recordedDate": f"2015-01-{day:02}",
            "subject": {"reference": f"{server}Patient/p{patient}{version}"},
        }
        for patient in (1, 2)
        for day, (server, version) in enumerate(written, 1)
    ]
    records = list(fhir.read_fhir(jsonl(tmp_path / "a.ndjson", rows), Problems()))
    assert [(record.raw.subject, len(record.raw.events)) for record in records] == [("p1", 3), ("p2", 3)]
