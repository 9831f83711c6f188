"""What changed in a folder of source code, since a git revision or by a diff, and the rows of changed lines.

A changed line is scored by how much more unusual it became, s(after) - s(before), against the line it came
from; a new one against an average line, whose z is 0. So a strange line that was there before stays silent.
Files are chosen as the reader of work trees chooses them: those of known languages that somebody wrote by
hand. Untracked files are no part of `git diff`, and none of this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from seqmlm.anomaly.values import Row
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Changed
from seqmlm.domains.code.git import WorkTree, own_file
from seqmlm.domains.code.source import LARGEST, is_vendored, text_of_bytes
from seqmlm.errors import DataError
from seqmlm.tokenizers.lexers.source import SourceText, language_of

# Changed files

Status = Literal["added", "modified", "renamed", "deleted"]


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


def read_changes(
    root: Path, problems: Problems, *, since: str | None = None, diff: Path | None = None
) -> Iterator[Changed]:
    """The changed files of a folder with the source before and after; see `Domain.changes`."""
    if since is not None:
        found = changes_since(root, since, problems)
    else:
        assert diff is not None
        try:
            patch = diff.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", source=str(diff)) from None
        found = changes_of_diff(root, patch, str(diff), problems)
    for change in found:
        source = (root / change.path).as_posix()
        before, after = (
            None if text is None else Record(id=change.path, raw=text, source=source, line=1)
            for text in (change.before, change.after)
        )
        yield Changed(
            source=source,
            before=before,
            after=after if change.hunks else None,
            rows=partial(changed_rows, change),
        )


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
    with WorkTree(folder) as tree:
        commit = tree.commit(revision)
        for patch in parse_patch(tree.patch(commit), f"git diff {revision}"):
            if not _is_source(patch, problems):
                continue
            file = None if patch.new is None else own_file(folder, patch.new)
            if patch.new is not None and file is None:
                problems.note("a symbolic link, skipped")
                continue
            old = None if patch.old is None else tree.blob(commit, patch.old)
            yield _change(patch, old, None if file is None else file.read_bytes(), problems)


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
        path = own_file(folder, name)
        if path is None and (_leads_out(name) or os.path.lexists(folder / name)):
            raise DataError(
                "a diff of a file outside the folder, or of a link", source=source, remedy="leave it out"
            )
        if path is not None:
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


def _leads_out(name: str) -> bool:
    return PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts


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


# Changed lines

_LIKE = 0.4  # share of common characters from which one line is a version of another
_MOST_PAIRS = 10_000  # of lines compared within one hunk


def changed_rows(change: Change, before: Sequence[Row], after: Sequence[Row]) -> list[tuple[int, Row]]:
    """The rows of changed lines, scored by their change.

    Args:
        change: of one file.
        before, after: rows of the level `line` of both versions; none of one that there is not.

    Returns:
        (index in `after`, row) in order; `extra` tells both scores, the line it came from, and whether it is
        "new" or "modified".
    """
    old = {row.line: row for row in before}
    origin = _origins(change)
    found = []
    for index, row in enumerate(after):
        if row.line not in origin or row.score is None:
            continue
        source = origin[row.line]
        was = old[source].score if source is not None and source in old else None
        delta = row.score - (was or 0.0)
        extra = {
            **row.extra,
            "change": "new" if source is None else "modified",
            "score_after": row.score,
            "score_before": was,
            "line_before": source,
        }
        found.append((index, replace(row, score=delta, extra=extra)))
    return found


def _origins(change: Change) -> dict[int, int | None]:
    """1-based number of each line that came, to that of the line it was before; None for a new one."""
    if change.after is None:
        return {}
    new = change.after.split("\n")
    old = change.before.split("\n") if change.before is not None else []
    origins: dict[int, int | None] = {}
    for hunk in change.hunks:
        gone, came = hunk.changed()
        origins |= dict.fromkeys(came)
        if old:
            texts = [old[number - 1] for number in gone], [new[number - 1] for number in came]
            origins |= {came[b]: gone[a] for a, b in paired(*texts)}
    return origins


def paired(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Which line became which: the pairs, in order on both sides, that are most alike together.

    Beyond `_MOST_PAIRS` comparisons (a rewritten file) lines are paired by their number.
    """
    rows, columns = len(before), len(after)
    if rows * columns > _MOST_PAIRS:
        return [(i, i) for i in range(min(rows, columns))]
    likeness = np.zeros((rows, columns))
    for j, text in enumerate(after):
        matcher = SequenceMatcher(None, b=text.strip(), autojunk=False)
        for i, other in enumerate(before):
            matcher.set_seq1(other.strip())
            if matcher.quick_ratio() >= _LIKE:
                likeness[i, j] = matcher.ratio()
    likeness[likeness < _LIKE] = 0.0
    best = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        for j in range(columns):
            best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], best[i, j] + likeness[i, j])
    pairs = []
    i, j = rows, columns
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return pairs[::-1]


# Unified diffs

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_ESCAPED = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_NO_FILE = b"/dev/null"
_NO_LINE_END = b"\\"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunk:
    """Neighbouring lines that changed together.

    Args:
        old, new: 1-based numbers of its lines before and after; empty where there are none.
        lines: as in the patch, each with " ", "-", "+" or "\\" in front, line ends included.
    """

    old: range
    new: range
    lines: tuple[bytes, ...]

    def side(self, sign: bytes) -> list[bytes]:
        """The lines before (sign b"-") or after (b"+"), those of the context included."""
        kept: list[bytes] = []
        last = b""
        for line in self.lines:
            if line[:1] == _NO_LINE_END:
                if last in (b" ", sign):
                    kept[-1] = kept[-1].removesuffix(b"\n")
                continue
            last = line[:1]
            if last in (b" ", sign):
                kept.append(line[1:])
        return kept

    def changed(self) -> tuple[list[int], list[int]]:
        """1-based numbers of the lines that went (before) and that came (after), without the context."""
        old, new = self.old.start, self.new.start
        gone: list[int] = []
        came: list[int] = []
        for line in self.lines:
            sign = line[:1]
            if sign == b"-":
                gone.append(old)
            elif sign == b"+":
                came.append(new)
            old += sign in (b" ", b"-")
            new += sign in (b" ", b"+")
        return gone, came


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """What a patch does to one file.

    Args:
        old, new: its name before and after; None where there was none, or is none.
        hunks: ascending; none where a file is only renamed.
    """

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...]

    def apply(self, data: bytes, *, backwards: bool = False) -> bytes | None:
        """The file after the patch (before it, backwards), or None where the patch does not fit the file."""
        lines = _lines(data)
        made: list[bytes] = []
        done = 0
        for hunk in self.hunks:
            own, other = (b"+", b"-") if backwards else (b"-", b"+")
            expected = hunk.side(own)
            span = hunk.new if backwards else hunk.old
            start = span.start - 1 if len(span) else span.start
            if start < done or lines[start : start + len(expected)] != expected:
                return None
            made += [*lines[done:start], *hunk.side(other)]
            done = start + len(expected)
        return b"".join([*made, *lines[done:]])


def parse_patch(data: bytes, source: str) -> list[FilePatch]:
    """The files of a unified diff, as `git diff` and `diff -u` write it.

    Args:
        data: the diff; what stands between files (a commit message) is passed over.
        source: its name, for errors.

    Raises:
        DataError: a hunk that ends too early, with its line; no file in it at all.
    """
    return list(_Reader(_lines(data), source).files())


class _Reader:
    """Goes through the lines of a patch once."""

    def __init__(self, lines: Sequence[bytes], source: str) -> None:
        self.lines, self.source, self.at = lines, source, 0
        self.old: str | None = None
        self.new: str | None = None
        self.named = False
        self.hunks: list[Hunk] = []

    def files(self) -> Iterator[FilePatch]:
        count = 0
        while self.at < len(self.lines):
            line = self.lines[self.at]
            begins = line.startswith(b"diff --git ")
            header = line.startswith(b"--- ") and self._next().startswith(b"+++ ")
            if (begins or (header and self.hunks)) and self.named:
                count += 1
                yield self._finished()
            if header:
                self.old, self.new = _name(line[4:], b"a/"), _name(self._next()[4:], b"b/")
                self.named = True
                self.at += 1
            elif line.startswith(b"rename from "):
                self.old, self.named = _name(line[12:], b""), True
            elif line.startswith(b"rename to "):
                self.new = _name(line[10:], b"")
            elif self.named and _HUNK.match(line):
                self.hunks.append(self._hunk())
                continue
            elif self.named and line.startswith(b"@@ -"):
                raise DataError("a hunk without its line numbers", source=self.source, line=self.at + 1)
            self.at += 1
        if self.named:
            count += 1
            yield self._finished()
        if not count and b"".join(self.lines).strip():
            raise DataError(
                "not a unified diff", source=self.source, remedy="write it with git diff or diff -u"
            )

    def _next(self) -> bytes:
        return self.lines[self.at + 1] if self.at + 1 < len(self.lines) else b""

    def _finished(self) -> FilePatch:
        made = FilePatch(old=self.old, new=self.new, hunks=tuple(self.hunks))
        self.old = self.new = None
        self.named, self.hunks = False, []
        return made

    def _hunk(self) -> Hunk:
        match = _HUNK.match(self.lines[self.at])
        assert match is not None
        old, olds, new, news = (1 if part is None else int(part) for part in match.groups())
        left, right = olds, news
        begin = self.at = self.at + 1
        while left or right or self._is_ending():
            sign = self.lines[self.at][:1] if self.at < len(self.lines) else b""
            if sign not in (b" ", b"-", b"+", b"\\", b"\n", b"\r") or left < 0 or right < 0:
                raise DataError("a hunk with fewer lines than it says", source=self.source, line=self.at + 1)
            context = sign in (b" ", b"\n", b"\r")  # some programs strip the space of an empty line
            left -= context or sign == b"-"
            right -= context or sign == b"+"
            self.at += 1
        lines = tuple(
            b" " + line if line[:1] in (b"\n", b"\r") else line for line in self.lines[begin : self.at]
        )
        return Hunk(old=_range(old, olds), new=_range(new, news), lines=lines)

    def _is_ending(self) -> bool:
        return self.at < len(self.lines) and self.lines[self.at].startswith(_NO_LINE_END)


def _range(first: int, count: int) -> range:
    """Line numbers; where there are none, `start` is the line in front of the place."""
    return range(first, first + count)


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends; only \\n ends one, as git sees it."""
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _name(text: bytes, prefix: bytes) -> str | None:
    """A file name of a header, without quotes, time stamp and prefix; None for no file."""
    text = text.rstrip(b"\r\n")
    if text.startswith(b'"'):
        text = _ESCAPE.sub(_unescaped, text[1 : text.rfind(b'"')])
    else:
        text = text.split(b"\t")[0]
    if text == _NO_FILE:
        return None
    return text.removeprefix(prefix).decode("utf-8", "surrogateescape")


def _unescaped(match: re.Match[bytes]) -> bytes:
    found = match.group(1)
    return bytes([int(found, 8) & 255]) if len(found) == 3 else _ESCAPED.get(found, found)
