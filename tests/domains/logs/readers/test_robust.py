"""What logs are like in practice: traces, bad bytes, giants, rotation, growth, secrets."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from written import written

from seqmlm.data.files import Memory, Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs import LOGS
from seqmlm.domains.logs.readers import READERS, events
from seqmlm.domains.logs.readers.rotations import service_of
from seqmlm.errors import DataError

TRACE = [
    "2024-01-02 03:04:05 ERROR it broke",
    "java.lang.Bad: no",
    "",
    "\tat a.b(C.java:5)",
    "Caused by: java.lang.Worse",
    "2024-01-02 03:04:06 INFO on we go",
]


def read(path: Path, problems: Problems | None = None, **options: Any) -> list[Record]:
    return list(READERS["auto"](path, problems or Problems(), **options))


def write(tmp_path: Path, lines: list[str]) -> Path:
    return written(tmp_path / "app.log", "\n".join(lines) + "\n")


def test_a_trace_belongs_to_its_message(tmp_path: Path):
    [record] = read(write(tmp_path, TRACE))
    whole = "it broke\njava.lang.Bad: no\n\tat a.b(C.java:5)\nCaused by: java.lang.Worse"
    assert record.raw.lines == (whole, "on we go")
    assert record.meta["lines"] == (1, 6)
    assert record.raw.times[1] - record.raw.times[0] == 1
    [record] = read(write(tmp_path, TRACE), multiline="off")
    assert len(record.raw.lines) == 5


def test_lines_that_begin_a_message_by_an_expression(tmp_path: Path):
    [record] = read(write(tmp_path, ["# a", "b", "# c", "d", "e"]), multiline="#")
    assert record.raw.lines == ("# a\nb", "# c\nd\ne")


ERRORLOG = "".join(
    f"2024-03-05 10:00:0{i}.12 spid{i}s     Starting up database '{i}é'.\r\n" for i in range(6)
)


@pytest.mark.parametrize("undecodable", ["refuse", "replace"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_encoding_that_a_mark_names(undecodable: str, encoding: str, pack: Any, tmp_path: Path):
    path = written(tmp_path / "ERRORLOG", pack(ERRORLOG.encode(encoding)))
    problems = Problems()
    [record] = READERS["auto"](path, problems, undecodable=undecodable)
    assert record.raw.lines == tuple(f"spid{i}s     Starting up database '{i}é'." for i in range(6))
    assert record.raw.times is not None
    assert [time % 60 for time in record.raw.times] == pytest.approx([i + 0.12 for i in range(6)])
    assert not problems.counts


@pytest.mark.parametrize("undecodable", ["refuse", "replace"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_an_encoding_that_nothing_names_is_said(undecodable: str, encoding: str, tmp_path: Path):
    path = written(tmp_path / "ERRORLOG", ERRORLOG.encode(encoding))
    command = f"iconv -f {encoding.upper().replace('-LE', 'LE').replace('-BE', 'BE')} -t UTF-8"
    with pytest.raises(DataError, match=command):
        list(READERS["auto"](path, Problems(), undecodable=undecodable))


def test_what_is_followed_in_another_encoding_is_read_on():
    live = Pieces([ERRORLOG.encode("utf-16"), b"\n", None, b"ready\n"])
    live.memory = Memory()
    records = list(READERS["auto"](Source("app.log", live), Problems()))
    messages = [line for record in records for line in record.raw.lines]
    assert set(messages[:6]) == {"(binary)"}
    assert messages[-1] == "ready"
    records = list(READERS["auto"](Source("-", Pieces([ERRORLOG.encode("utf-16")])), Problems()))
    assert len(records[0].raw.lines) == 6


class Pieces:
    """A live input of these bytes."""

    def __init__(self, pieces: list[bytes | None]) -> None:
        self._pieces, self.stopped = pieces, False
        self.memory: Memory | None = None

    def read(self, size: int) -> bytes | None:
        return self._pieces.pop(0) if self._pieces else b""


TRACES = {
    "java": ["java.lang.Bad: no", "\tat a.b(C.java:5)", "Caused by: java.io.Worse", "\t... 3 more"],
    "java without indents": ["java.lang.IllegalStateException", "at a.b(C.java:5)", "... 3 more"],
    "python": [
        *("Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "KeyError: 'a'", ""),
        *("During handling of the above exception, another exception occurred:", "", "requests.Timeout: 3 s"),
    ],
    "go": ["goroutine 1 [running]:", "main.(*server).run(0xc0)", "\t/app/main.go:9", "created by main.main"],
    "php": ["Stack trace:", "#0 /srv/a.php(12): b()", "#1 {main}", "  thrown in /srv/a.php on line 9"],
    "ruby": ["app/a.rb:12:in `run'", "\tfrom app/b.rb:3"],
    "json": ["{", '  "a": 1', "}"],
    "xml": ["  <a>", "</b>"],
}


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("head", ["2024-03-05 10:00:00,5 ERROR ", "<29>1 2024-03-05T10:00:00Z h a 1 - - "])
def test_lines_that_go_on_by_their_form(name: str, head: str, tmp_path: Path):
    path = write(tmp_path, [f"{head}one", f"{head}it broke", *TRACES[name], f"{head}on we go"])
    [record] = read(path)
    whole = "\n".join(["it broke", *filter(None, TRACES[name])])
    assert record.raw.lines == ("one", whole, "on we go")


FAILED = "2024/03/05 10:01:07 [error] 12#12: *5 connect() failed (111: Connection refused)"


@pytest.mark.parametrize("line", [FAILED, "+ exec /usr/bin/app", "Killed", "mem=1 cpu=2"])
@pytest.mark.parametrize(
    "whole",
    [
        '192.0.2.1 - - [05/Mar/2024:10:00:01 +0200] "GET /a HTTP/1.1" 200 10',
        "Mar  5 10:00:01 host sshd[12]: session opened",
        "[Wed Oct 11 14:32:52 2000] [error] File gone",
    ],
)
def test_a_line_of_another_program_is_not_swallowed(line: str, whole: str, tmp_path: Path):
    problems = Problems()
    path = write(tmp_path, [whole, line, whole, line])
    [record] = READERS["auto"](path, problems, session="none")
    assert record.meta["lines"] == (1, 2, 3, 4)
    assert record.raw.lines[1::2] == (line, line)
    assert record.raw.times is not None
    assert len(set(record.raw.times)) == 1
    assert sum(n for note, n in problems.counts.items() if "without the header" in note) == 2
    [record] = read(path, multiline="[0-9A-Z\\[]")
    assert len(record.raw.lines) == (4 if line[0] in "2K" else 2)


def test_indented_lines_of_plain_text(tmp_path: Path):
    [record] = read(write(tmp_path, ["  first", "a", "  b", "c"]))
    assert record.raw.lines == ("  first", "a\n  b", "c")


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from(["x", " y", "at z"])), min_size=1, max_size=40),
    st.integers(1, 7),
)
def test_batches_make_no_difference(rows: list[tuple[bool, str]], size: int):
    lines = [("2024-01-02 03:04:05 " if head else "") + text for head, text in rows]
    wanted: list[str] = []
    for head, text in rows:
        if head or not wanted or text == "x":
            wanted.append(text.strip() if head else text)
        else:
            wanted[-1] += "\n" + text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "BATCH", size)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        records = list(READERS["iso"]("-", Problems()))
    assert [line for record in records for line in record.raw.lines] == wanted


def test_a_message_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "CONTINUED_LINES", 10)
    monkeypatch.setattr(events, "BATCH", 7)
    problems = Problems()
    path = write(tmp_path, [TRACE[0], *[" more"] * 35, TRACE[-1]])
    [record] = READERS["iso"](path, problems)
    assert "".join(record.raw.lines).count("more") == 35
    assert max(line.count("\n") for line in record.raw.lines) <= 10
    assert problems.counts["a message was cut: too many lines without a header"] >= 1


def test_bytes_that_are_not_text(tmp_path: Path):
    path = written(tmp_path / "app.log", b"good\n" * 1000 + b"b\xffd\nnu\0l\nend\n")
    with Problems("quarantine", tmp_path / "bad.jsonl") as problems:
        records = read(path, problems)
    assert sum(len(record.raw.lines) for record in records) == 1001
    assert records[-1].meta["lines"][-1] == 1003
    refused = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in refused] == [1001, 1002]
    problems = Problems()
    records = read(path, problems, undecodable="replace")
    assert records[-1].raw.lines[-3:] == ("b�d", "nul", "end")
    assert problems.counts == {"NUL bytes were left out": 1, "bytes that are not text were replaced": 1}


@pytest.mark.parametrize("undecodable", ["refuse", "replace"])
def test_a_giant_line_is_refused_alone(undecodable: str, tmp_path: Path):
    path = tmp_path / "app.log"
    with path.open("wb") as out:
        out.write(b"before\n")
        for _ in range(100):
            out.write(b"x" * (1 << 20))
        out.write(b"\nafter\n")
    problems = Problems("skip")
    [record] = read(path, problems, undecodable=undecodable)
    assert (record.raw.lines, record.meta["lines"]) == (("before", "after"), (1, 3))
    assert problems.counts == {"a line longer than the limit of 4,194,304 bytes": 1}
    with pytest.raises(DataError, match=r"app.log:2: a line longer"):
        read(path, undecodable=undecodable)


@pytest.mark.parametrize("undecodable", ["refuse", "replace"])
def test_rotated_files(undecodable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = "\n".join(f"line {i} {'abc'[i % 3]}" for i in range(9)).encode()
    (tmp_path / "app.log").write_bytes(text)
    (tmp_path / "app.log.1").write_bytes(text)
    (tmp_path / "app.log.2.gz").write_bytes(gzip.compress(text))
    (tmp_path / "app.log.3.zst").write_bytes(zstandard.compress(text))
    (tmp_path / "truth.json").write_text("{}")
    records = list(LOGS.read([tmp_path], Problems(), undecodable=undecodable))
    assert [Path(r.source).name for r in records] == ["app.log.3.zst", "app.log.2.gz", "app.log.1", "app.log"]
    assert {r.raw for r in records} == {records[0].raw}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(text))))
    [record] = LOGS.read(["-"], Problems(), undecodable=undecodable)
    assert (record.raw, record.id) == (records[0].raw, "-:1")


@pytest.mark.parametrize("undecodable", ["refuse", "replace"])
def test_a_truncated_file_keeps_its_whole_lines(undecodable: str, tmp_path: Path):
    path = tmp_path / "app.log.gz"
    packed = gzip.compress("\n".join(f"line {i * 7919 % 10007} of {i}" for i in range(20000)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    problems = Problems("skip")
    records = read(path, problems, undecodable=undecodable)
    lines = [line for record in records for line in record.raw.lines]
    assert 1000 < len(lines) < 20000
    assert lines[-1] == f"line {(len(lines) - 1) * 7919 % 10007} of {len(lines) - 1}"
    assert problems.counts == {"the gzip data are damaged or truncated": 1}


@pytest.mark.parametrize("text", [" x", "1 ", "[x] ", '[a="b" ', "request"])
def test_odd_lines_take_no_longer_than_others(text: str, tmp_path: Path):
    long = text * 40_000  # a search that goes back over the line at every place would take minutes
    path = write(tmp_path, [" " * 200_000 + "x", long, f"2024-01-02 03:04:05 INFO [{long}", f"h - u [{long}"])
    for kind in READERS:
        if kind not in ("jsonl", "journal", "docker", "csv", "tsv"):
            list(READERS[kind](path, Problems("skip")))


def test_times_that_cannot_be_read(tmp_path: Path):
    times = "13-02 03:04:04", "01-02 03:04:05", "01-02 03:99:06", "01-02 03:04:07"
    problems = Problems()
    [record] = read(write(tmp_path, [f"2024-{time} said" for time in times]), problems)
    base = record.raw.times[1]
    assert record.raw.times == (base, base, base, base + 2)
    assert problems.counts == {"an event without a readable time gets the time of its neighbour": 2}


@pytest.mark.parametrize(
    "rows",
    [
        [said and f"2024-01-02 03:04:05 {said}" for said in ("a", " ", "", "b", "   ")],
        [f"2024-01-02T03:04:0{n}.000000Z stdout F{said}" for n, said in enumerate((" a", " ", " b", ""))],
        [f"<29>1 2024-01-02T03:04:0{n}Z host app 1 - -{said}" for n, said in enumerate((" a", "", " b", ""))],
        [json.dumps({"msg": said, "time": 1_704_164_645 + n}) for n, said in enumerate(("a", "", "b", " "))],
        [json.dumps({"msg": said}) for said in ("a", "", "b", " ")],
        [
            json.dumps({"log": f"{said}\n", "stream": "stdout", "time": f"2024-01-02T03:04:0{n}Z"})
            for n, said in enumerate(("a", "", "b", ""))
        ],
    ],
    ids=["time", "cri", "syslog", "json with times", "json", "docker"],
)
def test_a_line_without_a_message_is_an_event_and_a_blank_line_is_none(tmp_path: Path, rows: list[str]):
    problems = Problems()
    [record] = read(write(tmp_path, rows), problems)
    assert record.raw.lines == ("a", "(empty)", "b", "(empty)")
    assert not problems.counts


SECRET = "hunter2secret"


@pytest.mark.parametrize(
    "text",
    [
        f"good\n{SECRET} b\udcffd\nend\n",
        f'{{"msg": "a"}}\n{SECRET}\n{{"msg": "b"}}\n',
        f'{{"msg": "a"}}\n{{"{SECRET}": "{SECRET}"}}\n{{"msg": "b"}}\n',
        f"message,level\na,info\n{SECRET}\nb,info\n",
        f"5 6\n{SECRET}\n7\n" + "5 6\n" * 600,
        f"x session={SECRET}\ny session={SECRET}\nz session={SECRET}\nw session={SECRET}\n",
    ],
)
def test_a_secret_stays_where_it_is(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = written(tmp_path / "app.log", text.encode("utf-8", "surrogateescape"))
    kind = "sessions" if text.startswith("5 6") else "auto"
    with Problems("quarantine", tmp_path / "bad.jsonl", sensitive=True) as problems:
        records = list(READERS[kind](path, problems))
    assert records
    assert all(SECRET not in f"{r.id} {r.document} {r.meta}" for r in records)
    put_aside = (tmp_path / "bad.jsonl").read_text() if (tmp_path / "bad.jsonl").exists() else ""
    assert bool(put_aside) == (" session=" not in text and "msg" not in text)  # text in JSON is an event
    strict = ""
    try:
        list(READERS[kind](path, Problems(sensitive=True)))
    except DataError as error:
        strict = str(error)
    assert SECRET not in put_aside + strict + str(problems.counts) + "".join(capsys.readouterr())


OF_ONE_SERVICE = """app.log.1 app.log.12.gz app.1.log.zst app-2024-03-05.log app.log-20240305.gz
    app.log.2024-03-05_12-30 app.log.old"""


@pytest.mark.parametrize("name", [*OF_ONE_SERVICE.split(), "syslog.1", "host7.log", "app"])
def test_a_file_and_its_rotations_are_one_subject(name: str, tmp_path: Path):
    path, service = tmp_path / name, {"syslog.1": "syslog"}.get(name, name)
    service = str(tmp_path / ("app.log" if name in OF_ONE_SERVICE.split() else service))
    assert service_of(str(path)) == service
    assert service_of("-") == "-"
    if not name.endswith((".gz", ".zst")):
        path.write_text("a word\nmore words\n")
        assert {record.raw.subject for record in READERS["plain"](path, Problems())} == {service}


def test_a_session_is_a_subject_of_its_own(tmp_path: Path):
    path = written(tmp_path / "app.log", "".join(f"said {i} request_id=r{i % 3}\n" for i in range(60)))
    for sensitive in (False, True):
        records = list(READERS["plain"](path, Problems(sensitive=sensitive)))
        assert len({record.raw.subject for record in records}) == 3
        assert sensitive != any("r1" in record.raw.subject for record in records)


CUT_SHORT = {  # a line, and with | where it is cut
    "apache_error": "[Sun Dec 04 04:47:44 2005] [err|or] [client 10.0.0.1] no such file",
    "syslog5424": '<34>1 2003-10-11T22:14:15.003Z host su 12 ID47 [a| b="c"] message',
    "access": '10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a| HTTP/1.0" 200 2326 "-" "-"',
    "openstack": "2017-05-16 00:00:00.008 25746 INFO nova.osapi [req-38|101a0b] GET done",
}


@pytest.mark.parametrize("kind", CUT_SHORT)
def test_a_line_cut_inside_its_header_takes_no_other_line_with_it(kind: str, tmp_path: Path) -> None:
    whole, short = CUT_SHORT[kind].replace("|", ""), CUT_SHORT[kind].partition("|")[0]
    closing = '" 200 5' if kind == "access" else whole
    path = written(tmp_path / "a.log", "\n".join([whole] * 9 + [short, closing] + [whole] * 9) + "\n")
    (record,) = READERS[kind](path, Problems(), session="none", multiline="off")
    assert record.meta["lines"] == tuple(range(1, 21))
    assert len(record.raw.lines) == 20
    assert len(set(record.raw.lines)) == (3 if kind == "access" else 2)
