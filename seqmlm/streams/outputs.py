"""Which files and folders a command may write: regular files, each once, none that is read; and new folders.

A command asks before any work. What happens between that and the writing is guarded once more where files
are written: `seqmlm.engine.durable` replaces regular files only.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from seqmlm.data.files import UNDER_WAY, is_reference
from seqmlm.engine.durable import FileLock, irregular_kind, move_into_place
from seqmlm.errors import StateError, UsageError
from seqmlm.streams.ownership import refuse_foreign
from seqmlm.streams.sinks import PARTIAL

_ENDINGS = {
    "--report": (".html", ".htm"),
    "--sarif": (".sarif", ".json"),
    "publish": (".tsv",),
}
"""What names an output that has one format: the endings of its file, which may also have none."""


def check_outputs(
    outputs: Mapping[str, Path | None],
    *,
    inputs: Iterable[str | Path] = (),
    folder: str | Path | None = None,
    streams: bool = False,
) -> None:
    """Refuse output files that are no regular files, the same file twice, an input, or not written by seqmlm.

    Args:
        outputs: what names each ("--out") to the path; None where it is not wanted.
        inputs: files that are read; "-" and data sets (hf:NAME) may be among them.
        folder: of the model, in which nothing else is written; a reference to one elsewhere is passed over.
        streams: without "--out" rows go to standard output, for the message.

    Raises:
        UsageError: a folder, link, pipe or device; the same file twice, however it is spelled; one of the
            inputs, also where a file that a scoring keeps beside "--out" would be it; a file of the model's,
            or in its folder; a name with an ending of another format.
        StateError: a file that seqmlm has not written.
    """
    paths = (Path(path) for path in inputs if str(path) != "-" and not is_reference(path))
    inputs_by_identity = {key: path for path in paths for key in _identity(path)}
    names: dict[object, str] = {}
    home = os.path.realpath(folder) if folder is not None and os.path.isdir(folder) else None
    of_model = set() if home is None else {key for path in Path(home).iterdir() for key in _identity(path)}
    for name, path in outputs.items():
        if path is None:
            continue
        _check_regular(name, path, streams=streams and name == "--out")
        if name in _ENDINGS:
            check_ending(name, path, _ENDINGS[name])
        suffixes = ("", PARTIAL, UNDER_WAY) if name == "--out" else ("",)
        for file in (path.with_name(path.name + suffix) for suffix in suffixes):
            for key in _identity(file):
                if key in inputs_by_identity:
                    role = f"needs {file}, which is" if file != path else "is"
                    raise UsageError(f"{name} {path} {role} one of the inputs; choose another file")
                if names.setdefault(key, name) != name:
                    raise UsageError(f"{names[key]} and {name} are the same file, {file}; name two files")
        above = os.path.realpath(path.parent)
        if home is not None and (os.path.commonpath([home, above]) == home or of_model & {*_identity(path)}):
            raise UsageError(f"{name} {path} is in the folder of the model; choose another place")
        for file in (path.with_name(path.name + suffix) for suffix in suffixes):
            refuse_foreign(file, name if file == path else f"{name} {path} needs a file beside it, and")


def _check_regular(name: str, path: Path, *, streams: bool) -> None:
    try:
        kind = irregular_kind(path)
    except OSError as error:
        raise UsageError(f"{name} {path}: {error.strerror}; name another file") from None
    if kind is not None:
        raise UsageError(
            f"{name} {path} is {kind}, and only a regular file is written; name another file"
            + (", or leave out --out: rows go to standard output" if streams else "")
        )


def check_ending(name: str, path: Path, endings: Sequence[str]) -> None:
    """Refuse a file of one format whose name has the ending of another; it may also have none.

    Raises:
        UsageError: another ending; the message names those that are known.
    """
    if path.suffix and path.suffix.lower() not in endings:
        raise UsageError(
            f"{name} {path}: this file is not written as {path.suffix}; name one that ends in "
            f"{' or '.join(endings)}"
        )


def _identity(path: Path) -> list[object]:
    """Keys that paths to one file share: where the path leads, and the node of a file that exists."""
    try:
        about = os.stat(path)
    except OSError:
        return [os.path.realpath(path)]
    return [os.path.realpath(path), (about.st_dev, about.st_ino)]


def output_lock(path: Path) -> FileLock:
    """The lock that keeps other runs from a file of rows; StateError: its folder is a file."""
    for above in path.parents:
        if above.exists() and not above.is_dir():
            raise StateError(f"cannot write {path}: {above} is a file; name another --out")
    return _lock(path, f"{path.name}.lock")


def _lock(out: Path, name: str) -> FileLock:
    remedy = "choose a place you may write to"
    return FileLock(out.with_name(name), wait=0, holder=str(out), remedy=remedy, passing=True)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write in, which becomes `out` at the end: that is whole or not there.

    What a killed process left of it is removed by the next that writes the same folder.

    Args:
        out: nothing, or an empty folder.

    Raises:
        UsageError: it cannot be replaced by a new folder, as "." and "/" cannot.
        StateError: something is there, another process writes it, or an operation of the system fails while
            the context lasts.
    """
    if not out.name or out.name == "..":
        raise UsageError(f"--out {out} cannot be replaced by a new folder; name one in it")
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise StateError(f"{out} is there already; choose another folder, or remove it")
    building = out.with_name(f".{out.name}.{secrets.token_hex(4)}.building")
    left_behind = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}\.building")
    with _lock(out, f".{out.name}.lock"):
        try:
            for path in out.parent.iterdir():
                if left_behind.fullmatch(path.name):  # by a process that died: we hold the lock
                    shutil.rmtree(path, ignore_errors=True)
            building.mkdir()
            yield building
            move_into_place(building, out)
        except OSError as error:
            raise StateError(
                f"cannot write {out}: {error.strerror or error}; free space or choose another --out"
            ) from None
        finally:
            shutil.rmtree(building, ignore_errors=True)
