"""Real patient records read as what they are."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from itertools import islice
from pathlib import Path

from diabetes130 import OPTIONS

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.audit import audit
from seqmlm.domains.ehr.readers import exports, flat
from seqmlm.domains.ehr.readers.tables import EMPTY


def read(reader, path: Path) -> tuple[list[Record], dict[str, int]]:
    problems = Problems(sensitive=True)
    return list(reader(path, problems)), problems.counts


def vocabularies(records: list[Record]) -> Counter[str]:
    return Counter(event.code.partition("//")[0] for record in records for event in record.raw.events)


def test_synthea_with_few_tables(real_data: Path) -> None:
    folder = real_data / "ehr" / "synthea_ibm"
    assert exports.is_synthea(folder)
    records, counts = read(exports.read_synthea, folder)
    found = vocabularies(records)
    assert len(records) == 1158
    # All rows of the three tables, but for five that are there twice.
    assert found["CONDITION"] + found["DRUG"] + found["ALLERGY"] == 20_512 + 17_922 + 1_339 - 5
    assert counts["a subject without date of birth: its age is unknown"] == 172
    assert counts["no table encounters in the folder"] == 1
    assert records[0].raw.meanings["CONDITION//195662009"] == "Acute viral pharyngitis (disorder)"


def test_synthea_with_all_tables(real_data: Path) -> None:
    records, counts = read(exports.read_synthea, real_data / "ehr" / "synthea_small_full")
    assert len(records) == 59
    kinds = Counter(event.kind for record in records for event in record.raw.events if event.kind)
    assert set(kinds) == {"inpatient", "outpatient", "emergency"}
    assert kinds.total() == 2590
    mixed = next(reason for reason in counts if "no conversion is known" in reason)
    assert "(codes of few subjects)" in mixed  # of a filtration rate, with and without body surface
    assert counts == {
        "a repeated event, kept once": 865,
        EMPTY: 24,  # units
        "a value longer than 64 characters, left out": 35,
        mixed: 10,
    }
    values = [event for record in records for event in record.raw.events if event.value is not None]
    assert len(values) > 14_000
    assert all(event.code.startswith("LAB//") for event in values)
    for record in records:
        times = [event.time for event in record.raw.events]
        dated = [time for time in times if time is not None]
        assert times == [None] * (len(times) - len(dated)) + sorted(dated)
        assert record.raw.birth is not None


def test_mimic3(real_data: Path) -> None:
    folder = real_data / "ehr" / "mimic3_demo"
    assert exports.is_mimic3(folder)
    records, counts = read(exports.read_mimic3, folder)
    assert len(records) == 100
    found = vocabularies(records)
    assert found["ADMISSION"] == 129
    assert found["ICD9"] + found["ICD9PROC"] <= 1761 + 506
    assert found["ICD9"] > 1700
    assert counts["an event later than today, kept"] > 10_000
    assert {
        len(event.code.partition(".")[0])
        for r in records
        for event in r.raw.events
        if event.code[:6] == "ICD9//"
    } <= {9, 10}


def test_diabetes(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "ehr" / "diabetes130" / "diabetic_data.csv.gz"
    part = tmp_path / "diabetic_data.csv"
    with gzip.open(path, "rt") as whole:
        part.write_text("".join(islice(whole, 2_001)))
    problems = Problems(sensitive=True)
    found = audit(flat.read_wide(part, problems, **OPTIONS), problems)
    with part.open() as handle:
        rows = list(csv.DictReader(handle))
    diagnoses = {(row["encounter_id"], row[f"diag_{i}"]) for row in rows for i in (1, 2, 3)}
    assert found["subjects"] == len({row["patient_nbr"] for row in rows})
    assert found["visits"] == len(rows) == 2_000
    assert found["vocabularies"]["ICD9"] == sum(code != "?" for _, code in diagnoses)
    assert found["vocabularies"]["STAY"] == 8 * 2_000
    assert problems.counts["an encounter without date, placed one day after the previous encounter"] == 2_000
