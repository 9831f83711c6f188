"""Times as logs write them, against datetime; years and zones that are not written."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seqmlm.data.clock import Clock, days, epoch
from seqmlm.errors import UsageError
from seqmlm.parsing import duration

moments = st.datetimes(datetime(1990, 1, 1), datetime(2035, 12, 31))
FORMS = (
    *("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y/%m/%d %H:%M:%S", "%Y-%m-%d-%H.%M.%S", "%y%m%d %H%M%S"),
    *("%y/%m/%d %H:%M:%S", "%d/%b/%Y:%H:%M:%S", "%a %b %d %H:%M:%S %Y", "%b %d, %Y %H:%M:%S"),
)


@given(st.lists(moments, min_size=1, max_size=5), st.sampled_from(FORMS), st.integers(-14, 14))
def test_as_datetime_reads_them(times: list[datetime], form: str, hours: int):
    zone = timezone(timedelta(hours=hours))
    clock = Clock(f"{hours:+03d}:00")
    for moment in times * 2:
        moment = moment.replace(microsecond=0)
        assert clock[moment.strftime(form)] == moment.replace(tzinfo=zone).timestamp()


@given(moments.map(lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000)), st.sampled_from(".,"))
def test_fractions_and_offsets(moment: datetime, point: str):
    text = moment.isoformat(timespec="milliseconds").replace(".", point)
    clock = Clock("Asia/Tokyo")  # of no matter to a time that names its zone
    wanted = moment.replace(tzinfo=UTC).timestamp()
    for zone, seconds in (("Z", 0), ("+02:00", 7200), ("-0530", -19800), (" +01", 3600)):
        assert clock[text + zone] == pytest.approx(wanted - seconds, abs=1e-6)


@given(st.datetimes(datetime(2001, 1, 1), datetime(2035, 1, 1)))
def test_zones_with_summer_time(moment: datetime):
    moment = moment.replace(microsecond=0, fold=0)  # a text has no fold
    there = moment.replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
    assert Clock("Europe/Berlin")[moment.isoformat()] == there


@given(st.dates(date(1600, 1, 1), date(2400, 1, 1)))
def test_days_are_those_of_the_calendar(day: date):
    assert days(day.year, day.month, day.day) == day.toordinal() - date(1970, 1, 1).toordinal()


@given(st.integers(10**9, 4 * 10**9), st.sampled_from([1, 1000, 10**6, 10**9]))
def test_numbers_of_the_epoch(seconds: int, unit: int):
    assert epoch(seconds * unit) == Clock()[str(seconds * unit)] == seconds


def test_numbers_are_no_clocks():
    clock = Clock()  # "120000" and "121500" end these numbers, as if they were clocks
    assert [clock["1117120000"], clock["1117121500"]] == [1117120000, 1117121500]


def at(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


def test_a_year_that_turns():
    clock = Clock(year=2023)
    lines = ["Dec 31 23:59:59", "Jan  1 00:00:01", "Dec 31 23:59:58", "Feb 29 12:00:00", "Dec 30 00:00:00"]
    assert [clock[text] for text in lines] == [
        at(2023, 12, 31, 23, 59, 59),
        at(2024, 1, 1, 0, 0, 1),
        at(2023, 12, 31, 23, 59, 58),  # a late line of the old year
        at(2024, 2, 29, 12),
        at(2023, 12, 30),
    ]


def test_the_same_text_a_year_later():
    clock = Clock(year=2020)
    months = ["Mar", "Aug", "Dec"]
    for year in (2020, 2021, 2022):
        for number, month in zip((3, 8, 12), months, strict=True):
            assert clock[f"{month} 01 10:00:00"] == at(year, number, 1, 10)


def test_a_year_is_the_latest_possible():
    latest = at(2024, 1, 5)
    assert Clock(latest=latest)["Dec 20 10:00:00"] == at(2023, 12, 20, 10)
    assert Clock(latest=latest)["Jan  3 10:00:00"] == at(2024, 1, 3, 10)


def read(*texts: str, **options: Any) -> list[datetime]:
    """The times of lines in a row."""
    clock = Clock(**options)
    return [datetime.fromtimestamp(clock[text], UTC).replace(tzinfo=None) for text in texts]


def test_a_leap_day_is_of_a_year_that_has_it():
    day = datetime(2024, 2, 29, 12)
    text = "Feb 29 12:00:00"
    assert read(text, latest=at(2025, 3, 5)) == [day]
    assert read(text, latest=at(2024, 2, 10)) == [datetime(2020, 2, 29, 12)]
    assert read("Feb 28 12:00:00", text, "Mar  1 12:00:00", latest=at(2025, 6, 1))[1:] == [
        day,
        datetime(2024, 3, 1, 12),
    ]
    assert math.isnan(Clock(year=2023)[text]), "the year that was given has no such day"


BOOT = ("Jan  1 00:00:05", "Jan  1 00:00:20", "Jan  1 01:30:00", "Jan  2 00:10:00")


# A line of January behind one of December is of the next year, unless that has not come.
@pytest.mark.parametrize(
    ("month", "known"),
    [
        *((month, {"year": 2021}) for month in range(2, 12)),
        *((month, {"latest": at(2021, 12, 28)}) for month in range(2, 13)),
    ],
)
@pytest.mark.parametrize("boots", range(1, 5))
def test_a_clock_that_is_not_set_when_a_machine_boots(month: int, known: dict[str, Any], boots: int):
    """Its times come before those of the other lines, never in the next year; these go on as they were."""
    moment, texts = datetime(2021, month, 20, 8), list[str]()
    for _ in range(6):
        texts += [moment.strftime("%b %d %H:%M:%S"), *BOOT[:boots]] * 2
        moment += timedelta(minutes=5)
    assert read(*texts, **known) == [datetime.strptime(f"2021 {one}", "%Y %b %d %H:%M:%S") for one in texts]


@pytest.mark.parametrize("month", range(1, 13))
def test_a_log_that_begins_before_its_clock_is_set(month: int):
    real = datetime(2021, month, 25, 8)
    texts = [*BOOT, real.strftime("%b %d %H:%M:%S"), (real + timedelta(days=1)).strftime("%b %d %H:%M:%S")]
    assert read(*texts, latest=at(2021, month, 27))[4:] == [real, real + timedelta(days=1)]
    assert read(*texts, year=2021)[4:] == [real, real + timedelta(days=1)]


@pytest.mark.parametrize("live", [False, True])
@given(
    st.lists(st.timedeltas(timedelta(0), timedelta(days=100)), min_size=1, max_size=30),
    st.datetimes(datetime(2018, 1, 2), datetime(2019, 12, 30)),
)
def test_years_turn_as_often_as_the_calendar_does(live: bool, apart: list[timedelta], first: datetime):
    moments = [first.replace(microsecond=0)]
    for one in apart:
        moments.append(moments[-1] + timedelta(seconds=int(one.total_seconds())))
    # The first hour of January 1 behind a line of autumn is read as of a clock that was not set.
    assume(all((one.month, one.day, one.hour) != (1, 1, 0) for one in moments))
    texts = [one.strftime("%b %d %H:%M:%S") for one in moments]
    known = {"latest": first.timestamp(), "live": True} if live else {"year": first.year}
    assert read(*texts, **known) == moments


def test_a_monthly_job_turns_the_year():
    texts = ["Nov  1 00:00:01", "Dec  1 00:00:01", "Jan  1 00:00:01", "Feb  1 00:00:01"]
    assert [one.year for one in read(*texts, year=2021)] == [2021, 2021, 2022, 2022]


def test_memory_is_bounded():
    clock = Clock()
    for number in range(70_000):
        clock[f"{1_500_000_000 + number}"]
    assert len(clock) <= 1 << 16


def test_durations_and_zones():
    texts = ("500ms", "90s", "5m", "5min", "1.5h", "2d", "7", "x")
    assert [duration(t) for t in texts] == [0.5, 90, 300, 300, 5400, 172800, None, None]
    with pytest.raises(UsageError, match="unknown time zone"):
        Clock("Mars/Olympus")


@pytest.mark.parametrize(
    "text",
    [
        *("", "yesterday", "2024-13-01 00:00:00", "2024-01-01 25:00:00", "Foo 12 10:00:00", "12"),
        *("2021-02-29T00:00:00", "2021-02-31T00:00:00", "2021-04-31 10:00:00", "0000-01-01T00:00:00"),
        *("99999999999999999999", "31/Feb/2021:10:00:00 +0000", "05-03 10:00:00"),  # of May or of March
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_what_is_no_time_and_in_no_calendar_is_none(text: str, zone: str) -> None:
    clock = Clock(zone)
    assert math.isnan(clock[text])
    assert math.isnan(clock[text])


def test_the_ends_of_the_calendar() -> None:
    assert Clock()["9999-12-31T23:59:59"] == 253_402_300_799
    assert not math.isnan(Clock("Europe/Berlin")["9999-12-31T12:00:00"])
    assert not math.isnan(Clock()["2024-02-29T00:00:00"])
    assert all(math.isnan(epoch(value)) for value in (1e300, float("inf"), float("nan")))
    assert epoch(1e18) == 1e9
