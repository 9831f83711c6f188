"""kill -9 while files are followed loses no row and doubles none: 20 kills here, more under `make kills`."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from followed import WINDOW, World, append, compress, copy_truncate, once, rename, row
from forked_cli import command, start
from log_models import NORMAL, write_log_model
from scored_streams import until
from sqlalchemy import create_engine

from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers import READERS
from seqmlm.registry import database
from seqmlm.watch.follower import Follower
from seqmlm.watch.generations import FileState
from seqmlm.watch.outbox import Outbox
from seqmlm.watch.store import Streams
from seqmlm.watch.tables import STREAMS
from seqmlm.workspace import Workspace

KILLS = int(os.environ.get("SEQMLM_KILLS", "20"))
FORK = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")


@pytest.fixture(params=["sqlite", "postgresql"])
def workspace(request: pytest.FixtureRequest, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty workspace with a database of this kind."""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
        engine = create_engine(url)
        database.upgrade(engine)
        database.upgrade(engine, STREAMS)
        engine.dispose()
        monkeypatch.setenv("SEQMLM_DATABASE_URL", url)
    return workspace


def _follow(world: World, out: Path, stdout: Path | None = None) -> None:
    """What a following does, with a slow scorer, until all is quiet for a while."""

    def follower(states: Sequence[FileState]) -> Follower:
        pattern = str(world.folder / "app.log*")
        return Follower([pattern], world.read, states, tick=0.02, patience=0.06, exclude=[str(out)])

    registry, problems = Streams(Workspace.locate()), Problems()
    shown = None if stdout is None else stdout.open("a")
    outbox = Outbox(out, registry, {"input": "x"}, follower, stdout=shown)
    outbox.begin(problems)
    _begun(world).touch()
    quiet = time.monotonic()
    while time.monotonic() - quiet < 0.5:
        records = outbox.follower.turn()
        outbox.write([{"id": one.id, "row": row(one), "score": len(str(one.raw)) / 3} for one in records])
        for gap in outbox.follower.gaps:
            outbox.write_gap(gap)
        time.sleep(0.002)
        outbox.commit({}, problems)
        if not outbox.follower.idle:
            quiet = time.monotonic()
    outbox.close()
    registry.close()
    if shown is not None:
        shown.close()


def _begun(world: World) -> Path:
    """What is there when a following has begun."""
    return world.folder.parent / "begun"


def _scored(out: Path) -> list[tuple[list[str], float]]:
    """What the rows say, and their scores; ids name files, which were renamed meanwhile."""
    return sorted((one["row"], one["score"]) for one in map(json.loads, out.read_text().splitlines()))


def _line(number: int) -> str:
    end = "\n  at somewhere\n" if number % 3 == 0 else "\n"  # some messages have a second line
    return f"2024-03-05 10:{number // 60 % 60:02d}:{number % 60:02d} INFO step {number} of work{end}"


class _Writer:
    """Writes whole windows, torn anywhere in the first line of one, and rotates in three ways."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder, self.chance = folder, chance
        self._number = self._rotated = 0
        self.contents = [""]
        self._torn = ""

    def write(self) -> None:
        """Some lines; the rest of one that was torn first."""
        windows = self.chance.randrange(1, 5)
        text = "".join(_line(self._number + n) for n in range(windows * WINDOW))
        self._number += windows * WINDOW
        self.contents[-1] += text
        torn, whole = self.chance.random() < 0.3, self._torn + text
        self._torn = ""
        if torn:
            self._torn = _line(self._number).split("\n")[0] + "\n"
            self.contents[-1] += self._torn + "".join(_line(self._number + n) for n in range(1, WINDOW))
            rest = self._torn[9:] + "".join(_line(self._number + n) for n in range(1, WINDOW))
            self._number += WINDOW
            whole, self._torn = whole + self._torn[:9], rest
        append(whole)(self._folder)

    def mend(self) -> None:
        """The rest of a torn line."""
        if self._torn:
            append(self._torn)(self._folder)
            self._torn = ""

    def rotate(self) -> None:
        """Rename, copy and truncate, or rename and compress; nobody has torn a line then."""
        self.mend()
        self._rotated += 1
        new = f"app.log.{self._rotated}"
        (copy_truncate if self.chance.random() < 0.4 else rename)("app.log", new)(self._folder)
        if self.chance.random() < 0.5:
            compress(new)(self._folder)
        self.contents.append("")


def _killed(
    world: World, writer: _Writer, kills: int, work: Callable[[int], None], rotated: float = 0.0
) -> _Writer:
    """Some work, killed again and again while logs are written, and rotated with some chance."""
    Streams(Workspace.locate()).close()  # migrated once
    chance = writer.chance
    for number in range(kills):
        _begun(world).unlink(missing_ok=True)
        running = start(lambda: work(number), world.folder.parent / "streams")  # noqa: B023
        if number % 2:  # else the kill may come before anything is read
            until(_begun(world).exists)
        for _ in range(chance.randrange(1, 4)):
            writer.write()
            time.sleep(chance.uniform(0.0, 0.06))
            if chance.random() < rotated:
                writer.rotate()
        time.sleep(chance.uniform(0.0, 0.15))
        running.kill()
        assert running.wait().code == -signal.SIGKILL, f"it ended by itself before kill {number}"
    writer.mend()
    return writer


@FORK
@pytest.mark.kills
def test_no_row_is_lost_or_doubled(workspace: Path) -> None:
    world, out = World(workspace / "logs"), workspace / "rows.jsonl"
    writer = _killed(
        world, _Writer(world.folder, random.Random(7)), KILLS, lambda _: _follow(world, out), rotated=0.3
    )
    _follow(world, out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert not [one for one in rows if "gap" in one]
    assert sorted(tuple(one["row"]) for one in rows) == once(
        world, *writer.contents[: -1 if not writer.contents[-1] else None]
    )
    whole = workspace / "whole.jsonl"
    _follow(world, whole)  # in one life, and all at once
    assert _scored(whole) == _scored(out)
    with Streams(Workspace.locate()) as registry:
        found = registry.stream(str(out))
        assert [
            line for _, line in registry.stream_rows(found.id, 0, 1 << 20)
        ] == out.read_text().splitlines()


class _HostileWriter(_Writer):
    """Writes JSON lines with what no program should write between them, and cuts the file off in place, as
    copytruncate does for a program that goes on where it was."""

    TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1\nFault: no disk'
    ODD = (b"\x80\x81 \xff\xfe", b"x\0\0y", b'{"msg": "cut o', TRACE.encode(), b"[1, 2]", b"z" * 9000)

    def __init__(self, folder: Path, chance: random.Random) -> None:
        super().__init__(folder, chance)
        self.numbers: list[int] = []
        self.odd = self.holes = 0
        self._hole = 0

    def write(self) -> None:
        """Some objects, an odd line behind some of them."""
        data = b""
        for _ in range(self.chance.randrange(1, 12)):
            self.numbers.append(len(self.numbers))
            data += json.dumps(
                {"ts": 1709632800 + len(self.numbers), "msg": f"step {self.numbers[-1]};"}
            ).encode()
            data += b"\n"
            if self.chance.random() < 0.3:
                data += self.chance.choice(self.ODD) + b"\n"
                self.odd += 1
        with open(self._folder / "app.log", "r+b" if self._hole else "ab") as file:
            file.seek(self._hole, os.SEEK_SET if self._hole else os.SEEK_END)
            self.holes += self._hole > 0
            file.write(data)
        self._hole = 0

    def mend(self) -> None:
        """No line is torn."""

    def rotate(self) -> None:
        """Copy and truncate; the program then goes on behind the new end."""
        file = self._folder / "app.log"
        if not file.exists() or not (size := file.stat().st_size):
            return
        self._rotated += 1
        copy_truncate("app.log", f"app.log.{self._rotated}")(self._folder)
        self._hole = size


class _JsonWorld(World):
    """Files of JSON lines."""

    def read(self, source: Source | str) -> Iterator[Record]:
        options = {"session": "none", "window": WINDOW, "max_bytes": 4000}
        return READERS["jsonl"](source, Problems(), **options)


@FORK
@pytest.mark.kills
def test_odd_lines_and_holes_lose_double_and_stop_nothing(workspace: Path) -> None:
    world, out = _JsonWorld(workspace / "logs"), workspace / "rows.jsonl"
    writer = _HostileWriter(world.folder, random.Random(11))
    _killed(world, writer, KILLS, lambda _: _follow(world, out), rotated=0.3)
    _follow(world, out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    texts = "\n".join(one["row"][0].split("\0")[0] for one in rows if "gap" not in one)
    assert sorted(map(int, re.findall(r"step (\d+);", texts))) == writer.numbers
    found = {
        text: texts.count(text) for text in ("(binary)", "(truncated JSON)", "(over-long line)", "[1, 2]")
    }
    assert sum(found.values()) + texts.count("Fault: no disk") == writer.odd > 0
    assert all(found.values())
    gaps = [one for one in rows if "gap" in one]
    assert {"held nothing but NUL bytes" in one["reason"] for one in gaps} == {True}
    assert len(gaps) == writer.holes > 0


def _numbers(out: Path) -> tuple[int, int]:
    """Rows of a stream that are known to have been written, and those that the database has."""
    with Streams(Workspace.locate()) as registry:
        stream = registry.stream(str(out))
        assert stream is not None
        return stream.written, len(registry.stream_rows(stream.id, 0, 1 << 20))


@FORK
@pytest.mark.kills
def test_no_row_is_lost_on_standard_output(workspace: Path) -> None:
    world, kept, wanted = World(workspace / "logs"), workspace / "kept", KILLS // 2
    shown = [workspace / f"shown-{number}" for number in range(wanted + 2)]
    writer = _Writer(world.folder, random.Random(9))

    def killed(turns: range) -> None:
        _killed(world, writer, len(turns), lambda turn: _follow(world, kept, shown[turns[turn]]))

    killed(range(wanted // 2))
    _follow(world, kept, shown[-2])  # kills may come before any commit on a busy machine: this one commits
    killed(range(wanted // 2, wanted))
    written, _ = _numbers(kept)
    _follow(world, kept, shown[-1])
    given = "".join(one.read_text().rpartition("\n")[0] + "\n" for one in shown if one.exists())
    rows = [tuple(json.loads(line)["row"]) for line in given.splitlines() if line]
    assert sorted(set(rows)) == once(world, *writer.contents)  # some come again
    # Of the rows that are known to have been written none comes again.
    assert written > 0
    assert shown[-1].read_text().count("\n") == _numbers(kept)[1] - written


@FORK
@pytest.mark.kills
@pytest.mark.slow
def test_the_command_goes_on_after_kills(workspace: Path) -> None:
    model, logs, out = workspace / "model", workspace / "logs", workspace / "rows.jsonl"
    logs.mkdir()
    model.mkdir()
    write_log_model(model)
    options = ["--option", f"window={WINDOW}", "--option", "session=none", "--set", "format=iso"]
    follow = command(*("watch", model, logs / "*.log*", "--max-latency", "0.2s", "--out", out, *options))
    lines = [f"2024-03-05 10:00:{n:02d} INFO {NORMAL[n % 4]} {n}\n" for n in range(52)]
    chance = random.Random(3)

    def rows() -> int:
        return out.read_bytes().count(b"\n") if out.exists() else 0

    for kill in range(4):
        running = start(follow, workspace / f"streams{kill}", seconds=100)
        append("".join(lines[12 * kill : 12 * kill + 8]), "a.log")(logs)
        if kill == 1:
            rename("a.log", "a.log.1")(logs)
        append("".join(lines[12 * kill + 8 : 12 * kill + 12]), "a.log")(logs)
        until(lambda: rows() > 3 * kill + (kill < 3))  # noqa: B023 called at once
        time.sleep(chance.uniform(0.0, 0.2))
        running.kill()
        assert running.wait().code == -signal.SIGKILL
    running = start(follow, workspace / "last", seconds=100)
    append("".join(lines[48:]), "a.log")(logs)
    until(lambda: rows() >= 13)
    os.kill(running.process, signal.SIGINT)
    ended = running.wait()
    assert ended.code == 130, ended.err
    whole = workspace / "whole.jsonl"
    files = [logs / "a.log", logs / "a.log.1"]
    once = start(command("score", model, *files, "--out", whole, *options), workspace / "once").wait()
    assert once.code == 0, once.err
    found, expected = (
        sorted(
            (row["line"], round(row["score"], 3), row["units"])
            for row in map(json.loads, file.read_text().splitlines())
        )
        for file in (out, whole)
    )
    assert found == expected
    assert len(found) == 13
