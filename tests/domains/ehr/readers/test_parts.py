"""Cells, tables, grouping: what all readers of patient records stand on."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fork_server import ForkServer
from hypothesis import given
from hypothesis import strategies as st
from written import written

from seqmlm.data import clock
from seqmlm.data.problems import Problems
from seqmlm.domains.ehr.readers import cells
from seqmlm.domains.ehr.readers.histories import Cells, group_by_subject
from seqmlm.domains.ehr.readers.tables import header, scan, table_files
from seqmlm.errors import UsageError

DAY = 86_400.0
COLUMNS = {"patient": ("id", "pid"), "time": ("time",), "code": ("code",)}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("2021-08-23T03:26:50Z", "2021-08-23T03:26:50"),
        ("2021-08-23T05:26:50+02:00", "2021-08-23T03:26:50"),
        (" 2021-08-23 ", "2021-08-23"),
        ("2021-08-23 03:26:50.25", "2021-08-23T03:26:50.25"),
        ("20210823", "2021-08-23"),
        ("2021", "2021-01-01"),
        ("2021-08", "2021-08-01"),
        ("1629689210", "2021-08-23T03:26:50"),
        ("-86400", "1969-12-31"),
        (1629689210, "2021-08-23T03:26:50"),
        (1629689210_000, "2021-08-23T03:26:50"),
        (1629689210_000_000, "2021-08-23T03:26:50"),
        (1629689210_000_000_000, "2021-08-23T03:26:50"),
        ("1629689210000", "2021-08-23T03:26:50"),
        ("202103280035", "2021-03-28T00:35"),
        ("20210328003559", "2021-03-28T00:35:59"),
        ("20210328003559.25", "2021-03-28T00:35:59.25"),
        ("20210328003559.1234567", "2021-03-28T00:35:59.123456"),
        ("202103280035+0200", "2021-03-27T22:35"),
        ("20201231235900.000-0500", "2021-01-01T04:59"),
        ("999999999999", "2001-09-09T01:46:39.999"),  # no month 99: milliseconds
    ],
)
def test_times(cell: object, text: str) -> None:
    assert clock.seconds(cell) == datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    assert clock.when(cell) == clock.seconds(cell)


@pytest.mark.parametrize(
    "cell", ["", "soon", "2021-13-01", "23/08/2021", "nan", float("nan"), float("inf"), 1e40]
)
def test_what_is_no_time(cell: object) -> None:
    with pytest.raises(ValueError):
        clock.seconds(cell)
    assert clock.when(cell) is None


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_every_moment_comes_back(moment: datetime) -> None:
    assert abs(clock.seconds(moment.isoformat()) - moment.replace(tzinfo=UTC).timestamp()) < 1e-4


def test_the_last_day_counts_to_its_end() -> None:
    assert clock.until_seconds("1970-01-01") == DAY
    assert clock.until_seconds("1970-01-01T12:00:00") == DAY / 2
    assert clock.until_seconds(None) is None
    with pytest.raises(UsageError, match="until"):
        clock.until_seconds("yesterday")


def test_words_and_kinds() -> None:
    assert [cells.words(cell) for cell in (" a\tb\n", 7.0, 7.5, None)] == ["a b", "7", "7.5", ""]
    kinds = {"wellness": "outpatient", "IMP": "inpatient", "ER": "emergency", "other": ""}
    assert {word: cells.kind_of(word) for word in kinds} == kinds
    assert [cells.number(c) for c in ("1e3", "x", "inf", None, 2)] == [1000.0, None, None, None, 2.0]


def table(path: Path, problems: Problems | None = None) -> list[tuple[int, tuple[object, ...]]]:
    return list(scan(path, problems or Problems(), COLUMNS, ["patient", "code"]))


def test_columns_by_any_name_and_lines_across_quoted_fields(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b'CODE,note,PID\nA,"two\nlines",1\n\nB,"x",2\n"C ""q""",,3,more\n'))
    assert table(path) == [(2, ("1", None, "A")), (5, ("2", None, "B")), (6, ("3", None, 'C "q"'))]
    assert header(path) == ["CODE", "note", "PID"]


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_the_delimiter_is_seen(sign: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", f"id{sign}code\n1{sign}a,b\n")
    assert table(path) == [(2, ("1", None, "a,b"))]


def test_parquet_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    moment = datetime(2021, 8, 23, 3, 26, 50)
    pq.write_table(
        pa.table(
            {
                "id": [7, 8],
                "time": pa.array([moment, None], pa.timestamp("us")),
                "code": pa.array([5.1, None], pa.float32()),
            }
        ),
        path,
    )
    assert table(path) == [(1, ("7", moment.replace(tzinfo=UTC).timestamp(), 5.1)), (2, ("8", None, None))]
    for unit in ("s", "ms", "ns"):
        pq.write_table(
            pa.table({"id": [1], "code": ["a"], "time": pa.array([moment], pa.timestamp(unit, "UTC"))}), path
        )
        assert table(path) == [(1, ("1", moment.replace(tzinfo=UTC).timestamp(), "a"))]
    pq.write_table(pa.table({"id": [1], "code": ["a"], "time": pa.array([moment.date()])}), path)
    assert table(path) == [(1, ("1", clock.seconds("2021-08-23"), "a"))]


def test_tables_of_a_folder_with_parts(tmp_path: Path) -> None:
    for name in ("PATIENTS.csv.gz", "drug/1.parquet", "drug/2.parquet", "notes.txt", ".hidden.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = {name: [path.name for path in paths] for name, paths in table_files(tmp_path).items()}
    assert found == {"drug": ["1.parquet", "2.parquet"], "patients": ["PATIENTS.csv.gz"]}


def rows(count: int, subjects: int) -> Iterator[Cells]:
    for i in range(count):
        yield str(i * 7919 % subjects), float(i), "A//" + str(i % 50), None, None, None, None, "", 0, i


@pytest.mark.parametrize("limit", [10_000, 100, 7])
def test_rows_are_brought_together_whatever_fits_in_memory(limit: int) -> None:
    found = dict(group_by_subject(rows(2000, 300), limit=limit))
    assert len(found) == 300
    assert sum(map(len, found.values())) == 2000
    for subject, members in found.items():
        assert {row[0] for row in members} == {subject}
        assert [row[-1] for row in members] == sorted(row[-1] for row in members)
    assert list(group_by_subject(rows(2000, 300), limit=limit)) == list(
        group_by_subject(rows(2000, 300), limit=limit)
    )


def test_subjects_that_fit_in_memory_come_in_order() -> None:
    assert [subject for subject, _ in group_by_subject(rows(4, 100))] == ["0", "19", "38", "57"]


def test_one_subject_larger_than_memory_is_still_one() -> None:
    assert [len(members) for _, members in group_by_subject(rows(1000, 1), limit=10)] == [1000]


MEMORY = """
import resource, sys
from seqmlm.domains.ehr.readers.histories import group_by_subject
import pyarrow
def rows(count):
    for i in range(count):
        subject, code, visit = str(i * 7919 % (count // 20)), "ICD9//%d" % (i % 900), "visit-%d" % i
        yield subject, float(i), code, 1.5, None, None, visit, "", 0, i
groups = group_by_subject(rows(int(sys.argv[1])), limit=20_000)
assert sum(len(members) for _, members in groups) == int(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_stays_flat(forks: ForkServer, tmp_path: Path) -> None:
    script = written(tmp_path / "memory.py", MEMORY)

    def peak(count: int) -> int:
        return int(forks.run(count, script=script).out)

    unit = 1 if sys.platform == "darwin" else 1024
    peak(100)  # what the script imports counts in its first process alone
    small, large = peak(25_000), peak(150_000)
    # Kept in memory, 125,000 rows more would be 50 MB more.
    assert (large - small) * unit < 30 << 20
