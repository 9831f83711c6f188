"""The journal of systemd: each entry once whenever a process dies, what is lost is told, clear refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scored_streams import fake_journalctl

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs import LOGS
from seqmlm.errors import StateError, UsageError
from seqmlm.watch import journal
from seqmlm.watch.generations import FileState, Gap
from seqmlm.watch.journal import JournalFollower, asked


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the journal's entries come from."""
    file = tmp_path / "journal"
    file.touch()
    fake_journalctl(tmp_path, file, monkeypatch)
    return file


def add(file: Path, *numbers: int, **fields: Any) -> None:
    with file.open("a") as out:
        for number in numbers:
            time_ = {"__CURSOR": str(number), "__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + number)}
            out.write(json.dumps({**time_, "MESSAGE": f"step {number}", **fields}) + "\n")


def read(source: Any) -> Iterator[Record]:
    return LOGS.read([source], Problems("raise"), format="journal", window=2, session="none")


class Process:
    """A scorer that may die: what it has read since its last commit comes again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[int, FileState] = {}
        self.lines: list[str] = []
        self.gaps: list[Gap] = []
        self.said: list[str] = []
        self.follower: JournalFollower | None = None

    def start(self, source: str = "journald") -> None:
        settings = {"tick": 0.01, "tell": self.said.append, "patience": 0.05}
        self.follower = JournalFollower(source, self.folder, read, list(self.kept.values()), **settings)

    def begin(self, *numbers: int, source: str = "journald") -> None:
        """Start, and read these entries."""
        self.start(source)
        self.has(*numbers)

    def has(self, *numbers: int) -> None:
        """Go on until these entries are read, and no others."""
        self.until(lambda: self.lines == steps(*numbers))

    def turn(self, *, commit: bool = True) -> None:
        """A turn, which is committed as a whole or not at all."""
        records = self.follower.turn()
        if commit:
            self.lines += [line for record in records for line in record.raw.lines]
            self.gaps += self.follower.gaps
            self.kept |= {one.number: one for one in self.follower.states()}
            assert {record.source for record in records} <= {"journald"}

    def until(self, so: Callable[[], bool]) -> None:
        for _ in range(1000):  # a fuse
            self.turn()
            if so():
                return
            time.sleep(0.01)
        raise AssertionError((self.lines, self.gaps, self.said))

    def die(self) -> None:
        self.follower.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path / "out.journal")
    yield made
    if made.follower is not None:
        made.die()


def steps(*numbers: int) -> list[str]:
    return [f"step {number}" for number in numbers]


def test_it_begins_with_the_newest_entry_and_goes_on_where_it_was(entries: Path, process: Process) -> None:
    add(entries, 1, 2, 3)
    process.begin(3)
    add(entries, 4, 5)
    process.has(3, 4, 5)
    process.die()
    add(entries, 6, 7)
    process.begin(3, 4, 5, 6, 7)
    assert process.gaps == []
    for _ in range(20):
        process.turn()
    follower = process.follower
    assert (follower.lines, follower.unread, follower.idle, follower.changed) == (5, 0, True, False)
    asks = Path(f"{entries}.asked")
    process.until(lambda: asks.read_text().count("\n") == 3)
    given = [json.loads(line) for line in asks.read_text().splitlines()]
    assert [one[3:] for one in given] == [
        ["--follow", "--lines=1"],
        ["--cursor=5"],
        ["--follow", "--no-tail", "--cursor=7"],
    ]
    assert process.folder.stat().st_mode & 0o777 == 0o700
    assert (process.folder / "entries.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b"", b'{"__CURSOR": "9', b"{}"])
def test_what_was_not_committed_comes_again_once(entries: Path, process: Process, torn: bytes) -> None:
    add(entries, 1)
    process.begin(1)
    add(entries, 2, 3, 4, 5, 6)
    for _ in range(50):
        process.turn(commit=False)
        time.sleep(0.005)
    process.die()
    with (process.folder / "entries.json").open("ab") as file:
        file.write(torn)  # the kill came while a line was written
    add(entries, 7)
    process.start()
    process.until(lambda: len(process.lines) >= 7)
    assert sorted(process.lines) == steps(1, 2, 3, 4, 5, 6, 7)


def test_entries_that_the_journal_has_lost_are_told_first(entries: Path, process: Process) -> None:
    add(entries, 1, 2)
    process.begin(2)
    process.die()
    entries.write_text("")
    add(entries, 5, 6)
    process.start()
    for _ in range(300):  # the process dies when it has found out, before that is committed
        process.turn(commit=False)
        if process.follower is not None and process.follower.gaps:
            break
        time.sleep(0.01)
    process.die()
    assert process.lines == steps(2)
    process.begin(2, 5, 6)
    [gap] = process.gaps
    assert (gap.path, gap.line, gap.size) == ("journald", 2, 0)
    assert gap.cause == "the journal keeps the entry no more that was read last"


def test_entries_that_the_journal_has_lost_while_it_waited_are_told(
    entries: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(entries, 1)
    process.begin(1)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "MOST_UNREAD", 0)  # as after a turn that left much unread
        process.turn()
        entries.write_text("")
        add(entries, 8, 9)
        process.turn()
    process.has(1, 8, 9)
    [gap] = process.gaps
    assert (gap.path, gap.line) == ("journald", 2)
    assert not any("has ended" in one for one in process.said)


def test_entries_of_another_boot_are_read(entries: Path, process: Process) -> None:
    add(entries, 1, 2, _BOOT_ID="a")
    process.begin(2)
    process.die()
    add(entries, 3, 4, _BOOT_ID="a")
    add(entries, 5, _BOOT_ID="b")
    process.begin(2, 3, 4, 5)
    add(entries, 6, _BOOT_ID="b")
    process.has(2, 3, 4, 5, 6)
    assert process.gaps == []


def test_entries_are_on_the_disk_before_they_are_read(
    entries: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(entries, 1)
    process.begin(1)
    refused: list[Path] = []

    def refuse(path: Path) -> None:
        refused.append(path)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal.DISK, "sync", refuse)
    add(entries, 2)
    with pytest.raises(StateError, match=r"entries\.json cannot be written: No space left on device; make"):
        process.has(1, 2)
    assert refused == [process.folder / "entries.json"]


def test_a_removed_folder_of_entries_is_told(entries: Path, process: Process) -> None:
    add(entries, 1)
    process.begin(1)
    process.die()
    shutil.rmtree(process.folder)
    add(entries, 2, 3)
    process.start()
    process.until(lambda: process.lines == steps(1, 3) and bool(process.gaps))
    assert "are gone, and with them where the journal was left" in process.said[0]


def test_a_journalctl_that_dies_and_vanishes_is_started_again(
    entries: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_PAUSES", (0.01,))
    add(entries, 1)
    process.begin(1)
    program = entries.parent / "bin" / "journalctl"
    monkeypatch.setenv("PATH", str(program.parent))
    text = program.read_bytes()
    program.unlink()
    Path(f"{entries}.dies").touch()
    process.until(lambda: len(process.said) == 2)
    assert process.said[0] == "journalctl has ended (the journal was closed); it is started again and again"
    assert process.said[1].startswith("journalctl has ended (No such file or directory)")
    program.write_bytes(text)
    program.chmod(0o755)
    add(entries, 2)
    process.has(1, 2)


def test_a_long_file_of_entries_is_followed_by_another(
    entries: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "FILE_BYTES", 500)
    add(entries, 0)
    process.begin(0)
    for first in range(1, 60, 6):
        add(entries, *range(first, first + 6))
        process.until(lambda last=first + 5: f"step {last}" in process.lines)
        for _ in range(20):
            process.turn()
            time.sleep(0.01)
        if first == 25:
            process.die()
            process.start()
    assert sorted(process.lines, key=lambda line: int(line[5:])) == steps(*range(61))
    assert len(list(process.folder.iterdir())) <= 3
    assert process.gaps == []


def test_what_a_source_asks() -> None:
    assert asked("journald") == ([], None)
    assert asked("journald -u nginx --since today") == (["--unit=nginx"], "today")
    several = ["--unit=a", "--unit=b c", "_PID=1", "_TRANSPORT=kernel"]
    assert asked("journald -u a -u 'b c' -k _PID=1") == (several, None)
    assert asked("journald --since=-1h -p err") == (["--priority=err"], "-1h")


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("syslog", "--source is journald"),
        ("journald --vacuum-size=1", "option --vacuum-size not recognized; possible are"),
        ("journald -o cat", "option -o not recognized"),
        ("journald nginx", "'nginx' is neither an option nor FIELD=VALUE"),
        ("journald 'x", "cannot be read: No closing quotation"),
        ("", "--source is journald"),
    ],
)
def test_other_sources_are_refused(source: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        asked(source)


def test_without_journalctl_it_is_refused(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="journalctl is not on this machine"):
        process.start()


@pytest.mark.skipif(
    shutil.which("journalctl") is None or not Path("/lib/systemd/systemd-journal-remote").exists(),
    reason="no journalctl with which a journal can be made",
)
def test_the_real_journalctl(process: Process, tmp_path: Path) -> None:
    folder = tmp_path / "real"
    folder.mkdir()

    def put(name: str, numbers: range, boot: str = "fedcba9876543210fedcba9876543210") -> None:
        now = time.time_ns() // 1000
        text = "".join(
            f"__REALTIME_TIMESTAMP={now + n}\n__MONOTONIC_TIMESTAMP={1000 + n}\n_BOOT_ID={boot}\n"
            f"_MACHINE_ID={boot}\nSYSLOG_IDENTIFIER=app\nMESSAGE=step {n}\n\n"
            for n in numbers
        )
        to = ["/lib/systemd/systemd-journal-remote", "-o", str(folder / name), "-"]
        subprocess.run(to, input=text.encode(), check=True, capture_output=True)

    source = f"journald -D {folder} -t app --since=-1h"
    put("a.journal", range(1, 6))
    process.begin(1, 2, 3, 4, 5, source=source)
    process.die()
    process.start(source)
    time.sleep(0.3)
    process.turn()
    assert (process.lines, process.gaps) == (steps(1, 2, 3, 4, 5), [])
    process.die()
    put("b.journal", range(6, 8))
    put("c.journal", range(8, 10), "0123456789abcdef0123456789abcdef")
    process.begin(*range(1, 10), source=source)
    assert process.gaps == []
    process.die()
    for name in "abc":
        (folder / f"{name}.journal").unlink()
    put("d.journal", range(12, 14))
    process.begin(*range(1, 10), 12, 13, source=source)
    assert [gap.path for gap in process.gaps] == ["journald"]
