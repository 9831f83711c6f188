"""Checks of output files before a command starts, and creation of output folders.

An output must be a regular file, must not be an input, and must not be named twice. Files can change between
this check and the writing. Therefore `seqmlm.engine.durable` checks again, and replaces only regular files.
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
"""Endings of the outputs with a fixed format, by option. A name without an ending is allowed, too."""


def check_outputs(
    outputs: Mapping[str, Path | None],
    *,
    inputs: Iterable[str | Path] = (),
    folder: str | Path | None = None,
    streams: bool = False,
) -> None:
    """Refuse output files that must not be written.

    Args:
        outputs: the path of each option ("--out"); None if the option is not used.
        inputs: files that are read. "-" and data sets (hf:NAME) are ignored.
        folder: the model's folder. It is ignored if it does not exist, such as a hub id.
        streams: whether rows go to standard output without "--out"; the message then mentions it.

    Raises:
        UsageError: an output is not a regular file, or two outputs are the same file. An output, or a file
            that a run keeps next to "--out", is an input. An output is in the folder of the model. Its ending
            belongs to another format.
        StateError: an output exists and was not written by seqmlm.
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
            refuse_foreign(file, name if file == path else f"{name} {path} needs a second file:")


def _check_regular(name: str, path: Path, *, streams: bool) -> None:
    try:
        kind = irregular_kind(path)
    except OSError as error:
        raise UsageError(f"{name} {path}: {error.strerror}; name another file") from None
    if kind is not None:
        raise UsageError(
            f"{name} {path} is {kind}, but must be a regular file; name another file"
            + (", or leave out --out: rows go to standard output" if streams else "")
        )


def check_ending(name: str, path: Path, endings: Sequence[str]) -> None:
    """Refuse a file name whose ending is not one of `endings`. A name without an ending is allowed.

    Raises:
        UsageError: the ending is another one. The message lists the allowed ones.
    """
    if path.suffix and path.suffix.lower() not in endings:
        raise UsageError(
            f"{name} {path}: this output cannot be a {path.suffix} file; use a name that ends in "
            f"{' or '.join(endings)}"
        )


def _identity(path: Path) -> list[object]:
    """Keys that all paths to a file have in common: its resolved path, and its device and inode."""
    try:
        about = os.stat(path)
    except OSError:
        return [os.path.realpath(path)]
    return [os.path.realpath(path), (about.st_dev, about.st_ino)]


def output_lock(path: Path) -> FileLock:
    """A lock that keeps other runs from writing the same file of rows.

    Raises:
        StateError: a folder in the path is a file.
    """
    for above in path.parents:
        if above.exists() and not above.is_dir():
            raise StateError(f"cannot write {path}: {above} is a file; name another --out")
    return _lock(path, f"{path.name}.lock")


def _lock(out: Path, name: str) -> FileLock:
    remedy = "choose a place you may write to"
    return FileLock(out.with_name(name), wait=0, holder=str(out), remedy=remedy, passing=True)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder next to `out`, which is renamed to `out` at the end of the context.

    `out` is therefore complete or absent. The next process that writes the same folder removes the temporary
    folder of a killed process.

    Args:
        out: a path that does not exist, or an empty folder.

    Raises:
        UsageError: the path cannot be replaced by a new folder, such as "." and "/".
        StateError: the path exists, another process writes it, or the system reports an error within the
            context.
    """
    if not out.name or out.name == "..":
        raise UsageError(f"--out {out} cannot be replaced by a new folder; name a folder inside it")
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise StateError(f"{out} already exists; choose another folder, or remove it")
    building = out.with_name(f".{out.name}.{secrets.token_hex(4)}.building")
    left_behind = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{8}}\.building")
    with _lock(out, f".{out.name}.lock"):
        try:
            for path in out.parent.iterdir():
                if left_behind.fullmatch(path.name):  # its process died, because this process has the lock
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
