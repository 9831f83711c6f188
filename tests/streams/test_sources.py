"""Live input: pauses hand on what readers keep, nothing is lost or torn; reading ahead in order."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from seqmlm import plugins
from seqmlm.data.files import Source, blocks, expand
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers import read_logs
from seqmlm.errors import DataError
from seqmlm.streams.sources import LiveInput, ReadAhead

LINES = [f"worker {n} says hello\n" for n in range(200)]


@contextmanager
def _pipe(tick: float = 0.05) -> Iterator[tuple[int, Source]]:
    read, write = os.pipe()
    live = LiveInput(tick, read)
    try:
        yield write, Source("-", live)
    finally:
        live.close()
        os.close(read)


def _written(write: int, parts: list[bytes], pause: float) -> threading.Thread:
    def run() -> None:
        for part in parts:
            os.write(write, part)
            time.sleep(pause)
        os.close(write)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_lines_come_while_the_writer_goes_on() -> None:
    with _pipe() as (write, source):
        stream = lines(source, Problems())
        os.write(write, b"a\nb\nhalf")
        assert [next(stream), next(stream)] == [(1, "a"), (2, "b")]
        os.write(write, b" done\nlast")
        assert next(stream) == (3, "half done")
        os.close(write)
        assert list(stream) == [(4, "last")]


def test_a_line_whose_end_was_not_waited_for_is_no_line() -> None:
    with _pipe() as (write, source):
        os.write(write, b"a\nhal")
        stream = lines(source, Problems())
        assert next(stream) == (1, "a")
        source.live.stop()
        assert list(stream) == []
        os.close(write)


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
    with _pipe() as (write, source):
        records = read_logs(kind, source, Problems(), session="none")
        os.write(write, (head + "".join(texts[:4])).encode())
        began = time.monotonic()
        first = next(records)
        assert time.monotonic() - began < 5, "it waited for more lines than came"
        assert [line.rsplit(" ", 2)[-2:] for line in first.raw.lines] == [["event", str(n)] for n in range(4)]
        os.write(write, "".join(texts[4:]).encode())
        os.close(write)
        rest = [line for record in records for line in record.raw.lines]
        assert [line.rsplit(" ", 1)[-1] for line in rest] == ["4", "5"]


@pytest.mark.parametrize("options", [{}, {"multiline": "off"}, {"undecodable": "replace"}, {"window": "5m"}])
def test_no_line_is_lost_or_doubled_however_they_come(options: dict[str, str]) -> None:
    stamped = [f"2024-05-01 10:{n // 60:02}:{n % 60:02} INFO {text}" for n, text in enumerate(LINES)]
    data = "".join(stamped).encode()
    parts = [data[at : at + 611] for at in range(0, len(data), 611)]
    with _pipe(tick=0.02) as (write, source):
        thread = _written(write, parts, 0.03)
        found = list(read_logs("auto", source, Problems(), session="none", **options))
        thread.join()
    assert [line + "\n" for record in found for line in record.raw.lines] == LINES
    if "window" in options:
        assert len(found) == 1, "a window by time ends when its time is over"
    else:
        assert len(found) > len(LINES) // 64 + 1, "pauses should have closed windows early"


def test_a_session_ends_when_none_of_its_lines_has_come_for_the_gap() -> None:
    def line(session: int, n: int) -> bytes:
        return f"request_id=r{session} step {n}\n".encode()

    with _pipe() as (write, source):
        records = read_logs("plain", source, Problems(), session=r"request_id=(\w+)", session_gap="300ms")
        os.write(write, b"".join(line(1, n) for n in range(4)))
        took = _timed(lambda: next(records))
        assert took[0].id == "r1"
        assert len(took[0].raw.lines) == 4
        assert took[1] >= 0.3
        os.write(write, line(2, 0))
        os.close(write)
        assert [record.id for record in records] == ["r2"]


def _timed(call: Callable[[], Record]) -> tuple[Record, float]:
    began = time.monotonic()
    return call(), time.monotonic() - began


def test_compressed_and_empty_live_inputs_are_named() -> None:
    for data, reason in ((b"\x1f\x8b\x08\x00\x00\x00\x00", "as it comes"), (b"", "empty")):
        with _pipe() as (write, source):
            os.write(write, data)
            os.close(write)
            problems = Problems("skip")
            assert list(lines(source, problems)) == []
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


def test_all_items_come_in_order_and_the_reader_waits() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    ahead = ReadAhead(numbers(), capacity=10)
    time.sleep(0.2)
    assert len(taken) <= 12, "it must wait while nobody takes anything"
    found = [item for batch in ahead.batches(7) for item in batch]
    assert found == list(range(1000))


def test_batches_grow_with_what_waits_and_do_not_wait_for_more() -> None:
    more = threading.Event()

    def slow() -> Iterator[int]:
        yield from range(20)
        more.wait(10)
        yield 20

    ahead = ReadAhead(slow(), capacity=100)
    time.sleep(0.2)
    batches = ahead.batches(16)
    assert next(batches) == list(range(16))
    assert next(batches) == [16, 17, 18, 19]
    more.set()
    assert list(batches) == [[20]]


def test_an_error_comes_after_the_items_before_it() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise DataError("no")

    batches = ReadAhead(broken(), capacity=4).batches(4)
    assert next(batches) == [1]
    with pytest.raises(DataError, match="no"):
        next(batches)


def test_closing_lets_a_waiting_reader_go() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    ahead = ReadAhead(endless(), capacity=2)
    looks: list[int] = []
    next(ahead.batches(1, meanwhile=lambda: looks.append(1)))
    ahead.close()
    assert looks
    assert not ahead._thread.is_alive()
