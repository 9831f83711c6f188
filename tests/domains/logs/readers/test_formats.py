"""Every format told by its lines: what its message and time are, and what names them."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers import READERS, events
from seqmlm.domains.logs.readers.objects import Fields
from seqmlm.domains.logs.readers.origins import NOTHING
from seqmlm.domains.logs.readers.reading import kind_of
from seqmlm.errors import DataError, UsageError


def read(
    tmp_path: Path, text: str, kind: str = "auto", name: str = "app.log", **options: Any
) -> list[Record]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return list(READERS[kind](path, Problems(), **options))


def at(*parts: int, micro: int = 0) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp() + micro / 1e6  # type: ignore[arg-type, misc]


# What a line is of: its message, its time, and its severity, host and service.
LINES: dict[str, tuple[str, str, float | None, tuple[str, str, str]]] = {
    "hdfs": (
        "081109 203615 148 WARN dfs.DataNode$PacketResponder: block b done",
        *("block b done", at(2008, 11, 9, 20, 36, 15), ("WARN", "", "dfs.DataNode$PacketResponder")),
    ),
    "spark": (
        "17/06/09 20:10:40 ERROR spark.Manager: Changing acls",
        *("Changing acls", at(2017, 6, 9, 20, 10, 40), ("ERROR", "", "spark.Manager")),
    ),
    "bgl": (
        "- 1117838570 2005.06.03 R02-M1 2005-06-03-15.42.50.675872 R02-M1 RAS KERNEL FATAL parity error",
        *("parity error", 1117838570.0, ("FATAL", "R02-M1", "KERNEL")),
    ),
    "android": (
        "03-17 16:13:38.811  1702  2395 D Window Manager: opening app: 12",
        *("opening app: 12", at(2003, 3, 17, 16, 13, 38, micro=811000), ("DEBUG", "", "Window Manager")),
    ),
    "klog": (
        "E0317 16:13:38.811000    1702 reflector.go:547] watch of *v1.Pod ended",
        *("watch of *v1.Pod ended", at(2003, 3, 17, 16, 13, 38, micro=811000), ("ERROR", "", "reflector.go")),
    ),
    "syslog": (
        "<34>Oct 11 22:14:15 mymachine su[12]: 'su root' failed",
        *("'su root' failed", at(2003, 10, 11, 22, 14, 15), ("CRIT", "mymachine", "su")),
    ),
    "syslog5424": (
        '<165>1 2003-10-11T22:14:15.003Z m.example.com evntslog - ID47 [ex@1 s="a] b" t="\\"]"] An event',
        *("An event", at(2003, 10, 11, 22, 14, 15, micro=3000), ("NOTICE", "m.example.com", "evntslog")),
    ),
    "apache_error": (
        "[Wed Oct 11 14:32:52.500000 2000] [core:error] [pid 35708:tid 43] File gone",
        *("File gone", at(2000, 10, 11, 14, 32, 52, micro=500000), ("ERROR", "", "")),
    ),
    "access": (
        '::1 - bob [17/May/2015:10:05:03 +0200] "GET /a HTTP/1.1" 200 20 "http://r" "Mozilla (X)"',
        *('"GET /a HTTP/1.1" 200 20', at(2015, 5, 17, 8, 5, 3), NOTHING),
    ),
    "cri": (
        "2016-10-06T00:17:09.669794202Z stdout F hello there",
        *("hello there", at(2016, 10, 6, 0, 17, 9, micro=669794), NOTHING),
    ),
    "zookeeper": (
        "2015-07-29 17:41:44,747 - WARN  [QuorumPeer[myid=1]/0:0:2181:Fast@774] - Time out: 3200",
        *("Time out: 3200", at(2015, 7, 29, 17, 41, 44, micro=747000), ("WARN", "", "")),
    ),
    "openstack": (
        "api.log 2017-05-16 00:00:00.008 25746 INFO nova.server [req-1 a b - - -] GET it",
        *("GET it", at(2017, 5, 16, micro=8000), ("INFO", "", "nova.server")),
    ),
    "iso": (
        "2024-01-02T03:04:05+01:00 [WARN] disk is full",
        *("disk is full", at(2024, 1, 2, 2, 4, 5), ("WARN", "", "")),
    ),
    "epoch": ("1700000000123 level=warn disk is full", "level=warn disk is full", 1700000000.123, NOTHING),
    "plain": ("disk is full", "disk is full", None, NOTHING),
}


@pytest.mark.parametrize("kind", LINES)
def test_a_line_of_each_header(kind: str, tmp_path: Path):
    line, message, seconds, origin = LINES[kind]
    assert kind_of([line] * 3, Fields()) == kind
    for asked in ("auto", kind):
        [record] = read(tmp_path, f"{line}\r\n{line}\n", asked, year=2003)
        assert record.raw.lines == (message, message)
        assert record.raw.times == (None if seconds is None else (pytest.approx(seconds, abs=1e-6),) * 2)
        assert (record.line, record.meta["lines"], record.id) == (1, (1, 2), "app.log:1")
        assert [tuple(one) for one in record.meta.get("origins") or [NOTHING] * 2] == [tuple(origin)] * 2
    [record] = read(tmp_path, f"{line}\n", kind, keep_header=True)
    assert record.raw.lines == (line,)
    [record] = READERS[kind](tmp_path / "app.log", Problems(sensitive=True))
    assert "origins" not in record.meta


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2024-01-02 03:04:05,678 - my.module - ERROR - it broke", "my.module - ERROR - it broke"),
        ("2024-01-02 03:04:05.678  INFO 77 --- [main] c.e.A : it works", "77 --- [main] c.e.A : it works"),
        ("[2024-01-02 03:04:05] INFO: it works", "it works"),
        ("2024-01-02T03:04:05Z | it works", "it works"),
        ("2024/01/02 03:04:05 [error] 7#7: it broke", "7#7: it broke"),
        ("2024-01-02 03:04:05 error in it", "error in it"),
        ("[ERROR] 2024-01-02 03:04:05,678 views: it broke", "views: it broke"),
        ("2024-01-02 03:04:05, Info                  CBS    it works", "CBS    it works"),
        ("- 1704164645 2024.01.02 dn7 Jan 2 03:04:05 dn7/dn7 ntpd[9]: it works", "it works"),
    ],
)
def test_what_applications_write(line: str, message: str, tmp_path: Path):
    [record] = read(tmp_path, line + "\n")
    assert record.raw.lines == (message,)
    assert int(record.raw.times[0]) == at(2024, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        ("2024-01-02T03:04:05.678901+01:00 web sshd[12]: it broke", "syslog", "it broke"),
        ("2024-01-02T03:04:05+01:00 web sshd[12]: it broke", "syslog", "it broke"),
        ("2024-01-02T03:04:05+0100 web kernel: it broke", "syslog", "it broke"),
        ("2024-01-02T03:04:05.678Z INFO api: it works", "iso", "api: it works"),
        ("2024-01-02T03:04:05Z Starting server: port 80", "iso", "Starting server: port 80"),
    ],
)
def test_an_iso_time_before_a_host_and_a_tag(line: str, kind: str, message: str, tmp_path: Path):
    assert kind_of([line], Fields()) == kind
    [record] = read(tmp_path, f"{line}\n{line}\n")
    assert record.raw.lines == (message, message)


HEAD = "<29>1 2024-03-05T10:01:03Z host app 1 -"
OF_5424 = {
    "<29>1 - host app 12 - - no time": "no time",
    "<29>1 2024-03-05T10:01:02Z - - - - - nothing known": "nothing known",
    f"{HEAD} [none] said": "said",
    f"{HEAD} [a@1][b@2 c=\"d]\" e='f'] [x] said": "[b@2 c=\"d]\" e='f'] [x] said",
    f'{HEAD} [a@1][b@2 c="d\\]" e="\\"" ][f] [x] said': "[x] said",
    f'{HEAD} [a@1 b="c\\/d"]said': "said",
    f"{HEAD} - \ufeffsaid": "said",
    f"{HEAD} - [x] said": "[x] said",
    f"{HEAD} no data": "no data",
    f"{HEAD} [error: no data] said": "[error: no data] said",
    f"{HEAD} --verbose": "--verbose",
    f'{HEAD} - says "': 'says "',
    f"83 {HEAD} - in a frame": "in a frame",
    f"{HEAD.replace('03Z', '03.5+02:00')} - earlier": "earlier",
    f'{HEAD} [a b="c\nd" e="\n"] over three lines': "over three lines",
    f'{HEAD} [a b="c\\"\nd"] over two lines': "over two lines",
}


@pytest.mark.parametrize("line", OF_5424)
@pytest.mark.parametrize("batch", [1, 2, 4096])
def test_what_stands_in_rfc_5424(line: str, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "BATCH", batch)
    [record] = read(tmp_path, "\n".join([f"{HEAD} - before", line, f"{HEAD} - after"]), session="none")
    assert record.raw.lines == ("before", OF_5424[line], "after")
    assert record.raw.times is not None
    within = 36061.0 if "10:01:02" in line else 36063.0
    within -= 7199.5 if "+02:00" in line else 0
    assert record.raw.times[1] % 86400 in (within, within + 1)


@pytest.mark.parametrize("torn", [f'{HEAD} [a b="c', f'{HEAD} [a b="c\nd'])
def test_a_torn_header_of_rfc_5424_costs_no_other_line(torn: str, tmp_path: Path):
    whole = f"{HEAD} - whole"
    lines = "\n".join([whole, torn, whole, *["more"] * 30, torn])
    [record] = read(tmp_path, lines, "syslog5424", session="none", multiline="off")
    assert record.meta["lines"] == tuple(range(1, lines.count("\n") + 2))
    assert record.raw.lines.count("whole") == 2


def test_labels_of_bgl(tmp_path: Path):
    normal = LINES["bgl"][0]
    [record] = read(tmp_path, f"{normal}\nKERNDTLB{normal[1:]}\n")
    assert record.meta["labels"] == ("-", "KERNDTLB")


def test_json_lines_by_their_usual_fields(tmp_path: Path):
    rows = [
        {"ts": 1700000000.5, "level": "info", "msg": "a"},
        {"ts": "2023-11-14T22:13:21Z", "level": "info", "msg": "b"},
        {"ts": None, "msg": "c"},
    ]
    [record] = read(tmp_path, "\n".join(map(json.dumps, rows)))
    assert list(map(json.loads, record.raw.lines[:2])) == [{"message": m, "level": "info"} for m in "ab"]
    assert record.raw.lines[2] == "c"
    assert record.raw.times == (1700000000.5, 1700000001.0, 1700000001.0)


def test_what_stands_beside_a_message_is_read_but_when_and_where(tmp_path: Path):
    row = {"level": 50, "time": 1700000000500, "pid": 7, "hostname": "web-1", "reqId": "a1", "msg": "done"}
    row |= {"req": {"method": "GET", "url": "/a"}, "stack": "x\ny", "why": "z" * 99, "ok": True, "ms": 12}
    text = json.dumps(row)
    [record] = read(tmp_path, text)
    kept = {name: row[name] for name in ("level", "reqId", "req", "ms")}
    assert [json.loads(line) for line in record.raw.lines] == [{"message": "done", **kept}]
    for alone in ({"message_field": "msg"}, {"fields": "none"}):
        [record] = read(tmp_path, text, **alone)
        assert record.raw.lines == ("done",)


def test_json_lines_by_named_fields(tmp_path: Path):
    rows = [{"what": f"m{i}", "when": 1700000000 + i, "who": f"s{i % 2}", "bad": i == 3} for i in range(4)]
    options = {"message_field": "what", "time_field": "when", "session_field": "who", "label_field": "bad"}
    first, second = read(tmp_path, "\n".join(map(json.dumps, rows)), **options)
    assert (first.id, first.raw.lines, first.meta["lines"]) == ("s0", ("m0", "m2"), (1, 3))
    assert (second.document, second.meta["labels"]) == ("s1", ("False", "True"))
    assert second.raw.times == (1700000001, 1700000003)
    with pytest.raises(DataError, match="no message_field of this name"):
        read(tmp_path, json.dumps({"a": 1}))


@pytest.mark.parametrize(
    ("rows", "messages"),
    [
        ([{"msg": "a"}, {"msg": "b"}, {"message": "c"}], ("a", "b", "c")),
        ([{"message": "a"}, {"msg": "b"}, {"msg": "c"}], ("a", "b", "c")),
        ([{"message": None, "text": "a"}, {"message": None, "text": "b"}], ("a", "b")),
        ([{"message": {"id": 1}, "msg": "a"}, {"msg": "b"}], ("a", "b")),
        (
            [{"event": "in", "message": "a"}, {"event": "in", "message": "b"}, {"event": "out"}],
            ('{"message": "a", "event": "in"}', '{"message": "b", "event": "in"}', "out"),
        ),
        ([{"Msg": "a"}, {"Msg": "b"}, {"msg": "c"}], ("a", "b", "c")),
        ([{"log": "a"}, {"log": "b"}, {"lines": "c", "body": "d"}], ("a", "b", "d")),
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_the_message_is_the_field_that_most_lines_have(
    rows: list[dict[str, Any]], messages: tuple[str, ...], times: int, tmp_path: Path
):
    text = "\n".join(json.dumps({"ts": 1709632800 + i, **row}) for i, row in enumerate(rows * times))
    [record] = read(tmp_path, text)
    assert record.raw.lines == messages * times
    with pytest.raises(DataError, match="no message in the field"):
        read(tmp_path, text + '\n{"other": "a"}', message_field="other")


def test_the_time_is_the_field_that_most_lines_have(tmp_path: Path):
    rows = [{"timestamp": "soon", "msg": "a"}, *[{"ts": 1709632800, "msg": "b"}] * 2]
    [record] = read(tmp_path, "\n".join(map(json.dumps, rows)))
    assert record.raw.times == (1709632800.0,) * 3


def test_the_journal(tmp_path: Path):
    rows = [
        {"__REALTIME_TIMESTAMP": "1700000000500000", "MESSAGE": "started", "PRIORITY": "6"},
        {"__REALTIME_TIMESTAMP": "1700000001500000", "MESSAGE": [104, 105, 255]},
    ]
    [record] = read(tmp_path, "\n".join(map(json.dumps, rows)), "journal")
    assert record.raw.lines == ("started", "hi�")
    assert record.raw.times == (1700000000.5, 1700000001.5)


def test_containers(tmp_path: Path):
    def row(text: str, second: int) -> str:
        return json.dumps({"log": text, "stream": "stdout", "time": f"2023-11-14T22:13:{second}.5Z"})

    docker = list(map(row, ("one\n", "two ", "parts\n", "Error\n", "\tat line 5\n"), range(20, 25)))
    assert kind_of(["banner", *docker], Fields()) == "jsonl"
    [record] = read(tmp_path, "\n".join(docker))
    assert record.raw.lines == ("one", "two parts", "Error\n\tat line 5")
    assert record.raw.times == (1700000000.5, 1700000001.5, 1700000003.5)
    trace = [f"2023-11-14T22:13:20.5Z stderr F {text}" for text in ("Error", "\tat a.b", "on")]
    [record] = read(tmp_path, "\n".join(trace))
    assert record.raw.lines == ("Error\n\tat a.b", "on")


PARTS = st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.booleans()), min_size=1, max_size=30)


@given(PARTS, st.integers(1, 6), st.integers(1, 40), st.sampled_from(["cri", "docker"]))
def test_parts_of_messages_within_their_own_stream(
    parts: list[tuple[str, bool]], batch: int, waiting: int, kind: str
):
    wanted: list[list[Any]] = []  # line, text, whether it goes on
    under_way: dict[str, list[Any]] = {}
    lines = []
    for number, (stream, more) in enumerate(parts, 1):
        time, text = f"2024-03-05T10:00:{number:02}.5Z", f"{stream} {number};"
        flagged = f"{time} {stream} {'P' if more else 'F'} {text}"
        row = json.dumps({"log": text + "\n" * (not more), "stream": stream, "time": time})
        lines.append(flagged if kind == "cri" else row)
        one = under_way.pop(stream, None)
        if one is None:
            wanted.append(one := [number, "", True])
        one[1] += text
        if more:
            under_way[stream] = one
        begun = [other for other in wanted if other[2]]
        one[2] = more
        while begun and (not begun[0][2] or len(wanted) - wanted.index(begun[0]) > waiting):
            under_way = {key: other for key, other in under_way.items() if other is not begun[0]}
            begun.pop(0)[2] = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(events, "BATCH", batch)
        patch.setattr(events, "WAITING", waiting)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        [record] = READERS[kind]("-", Problems(), session="none")
    assert record.raw.lines == tuple(text for _, text, _ in wanted)
    assert record.meta["lines"] == tuple(number for number, _, _ in wanted)


def test_tables(tmp_path: Path):
    rows = ['1,081109,203615,"a, ""b""",0', '2,081109,203616,"c\nd",1', "3,081109,203617,e,0"]
    [record] = read(tmp_path, "\n".join(["LineId,Date,Time,Content,Label", *rows]))
    assert record.raw.lines == ('a, "b"', "c\nd", "e")
    assert record.raw.times == tuple(at(2008, 11, 9, 20, 36, s) for s in (15, 16, 17))
    assert (record.meta["lines"], record.meta["labels"]) == ((2, 3, 5), ("0", "1", "0"))
    with pytest.raises(DataError, match="too few fields"):
        read(tmp_path, "time;message\n1\n", "csv", time_field="time")


def test_sessions_with_labels_from_beside(tmp_path: Path):
    (tmp_path / "labels.csv").write_text("BlockId,Label\nx,Normal\ny,Anomaly\n")
    text = "seq_id\tmessage\nx\ta\ny\tb\nx\tc\ny\td\n"
    x, y = read(tmp_path, text, labels=str(tmp_path / "labels.csv"))
    assert (x.id, x.raw.lines, x.meta["label"]) == ("x", ("a", "c"), "Normal")
    assert (y.id, y.raw.lines, y.meta["label"]) == ("y", ("b", "d"), "Anomaly")
    with pytest.raises(DataError, match="no message_field of this name"):
        read(tmp_path, "BlockId,Label\nx,Normal\n")


@pytest.mark.parametrize(
    ("text", "kind", "names"),
    [
        ("5 5 22\n\n7\n", "sessions", ("s.log:1", "s.log:3")),
        ("ab-1,5 5 22\ncd-2,7\n", "sessions", ("ab-1", "cd-2")),
        ("Sequence,label\n5 5 22,0\n7,1\n", "csv", ("s.log:2", "s.log:3")),
        (
            '{"session": "ab", "templates": ["5", "5", "22"]}\n{"session": "cd", "templates": ["7"]}\n',
            "jsonl",
            ("ab", "cd"),
        ),
    ],
)
def test_session_files(text: str, kind: str, names: tuple[str, str], tmp_path: Path):
    assert kind_of(text.splitlines(), Fields()) == kind
    first, second = read(tmp_path, text, name="s.log")
    assert (first.id, second.id) == names
    assert (first.raw.lines, second.raw.lines) == (("5", "5", "22"), ("7",))
    assert first.raw.keys
    assert first.meta["lines"] == (first.line,) * 3


def test_a_session_of_messages_has_no_keys(tmp_path: Path):
    [record] = read(tmp_path, '{"id": 1, "lines": ["a 1", "b"]}\n')
    assert (record.raw.lines, record.raw.keys) == (("a 1", "b"), False)


@pytest.mark.parametrize(
    "options",
    [
        *({"undecodable": "maybe"}, {"zone": "Mars"}, {"multiline": "("}, {"session_gap": "soon"}),
        *({"session": "("}, {"session": "(a)(b)"}, {"window": 0}, {"window": "soon"}),
        *({"window": 5, "step": 6}, {"window": 5, "step": "1m"}),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], tmp_path: Path):
    with pytest.raises(UsageError):
        read(tmp_path, "a\nb\n", **options)
