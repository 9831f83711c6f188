"""Live input: pauses hand on what readers keep, and nothing is lost or torn."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from seqmlm import plugins
from seqmlm.data.files import Source, blocks, expand
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.domains.logs.readers import read_logs
from seqmlm.errors import DataError
from seqmlm.streams.sources import live

LINES = [f"worker {n} says hello\n" for n in range(200)]


class Pipe:
    """A pipe that somebody else writes to (`end`), until nobody wants to know more (`stopped`)."""

    def __init__(self, begin: int, end: int, tick: float) -> None:
        self.end, self.stopped = end, False
        self.batches = partial(live, tick=tick, stopping=lambda: self.stopped, descriptor=begin)

    def items(self, read: Callable[[Source], Iterator[Any]]) -> Iterator[Any]:
        """What a reader makes of it, one by one."""
        return chain.from_iterable(self.batches(read))


@contextmanager
def _pipe(tick: float = 0.05) -> Iterator[Pipe]:
    begin, end = os.pipe()
    yield Pipe(begin, end, tick)
    os.close(begin)


@pytest.mark.parametrize("stopped", [False, True])
def test_lines_come_while_the_writer_goes_on(stopped: bool) -> None:
    """A line whose end is not waited for is none."""
    with _pipe() as pipe:
        stream = pipe.items(lambda source: lines(source, Problems()))
        os.write(pipe.end, b"a\nb\nhalf")
        assert [next(stream), next(stream)] == [(1, "a"), (2, "b")]
        os.write(pipe.end, b" done\nlast")
        assert next(stream) == (3, "half done")
        pipe.stopped = stopped
        if not stopped:
            os.close(pipe.end)
        assert list(stream) == ([] if stopped else [(4, "last")])


@pytest.mark.parametrize(
    ("kind", "head", "form"),
    [
        ("plain", "", "{}"),
        ("auto", "", "{}"),
        ("iso", "", "2024-05-01T10:00:00 INFO {}"),
        ("jsonl", "", '{{"message": "{}"}}'),
        ("csv", "time,message\n", '2024-05-01T10:00:00,"{}"'),
        ("tsv", "time\tmessage\n", "2024-05-01T10:00:00\t{}"),
    ],
)
def test_windows_close_at_a_pause_in_every_format(kind: str, head: str, form: str) -> None:
    texts = [form.format(f"event {n}") + "\n" for n in range(6)]
    with _pipe() as pipe:
        records = pipe.items(lambda source: read_logs(kind, source, Problems(), session="none"))
        os.write(pipe.end, (head + "".join(texts[:4])).encode())
        began = time.monotonic()
        first = next(records)
        assert time.monotonic() - began < 5, "it waited for more lines than came"
        assert [line.rsplit(" ", 2)[-2:] for line in first.raw.lines] == [["event", str(n)] for n in range(4)]
        os.write(pipe.end, "".join(texts[4:]).encode())
        os.close(pipe.end)
        rest = [line for record in records for line in record.raw.lines]
        assert [line.rsplit(" ", 1)[-1] for line in rest] == ["4", "5"]


@pytest.mark.parametrize("options", [{}, {"multiline": "off"}, {"undecodable": "replace"}, {"window": "5m"}])
def test_no_line_is_lost_or_doubled_however_they_come(options: dict[str, str]) -> None:
    stamped = [f"2024-05-01 10:{n // 60:02}:{n % 60:02} INFO {text}" for n, text in enumerate(LINES)]
    data = "".join(stamped).encode()
    with _pipe(tick=0.02) as pipe:

        def write() -> None:
            for at in range(0, len(data), 611):
                os.write(pipe.end, data[at : at + 611])
                time.sleep(0.03)
            os.close(pipe.end)

        thread = threading.Thread(target=write)
        thread.start()
        read = partial(read_logs, "auto", problems=Problems(), session="none", **options)
        found = list(pipe.items(read))
        thread.join()
    assert [line + "\n" for record in found for line in record.raw.lines] == LINES
    if "window" in options:
        assert len(found) == 1, "a window by time ends when its time is over"
    else:
        assert len(found) > len(LINES) // 64 + 1, "pauses should have closed windows early"


def test_a_session_ends_when_none_of_its_lines_has_come_for_the_gap() -> None:
    def line(session: int, n: int) -> bytes:
        return f"request_id=r{session} step {n}\n".encode()

    asked = {"session": r"request_id=(\w+)", "session_gap": "300ms"}
    with _pipe() as pipe:
        records = pipe.items(lambda source: read_logs("plain", source, Problems(), **asked))
        began = time.monotonic()
        os.write(pipe.end, b"".join(line(1, n) for n in range(4)))
        first = next(records)
        assert (first.id, len(first.raw.lines)) == ("r1", 4)
        assert time.monotonic() - began >= 0.3
        os.write(pipe.end, line(2, 0))
        os.close(pipe.end)
        assert [record.id for record in records] == ["r2"]


def test_compressed_and_empty_live_inputs_are_named() -> None:
    for data, reason in ((b"\x1f\x8b\x08\x00\x00\x00\x00", "from a live pipe"), (b"", "empty")):
        with _pipe() as pipe:
            os.write(pipe.end, data)
            os.close(pipe.end)
            problems = Problems("skip")
            assert list(pipe.items(lambda source: lines(source, problems))) == []  # noqa: B023
            assert reason in " ".join(problems.counts)


class _Bytes:
    """A live input that has come whole."""

    stopped = False

    def __init__(self, *parts: bytes) -> None:
        self._parts = list(parts)

    def read(self, size: int) -> bytes | None:
        return self._parts.pop(0) if self._parts else b""


def test_a_live_source_is_named_and_found_like_a_path() -> None:
    source = Source("-", _Bytes(b"ab", b"c"))
    assert source == "-"
    assert expand([source])[0] is source
    assert b"".join(blocks(source)) == b"abc"
    with pytest.raises(DataError, match="-: standard input is empty"):
        list(blocks(Source("-", _Bytes())))


FORMATS = [
    (domain, name)
    for domain in ("text", "protein", "dna", "code", "ehr", "logs")
    for name, known in plugins.domain(domain).formats.items()
    if known.folder is None and name != "parquet"  # Parquet is not read from standard input
]


@pytest.mark.parametrize(("domain", "name"), FORMATS)
def test_every_reader_reads_the_source_it_is_given(
    domain: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    genome = tmp_path / "g.fasta"
    genome.write_text(">chr1\nACGT\n")
    needed = {"bed": {"genome": str(genome)}, "wide": {"columns": "a=ICD9"}}
    monkeypatch.setattr("sys.stdin", None)  # reading it instead fails
    live = _Bytes(b"x\n")
    problems = Problems("skip")
    list(plugins.domain(domain).read([Source("-", live)], problems, format=name, **needed.get(name, {})))
    assert not live._parts


def numbers(source: Source) -> Iterator[int]:
    for block in blocks(source):
        yield from block
        if b"!" in block:
            raise DataError("no")


def test_what_the_pipe_holds_comes_at_once_and_an_error_after_what_was_before_it() -> None:
    with _pipe() as pipe:
        batches = pipe.batches(numbers)
        os.write(pipe.end, b"a" * 9000)
        assert next(batches) == [97] * 9000
        os.write(pipe.end, b"bc")
        os.write(pipe.end, b"d!")
        assert next(batches) == [98, 99, 100, 33]
        with pytest.raises(DataError, match="no"):
            next(batches)
        os.close(pipe.end)


def test_what_came_while_records_were_dealt_with_is_read_before_a_pause() -> None:
    """Else lines that belong together are torn apart, and wait for the next pause."""
    with _pipe() as pipe:
        parts = pipe.items(partial(blocks, pauses=True))
        os.write(pipe.end, b"a")
        assert [next(parts), next(parts)] == [b"a", b""]
        time.sleep(0.2)
        os.write(pipe.end, b"b")
        assert [next(parts), next(parts)] == [b"b", b""]
        os.close(pipe.end)


def test_a_reader_that_is_given_up_ends() -> None:
    with _pipe() as pipe:
        batches = pipe.batches(numbers)
        os.write(pipe.end, b"a")
        assert next(batches) == [97]
        batches.close()
        assert not [one for one in threading.enumerate() if one.name == "fed-reader"]
        os.close(pipe.end)
