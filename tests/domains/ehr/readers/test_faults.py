"""What is odd in patient records is counted, what is unusable is named by place, and no value is told."""

from __future__ import annotations

import io
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from written import rows, written

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.ehr.audit import audit
from seqmlm.domains.ehr.readers import exports, fhir, flat, meds
from seqmlm.errors import DataError, UsageError

Reader = Callable[..., Iterator[Record]]

ODD = """patient,time,code,value
1,2000-01-01,BIRTH,
1,2011-01-02,A//1,1
1,2011-01-01,A//2,
1,2011-01-02,A//1,1
1,1999-12-31T12:00,A//3,
1,1990-01-01,A//4,
1,2999-01-01,A//5,
2,2011-01-01,A//1,
2,2011-01-01,A//6,{long}
3,2011-01-01,DEATH,
"""
COUNTED = {
    "a subject without date of birth: its age is unknown": 1,
    "a subject without dated events, left out": 1,
    "a repeated event, kept once": 1,
    "an event earlier than the previous event, sorted": 3,
    "an event before the subject's birth, kept": 1,
    "an event later than today, kept": 1,
    "a value longer than 64 characters, left out": 1,
}


def odd(folder: Path) -> Path:
    return written(folder / "a.csv", ODD.format(long="word " * 20))


def test_what_is_odd_is_counted_and_kept(tmp_path: Path) -> None:
    problems = Problems()
    one, two = flat.read_long(odd(tmp_path), problems)
    assert problems.counts == COUNTED
    codes = [event.code for event in one.raw.events]
    assert codes == ["A//4", "A//3", "MEDS_BIRTH", "A//2", "A//1", "A//5"]
    assert [(event.code, event.text) for event in two.raw.events] == [("A//1", None), ("A//6", None)]
    assert two.raw.birth is None


def test_until_leaves_out_what_came_later(tmp_path: Path) -> None:
    problems = Problems()
    one, _ = flat.read_long(odd(tmp_path), problems, until="2011-01-01")
    assert [event.code for event in one.raw.events] == ["A//4", "A//3", "MEDS_BIRTH", "A//2"]
    assert problems.counts["an event later than the option until, left out"] == 3
    with pytest.raises(UsageError, match="until"):
        list(flat.read_long(odd(tmp_path), Problems(), until="soon"))


def test_missing_columns_are_named_with_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "shard.parquet"
    pq.write_table(pa.table({"patient": [1], "time": [0], "code": ["A"]}), path)
    with pytest.raises(
        DataError, match=r"field 'subject_id': no column of this name .*patient, time, code"
    ) as caught:
        list(meds.read_meds(path, Problems(sensitive=True)))  # names of a schema are nobody's data
    assert caught.value.source == str(path)
    table = written(tmp_path / "a.csv", "who,time,code\n1,2011,A\n")
    with pytest.raises(DataError, match=r"a.csv:1: .*who, time, code; name it with --option patient=NAME"):
        list(flat.read_long(table, Problems()))
    with pytest.raises(DataError) as caught:  # without a header these would be values
        list(flat.read_long(table, Problems(sensitive=True)))
    assert "who" not in str(caught.value)
    with pytest.raises(DataError, match="field 'doctor': no column"):
        list(flat.read_long(table, Problems(), patient="who", visit="doctor"))


@pytest.mark.parametrize("reader", [exports.read_synthea, exports.read_omop, exports.read_mimic3])
def test_an_empty_folder(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the folder has none of the tables") as caught:
        list(reader(tmp_path, Problems()))
    assert "it can have p" in (caught.value.remedy or "")
    assert not any(
        is_one(tmp_path)
        for is_one in (meds.is_meds, exports.is_synthea, exports.is_omop, exports.is_mimic3, fhir.is_fhir)
    )


def test_rows_without_patient_code_or_time_are_named_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("patient,time,code\n1,2011,A//1\n,2011,A//2\n1,soon,A//3\n1,2012,\n1,2013\n1,2014,A//4\n")
    with Problems("quarantine", tmp_path / "aside.jsonl", sensitive=True) as problems:
        (record,) = flat.read_long(path, problems)
    assert [event.code for event in record.raw.events] == ["A//1", "A//4"]
    aside = rows(tmp_path / "aside.jsonl")
    assert [(line["line"], line["field"], line["reason"]) for line in aside] == [
        (3, "patient", "no patient in the row"),
        (4, "time", "the time cannot be read"),
        (5, "code", "no code in the row"),
        (6, None, "a row with too few fields"),
    ]


def test_rows_of_a_table_without_patient_are_named(tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text("Id,BIRTHDATE\n1,1980-01-01\n,1990-01-01\n2,soon\n")
    (tmp_path / "conditions.csv").write_text(
        "START,PATIENT,ENCOUNTER,CODE\n2011-01-01,1,,A\n2011-01-01,,,B\n2011-01-01,1,,\n,1,,C\n"
    )
    with Problems("quarantine", tmp_path / "aside.jsonl", sensitive=True) as problems:
        (record,) = exports.read_synthea(tmp_path, problems)
    assert [event.code for event in record.raw.events] == ["MEDS_BIRTH", "CONDITION//A"]
    aside = rows(tmp_path / "aside.jsonl")
    assert [(Path(line["source"]).name, line["line"], line["field"]) for line in aside] == [
        ("patients.csv", 3, "id"),
        ("patients.csv", 4, "birthdate"),
        ("conditions.csv", 3, "patient"),
        ("conditions.csv", 4, "code"),
        ("conditions.csv", 5, "start"),
    ]


@pytest.mark.parametrize("data", [b"hello" * 100, b"", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_shard_that_is_no_parquet(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(
        pa.table({"subject_id": [1], "time": pa.array([0], pa.timestamp("us")), "code": ["A"]}),
        tmp_path / "data" / "0.parquet",
    )
    (tmp_path / "data" / "1.parquet").write_bytes(data)
    problems = Problems("skip")
    assert [record.id for record in meds.read_meds(tmp_path, problems)] == ["1"]
    assert problems.bad_count == 1
    with pytest.raises(DataError, match=r"1.parquet: "):
        list(meds.read_meds(tmp_path, Problems()))


CANARY = "Canary-4711"


def canary_tables(folder: Path) -> list[tuple[Reader, Path, dict[str, Any]]]:
    """The canary as patient, code, value, words, time, name and in rows that break, in every format."""
    c = CANARY
    long = folder / "long.csv"
    long.write_text(
        f"patient,time,code,value,visit\n{c},2011,A//1,,\n1,{c},A//1,,\n1,2011,{c},{c},{c}\n,2011,{c},{c},\n"
        f"1,2011,A//2,{c * 9},\n{c},2011\n1,2011,,{c},\n{c},1800-01-01,A//1,,\n{c},2950-01-01,A//1,,\n"
    )
    wide = folder / "wide.csv"
    wide.write_text(f"patient_id,encounter_id,dx,n\n1,{c},{c},{c}\n,{c},{c},1\n{c},,A,1\n{c},{c}\n")
    bad_header = written(folder / "header.csv", f"{c},2011,A\n{c},2012,B\n")
    synthea = folder / "synthea"
    synthea.mkdir()
    (synthea / "patients.csv").write_text(
        f"Id,BIRTHDATE,FIRST,ADDRESS,GENDER,DEATHDATE\n1,{c},{c},{c},F,{c}\n,{c},{c},{c},{c},\n{c},1980,{c},,,\n"
    )
    (synthea / "conditions.csv").write_text(
        f"START,PATIENT,ENCOUNTER,CODE,DESCRIPTION\n{c},1,{c},{c},{c}\n2011,,{c},{c},{c}\n2011,{c},{c},,{c}\n"
    )
    (synthea / "observations.csv").write_text(
        f"DATE,PATIENT,ENCOUNTER,CODE,VALUE\n2011,{c},,1,{c * 9}\n2011,1,,2,{c}\n2011,{c}\n"
    )
    bundle = folder / "a.ndjson"
    patient = {"reference": f"Patient/{c}"}
    resources = [
        {"resourceType": "Patient", "id": c, "name": [{"family": c}], "birthDate": c},
        {"resourceType": "Condition", "subject": patient, "code": {"text": c}},
        {"resourceType": "Observation", "subject": patient, "code": {"coding": [{"code": c}]}, "issued": c},
        {"resourceType": c},
    ]
    bundle.write_text("".join(json.dumps(one) + "\n" for one in resources) + f'{{"{c}": \n')
    table = folder / "meds.parquet"
    columns = {
        "subject_id": [c, c, None],
        "time": ["2011", c, c],
        "code": [c, c, c],
        "numeric_value": [c, c, c],
    }
    pq.write_table(pa.table(columns), table)
    return [
        (flat.read_long, long, {}),
        (flat.read_long, bad_header, {}),
        (flat.read_wide, wide, {"columns": ["dx"], "values": ["n"]}),
        (exports.read_synthea, synthea, {}),
        (fhir.read_fhir, bundle, {}),
        (meds.read_meds, table, {}),
    ]


def test_a_canary_is_told_nowhere(tmp_path: Path) -> None:
    out, refused = io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(out):
        for number, (reader, path, options) in enumerate(canary_tables(tmp_path)):
            aside = tmp_path / f"aside-{number}.jsonl"
            with Problems("quarantine", aside, sensitive=True) as problems:
                figures = audit(reader(path, problems, **options), problems)
            assert problems.bad_count, reader
            refused += problems.bad_count
            told = aside.read_text() + json.dumps(problems.counts) + json.dumps(figures)
            try:
                list(reader(path, Problems(sensitive=True), **options))
            except DataError:
                told += traceback.format_exc(chain=True)
            assert CANARY not in told, told
    assert CANARY not in out.getvalue()
    assert refused > 20


def test_a_canary_that_should_be_found_is(tmp_path: Path) -> None:
    """The test above looks in the right place: the records themselves do hold it."""
    reader, path, options = canary_tables(tmp_path)[0]
    assert any(CANARY in str(record.raw) for record in reader(path, Problems("skip"), **options))


def test_marks_of_missing_values_are_no_values(tmp_path: Path) -> None:
    rows = ["1,2019-01-02,A,", "NULL,2019-01-02,A,", "2,\\N,A,", "3,2019-01-02,NA,", "4,2019-01-02,A,NaN"]
    (tmp_path / "a.csv").write_text("\n".join(["patient_id,time,code,value", *rows]) + "\n")
    problems = Problems("skip")
    records = list(flat.read_long(tmp_path / "a.csv", problems))
    assert [record.raw.subject for record in records] == ["1", "4"]
    assert [event.value for event in records[1].raw.events] == [None]
    assert problems.counts["a cell with NULL, NA, \\N or nan, read as empty"] == 4
    assert problems.counts["no patient in the row"] == problems.counts["no code in the row"] == 1
    assert problems.places["no code in the row"].endswith("a.csv:5")


@pytest.mark.parametrize(
    ("delimiter", "cell", "value"),
    [
        *((",", cell, value) for cell, value in [("<2", 2.0), (">= 500", 500.0), ("91 %", 91.0)]),
        (",", '"1,103"', 1103.0),
        (",", '"2,101.5"', 2101.5),
        *((",", f'"{cell}"', value) for cell, value in [("1,5", 1.5), ("<12,75 %", 12.75), ("0,103", 0.103)]),
        (";", "3,4", 3.4),
        (";", "1,103", 1.103),
        (";", "<0,5", 0.5),
        (",", "1e400", None),
        (",", "positive", None),
    ],
)
def test_numbers_as_laboratories_write_them(
    delimiter: str, cell: str, value: float | None, tmp_path: Path
) -> None:
    row = delimiter.join(["1", "2019-01-02", "LAB//A", cell])
    (tmp_path / "a.csv").write_text(delimiter.join(["patient_id", "time", "code", "value"]) + f"\n{row}\n")
    problems = Problems("skip")
    [record] = flat.read_long(tmp_path / "a.csv", problems)
    assert record.raw.events[0].value == value
    counted = set(problems.counts) - {"a subject without date of birth: its age is unknown"}
    assert bool(counted) == (cell != "positive"), counted  # what is words stays words
    assert record.raw.events[0].text == (cell if cell == "positive" else None)


def test_a_column_says_what_its_commas_are(tmp_path: Path) -> None:
    """Of values alone: codes and ids keep theirs."""
    rows = [("1,5", "1,103", "0,5"), ("2", "1,103", "1,103"), ("3", "1,103.5", "<1.103,75")]
    cells = [f'"1,5","{n}","A,{n},5",2019-01-0{n},"{a}","{b}","{c}"' for n, (a, b, c) in enumerate(rows, 1)]
    path = written(tmp_path / "a.csv", "\n".join(["patient_id,encounter_id,dx,day,x,y,z", *cells]) + "\n")
    problems = Problems("skip")
    names = {"time": "day", "columns": ["dx=DX"], "values": ["x=V", "y=V", "z=V"]}
    [record] = flat.read_wide(path, problems, **names)
    found = {name: [e.value for e in record.raw.events if e.code == f"V//{name}"] for name in "xyz"}
    assert found == {"x": [1.5, 2.0, 3.0], "y": [1103.0, 1103.0, 1103.5], "z": [0.5, 1.103, 1103.75]}
    assert (record.id, record.raw.events[1].code) == ("1,5", "DX//A,1,5")
    assert problems.counts["a value with a decimal comma, read as a number"] == 4
    for column, value in (("x", 1.5), ("y", 1103.0), ("z", 0.5)):
        [record] = flat.read_long(path, Problems("skip"), code="dx", time="day", value=column)
        assert record.raw.events[0].value == value
        assert record.raw.events[0].code == "CODE//A,1,5"


def test_a_column_of_lists_has_no_decimal_commas(tmp_path: Path) -> None:
    rows = [("1,2", "1,2", "1,5"), ("2,4,7", "a,b", "2"), ("0,3", "yellow", "0,3")]
    cells = [f'1,2019-01-0{n},A,"{a}","{b}","{c}"' for n, (a, b, c) in enumerate(rows, 1)]
    path = written(tmp_path / "a.csv", "\n".join(["patient_id,time,code,x,y,z", *cells]) + "\n")
    expected = {"x": ["1,2", "2,4,7", "0,3"], "y": [1.2, "a,b", "yellow"], "z": [1.5, 2.0, 0.3]}
    for column, found in expected.items():
        [record] = flat.read_long(path, Problems("skip"), value=column)
        assert [event.text or event.value for event in record.raw.events] == found
