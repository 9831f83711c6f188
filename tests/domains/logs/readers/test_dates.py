"""Times of tables and JSON lines in any order of day and month, where the first ones say which it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers import READERS
from seqmlm.errors import DataError, UsageError

GIVEN = "%m/%d/%y %H:%M:%S", "%Y%m%d %H:%M:%S"
"""Forms of which `date_format` has to say how dates are written."""
FORMS = [
    *("%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%d-%m-%Y %H:%M", "%Y-%m-%d %H:%M:%S"),
    *("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y, %I:%M:%S %p", "%d.%m.%Y, %H:%M:%S", "%d/%b/%Y %H:%M:%S"),
    *("%d.%m.%YT%H:%M:%S.%f", "%m/%d/%Y %H:%M:%S+02:00", "%Y/%m/%d %H:%M:%S", *GIVEN),
]


def written(path: Path, kind: str, times: list[Any]) -> Path:
    """A file of one message a time."""
    if kind == "jsonl":
        lines = [json.dumps({"timestamp": time, "message": f"said {n}"}) for n, time in enumerate(times)]
    elif kind == "whole":
        lines = [json.dumps({"ts": time, "status": 200, "path": f"/{n}"}) for n, time in enumerate(times)]
    elif kind == "session":
        lines = [json.dumps({"timestamp": times, "lines": [f"said {n}" for n in range(len(times))]})]
    elif kind == "parts":
        lines = ["date,time,message", *(f"{t.replace(', ', ' ').replace(' ', ',', 1)},said" for t in times)]
    else:
        lines = ["timestamp\tmessage", *(f"{time}\tsaid {n}" for n, time in enumerate(times))]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["jsonl", "whole", "session", "tsv", "parts"])
def test_times_of_exports(form: str, kind: str, tmp_path: Path):
    if kind == "parts" and "T" in form:
        pytest.skip("date and time in one word")
    moments = [datetime(2024, 3, 5, 13, tzinfo=UTC) + timedelta(hours=7 * n) for n in range(40)]
    times = [moment.strftime(form).replace("/0", "/") for moment in moments]
    path, options = written(tmp_path / "a", kind, times), {"session": "none"}
    if form in GIVEN:
        options["date_format"] = form.partition(" ")[0]
    for zone, ahead in (("UTC", 0), ("+01:00", 3600), ("Europe/Berlin", 3600)):
        problems = Problems()
        [record] = READERS["auto"](path, problems, zone=zone, **options)
        ahead = 7200 if "+02:00" in form else ahead
        assert record.raw.times is not None
        assert list(record.raw.times) == [moment.timestamp() - ahead for moment in moments]
        notes = [note for note in problems.counts if "dates were read" in note]
        assert len(notes) == (form not in GIVEN and not form.startswith("%Y-"))


@pytest.mark.parametrize("kind", ["jsonl", "whole", "session", "tsv"])
def test_times_that_fit_several_orders_are_refused_with_the_option_that_says_it(kind: str, tmp_path: Path):
    path = written(tmp_path / "a", kind, ["03/05/2024 13:00:00", "03/06/2024 13:00:00"])
    with pytest.raises(DataError, match=r"is ambiguous .*--option date_format=%m/%d/%Y or --option date_f"):
        list(READERS["auto"](path, Problems(), session="none"))
    [record] = READERS["auto"](path, Problems(), session="none", date_format="%d/%m/%Y")
    assert record.raw.times[0] == datetime(2024, 5, 3, 13, tzinfo=UTC).timestamp()
    path = written(tmp_path / "a", kind, ["13/05/2024 13:00:00", "03/16/2024 13:00:00"])
    problems = Problems("skip")
    assert not list(READERS["auto"](path, problems, session="none"))
    assert problems.bad_count == 1


def test_a_few_odd_times_are_those_of_their_neighbours(tmp_path: Path):
    path = written(tmp_path / "a", "tsv", [*["2024-03-05 13:00:00"] * 5, "03/05/2024 13:00:00"])
    problems = Problems()
    [record] = READERS["auto"](path, problems, session="none")
    assert len(set(record.raw.times)) == 1
    assert problems.counts == {"an event without a readable time gets the time of its neighbour": 1}


def test_times_that_nobody_can_read_are_said_to_be_none(tmp_path: Path):
    problems = Problems()
    [record] = READERS["auto"](written(tmp_path / "a", "tsv", ["soon"] * 5), problems, session="none")
    assert record.raw.times is None
    assert problems.counts == {"an event without a readable time stays without one: no event has one": 5}


@pytest.mark.parametrize("time", [1709632800.25, "1709632800.25", "1709632800,25", "1709632800250"])
def test_epochs_with_parts(time: object, tmp_path: Path):
    for kind in ("jsonl", "tsv"):
        [record] = READERS["auto"](written(tmp_path / "a", kind, [time] * 3), Problems(), session="none")
        assert record.raw.times == (1709632800.25,) * 3


def test_a_form_that_is_none(tmp_path: Path):
    for form in ("%Q", "minutes", "day", ""):
        with pytest.raises(UsageError, match="date_format must be a pattern"):
            list(READERS["auto"](written(tmp_path / "a", "tsv", ["1"]), Problems(), date_format=form))
