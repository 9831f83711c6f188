"""The real logs: formats told rightly, counts as published, messages equal to the structured files'."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from pathlib import Path

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.readers.objects import Fields
from seqmlm.domains.logs.readers.reading import kind_of

SYSTEMS = {
    "Apache": "apache_error",
    "BGL": "bgl",
    "HDFS": "hdfs",
    "Linux": "syslog",
    "OpenSSH": "syslog",
    "OpenStack": "openstack",
    "Spark": "spark",
    "Zookeeper": "zookeeper",
}


def first_lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        return [handle.readline().rstrip("\n") for _ in range(500)]


@pytest.mark.parametrize("system", SYSTEMS)
def test_loghub(system: str, real_data: Path):
    path = real_data / "logs" / "loghub_2k" / f"{system}_2k.log.gz"
    table = path.with_name(f"{system}_2k.log_structured.csv.gz")
    assert kind_of(first_lines(path), Fields()) == SYSTEMS[system]
    assert kind_of(first_lines(table), Fields()) == "csv"
    raw = list(LOGS.read([path], Problems(), year=2024))
    structured = list(LOGS.read([table], Problems(), year=2024))
    with gzip.open(table, "rt", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    messages = [line.strip() for record in raw for line in record.raw.lines]
    assert messages == [row["Content"].strip() for row in rows]
    assert messages == [line.strip() for record in structured for line in record.raw.lines]
    assert [n for record in raw for n in record.meta["lines"]] == list(range(1, 2001))
    times = [t for record in raw for t in record.raw.times]
    beside = [t for record in structured for t in record.raw.times]
    assert times == pytest.approx(beside, abs=1e-6)
    if system == "BGL":
        labels = [label for record in raw for label in record.meta["labels"]]
        assert labels == [row["Label"] for row in rows]
        assert sum(label != "-" for label in labels) == 143


@pytest.mark.parametrize(
    ("name", "records", "lines"),
    [
        ("hdfs_100k/session_train.jsonl.gz", 6352, 83973),
        ("hdfs_100k/session_test.jsonl.gz", 1588, 20842),
        ("hdfs_deeplog/hdfs_train.txt.gz", 4855, None),
        ("hdfs_deeplog/hdfs_test_abnormal.txt.gz", 16838, None),
        ("hdfs_logrobust/robust_log_train.csv.gz", 12000, None),
        ("hdfs_logrobust/robust_log_valid.csv.gz", 2000, None),
        ("openstack_parisakalaki/train.txt.gz", 50, None),
        ("openstack_parisakalaki/test_normal.txt.gz", 4895, None),
        ("openstack_parisakalaki/test_abnormal.txt.gz", 651, None),
        ("openstack_loghub/train.txt.gz", 19, None),
        ("openstack_loghub/test_normal.txt.gz", 1852, None),
        ("openstack_loghub/test_abnormal.txt.gz", 198, None),
        ("raw_streams/elastic_apache_access.log.gz", 157, 10000),
        ("raw_streams/elastic_auth.log.gz", 112, 7121),
    ],
)
def test_counts(name: str, records: int, lines: int | None, real_data: Path):
    found = list(LOGS.read([real_data / "logs" / name], Problems()))
    assert len(found) == records
    if lines is not None:
        assert sum(len(record.raw.lines) for record in found) == lines
    sessions = "raw_streams" not in name
    assert all(record.raw.keys for record in found) == (sessions and "100k" not in name)
    assert all((record.raw.times is None) == sessions for record in found)


def test_labels_of_sessions(real_data: Path):
    logs = real_data / "logs"
    train = LOGS.read([logs / "hdfs_100k" / "session_train.jsonl.gz"], Problems())
    test = LOGS.read([logs / "hdfs_100k" / "session_test.jsonl.gz"], Problems())
    assert Counter(r.meta["label"] for r in train)["1"] == 256
    assert Counter(r.meta["label"] for r in test)["1"] == 57
    robust = LOGS.read([logs / "hdfs_logrobust" / "robust_log_train.csv.gz"], Problems())
    assert Counter(r.meta["label"] for r in robust) == {"0": 6000, "1": 6000}


def test_raw_hdfs(real_data: Path):
    folder = real_data / "logs" / "hdfs_2pct_raw"
    problems = Problems()
    labels = str(folder / "labels.tsv.gz")
    records = list(LOGS.read([folder / "events.tsv.gz"], problems, labels=labels))
    assert (len(records), sum(len(r.raw.lines) for r in records)) == (9198, 177784)
    assert Counter(r.meta["label"] for r in records)["1"] == 265
    assert problems.counts == {}
    assert all(record.id in record.raw.lines[0] for record in records)
    assert all(list(r.raw.times) == sorted(r.raw.times) for r in records)
    with gzip.open(folder / "events.tsv.gz", "rt", encoding="utf-8") as handle:
        rows = [line.rstrip("\n").split("\t") for line in handle]
    for record in records[::500]:
        assert [rows[n - 1][5] for n in record.meta["lines"]] == list(record.raw.lines)
