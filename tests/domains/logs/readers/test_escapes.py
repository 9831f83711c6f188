"""Colours and other escape sequences of a terminal: they hide no time and no header, and part no template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers import READERS
from seqmlm.domains.logs.readers.escapes import LEFT_OUT
from seqmlm.domains.logs.readers.events import LogLines


def read(path: Path, text: str, **options: object) -> tuple[LogLines, Problems]:
    path.write_text(text, encoding="utf-8")
    problems = Problems()
    [record] = READERS["auto"](path, problems, session="none", **options)
    return record.raw, problems


SEQUENCES = {
    "colour": "\x1b[32m",
    "256 colours": "\x1b[38;5;117m",
    "true colour": "\x1b[38:2::1:2:3m",
    "reset": "\x1b[m",
    "to the end of the line": "\x1b[K",
    "cursor": "\x1b[?25l",
    "title": "\x1b]0;a title\x07",
    "link": "\x1b]8;;http://example.org\x1b\\",
    "character set": "\x1b(B",
    "keypad": "\x1b=",
    "alone": "\x1b",
    "as rsyslog writes it": "#033[1;31m",
}


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("undecodable", ["refuse", "replace"])
def test_lines_with_and_without_them_are_the_same(name: str, undecodable: str, tmp_path: Path):
    one = SEQUENCES[name]
    plain = [f"2024-03-05 10:00:{second:02} INFO job {second} done" for second in range(20)]
    coloured = [line.replace(" INFO ", f" {one}INFO {one}") for line in plain]
    coloured[::2] = [one + line + one for line in plain[::2]]
    first, problems = read(tmp_path / "a.log", "\n".join(plain + coloured), undecodable=undecodable)
    assert first.lines == tuple(f"job {second} done" for second in range(20)) * 2
    assert first.times is not None
    assert first.times[20:] == first.times[:20]
    assert problems.counts[LEFT_OUT] == 20


def test_those_within_json_and_json_within_json(tmp_path: Path):
    said = "\x1b[31mERR\x1b[0m no such job \\ here"
    inner = json.dumps({"level": "info", "msg": said})
    rows = [{"ts": 1709632800, "msg": said}, {"ts": 1709632801, "msg": inner}]
    text = "".join(json.dumps(row) + "\n" for row in rows).replace("001b[0m", "001B[0m")
    raw, problems = read(tmp_path / "a.log", text)
    assert raw.lines[0] == "ERR no such job \\ here"
    assert json.loads(raw.lines[1])["msg"] == raw.lines[0]
    assert problems.counts == {LEFT_OUT: 2}


def test_those_of_tables_and_of_containers(tmp_path: Path):
    raw, _ = read(tmp_path / "a.csv", 'time,message\n2024-03-05 10:00:00,"\x1b[1mone,\x1b[0m two"\n')
    assert raw.lines == ("one, two",)
    cri = "2024-03-05T10:00:00.5Z stdout F \x1b[2m2024-03-05T10:00:00Z\x1b[0m \x1b[32mINFO\x1b[0m up\n"
    raw, _ = read(tmp_path / "pod.log", cri)
    assert raw.lines == ("2024-03-05T10:00:00Z INFO up",)


def test_what_only_looks_like_one_stays(tmp_path: Path):
    lines = ("issue #033 is open", "path C:\\u001b", "[0m] and [32mINFO")
    raw, problems = read(tmp_path / "a.log", "\n".join(lines))
    assert raw.lines == lines
    assert not problems.counts
