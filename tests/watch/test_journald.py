"""The journal of systemd as the documents have it written to a file: followed across rotations and kills."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from followed import World
from scored_streams import fake_journalctl, until

from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs import LOGS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "watch.md"


def commands() -> tuple[str, str]:
    """The two shell commands of the unit in the documents, in less time."""
    start, run = re.findall(r"^ExecStart(?:Pre)?=/bin/sh -c '(.*)'$", PAGE.read_text(), re.MULTILINE)
    assert "sleep 1;" in run
    return start, run.replace("sleep 1;", "sleep 0.05;")


class Journal(World):
    """A journal, the unit that writes it to a file, and a follower of the file and its rotated copies."""

    def __init__(self, folder: Path, journal: Path) -> None:
        super().__init__(folder, "app.jsonl*")
        self._journal, self._unit = journal, None
        self.number = 0

    def read(self, source: Source | str) -> Iterator[Record]:
        return LOGS.read([source], Problems("raise"), window=1, session="none")

    def add(self, count: int) -> None:
        """Entries come into the journal."""
        with self._journal.open("a") as out:
            for _ in range(count):
                self.number += 1
                time = {"__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + self.number)}
                message = {"MESSAGE": f"step {self.number}", "_HOSTNAME": "web1", "PRIORITY": "6"}
                out.write(json.dumps({"__CURSOR": str(self.number), **time, **message}) + "\n")

    def start_unit(self, **environment: str) -> None:
        start, run = commands()
        options = {"cwd": self.folder, "env": os.environ | environment, "start_new_session": True}
        subprocess.run(["/bin/sh", "-c", start], check=True, **options)  # type: ignore[call-overload]
        self._unit = subprocess.Popen(["/bin/sh", "-c", run], **options)  # type: ignore[call-overload]

    def kill_unit(self, behind: int | None = None) -> None:
        """Kill the unit, once journalctl has kept the cursor of an entry."""
        cursor = self.folder / "cursor"
        if behind is not None:
            until(lambda: cursor.exists() and cursor.read_text() == str(behind))
        if self._unit is not None:
            os.killpg(self._unit.pid, signal.SIGKILL)
            self._unit.wait()
            self._unit = None

    def lines(self) -> list[str]:
        """The lines of all records, as often as they came."""
        return [line for raw, _ in self.rows for line in re.findall(r"step \d+", raw)]

    def follow(self, so: Callable[[], bool]) -> None:
        def followed() -> bool:
            self.turn()
            return so()

        until(followed)

    def has(self, *numbers: int) -> None:
        """Follow until the last entry is there; all of them are, and none twice."""
        self.follow(lambda: f"step {numbers[-1]}" in self.lines())
        assert self.lines() == [f"step {number}" for number in numbers]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    entries = tmp_path / "entries"
    entries.touch()
    fake_journalctl(tmp_path, entries, monkeypatch)
    made = Journal(tmp_path / "app-journal", entries)
    yield made
    made.kill_unit()
    made.die()


def test_a_rotation_loses_no_entry_and_doubles_none(journal: Journal) -> None:
    journal.add(3)  # before the unit: it begins with what comes
    journal.start_unit()
    journal.add(4)
    journal.has(*range(4, 8))
    file = journal.folder / "app.jsonl"
    for number in range(1, 4):  # as logrotate does, with delaycompress
        for old in range(number - 1, 0, -1):
            name = "app.jsonl.1" if old == 1 else f"app.jsonl.{old}.gz"
            data = (journal.folder / name).read_bytes()
            (journal.folder / f"app.jsonl.{old + 1}.gz").write_bytes(
                gzip.compress(data) if old == 1 else data
            )
            (journal.folder / name).unlink()
        journal.add(5)  # some are written before the rotation, and some behind it
        file.rename(journal.folder / "app.jsonl.1")
        journal.add(5)
        journal.has(*range(4, journal.number + 1))
    assert journal.gaps == []
    journal.settle()
    assert len(journal.lines()) == journal.number - 3


def test_it_goes_on_behind_the_last_entry_after_a_stop_and_while_nobody_followed(journal: Journal) -> None:
    journal.start_unit()
    journal.add(2)
    journal.has(1, 2)
    journal.die()  # the follower
    journal.add(2)
    journal.kill_unit(behind=4)
    (journal.folder / "app.jsonl").rename(journal.folder / "app.jsonl.1")
    journal.add(2)
    journal.start_unit()
    journal.has(*range(1, 7))


def test_after_a_kill_entries_may_come_twice_and_a_torn_line_harms_no_other(journal: Journal) -> None:
    journal.start_unit()
    journal.add(2)
    journal.has(1, 2)
    journal.kill_unit(behind=2)
    journal.add(4)
    journal.start_unit(FAKE_JOURNAL_DIES="4")
    journal.follow(lambda: "step 4" in journal.lines())
    journal.kill_unit()
    with (journal.folder / "app.jsonl").open("a") as out:
        out.write('{"__CURSOR": "5", "MESS')
    journal.start_unit()
    journal.follow(lambda: "step 6" in journal.lines())
    assert set(journal.lines()) == {f"step {number}" for number in range(1, 7)}
    assert {line for line in journal.lines() if journal.lines().count(line) > 1} <= {"step 3", "step 4"}


def test_entries_are_read_as_those_of_the_journal(journal: Journal) -> None:
    journal.start_unit()
    journal.add(1)
    journal.has(1)
    (record,) = LOGS.read([str(journal.folder / "app.jsonl")], Problems("raise"), window=1, session="none")
    assert record.raw.times == (1_700_000_000.000001,)
    assert record.raw.lines == ("step 1",)
