"""Dates as people write them: read as told, or in the one order that fits, else one error that helps."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from histories import lines
from hypothesis import given
from hypothesis import strategies as st
from written import all_written, written

from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.history import iso
from seqmlm.domains.ehr.readers import cells, exports, flat
from seqmlm.errors import DataError, UsageError


def table(folder: Path, *dates: str) -> Path:
    rows = [f"1,{date},C{number}" for number, date in enumerate(dates)]
    return written(folder / "events.csv", "\n".join(["patient_id,date,code", *rows]) + "\n")


def times(path: Path, problems: Problems, **options: Any) -> list[str]:
    """The times of all events, in the order of the rows."""
    (record,) = flat.read_long(path, problems, **options)
    by_code = {event.code: iso(event.time) for event in record.raw.events}
    return [by_code[code] for code in sorted(by_code)]


@pytest.mark.parametrize(
    ("dates", "order"),
    [
        (["03/04/2011", "3/25/2011", "12/31/2012 2:05 PM", "12/31/2012 14:05"], "%m/%d/%Y"),
        (["03/04/2011", "25/03/2011"], "%d/%m/%Y"),
        (["04.03.2011", "25.3.2011 9:05:01"], "%d.%m.%Y"),
        (["2011/03/04", "2011/12/01T10:00"], "%Y/%m/%d"),
        (["25-Mar-2011", "01-Feb-2012"], "%d-%b-%Y"),
        (["2011-03-04", "03/25/2011", "1999"], "%m/%d/%Y"),
    ],
)
def test_an_order_that_alone_fits_is_taken_and_told(dates: list[str], order: str, tmp_path: Path) -> None:
    problems = Problems()
    path = table(tmp_path, *dates)
    found = times(path, problems)
    told = (
        f"a table whose dates were read as {order}, the only order that fits its first dates; for another "
        "order use --option date_format=..."
    )
    assert problems.counts[told] == 1
    assert problems.places[told].startswith(str(path))
    for text, date in zip(found, dates, strict=True):
        if "/" in date or "." in date:
            day = date.replace("T", " ").split()[0]
            assert text.startswith(datetime.strptime(day, order).date().isoformat())
    assert found == times(path, Problems(), date_format=order)  # as if it had been named
    if dates[2:] and "PM" in dates[2]:
        assert found[2:] == ["2012-12-31T14:05:00"] * 2


@given(
    st.lists(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), min_size=1, max_size=30),
    st.sampled_from(["%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y"]),
)
def test_no_date_is_read_otherwise_than_it_was_written(dates: list[datetime], order: str) -> None:
    rows = [(line, (date.strftime(order),)) for line, date in enumerate(dates, 2)]
    found, read = cells.dated_rows(iter(rows), Problems("skip"), "a.csv", {0: "date"}, None)
    got = [read(cell) for _, (cell,) in found]
    midnight = [(date.replace(hour=0, minute=0, second=0, microsecond=0)) for date in dates]
    wanted = [(date - datetime(1970, 1, 1)).total_seconds() for date in midnight]
    assert got in ([], wanted)
    if any(date.day > 12 for date in dates):
        assert got == wanted


@pytest.mark.parametrize(
    ("dates", "said"),
    [
        (["2011-01-01", "03/04/2011", "05/06/2011"], "ambiguous in the dates from line 3 on"),
        (["03/25/2011", "25/03/2011"], "from line 2 on mix several orders of day and month"),
    ],
)
def test_what_fits_several_orders_is_one_error_with_its_remedy(
    dates: list[str], said: str, tmp_path: Path
) -> None:
    path = table(tmp_path, *dates)
    with pytest.raises(DataError, match=said) as caught:
        list(flat.read_long(path, Problems(sensitive=True)))
    assert str(path) in str(caught.value)
    for order in ("%m/%d/%Y", "%d/%m/%Y"):
        assert f"--option date_format={order}" in str(caught.value)
    assert not any(date in str(caught.value) for date in dates)
    assert not caught.value.skippable  # else all dated events would be missing without a word
    problems = Problems("skip", sensitive=True)
    list(flat.read_long(path, problems))
    assert problems.bad_count == 1


def test_a_date_of_no_known_order_names_its_line_and_the_option(tmp_path: Path) -> None:
    path = table(tmp_path, "2011-01-01", "03/25/11")
    with pytest.raises(DataError, match="the time cannot be read") as caught:
        list(flat.read_long(path, Problems()))
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "--option date_format=%m/%d/%Y" in str(caught.value)
    assert times(path, Problems(), date_format="%m/%d/%y")[1] == "2011-03-25T00:00:00"


def test_single_dates_in_another_order_cost_their_rows_alone(tmp_path: Path) -> None:
    problems = Problems("skip")
    path = table(tmp_path, "2011-01-01", "03/04/2011", "2011-01-02", "2011-01-03", "05/06/2011")
    assert times(path, problems) == [f"2011-01-0{day}T00:00:00" for day in (1, 2, 3)]
    assert problems.counts["the time cannot be read"] == 2


def test_a_date_beyond_those_that_decided_is_not_turned_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_HEAD", 2)
    problems = Problems("skip")
    path = table(tmp_path, "03/25/2011", "01/02/2011", "01/03/2011", "25/03/2011")
    assert times(path, problems) == [f"2011-{day}T00:00:00" for day in ("03-25", "01-02", "01-03")]
    assert problems.counts["the time cannot be read"] == 1


@pytest.mark.parametrize("wrong", ["US", "%d", "%m/%d", "minute", "%Q"])
def test_a_date_format_that_is_none_is_refused(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="date_format must be a pattern"):
        list(flat.read_long(table(tmp_path, "2011-01-01"), Problems(), date_format=wrong))


def test_offsets_from_an_admission(tmp_path: Path) -> None:
    """eICU: minutes, of which 2011 is no year and 20110102 no date."""
    path = tmp_path / "lab.csv"
    path.write_text(
        "patientunitstayid,labresultoffset,labname,labresult,labmeasurenamesystem\n"
        "7,-30,glucose,120,mg/dL\n7,2011,BUN,20,mg/dL\n7,20110102,sodium,140,mmol/L\n7,soon,x,1,\n"
    )
    problems = Problems("skip")
    (record,) = flat.read_long(path, problems)
    assert record.id == "7"
    assert [(event.code, event.time, event.unit) for event in record.raw.events] == [
        ("CODE//glucose", -1800.0, "mg/dL"),
        ("CODE//BUN", 2011 * 60.0, "mg/dL"),
        ("CODE//sodium", 20110102 * 60.0, "mmol/L"),
    ]
    assert problems.counts["the time cannot be read"] == 1
    assert any("minutes since an admission" in reason for reason in problems.counts)
    vital = tmp_path / "vitalPeriodic.csv"
    vital.write_text("patientunitstayid,observationoffset,heartrate\n7,2011,80\n7,5,\n")
    names = {"patient": "patientunitstayid", "visit": "patientunitstayid", "time": "observationoffset"}
    (record,) = flat.read_wide(vital, Problems(), values=["heartrate=VITAL"], **names)
    assert [(event.time, event.value) for event in record.raw.events] == [
        (300.0, None),
        (2011 * 60.0, None),
        (2011 * 60.0, 80.0),
    ]
    own = table(tmp_path, "36", "1.5", "1e300", "-1e300")
    problems = Problems("skip")
    assert times(own, problems, date_format="hours") == [
        iso(timedelta(hours=hours).total_seconds()) for hours in (36, 1.5)
    ]
    assert problems.counts["the time cannot be read"] == 2


def test_american_exports_keep_their_deaths(tmp_path: Path) -> None:
    tables = {
        "patients.csv": "Id,BIRTHDATE,DEATHDATE,GENDER\np1,02/03/1980,05/26/2020,F\np2,12/25/1950,,M",
        "conditions.csv": "START,PATIENT,ENCOUNTER,CODE\n01/22/2011,p1,,1\n01/02/2011,p2,,1",
    }
    problems = Problems("skip")
    one, two = exports.read_synthea(all_written(tmp_path, tables), problems)
    assert lines(one.raw) == [
        "- SEX//F",
        "1980-02-03 MEDS_BIRTH",
        "2011-01-22 CONDITION//1",
        "2020-05-26 MEDS_DEATH",
    ]
    assert lines(two.raw)[1:] == ["1950-12-25 MEDS_BIRTH", "2011-01-02 CONDITION//1"]
    assert problems.bad_count == 0
    assert iso(one.raw.birth) == "1980-02-03T00:00:00"


def test_other_formats_take_the_option(tmp_path: Path) -> None:
    day = {"date_format": "%d/%m/%Y"}
    wide = written(tmp_path / "wide.csv", "patient_id,encounter_id,seen,dx\n1,a,02/01/2011,250\n")
    (record,) = flat.read_wide(wide, Problems(), time="seen", columns=["dx"], **day)
    assert lines(record.raw)[-1] == "2011-01-02 dx//250 a"
    omop = {
        "person.csv": "person_id,gender_concept_id,year_of_birth\n1,8532,1980",
        "condition_occurrence.csv": "person_id,condition_concept_id,condition_start_date\n1,5,02/01/2011",
    }
    mimic = {
        "PATIENTS.csv": "subject_id,gender,dob,dod\n1,F,01/02/1950,04/03/2100",
        "ADMISSIONS.csv": "subject_id,hadm_id,admittime,dischtime,admission_type\n"
        "1,11,02/01/2100 10:00:00,09/01/2100 10:00:00,EMERGENCY",
        "DIAGNOSES_ICD.csv": "subject_id,hadm_id,icd9_code\n1,11,25000",
    }
    (record,) = exports.read_omop(all_written(tmp_path / "omop", omop), Problems("skip"), **day)
    assert lines(record.raw)[1:] == ["1980-01-01 MEDS_BIRTH", "2011-01-02 CONDITION//5"]
    (record,) = exports.read_mimic3(all_written(tmp_path / "mimic", mimic), Problems("skip"), **day)
    assert lines(record.raw)[1:] == [
        "1950-02-01 MEDS_BIRTH",
        "2100-01-02 ADMISSION//EMERGENCY 11 inpatient",
        "2100-01-09 ICD9//250.00 11",
        "2100-03-04 MEDS_DEATH",
    ]
