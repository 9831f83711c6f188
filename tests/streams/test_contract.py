"""What every followed source keeps, whichever it is: each line once, in order, whenever a process dies."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs import LOGS
from seqmlm.streams.follow import Follower
from seqmlm.streams.generations import FileState
from seqmlm.streams.journal import JournalFollower

FAKE = Path(__file__).parents[1] / "support" / "journalctl.py"
Make = Callable[[Sequence[FileState]], Follower]
Options = dict[str, Any]


class Kind:
    """A source of one kind.

    Args:
        add: messages come into it.
        make: begins to follow it, where an earlier follower left it.
    """

    def __init__(self, add: Callable[[Sequence[str]], None], make: Make) -> None:
        self.add, self.make = add, make


def _read(format: str, source: Any) -> Iterator[Record]:
    return LOGS.read([source], Problems("raise"), format=format, window=1, session="none")


def _file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    file = folder / "a.log"
    file.touch()

    def add(messages: Sequence[str]) -> None:
        with file.open("a") as out:
            out.write("".join(f"{one}\n" for one in messages))

    options: Options = {"tick": 0.01, "patience": 0.05}
    return Kind(add, lambda states: Follower([str(file)], partial(_read, "plain"), states, **options))


def _journal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    file, program, told = folder / "journal", folder / "bin" / "journalctl", [0]
    file.touch()
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    program.chmod(0o755)
    monkeypatch.setenv("FAKE_JOURNAL", str(file))
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    def add(messages: Sequence[str]) -> None:
        with file.open("a") as out:
            for one in messages:
                told[0] += 1
                at = str(1_700_000_000_000_000 + told[0])
                entry = {"__CURSOR": str(told[0]), "__REALTIME_TIMESTAMP": at, "MESSAGE": one}
                out.write(json.dumps(entry) + "\n")

    def make(states: Sequence[FileState]) -> Follower:
        read = partial(_read, "journal")
        kept = folder / "kept"
        return JournalFollower(
            "journald --since=1", kept, read, states, tell=lambda said: None, tick=0.01, patience=0.05
        )

    return Kind(add, make)


@pytest.fixture(params=[_file, _journal], ids=["file", "journal"])
def kind(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kind:
    made: Kind = request.param(tmp_path, monkeypatch)
    return made


class Reader:
    """Turns of followers one after the other, of which some die before what they read is committed."""

    def __init__(self, make: Make) -> None:
        self._make, self.follower = make, make([])
        self.kept: dict[int, FileState] = {}
        self.lines: list[str] = []

    def turn(self, *, commit: bool = True) -> int:
        records = self.follower.turn()
        if commit:
            self.lines += [line for record in records for line in record.raw.lines]
            self.kept |= {one.number: one for one in self.follower.states()}
        return len(records)

    def until(self, lines: Sequence[str]) -> None:
        for _ in range(1000):  # a fuse
            self.turn()
            if len(self.lines) >= len(lines):
                break
            time.sleep(0.01)
        assert self.lines == list(lines)

    def die(self) -> None:
        self.follower.close()
        self.follower = self._make(list(self.kept.values()))


@pytest.fixture
def reader(kind: Kind) -> Iterator[Reader]:
    made = Reader(kind.make)
    yield made
    made.follower.close()


ALL = [f"step {number}" for number in range(12)]


def test_each_line_comes_once_and_in_order(kind: Kind, reader: Reader) -> None:
    kind.add(ALL[:5])
    reader.until(ALL[:5])
    kind.add(ALL[5:])
    reader.until(ALL)
    assert reader.follower.lines == len(ALL)
    assert reader.follower.unread == 0
    assert not reader.follower.gaps


def test_a_new_follower_goes_on_behind_what_was_committed(kind: Kind, reader: Reader) -> None:
    kind.add(ALL[:4])
    reader.until(ALL[:4])
    kind.add(ALL[4:8])
    for _ in range(1000):
        if reader.turn(commit=False):  # read, and never committed
            break
        time.sleep(0.01)
    reader.die()
    kind.add(ALL[8:])
    reader.until(ALL)
    reader.die()
    assert reader.follower.lines == len(ALL)  # counts go on


def test_where_nothing_comes_it_is_idle_and_has_not_changed(kind: Kind, reader: Reader) -> None:
    kind.add(ALL[:3])
    reader.until(ALL[:3])
    for _ in range(20):
        reader.turn()
    assert reader.follower.idle
    assert not reader.follower.changed
    kind.add(ALL[3:6])
    reader.until(ALL[:6])


def test_who_takes_no_turn_misses_nothing(kind: Kind, reader: Reader) -> None:
    for message in ALL:
        kind.add([message])
        time.sleep(0.005)
    reader.until(ALL)
