"""Files that are written, rotated and followed, with a process that dies wherever a test wants it to."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path

from seqmlm import plugins
from seqmlm.data.files import Source
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.watch.follower import Follower
from seqmlm.watch.generations import FileState, Gap

Row = tuple[str, str]
"""What a record says, and its session."""

Step = Callable[[Path], None]

WINDOW = 4


def row(record: Record) -> Row:
    """What must be the same however a record was read; names of files differ when they are renamed."""
    return (str(record.raw), "" if ":" in record.id else record.id)


def append(text: str, name: str = "app.log") -> Step:
    """Write to the end of a file."""

    def step(folder: Path) -> None:
        with open(folder / name, "a", encoding="utf-8") as file:
            file.write(text)

    return step


def rename(old: str, new: str) -> Step:
    return lambda folder: (folder / old).rename(folder / new) and None


def copy_truncate(old: str, new: str) -> Step:
    def step(folder: Path) -> None:
        shutil.copyfile(folder / old, folder / new)
        (folder / old).write_text("")

    return step


def truncate(name: str = "app.log") -> Step:
    return lambda folder: (folder / name).write_text("") and None


def compress(old: str) -> Step:
    """As gzip does: the packed file is there before the other one goes."""

    def step(folder: Path) -> None:
        with gzip.open(folder / f"{old}.gz", "wb") as packed:
            packed.write((folder / old).read_bytes())
        (folder / old).unlink()

    return step


class World:
    """A folder with logs, patterns that are followed below it, and a database of what was committed; without
    `options` of the reader each four lines are a window."""

    TURNS = 6  # after each step of the writer

    def __init__(self, folder: Path, *patterns: str, patience: float = 1.5, **options: object) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self._patience = folder, patience
        self._options = options or {"window": WINDOW, "session": "none"}
        self._patterns = [str(folder / one) for one in patterns or ("app.log",)]
        self.rows: list[Row] = []
        self.gaps: list[Gap] = []
        self.said: list[str] = []
        self.states: dict[int, FileState] = {}
        self.now = 0.0
        self.turns = 0
        self._follower: Follower | None = None

    def read(self, source: Source | str) -> Iterator[Record]:
        return plugins.domain("logs").read([source], Problems(), scoring=True, **self._options)

    def start(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(
                self._patterns,
                self.read,
                deepcopy([self.states[number] for number in sorted(self.states)]),
                tick=0.4,
                tell=self.said.append,
                rotation=plugins.domain("logs").reading.rotation,
                patience=self._patience,
                clock=lambda: self.now,
            )
        return self._follower

    def turn(self, *, commit: bool = True) -> None:
        """One turn, the rows of which are lost where it is not committed."""
        follower = self.start()
        self.now += 0.1
        self.turns += 1
        records = follower.turn()
        if commit:
            self.rows += map(row, records)
            self.gaps += follower.gaps
            self.states |= {one.number: deepcopy(one) for one in follower.states()}

    def die(self) -> None:
        """kill -9: nothing of the process is left."""
        if self._follower is not None:
            self._follower.close()
            self._follower = None

    def settle(self, turns: int = 40) -> None:
        for _ in range(turns):
            self.turn()

    def after(self, *steps: Step, turns: int = 40) -> None:
        """Follow what these steps of a writer leave."""
        for step in steps:
            step(self.folder)
        self.settle(turns)

    def play(
        self, steps: Sequence[Step], *, death: int = -1, after_commit: bool = False, down: int = 0
    ) -> bool:
        """Write and follow, `TURNS` turns after each step of the writer; die in the turn `death`, perhaps
        with its work committed, and leave some steps unfollowed then (`down`); then follow to the end;
        whether it died."""
        died = False
        for step in steps:
            step(self.folder)
            for _ in range(self.TURNS if down == 0 or not died else 0):
                if self.turns == death and not died:
                    self.turn(commit=after_commit)
                    self.die()
                    died = True
                    if down:
                        break
                else:
                    self.turn()
            if died and down:
                down -= 1
        self.settle()
        self.die()
        return died


def once(world: World, *contents: str) -> list[Row]:
    """The rows of whole files with these contents, read in one go."""
    rows: list[Row] = []
    for number, content in enumerate(contents):
        file = world.folder / f".whole-{number}.log"
        file.write_text(content, encoding="utf-8")
        rows += map(row, world.read(str(file)))
    return sorted(rows)
