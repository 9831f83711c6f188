"""Windows and sessions: each line where it belongs, memory bounded, nothing lost."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import written

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers import READERS, sessions
from seqmlm.domains.logs.readers.events import Event, Events
from seqmlm.domains.logs.readers.sessions import (
    STRETCH,
    Limits,
    Piece,
    Sessions,
    id_finder,
    window_of,
    windows,
)
from seqmlm.errors import DataError


def batches(times: list[float] | None, n: int, size: int) -> Iterator[Events]:
    """`n` lines "1", "2", ... in batches."""
    for start in range(0, n, size):
        rows = range(start, min(n, start + size))
        yield [Event(row + 1, str(row + 1), None if times is None else times[row]) for row in rows]


def check_groups(pieces: list[Piece]) -> None:
    """Pieces that share a line share a group."""
    group: dict[int, int] = {}
    for piece in pieces:
        for number in piece.numbers:
            assert group.setdefault(number, piece.group) == piece.group


@given(st.integers(1, 200), st.integers(1, 9), st.data())
def test_windows_by_count(n: int, length: int, data: st.DataObject):
    step = data.draw(st.integers(1, length))
    size = data.draw(st.integers(1, 50))
    pieces = list(windows(batches(None, n, size), window_of(length, step), "f", Problems()))
    check_groups(pieces)
    assert {number for piece in pieces for number in piece.numbers} == set(range(1, n + 1))
    whole = length + (STRETCH - 1) * step
    wanted = [
        tuple(range(begin + k * step + 1, min(n, begin + k * step + length) + 1))
        for begin in range(0, n, whole)
        for k in range(STRETCH)
        if k == 0 or begin + (k - 1) * step + length < n
    ]
    assert [piece.numbers for piece in pieces] == wanted
    assert all([line[1] for line in piece.lines] == list(map(str, piece.numbers)) for piece in pieces)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=80), st.integers(1, 20), st.data())
def test_windows_by_time(gaps: list[int], length: int, data: st.DataObject):
    step = data.draw(st.integers(1, length))
    times = [float(sum(gaps[: i + 1])) for i in range(len(gaps))]
    size = data.draw(st.integers(1, 50))
    asked = window_of(f"{length}s", f"{step}s")
    pieces = list(windows(batches(times, len(times), size), asked, "f", Problems()))
    check_groups(pieces)
    covered: set[int] = set()
    for piece in pieces:
        first, last = piece.numbers[0], piece.numbers[-1]
        assert piece.numbers == tuple(range(first, last + 1))
        assert piece.times[-1] - piece.times[0] < length
        assert last not in covered  # each window has a line that none before it has
        covered |= set(piece.numbers)
    assert covered == set(range(1, len(times) + 1))
    # Within a stretch, every window on the grid of steps that brings a new line is there, whole.
    starts = {piece.group: times[piece.group - 1] for piece in pieces} if step < length else {}
    for group, origin in starts.items():
        members = [piece for piece in pieces if piece.group == group]
        lines = list(range(group, members[-1].numbers[-1] + 1))
        found, last = [], 0
        for k in range(STRETCH):
            inside = [n for n in lines if origin + k * step <= times[n - 1] < origin + k * step + length]
            if inside and inside[-1] > last:
                found.append(tuple(inside))
                last = inside[-1]
        assert [piece.numbers for piece in members] == found


def test_lines_out_of_order_and_without_times():
    problems = Problems()
    times = [0.0, 50.0, 40.0, 130.0]
    pieces = list(windows(batches(times, 4, 4), window_of("1m", None), "f", problems))
    assert [piece.numbers for piece in pieces] == [(1, 2, 3), (4,)]
    assert pieces[0].times == (0.0, 50.0, 40.0)
    assert problems.counts == {"a line out of time order, left in its place": 1}
    assert problems.places == {"a line out of time order, left in its place": "f:3"}
    with pytest.raises(DataError, match="windows by time need lines with times"):
        list(windows(batches(None, 4, 4), window_of("1m", None), "f", Problems()))


@pytest.mark.parametrize("step", [10, 5])
def test_at_a_pause_windows_by_time_end_whose_time_is_over(monkeypatch: pytest.MonkeyPatch, step: int):
    now = 1000.0
    monkeypatch.setattr(sessions.time, "monotonic", lambda: now)

    def live() -> Iterator[Events]:
        nonlocal now
        times = [0.0, 4.0, 9.0, 12.0]
        for row, _ in zip(batches(times, 4, 1), times, strict=True):
            yield row
            yield []
        now += 3.0  # at 15 in the log's time
        yield []
        now += 7.0
        yield []

    came: list[tuple[float, tuple[int, ...]]] = [
        (now, piece.numbers) for piece in windows(live(), window_of("10s", f"{step}s"), "f", Problems())
    ]
    # A stretch begins with a line: after the first window at 9, where windows have lines in common.
    assert came == [(1000.0, (1, 2, 3)), (1010.0, (4,) if step == 10 else (3, 4))]


def test_at_a_pause_windows_of_lines_end():
    live = (one for row in batches(None, 5, 2) for one in (row, []))
    pieces = windows(live, window_of(64, None), "f", Problems())
    assert [piece.numbers for piece in pieces] == [(1, 2), (3, 4), (5,)]


def gather(lines: list[str], times: list[float] | None = None, **options: Any) -> list[Piece]:
    settings: dict[str, Any] = {"gap": None, "max_open": 1000, "max_held": 1000, "max_lines": 1000} | options
    problems = settings.pop("problems", Problems())
    size = settings.pop("size", 7)
    events = [Event(n, text, full_line=text) for n, text in enumerate(lines, 1)]
    if times is not None:
        events = [one._replace(time=time) for one, time in zip(events, times, strict=True)]
    cut = (events[start : start + size] for start in range(0, len(events), size))
    made = Sessions(id_finder(re.compile(r"s\d")), Limits(**settings), window_of(4, None), "f", problems)
    return list(made(cut))


ids = st.lists(st.lists(st.sampled_from(["s0", "s1", "s2"]), max_size=3), max_size=40)


@given(ids, st.integers(1, 9))
def test_every_line_is_in_the_sessions_it_names(rows: list[list[str]], size: int):
    lines = ["line " + " ".join(row) for row in rows]
    wanted = defaultdict(list)
    for number, row in enumerate(rows, 1):
        for name in dict.fromkeys(row):
            wanted[name].append(number)
    pieces = gather(lines, size=size)
    found = {piece.session: list(piece.numbers) for piece in pieces if piece.session is not None}
    assert found == wanted
    without = [number for piece in pieces if piece.session is None for number in piece.numbers]
    assert without == [number for number, row in enumerate(rows, 1) if not row]
    begins = [piece.numbers[0] for piece in pieces if piece.session is not None]
    assert begins == sorted(begins)


@given(ids.map(lambda rows: [row[:1] or ["s0"] for row in rows]), st.integers(1, 3), st.integers(1, 5))
def test_bounds_lose_no_line(rows: list[list[str]], max_open: int, max_lines: int):
    lines = [row[0] for row in rows]
    times = [float(number * number % 50 + number) for number in range(len(lines))]
    pieces = gather(lines, sorted(times), gap=20.0, max_open=max_open, max_lines=max_lines)
    assert Counter(n for piece in pieces for n in piece.numbers) == Counter(range(1, len(lines) + 1))
    for piece in pieces:
        assert {lines[n - 1] for n in piece.numbers} == {piece.session}
        assert len(piece.numbers) <= max_lines
        assert all(b - a <= 20 for a, b in zip(piece.times, piece.times[1:], strict=False))


def test_a_pause_ends_a_session():
    pieces = gather(["s1", "s2", "s1", "s1"], [0.0, 1.0, 2.0, 100.0], gap=30.0)
    assert [(p.session, p.numbers) for p in pieces] == [("s1", (1, 3)), ("s2", (2,)), ("s1", (4,))]
    with pytest.raises(DataError, match="need lines with times"):
        gather(["s1"], gap=30.0)


late = st.lists(st.tuples(st.sampled_from(["s0", "s1", "s2"]), st.integers(0, 100)), min_size=1, max_size=40)


@given(late, st.integers(0, 25), st.integers(1, 9))
def test_late_lines_are_of_the_same_session_in_batches_of_any_size(
    rows: list[tuple[str, int]], by: int, size: int
):
    """Each line comes up to so many seconds late; a session ends after twenty seconds without one."""
    ordered = sorted(rows, key=lambda row: row[1])
    times = [float(time - (n * 7 % (by + 1))) for n, (_, time) in enumerate(ordered)]
    names = [name for name, _ in ordered]
    pieces, others = (gather(names, times, gap=20.0, size=one) for one in (size, len(names)))
    assert pieces == others


def test_a_clock_that_steps_back_ends_no_session():
    day = 86_400.0
    pieces = gather(["s1", "s2", "s1", "s2", "s1"], [day, 5.0, day + 1, 6.0, day + 2], gap=30.0)
    assert [(p.session, p.numbers) for p in pieces] == [("s1", (1, 3, 5)), ("s2", (2, 4))]
    pieces = gather(["s1"] * 4, [day, 5.0, 6.0, 60.0], gap=30.0)
    assert [p.numbers for p in pieces] == [(1, 2, 3), (4,)], "it is set back for good"


def test_ended_early_is_counted():
    problems = Problems()
    gather(["s1", "s2", "s3", "s1"], max_open=2, size=3, problems=problems)
    assert problems.counts == {"a session was ended early: too many were open (max_open, max_held)": 2}
    problems = Problems()
    pieces = gather(["s1", "s1", "s2", "s2", "s2"], size=2, max_held=3, problems=problems)
    assert [p.numbers for p in pieces] == [(1, 2), (3, 4, 5)]
    assert problems.counts == {"a session was ended early: too many were open (max_open, max_held)": 1}


def read(tmp_path: Path, lines: list[str], **options: Any) -> list[Record]:
    path = written(tmp_path / "app.log", "\n".join(lines) + "\n")
    return list(READERS["auto"](path, Problems(), **options))


def test_what_is_assumed(tmp_path: Path):
    mixed = [f"step {i} request_id=r{i % 5}" for i in range(40)]
    assert [r.id for r in read(tmp_path, mixed)] == ["r0", "r1", "r2", "r3", "r4"]
    assert [len(r.raw.lines) for r in read(tmp_path, mixed, session="none")] == [40]
    assert [len(r.raw.lines) for r in read(tmp_path, mixed, window=30)] == [30, 10]
    once = [f"step {i} request_id=r{i}" for i in range(100)]  # ids that come once make no sessions
    assert [r.id for r in read(tmp_path, once)] == ["app.log:1", "app.log:65"]
    assert [r.id for r in read(tmp_path, once, session=r"step (\d)")] == [str(i) for i in range(10)]
    assert {r.document for r in read(tmp_path, once, window=8, step=4)} == {"app.log:1", "app.log:69"}
    assert len(read(tmp_path, mixed, step=32)) == 1
    named = [f'{{"msg": "m", "request_id": "r{i}"}}' for i in range(10)]  # each request says one thing
    assert len(read(tmp_path, named)) == 1
    assert len(read(tmp_path, named, session_field="request_id")) == 10


def test_ids_in_the_header_count(tmp_path: Path):
    lines = [
        f"2024-01-02 03:04:05 77 INFO web [req-{'ab'[i % 2] * 8}-1111-1111-1111-{'1' * 12} x] go"
        for i in range(16)
    ]
    records = read(tmp_path, lines)
    assert [len(r.raw.lines) for r in records] == [8, 8]
    assert records[0].raw.lines == ("go",) * 8
