"""Live standard input: pauses hand on what readers keep; nothing is lost, nothing torn is read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from seqmlm.data.files import lines
from seqmlm.data.live import LiveInput
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers import read_logs

LINES = [f"worker {n} says hello\n" for n in range(200)]


@contextmanager
def _pipe(monkeypatch: pytest.MonkeyPatch, tick: float = 0.05) -> Iterator[tuple[int, LiveInput]]:
    read, write = os.pipe()
    live = LiveInput(tick, read)
    monkeypatch.setattr("seqmlm.data.live._live", live)
    try:
        yield write, live
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


def test_lines_come_while_the_writer_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with _pipe(monkeypatch) as (write, _):
        stream = lines("-", Problems())
        os.write(write, b"a\nb\nhalf")
        assert [next(stream), next(stream)] == [(1, "a"), (2, "b")]
        os.write(write, b" done\nlast")
        assert next(stream) == (3, "half done")
        os.close(write)
        assert list(stream) == [(4, "last")]


def test_a_line_whose_end_was_not_waited_for_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with _pipe(monkeypatch) as (write, live):
        os.write(write, b"a\nhal")
        stream = lines("-", Problems())
        assert next(stream) == (1, "a")
        live.stop()
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
def test_windows_close_at_a_pause_in_every_format(
    monkeypatch: pytest.MonkeyPatch, kind: str, head: str, form: str
) -> None:
    texts = [form.format(f"event {n}") + "\n" for n in range(6)]
    with _pipe(monkeypatch) as (write, _):
        records = read_logs(kind, "-", Problems(), session="none")
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
def test_no_line_is_lost_or_doubled_however_they_come(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    stamped = [f"2024-05-01 10:{n // 60:02}:{n % 60:02} INFO {text}" for n, text in enumerate(LINES)]
    data = "".join(stamped).encode()
    parts = [data[at : at + 611] for at in range(0, len(data), 611)]
    with _pipe(monkeypatch, tick=0.02) as (write, _):
        thread = _written(write, parts, 0.03)
        found = list(read_logs("auto", "-", Problems(), session="none", **options))
        thread.join()
    assert [line + "\n" for record in found for line in record.raw.lines] == LINES
    assert len(found) > len(LINES) // 64 + 1, "pauses should have closed windows early"


def test_a_session_ends_when_none_of_its_lines_has_come_for_the_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def line(session: int, n: int) -> bytes:
        return f"request_id=r{session} step {n}\n".encode()

    with _pipe(monkeypatch) as (write, _):
        records = read_logs("plain", "-", Problems(), session=r"request_id=(\w+)", session_gap="300ms")
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


def test_compressed_and_empty_live_inputs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for data, reason in ((b"\x1f\x8b\x08\x00\x00\x00\x00", "as it comes"), (b"", "empty")):
        with _pipe(monkeypatch) as (write, _):
            os.write(write, data)
            os.close(write)
            problems = Problems("skip")
            assert list(lines("-", problems)) == []
            assert reason in " ".join(problems.counts)
