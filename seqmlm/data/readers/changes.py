"""What changed in a folder of source code: since a revision of its git history, or by a unified diff.

Files are told as the reader of work trees tells them: those of known languages that somebody wrote by hand;
the rest is counted and skipped. Untracked files are no part of `git diff`, and none of this.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from seqmlm.data.problems import Problems
from seqmlm.data.readers.patch import FilePatch, Hunk, parse_patch
from seqmlm.data.readers.source import LARGEST, text_of_bytes
from seqmlm.data.readers.source_rules import is_vendored
from seqmlm.errors import DataError, UsageError
from seqmlm.tokenizers.lexers.source import SourceText, language_of

Status = Literal["added", "modified", "renamed", "deleted"]
_TIMEOUT = 300  # seconds for one git command


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed source file.

    Args:
        path: its name below the folder, with "/"; the old one of a file that is gone.
        old_path: its name before; None where it is new.
        status: what happened to it; "renamed" also where lines changed as well.
        before, after: its text; None where there is none, or none worth reading.
        hunks: the changed places, ascending.
    """

    path: str
    old_path: str | None
    status: Status
    before: SourceText | None
    after: SourceText | None
    hunks: tuple[Hunk, ...]


def changes_since(root: str | Path, revision: str, problems: Problems) -> Iterator[Change]:
    """What the work tree has that a revision has not.

    Args:
        root: a git work tree or a folder in one: what lies outside the folder is left out.
        revision: a commit, branch or tag ("main", "HEAD~3").
        problems: counts what is skipped, receives what cannot be decoded.

    Raises:
        UsageError: no git, no work tree, or no such revision.
    """
    folder = Path(root)
    commit = _commit(folder, revision)
    options = ["--no-color", "--no-ext-diff", "--no-textconv", "--relative", "--find-renames", "--unified=0"]
    options += ["--src-prefix=a/", "--dst-prefix=b/", "--diff-filter=AMDR", "--ignore-submodules"]
    patches = parse_patch(_git(folder, "diff", *options, commit, "--", "."), f"git diff {revision}")
    for patch in patches:
        if _is_source(patch, problems):
            old = None if patch.old is None else _git(folder, "cat-file", "blob", f"{commit}:./{patch.old}")
            new = None if patch.new is None else (folder / patch.new).read_bytes()
            yield _change(patch, old, new, problems)


def changes_of_diff(root: str | Path, diff: bytes, source: str, problems: Problems) -> Iterator[Change]:
    """What a unified diff changes, whether the files of the folder have it already or not.

    Args:
        root: the folder that names in the diff start from.
        diff: as `git diff` or `diff -u` writes it.
        source: its name, for errors.
        problems: see `changes_since`; also receives files that the diff does not fit.

    Raises:
        DataError: no unified diff.
    """
    folder = Path(root).resolve()
    for patch in parse_patch(diff, source):
        if not _is_source(patch, problems):
            continue
        try:
            old, new = _sides(folder, patch, source)
        except DataError as error:
            problems.bad(error)
            continue
        yield _change(patch, old, new, problems)


def _commit(folder: Path, revision: str) -> str:
    try:
        return (
            _git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
            .decode()
            .strip()
        )
    except subprocess.CalledProcessError:
        pass
    try:
        _git(folder, "rev-parse", "--is-inside-work-tree")
    except subprocess.CalledProcessError:
        raise UsageError(f"{folder} is no git work tree; give one, or a unified diff") from None
    raise UsageError(f"the git work tree {folder} has no revision {revision!r}; see git log --oneline")


def _git(folder: Path, *arguments: str) -> bytes:
    # A file-system monitor is a program the repository names; none is run here.
    command = [
        "git",
        "-C",
        str(folder),
        "-c",
        "core.fsmonitor=false",
        "-c",
        "core.quotePath=false",
        *arguments,
    ]
    try:
        return subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(
            f"git could not be run in {folder}: {error}; install it, or give a unified diff"
        ) from None


def _is_source(patch: FilePatch, problems: Problems) -> bool:
    path = PurePosixPath(patch.new or patch.old or "")
    if not language_of(path.name):
        problems.note("a changed file that is no source code, skipped")
        return False
    if is_vendored(path):
        problems.note("a vendored file, skipped")
        return False
    return True


def _sides(folder: Path, patch: FilePatch, source: str) -> tuple[bytes | None, bytes | None]:
    """The bytes of a file before and after a patch, from the file as it is."""
    for name, backwards in ((patch.new, True), (patch.old, False)):
        if name is None:
            continue
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise DataError("a diff of a file outside the folder", source=source, remedy="leave it out")
        if path.is_file():
            found = path.read_bytes()
            made = patch.apply(found, backwards=backwards)
            if made is not None:
                return (made, found) if backwards else (found, made)
    if patch.old is None or patch.new is None:  # all of it stands in the diff
        made = patch.apply(b"", backwards=patch.new is None)
        if made is not None:
            return (None, made) if patch.old is None else (made, None)
    raise DataError(
        f"{patch.new or patch.old} fits neither side of the diff",
        source=source,
        remedy="check out the revision that the diff was made of, or name its folder",
    )


def _change(patch: FilePatch, old: bytes | None, new: bytes | None, problems: Problems) -> Change:
    path = patch.new or patch.old or ""
    status: Status = "modified"
    if patch.old is None or patch.new is None:
        status = "added" if patch.old is None else "deleted"
    elif patch.old != patch.new:
        status = "renamed"
    return Change(
        path=path,
        old_path=patch.old,
        status=status,
        before=None if patch.old is None else _text(old, patch.old, problems),
        after=None if patch.new is None else _text(new, path, problems),
        hunks=patch.hunks,
    )


def _text(data: bytes | None, path: str, problems: Problems) -> SourceText | None:
    if not data:
        return None
    reason = "a binary file, skipped" if b"\0" in data else ""
    reason = reason or ("a file larger than the limit, skipped" if len(data) > LARGEST else "")
    if reason:
        problems.note(reason, source=path)
        return None
    return text_of_bytes(data, path, problems, language=language_of(path), generated=False)
