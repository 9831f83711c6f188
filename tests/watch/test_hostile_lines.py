"""What no program should write, in files that are followed: nothing of it ends the follower or is lost."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from followed import World, append, copy_truncate, rename, truncate
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seqmlm.data.compressed import compression
from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers import KINDS, READERS
from seqmlm.domains.logs.readers.events import STAND_INS
from seqmlm.domains.logs.readers.origins import origin_facts
from seqmlm.errors import DataError, number_of
from seqmlm.watch.generations import ARCHIVE, Gap

OPTIONS = {"session": "none", "window": 4, "max_bytes": 400}

# A line of each format, with its number in its message.
LINES = {
    "plain": "step §",
    "hdfs": "081109 203615 148 INFO dfs.DataNode: step §",
    "spark": "17/06/09 20:10:40 INFO executor.Backend: step §",
    "bgl": "- 1117838570 2005.06.03 R02 2005-06-03-15.42.50.363779 R02 RAS KERNEL INFO step §",
    "android": "03-17 16:13:38.811  1702  2395 D Manager: step §",
    "klog": "I0317 16:13:38.811234       1 main.go:12] step §",
    "syslog5424": "<29>1 2024-03-05T10:00:00Z h a 1 - - step §",
    "syslog": "Mar  5 10:00:00 host app[12]: step §",
    "apache_error": "[Sun Dec 04 04:47:44 2005] [notice] step §",
    "access": '192.0.2.1 - - [05/Mar/2024:10:00:01 +0200] "GET /step § HTTP/1.1" 200 10',
    "cri": "2024-03-05T10:00:00.5Z stdout F step §",
    "zookeeper": "2015-07-29 17:41:44,747 - INFO  [main:Main@1] - step §",
    "openstack": "2017-05-16 00:00:00.008 25746 INFO nova.osapi [req-1 - - -] step §",
    "iso": "2024-03-05 10:00:00 INFO step §",
    "epoch": "1709632800.5 step §",
    "jsonl": '{"ts": 1709632800, "level": "info", "msg": "step §"}',
    "journal": '{"__REALTIME_TIMESTAMP": "1700000000500000", "MESSAGE": "step §"}',
    "docker": '{"log": "step §\\n", "stream": "stdout", "time": "2024-03-05T10:00:00.5Z"}',
    "csv": "2024-03-05 10:00:00,step §",
    "tsv": "2024-03-05 10:00:00\tstep §",
    "sessions": "5 22 900§",
}
HEADS = {"csv": "time,message", "tsv": "time\tmessage"}
JSON = ("jsonl", "journal", "docker")

odd = st.sampled_from(
    [
        *(b"\0\0\0", b"\0step", b"x\0y", b"\xff\xfe no text", b"\x80" * 50, b"PK\x03\x04", b"\x1f\x8b\x08"),
        *(b'{"msg": "cut o', b'ff", "n": 1}', b'{"a": 1}', b"{}", b"[1, 2]", b"null", b'{"msg": null}'),
        *(
            b"Traceback (most recent call last):",
            b'  File "a.py", line 1',
            b"KeyError: 'a'",
            b"at a.b(C.java:5)",
        ),
        *(
            b'an "open quote',
            b'a,"b',
            b"a\tb\tc",
            b"5 x",
            b"x" * 500,
            b"\xc3",
            "Grüße".encode("latin-1"),
            b"\r",
        ),
        *(
            b"2024-13-45 99:99:99 INFO never",
            b'<29>1 - - [a b="',
            b"\xef\xbb\xbf",
            b'{"log": null, "stream": 1}',
        ),
    ]
)
junk = st.one_of(
    odd, st.binary(max_size=40), st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace"))
)


class Formatted(World):
    """Files of one format, read with the rule that ends a command at what cannot be read."""

    kind = "auto"

    def read(self, source: Source | str) -> Iterator[Record]:
        options = {**OPTIONS, **({"window": 4} if self.kind == "sessions" else {})}
        for record in READERS[self.kind](source, Problems(), **options):
            self.records.append(record)
            yield record

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind, self.records = kind, list[Record]()
        super().__init__(folder, "*.log", **OPTIONS)


def write(folder: Path, data: bytes, name: str = "app.log") -> None:
    with open(folder / name, "ab") as file:
        file.write(data)


def shown(raw: bytes) -> str:
    """What can be found of a line in messages: its letters."""
    return re.sub(r"[^a-z0-9]", "", raw.decode("utf-8", "ignore").lower())


@pytest.mark.parametrize("kind", ["auto", *LINES])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_whatever_comes_is_read_on_and_each_line_is_accounted_for(kind: str, data: st.DataObject) -> None:
    assert {"auto", *LINES} == set(KINDS), "each format has a line here"
    one = LINES.get(kind, LINES["iso"])
    given = data.draw(st.lists(st.one_of(st.none(), junk), min_size=1, max_size=14))
    lines = [HEADS[kind].encode()] if kind in HEADS else []
    lines += [one.replace("§", str(7000)).encode()] if kind != "auto" else []
    for number, raw in enumerate(given, 7001):
        raw = one.replace("§", str(number)).encode() if raw is None else raw
        lines += raw.replace(b"\x1b", b"").split(b"\n")
    text = b"".join(line + b"\n" for line in lines)
    assume(compression(text) is None and not ARCHIVE.match(text))  # it would be a compressed file
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    with tempfile.TemporaryDirectory() as folder:
        world = Formatted(Path(folder), kind)
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            write(world.folder, text[begin:end])
            world.settle(data.draw(st.sampled_from([1, 12])))
            if data.draw(st.booleans()):
                world.die()
        (world.folder / "app.log").rename(world.folder / "moved.log")
        world.settle(40)
        world.die()
    messages = [line for row, _ in world.rows for line in row.split("\0")[0].split("\n")]
    begun = {number for record in world.records for number in record.meta["lines"]}
    for record in world.records:
        origin_facts(record.raw.lines, record.meta.get("origins"))  # each line has an origin, or none has
    everything = shown("".join(messages).encode())
    for number, line in enumerate(lines[kind in HEADS :], 1 + (kind in HEADS)):
        found = shown(line)
        whole = number in begun or found in everything or any(gap.line <= number for gap in world.gaps)
        assert whole, (number, line, messages)
    for number, raw in enumerate(given, 7001):
        if raw is None:
            mark = re.compile(rf"(?<!\d)(?:{number}|900{number})(?!\d)")
            assert sum(mark.search(one) is not None for one in messages) == 1, (number, messages)
    assert not [gap for gap in world.gaps if gap.fate != "held nothing but NUL bytes"]


BAD = {
    "binary": (b"\x80\x81\x82 \xff\n", "(binary)"),
    "NUL in a line": (b"half a li\0\0\0ne\n", "(binary)"),
    "latin-1": ("Grüße aus der Küche sind da\n".encode("latin-1"), "Gr��e aus der K�che sind da"),
    "over-long": (b"x" * 1000 + b"\n", "(over-long line)"),
    "over-long, over many reads": (b"x" * (1 << 20) + b"\n", "(over-long line)"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_an_event_and_other_files_go_on(tmp_path: Path, name: str) -> None:
    raw, said = BAD[name]
    world = Formatted(tmp_path, "iso")
    write(tmp_path, b"2024-03-05 10:00:00 INFO one\n")
    world.settle()
    write(tmp_path, b"2024-03-05 10:00:01 INFO two\n" + raw + b"2024-03-05 10:00:02 INFO three\n")
    write(tmp_path, b"2024-03-05 10:00:02 INFO other\n", "b.log")
    world.settle()
    world.die()
    write(tmp_path, b"2024-03-05 10:00:03 INFO four\n")
    world.settle()
    assert [row.split("\0")[0] for row, _ in world.rows] == ["one", f"two\n{said}\nthree", "other", "four"]
    assert not world.gaps


@pytest.mark.parametrize("size", [1, 5000, 9 << 20])
def test_the_hole_that_a_cut_file_leaves_is_a_gap(tmp_path: Path, size: int) -> None:
    """A program without O_APPEND goes on where it was; what is before it is a hole."""
    world = Formatted(tmp_path, "iso")
    write(tmp_path, b"2024-03-05 10:00:00 INFO one\n" * 4)
    world.settle()
    truncate()(tmp_path)
    with open(tmp_path / "app.log", "r+b") as file:
        file.seek(size)
        file.write(b"2024-03-05 10:00:01 INFO two\n")
    world.settle(60)
    assert [(one.line, one.offset, one.size, one.fate) for one in world.gaps] == [
        (1, 0, size, "held nothing but NUL bytes")
    ]
    assert world.gaps[0].reason.startswith(f"{number_of(size, 'byte')} from here on held nothing")
    world.die()
    write(tmp_path, b"2024-03-05 10:00:01 INFO three\n")
    world.settle()
    assert [row.split("\0")[0] for row, _ in world.rows] == ["one\none\none\none", "two", "three"]
    assert len(world.gaps) == 1


@pytest.mark.parametrize("died", [False, True])
@pytest.mark.parametrize("names", [("1", "2"), ("2", "1")], ids=["newest last", "newest first"])
@pytest.mark.parametrize("in_place", [True, False], ids=["copytruncate", "rename"])
def test_two_rotations_between_two_looks_lose_nothing(
    tmp_path: Path, died: bool, names: tuple[str, str], in_place: bool
) -> None:
    """log4j2 gives the newest copy the highest number, logrotate the lowest one."""
    rotate = copy_truncate if in_place else rename
    world = World(tmp_path / "logs", window=1, session="none")

    def line(number: int) -> str:
        return f"2024-03-05 10:00:{number:02d} INFO step {number} of a work that is long {'x' * 60}\n"

    def write_lines(first: int) -> None:
        """Twenty lines, behind a hole where the program goes on where it was."""
        with open(world.folder / "app.log", "ab") as file:
            if in_place and first:
                file.truncate(first * len(line(10)))
        append("".join(map(line, range(first, first + 20))))(world.folder)

    write_lines(0)
    world.settle()
    if died:
        world.die()
    for first, name in ((20, names[0]), (40, names[1])):
        rotate("app.log", f"app.log.{name}")(world.folder)
        write_lines(first)
    if died:
        world.turn()
    for _ in range(12):
        world.turn()
    world.settle(80)
    steps = [int(number) for row, _ in world.rows for number in re.findall(r"step (\d+)", row)]
    assert sorted(steps) == list(range(60))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_hole_is_told_once_and_whole_wherever_a_follower_dies_in_it(tmp_path: Path, turns: int) -> None:
    """It is longer than the longest line, so that it is read in several turns."""
    size, line = 20 << 20, b"2024-03-05 10:00:01 INFO two\n"
    world = Formatted(tmp_path, "iso")
    write(tmp_path, b"2024-03-05 10:00:00 INFO one\n" * 4)
    with open(tmp_path / "app.log", "r+b") as file:
        file.seek(4 * len(line) + size)
        file.write(line)
    world.settle(turns)
    world.die()
    world.settle(60)
    assert [(gap.line, gap.offset, gap.size) for gap in world.gaps] == [(5, 4 * len(line), size)]
    assert [row.split("\0")[0] for row, _ in world.rows] == ["one\none\none\none", "two"]


def test_the_reason_of_a_gap_says_only_what_is_known() -> None:
    """Bytes of a destroyed file are a lower bound; those of a record are not counted."""
    place = {"path": "a.log", "line": 3, "offset": 7}
    assert Gap(**place, size=1200).reason.startswith("at least 1,200 bytes from here on ")
    assert Gap(**place, size=0).reason.startswith("an unknown number of bytes from here on was destroyed")
    single = Gap(
        **place, size=0, missing="the record that begins here", fate="could not be scored", cause="why"
    )
    assert single.reason == "the record that begins here could not be scored: why"


@pytest.mark.parametrize("part", [0, 8, 700, 2000])
def test_a_compressed_file_that_is_cut_off_is_a_gap_told_once(tmp_path: Path, part: int) -> None:
    world = Formatted(tmp_path, "iso")
    world._patterns = [str(tmp_path / "*.gz"), str(tmp_path / "*.log")]
    packed = gzip.compress("".join(f"2024-03-05 10:00:00 INFO {n * n}\n" for n in range(2000)).encode())
    (tmp_path / "app.1.gz").write_bytes(packed[: part + 10] if part else packed[:2] + b"\xff" * 50)
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    write(tmp_path, b"2024-03-05 10:00:01 INFO two\n")
    for _ in range(3):
        world.settle()
        world.die()
    assert [(Path(one.path).name, one.fate) for one in world.gaps] == [
        ("app.1.gz", "could not be decompressed")
    ]
    assert [row for row, _ in world.rows if row.startswith("two")] != []


def test_a_copy_in_a_format_that_cannot_be_unpacked_is_said_once(tmp_path: Path) -> None:
    world = Formatted(tmp_path, "iso")
    write(tmp_path, b"BZh91AY&SY\x80\x00\x01", "app.1.log")
    write(tmp_path, b"BZh is how the line begins\n")
    world.settle()
    assert len([one for one in world.said if "compressed with bzip2, which cannot be followed" in one]) == 1
    assert [row.split("\0")[0] for row, _ in world.rows] == ["BZh is how the line begins"]


def test_a_reader_that_fails_costs_a_gap_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever error a reader may still raise: rows before it stay, and it goes on behind it."""
    world = Formatted(tmp_path, "plain")
    given = world.read

    def read(source: Source | str) -> Iterator[Record]:
        for record in given(source):
            if any("poison" in line for line in record.raw.lines):
                raise DataError("a poisoned record", source=str(source), line=record.line)
            yield record

    monkeypatch.setattr(world, "read", read)
    write(tmp_path, b"one\ntwo\nthree\nfour\nfive\nsix\n" + b"poison\n" * 2)
    for name in ("seven", "eight"):
        world.settle()
        write(tmp_path, f"{name}\n".encode())
        world.die()
    world.settle()
    assert [row.split("\0")[0] for row, _ in world.rows] == ["one\ntwo\nthree\nfour", "seven", "eight"]
    assert [(one.line, one.fate, one.cause) for one in world.gaps] == [
        (5, "could not be read", "a poisoned record")
    ]


def rows_of(lines: Sequence[str], path: Path, **options: object) -> list[str]:
    path.write_text("".join(f"{line}\n" for line in lines))
    records = READERS["auto"](path, Problems(), **options)
    return [line for record in records for line in record.raw.lines]


TRACE = [
    "Traceback (most recent call last):",
    '  File "a.py", line 1, in <module>',
    "    f()",
    "Fault: no disk",
]


@pytest.mark.parametrize("between", [1, 2])
def test_text_in_a_json_log_is_an_event_in_one_file_and_live(tmp_path: Path, between: int) -> None:
    objects = [json.dumps({"ts": 1709632800 + n, "msg": f"step {n}"}) for n in range(12)]
    texts = [*TRACE, *TRACE, "Killed", '{"ts": 1709632', "{", '  "msg": "over", "ts": 1', "}"]
    lines = [*objects[:11], *texts, *objects[11:]] * between
    whole = rows_of(lines, tmp_path / "whole.txt", session="none", window=4)
    trace = "\n".join(TRACE)
    assert whole[11:15] == [trace, trace, "Killed", "(truncated JSON)"]
    assert "over" in whole[15]
    assert len(whole) == between * (12 + 5)
    world = Formatted(tmp_path, "jsonl")
    texts = ["\n".join(TRACE), "\n".join(TRACE), *texts[8:10], "\n".join(texts[10:])]
    for event in [*objects[:11], *texts, *objects[11:]] * between:
        append(f"{event}\n")(tmp_path)
        world.settle(1)
    world.settle()
    live = [line for record in world.records for line in record.raw.lines]
    assert [one for one in live if one not in STAND_INS] == [one for one in whole if one not in STAND_INS]
    assert live == whole
