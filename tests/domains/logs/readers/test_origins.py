"""Severity, host and service of every format that says them; nothing of sensitive logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers import read_logs
from seqmlm.domains.logs.readers.origins import NOTHING, origin_facts


def records(path: Path, text: str, kind: str = "auto", **options: Any) -> list[Any]:
    path.write_text(text)
    return list(read_logs(kind, path, Problems(), **{"session": "none", **options}))


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
    windows = {"window": 7}, {"window": 7, "step": 3}, {"window": "5s"}
    for options in (*windows, {"session": "request_id=(\\d+)"}):
        for record in records(tmp_path / "a.log", text, **options):
            of_lines = [f"web{(n - 1) % 3}" for n in record.meta["lines"]]
            assert [one[1] for one in record.meta["origins"]] == of_lines


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("kind", "line", "severity"),
    [
        ("jsonl", '{"level": "warn", "host": "a", "msg": "it broke"}', "WARN"),
        ("journal", '{"PRIORITY": "4", "_HOSTNAME": "a", "MESSAGE": "it broke"}', "WARNING"),
    ],
)
def test_text_between_objects_names_nothing_and_hides_no_origin(
    kind: str, line: str, severity: str, place: int, tmp_path: Path
) -> None:
    lines = [line, line]
    lines.insert(place, "Traceback (most recent call last):\n  File 'a.py', line 1\nKeyError: 1")
    (record,) = records(tmp_path / "a.jsonl", "\n".join(lines) + "\n", kind)
    found = [NOTHING if at == place else (severity, "a", "") for at in range(3)]
    assert list(record.meta["origins"]) == found
    assert origin_facts(record.raw.lines, record.meta["origins"]) == {"severity": severity, "host": "a"}


def test_what_is_told_of_some_lines() -> None:
    assert origin_facts(["a", "b"], None) == {}
    assert origin_facts([], ()) == {}
    given = [("INFO", "web1", "api"), ("ERROR", "web2", "api"), ("INFO", "web1", "")]
    assert origin_facts(["", "", ""], given) == {
        "severity": "ERROR",
        "host": "web1",
        "hosts": 2,
        "service": "api",
    }
    said = "level=info service=api ok", 'x "level": "ERROR", "service": "db"'
    inside = [*said, "sublevel=fatal", "level=7up"]
    assert origin_facts(inside, None) == {"severity": "ERROR", "service": "api", "services": 2}
    assert origin_facts(["level=error"], [("WARN", "", "")]) == {
        "severity": "WARN"
    }  # the header is asked first
    assert origin_facts(["level: error in level 3"], None) == {}  # prose
