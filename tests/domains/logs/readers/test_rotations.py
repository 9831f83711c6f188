"""Files that were rotated: read from the oldest to the newest, so that the newest are held out."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.data.splits import CALIBRATION, TRAIN, VALIDATION, Chronological
from seqmlm.domains.logs import LOGS

ORDERS = {
    "logrotate": ["app.log.10.gz", "app.log.9.gz", "app.log.2", "app.log.1", "app.log"],
    "dates of logrotate": ["app.log-20231231.gz", "app.log-20240101", "app.log-20240301", "app.log"],
    "dates, then numbers": ["app.log-20240301", "app.log.10", "app.log.2", "app.log.1", "app.log"],
    "dates before the ending": ["a-2024-03-01.log", "a-2024-03-02.log.gz", "a-2024-03-10.log", "a.log"],
    "pieces of a day": ["app.log.2024-03-01.1", "app.log.2024-03-01.2", "app.log.2024-03-01.10", "app.log"],
    "times": ["0.log.20240305-101010.gz", "0.log.20240305-231010.gz", "0.log.20240306-010101", "0.log"],
    "clocks": ["app-2024-03-05T09-10-10.123.log.gz", "app-2024-03-05T10-10-10.001.log", "app.log"],
    "the one before": ["app.log.2", "app.log.1", "app.log.old", "app.log"],
    "before the ending": ["app.10.log", "app.2.log", "app.1.log", "app.log"],
    "counted up": ["app-1.log", "app-2.log", "app-10.log", "app.log"],
    "of two services": ["api.log.2", "api.log.1", "api.log", "web.log.3", "web.log"],
    "without an ending": ["syslog.txt.2", "syslog.txt.1", "syslog.txt"],
    "of no service": ["a1.log", "a10.log", "a2.log", "b.csv", "host7.log"],
}


def folder(path: Path, names: list[str], times: bool = True) -> list[Record]:
    path.mkdir()
    for day, name in random.Random(0).sample([*enumerate(names, 1)], len(names)):
        time = f"2024-03-{day:02} 10:00:00 INFO " if times else ""
        text = f"{time}on day {day}\n".encode() * 128
        header = b"time,message\n" if name.endswith(".csv") else b""
        text = text.replace(b" INFO ", b",") if header else text
        (path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else header + text)
    return list(LOGS.read([path], Problems(), session="none"))


@pytest.mark.parametrize("name", ORDERS)
def test_files_of_a_folder_are_read_from_the_oldest_to_the_newest(name: str, tmp_path: Path):
    records = folder(tmp_path / "a", ORDERS[name])
    assert list(dict.fromkeys(Path(record.source).name for record in records)) == ORDERS[name]
    files = LOGS.files.inputs([tmp_path / "a"], options={})
    assert [Path(file).name for file in files] == ORDERS[name]


@pytest.mark.parametrize("times", [True, False])
def test_the_newest_file_is_held_out(times: bool, tmp_path: Path):
    names = ORDERS["dates, then numbers"]
    records = folder(tmp_path / "a", names, times)
    split = Chronological(key=lambda one: one.id, order=LOGS.keys.order, share=0.2, calibration=0.2)
    parts = split.parts(np.array([split.mark(one) for one in records]))
    found = [(Path(record.source).name, part) for record, part in zip(records, parts, strict=True)]
    assert {part for name, part in found if name == "app.log"} == {CALIBRATION}
    assert {part for name, part in found if name == "app.log.1"} == {VALIDATION}
    assert {part for name, part in found if name in names[:3]} == {TRAIN}


def test_what_is_packed_in_another_way_is_left_out_as_before(tmp_path: Path):
    (tmp_path / "app.log").write_text("one\n")
    (tmp_path / "app.log.1.xz").write_bytes(b"\xfd7zXZ\0")
    (tmp_path / "logs.txt-2024-03-05").mkdir()
    (tmp_path / "logs.txt-2024-03-05" / "b.log").write_text("two\n")
    problems = Problems()
    records = list(LOGS.read([tmp_path], problems))
    assert [Path(record.source).name for record in records] == ["app.log", "b.log"]
    assert problems.counts == {"a file of another kind in the folder, left out": 1}
