"""Tables of events, long and wide, and the Medical Event Data Standard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import lines

from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.history import Event, iso
from seqmlm.domains.ehr.readers import flat, meds
from seqmlm.errors import DataError, UsageError
from tests.domains.ehr.readers.test_tables import FORMATS, write


def shard(path: Path, **columns: Sequence[Any]) -> Path:
    kinds = {"time": pa.timestamp("us"), "numeric_value": pa.float32()}
    arrays = {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(arrays), path, row_group_size=3)
    return path


def day(number: int) -> int:
    return number * 86_400_000_000


def meds_of(folder: Path) -> Path:
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
    found = list(meds.read_meds(meds_of(tmp_path), problems))
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
        "a shard that is not sorted by subject, grouped by subject first": 1,
        "a subject with events in several shards: each shard gives a separate record": 1,
        "a subject without date of birth: its age is unknown": 3,
        "a subject without dated events, left out": 1,
        "an event earlier than the previous event, sorted": 1,
    }
    assert [is_one(tmp_path) for is_one in FORMATS] == [True, False, False, False, False]
    assert found[0].raw.meanings == {"A//1": "One"}
    (single,) = list(meds.read_meds(tmp_path / "data" / "train" / "0.parquet", Problems()))[:1]
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
    one, two = flat.read_long(path, problems, **NAMES)
    assert lines(one.raw) == [
        "- CODE//female",
        "1980-02-03 MEDS_BIRTH",
        "2011-01-02 CODE//4548-4 6.5 a",
        "2011-01-02 CODE//smoker never a",
        "2020-05-06 MEDS_DEATH",
    ]
    assert lines(two.raw) == ["2012-01-02 ICD9//250.00 b"]
    assert problems.counts == {
        "a subject without date of birth: its age is unknown": 1,
        "an event without time, read as background": 1,
    }
    named, _ = flat.read_long(path, Problems(), vocabulary="LOCAL", **NAMES)
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
    (record,) = flat.read_long(path, problems)
    assert record.raw.events == (Event(time=0.0, code="CODE//a"), Event(time=86_400.0, code="X//b"))
    assert problems.counts["an event earlier than the previous event, sorted"] == 1


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
    one, two = flat.read_wide(path, problems, **WIDE_OPTIONS)
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
        "a repeated event, kept once": 1,
        "a subject without date of birth: its age is unknown": 2,
        "a value that is not a number, left out": 1,
        "an encounter without date, placed one day after the previous encounter": 3,
    }
    texts = {name: ", ".join(v) if isinstance(v, list) else v for name, v in WIDE_OPTIONS.items()}
    again = [str(record.raw) for record in flat.read_wide(path, Problems(), **texts)]
    assert again == [str(one.raw), str(two.raw)]
    with pytest.raises(UsageError, match="needs the names of columns"):
        list(flat.read_wide(path, Problems()))
    with pytest.raises(DataError, match="'diag_9': no column of this name"):
        list(flat.read_wide(path, Problems(), patient="patient_nbr", columns=["diag_9"]))


def test_numbers_of_encounters_may_have_any_number_of_digits(tmp_path: Path) -> None:
    later, earlier = "1" + "0" * 5000, "9" * 5000
    text = f"patient_id,encounter_id,dx\n1,{later},B\n1,{earlier},A\n1,7,C\n"
    path = write(tmp_path, {"wide": text}) / "wide.csv"
    (record,) = flat.read_wide(path, Problems(), columns=["dx"])
    codes = [event.code for event in record.raw.events]
    assert [code for code in codes if code.startswith("dx//")] == ["dx//C", "dx//A", "dx//B"]


def test_a_wide_table_with_dates(tmp_path: Path) -> None:
    text = "patient_id,encounter_id,seen,class,dx\n1,a,2011-01-02,ER,250\n1,b,soon,ER,251\n"
    path = write(tmp_path, {"wide": text}) / "wide.csv"
    problems = Problems("skip")
    (record,) = flat.read_wide(path, problems, time="seen", kind="class", columns=["dx"])
    assert lines(record.raw) == ["2011-01-02 VISIT//emergency a emergency", "2011-01-02 dx//250 a"]
    assert problems.counts["the time cannot be read"] == 1
