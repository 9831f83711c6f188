"""Severity, host and service of every format that says them; nothing of sensitive logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers import read_logs
from seqmlm.domains.logs.readers.origins import NOTHING, told

LINES = {
    "hdfs": (
        "081109 203518 143 WARN dfs.DataNode$DataXceiver: Receiving block blk_1",
        "WARN",
        "",
        "dfs.DataNode$DataXceiver",
    ),
    "spark": ("17/06/09 20:10:40 ERROR executor.Executor: failed", "ERROR", "", "executor.Executor"),
    "bgl": (
        "- 1117838570 2005.06.03 R02-M1-N0 2005-06-03-15.42.50.675872 R02-M1-N0 RAS KERNEL FATAL data TLB",
        "FATAL",
        "R02-M1-N0",
        "KERNEL",
    ),
    "syslog5424": (
        '<165>1 2003-10-11T22:14:15.003Z db.example.com evntslog - ID47 [a@1 b="c"] started',
        "NOTICE",
        "db.example.com",
        "evntslog",
    ),
    "syslog": ("<34>Oct 11 22:14:15 web1 sshd[77]: Failed password", "CRIT", "web1", "sshd"),
    "apache_error": ("[Sun Dec 04 04:47:44 2005] [core:error] mod_jk child in error", "ERROR", "", ""),
    "zookeeper": ("2015-07-29 17:41:44,747 - WARN  [QuorumPeer@913] - connection broken", "WARN", "", ""),
    "openstack": (
        "2017-05-16 00:00:00.008 25746 INFO nova.osapi_compute.wsgi.server [req-1] GET /v2",
        "INFO",
        "",
        "nova.osapi_compute.wsgi.server",
    ),
    "iso": ("2024-03-05 10:00:00 [error] disk full", "ERROR", "", ""),
    "epoch": ("1700000000.5 level=warn service=api slow", "", "", ""),
}


def records(path: Path, text: str, kind: str = "auto", **options: Any) -> list[Any]:
    path.write_text(text)
    return list(read_logs(kind, path, Problems(), session="none", **options))


@pytest.mark.parametrize("kind", LINES)
def test_headers_say_where_lines_come_from(kind: str, tmp_path: Path) -> None:
    line, *origin = LINES[kind]
    (record,) = records(tmp_path / "a.log", f"{line}\n" * 3, kind)
    found = record.meta["origins"] or [NOTHING] * 3
    assert [tuple(one) for one in found] == [tuple(origin)] * 3
    assert record.raw.times is not None
    sensitive = Problems(sensitive=True)
    (record,) = read_logs(kind, tmp_path / "a.log", sensitive, session="none")
    assert "origins" not in record.meta


def test_a_continuation_belongs_to_its_message(tmp_path: Path) -> None:
    text = "2024-03-05 10:00:00 ERROR it broke\n  at line 3\n2024-03-05 10:00:01 INFO fine\n"
    (record,) = records(tmp_path / "a.log", text)
    assert [one[0] for one in record.meta["origins"]] == ["ERROR", "INFO"]
    assert len(record.raw.lines) == 2


@pytest.mark.parametrize(
    ("row", "origin"),
    [
        ({"level": "warn", "host": "a", "service": "s"}, ("WARN", "a", "s")),
        ({"PRIORITY": "3", "_HOSTNAME": "a", "_SYSTEMD_UNIT": "s.service"}, ("ERR", "a", "s.service")),
        ({"level": 50, "hostname": "a", "logger": "s"}, ("ERROR", "a", "s")),
        ({"severity": "rather bad", "host": {"name": "a"}, "component": ["x"]}, ("", "a", "")),
        ({"other": 1}, NOTHING),
    ],
)
def test_objects_and_tables(row: dict[str, Any], origin: tuple[str, ...], tmp_path: Path) -> None:
    (record,) = records(tmp_path / "a.jsonl", json.dumps({"message": "it broke", **row}) + "\n", "jsonl")
    assert record.meta["origins"] == (origin,)
    flat = {name: value for name, value in row.items() if isinstance(value, (str, int))}
    table = "\t".join(["Content", *flat]) + "\n" + "\t".join(["it broke", *map(str, flat.values())]) + "\n"
    (record,) = records(tmp_path / "a.tsv", table, "tsv")
    if flat == row:
        assert record.meta["origins"] == (origin,)


def test_windows_and_sessions_keep_their_lines_origins(tmp_path: Path) -> None:
    text = "".join(
        f"Mar  5 10:00:{n:02d} web{n % 3} app: request_id={n // 2 % 5} step {n}\n" for n in range(60)
    )
    for options in ({"window": 7}, {"window": 7, "step": 3}, {"window": "5s"}):
        for record in records(tmp_path / "a.log", text, **options):
            assert [one[1] for one in record.meta["origins"]] == [
                f"web{(n - 1) % 3}" for n in record.meta["lines"]
            ]
    path = tmp_path / "a.log"
    for record in read_logs("auto", path, Problems(), session="request_id=(\\d+)"):
        assert [one[1] for one in record.meta["origins"]] == [
            f"web{(n - 1) % 3}" for n in record.meta["lines"]
        ]


def test_what_is_told_of_some_lines() -> None:
    assert told(["a", "b"], None) == {}
    assert told([], ()) == {}
    given = [("INFO", "web1", "api"), ("ERROR", "web2", "api"), ("INFO", "web1", "")]
    assert told(["", "", ""], given) == {"severity": "ERROR", "host": "web1", "hosts": 2, "service": "api"}
    inside = [
        "level=info service=api ok",
        'x "level": "ERROR", "service": "db"',
        "sublevel=fatal",
        "level=7up",
    ]
    assert told(inside, None) == {"severity": "ERROR", "service": "api", "services": 2}
    assert told(["level=error"], [("WARN", "", "")]) == {"severity": "WARN"}  # the header is asked first
    assert told(["level: error in level 3"], None) == {}  # prose
