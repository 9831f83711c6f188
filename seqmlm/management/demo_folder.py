"""The folder of `seqmlm demo`, and the manifest of the files that a demo wrote there.

A demo deletes only files that the manifest of an earlier demo lists, and only if they have not changed since.
The price: if a demo is killed, the user must remove its folder.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from seqmlm.engine.durable import replace_file
from seqmlm.errors import StateError, UsageError
from seqmlm.parsing import read_json

MANIFEST = "seqmlm-demo.json"
"""Name of the manifest, in the folder of the demo."""

_DATABASES = tuple(
    name + ending for name in ("seqmlm.db", "mlflow.db") for ending in ("", "-wal", "-shm", "-journal")
)
"""Files that change even if they are only read. Their contents are compared instead, see `_WORK`."""

_MADE = (*_DATABASES, ".seqmlm.db.lock", "runs/.*", "runs/demo/*", "runs/score-demo-*/*")
"""Patterns of the files in a workspace that a demo writes. A `*` also matches a slash."""

_WORK = (
    ("seqmlm.db", "model", "seqmlm_models", "name || ':' || version"),
    ("seqmlm.db", "stream", "seqmlm_streams", "output"),
    ("mlflow.db", "MLflow run", "runs", "run_uuid"),
)
"""Kinds of work in databases: the database, the name of the kind, its table, and the SQL label of a row."""

_OWN_WORK = ("model demo:*", "MLflow run *", "run folder demo", "run folder score-demo-*")
"""Patterns of a demo's own work.

They match any MLflow run: a training by the user is recognised by its model or run folder.
"""

_REMEDY = "name a new folder with --out"


class DemoFolder:
    """A folder in which a demo may write.

    Args:
        out: a path that does not exist, an empty folder, or the folder of an earlier demo.

    Attributes:
        home: the absolute path of the folder.

    Raises:
        UsageError: the path is a file.
        StateError: the folder is not empty, and was not created by a demo.
    """

    def __init__(self, out: Path) -> None:
        self.home = out.expanduser().resolve()
        if self.home.exists() and not self.home.is_dir():
            raise UsageError(f"--out {out} is a file, but must be a folder: choose another --out")
        self._listed: dict[str, list[int]] = {}
        self._work: set[str] = set()
        self._made = _MADE
        if not self.home.is_dir() or not any(self.home.iterdir()):
            self._before = frozenset[str]()
            return
        self._load_manifest(out)
        self._before = frozenset(self._files()) - self._listed.keys()

    def _load_manifest(self, out: Path) -> None:
        """Read the manifest.

        Raises:
            StateError: there is no manifest, or it is damaged.
        """
        try:
            content: dict[str, Any] = read_json(self.home / MANIFEST)
            self._listed = {str(name): [*map(int, facts)] for name, facts in content["files"].items()}
            self._work = {*map(str, content["work"])}
        except FileNotFoundError:
            raise StateError(f"{out} exists but was not created by `seqmlm demo`: {_REMEDY}") from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise StateError(f"{out / MANIFEST} is not the file list of a demo: {_REMEDY}") from None

    def clear(self, needed: tuple[str, ...] = ()) -> None:
        """Delete the files that the manifest lists, and folders that become empty.

        Args:
            needed: names of files that the next demo writes without any check.

        Raises:
            StateError: a listed file has changed, the databases contain the user's work, or a needed file
                exists but is not listed. Nothing was deleted.
        """
        if foreign_work := sorted(set(self.work()) - self._work):
            raise StateError(
                f"{self.home} contains the {foreign_work[0]}, which the demo did not create: {_REMEDY}, "
                "or move your work"
            )
        names = [*self._listed, *(_DATABASES if self._listed.keys() & {*_DATABASES} else ())]
        listed = [self.home / name for name in dict.fromkeys(names) if self._is_ours(name)]
        if occupied := [
            path for path in map(self.home.joinpath, needed) if path.exists() and path not in listed
        ]:
            raise StateError(
                f"{occupied[0]} is not listed as a file of a demo: move it elsewhere, or {_REMEDY}"
            )
        for path in listed:
            path.unlink()
        for folder in sorted({above for path in listed for above in path.parents}, reverse=True):
            if folder.is_relative_to(self.home) and folder != self.home:
                with suppress(OSError):
                    folder.rmdir()  # fails if the folder is not empty
        (self.home / MANIFEST).unlink(missing_ok=True)
        self._listed, self._work = {}, set()

    def remove(self) -> None:
        """Delete the listed files like `clear`, and the folder if it is then empty."""
        has_manifest = (self.home / MANIFEST).exists()
        self.clear()
        if has_manifest:
            with suppress(OSError):
                self.home.rmdir()

    def _is_ours(self, name: str) -> bool:
        """Whether a listed file still exists.

        Raises:
            StateError: it has changed since the demo.
        """
        path = self.home / name
        if path.is_symlink() or not path.is_file() or not path.resolve().is_relative_to(self.home):
            return False
        if name not in _DATABASES and _facts(path) != self._listed[name]:
            raise StateError(f"{path} has changed since the demo: move it elsewhere, or {_REMEDY}")
        return True

    def begin(self, patterns: tuple[str, ...] = ()) -> None:
        """Create the folder, and write the manifest before any other file.

        Args:
            patterns: patterns of the files that the demo writes in addition to the files of the workspace.
        """
        self._made = (*_MADE, *patterns)
        self.home.mkdir(parents=True, exist_ok=True)
        self.list_files()

    def list_files(self) -> None:
        """Write the manifest of the demo's files that are new since it began.

        A new file is listed only if its name matches a pattern of the demo's files.
        """
        new_names = sorted(name for name in set(self._files()) - self._before if _matches(name, self._made))
        content = {
            "about": "Files that 'seqmlm demo' made. The next demo in this folder deletes only these files.",
            "files": {name: _facts(self.home / name) for name in new_names},
            "work": sorted(name for name in self.work() if _matches(name, _OWN_WORK)),
        }
        replace_file(self.home / MANIFEST, (json.dumps(content, indent=1) + "\n").encode())

    def _files(self) -> Iterator[str]:
        """The paths, relative to the folder, of all regular files except the manifest."""
        for path in self.home.rglob("*"):
            name = path.relative_to(self.home).as_posix()
            if name != MANIFEST and path.is_file() and not path.is_symlink():
                yield name

    def work(self) -> Iterator[str]:
        """The models, streams, runs and run folders in this folder."""
        for name, kind, table, label in _WORK:
            if (self.home / name).is_file():
                yield from (f"{kind} {value}" for value in _rows(self.home / name, table, label))
        for path in (self.home / "runs").glob("[!.]*"):
            yield f"run folder {path.name}"


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _rows(database: Path, table: str, label: str) -> list[str]:
    """The label of each row of a table; empty if the database has no such table.

    Raises:
        StateError: the database cannot be read.
    """
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as opened:
            tables = opened.execute("select name from sqlite_master where name = ?", (table,)).fetchall()
            return [str(value) for _ in tables for (value,) in opened.execute(f"select {label} from {table}")]
    except sqlite3.Error as error:
        raise StateError(f"{database} cannot be read ({error}), and may have your work: {_REMEDY}") from None


def _facts(path: Path) -> list[int]:
    """The size of a file in bytes, and the time of its last change in nanoseconds."""
    about = path.stat()
    return [about.st_size, about.st_mtime_ns]
