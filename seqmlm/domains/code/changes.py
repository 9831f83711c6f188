"""Read the changes in a folder of source code, since a git revision or from a diff, and score changed lines.

The score of a changed line is how much more unusual it became: s(after) - s(before), compared with the line
that it replaces. A new line is compared with an average line, whose z is 0. An unusual line that existed
before therefore raises no alarm.

Files are selected as in the reader of work trees: handwritten files in known languages. Untracked files are
not part of `git diff`, and are not read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import partial
from io import StringIO
from itertools import accumulate
from pathlib import Path, PurePath, PurePosixPath

import numpy as np
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchSet

from seqmlm.anomaly.values import Row
from seqmlm.data.counts import Things
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.code.git import WorkTree, file_in_folder
from seqmlm.domains.code.lexers.source import SourceText, language_of
from seqmlm.domains.code.source import LARGEST, SYNTAX, broken_line, is_vendored, text_of_bytes
from seqmlm.domains.field import FileChange
from seqmlm.errors import DataError, UsageError

# Changed files

_AGAIN = "write the diff again with git diff"
_LARGE = "a file larger than the limit, skipped"
_MERGE = "a combined diff of a merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A changed source file.

    Args:
        patch: its names and its hunks.
        old_text, new_text: the text before and after the change. It is None if there is no text, or if the
            text is skipped, such as a generated file.
    """

    patch: FilePatch
    old_text: SourceText | None
    new_text: SourceText | None


def read_changes(
    root: Path, problems: Problems, *, since: str | None = None, diff: Path | None = None
) -> Iterator[FileChange]:
    """The changed files of a folder, with their source before and after the change (see `Changes`)."""
    if since is not None:
        changes = changes_since(root, since, problems)
    else:
        assert diff is not None
        try:
            patch = diff.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", source=str(diff)) from None
        changes = changes_of_diff(root, patch, str(diff), problems)
    for change in changes:
        name = change.patch.name
        source = (root / name).as_posix()
        old_record, new_record = (
            None if text is None else Record(id=name, raw=text, source=source, line=1)
            for text in (change.old_text, change.new_text)
        )
        yield FileChange(
            source=source,
            old_record=old_record,
            new_record=new_record if change.patch.hunks else None,
            old_spans=line_spans(change.old_text, _numbers(change, "-")),
            new_spans=line_spans(change.new_text, _numbers(change, "+")),
            rows=partial(changed_rows, change),
        )


def changes_since(root: str | Path, revision: str, problems: Problems) -> Iterator[Change]:
    """The changed source files of a work tree, compared with a revision.

    Args:
        root: a git work tree or a folder in one. Files outside the folder are left out.
        revision: a commit, branch or tag ("main", "HEAD~3").
        problems: receives files that cannot be decoded, and counts files that are skipped.

    Raises:
        UsageError: git is not installed, the folder is not in a work tree, or the revision does not exist.
    """
    folder = Path(root)
    with WorkTree(folder) as tree:
        diff, untracked = tree.patch(tree.commit(revision)), list[PurePath]()
        with suppress(DataError, UsageError):  # changes can be read without the list of untracked files
            untracked = tree.untracked_files()
    skipped = [str(name) for name in untracked if language_of(name.name) and not is_vendored(name)]
    problems.note(
        "a file that git does not track, not compared", len(skipped), source=next(iter(skipped), None)
    )
    for patch in _of_source(diff, f"git diff {revision}", problems):
        file = None if patch.new_name is None else file_in_folder(folder, patch.new_name)
        if patch.new_name is not None and file is None:
            problems.note("a symbolic link, skipped", Things(1))
            continue
        versions = _both_versions(patch, b"" if file is None else file.read_bytes(), backwards=True)
        if versions is None:
            problems.note(
                "a changed file in an encoding that git converts, skipped", Things(1), source=patch.new_name
            )
            continue
        yield _change(patch, *versions, problems)


def changes_of_diff(root: str | Path, diff: bytes, source: str, problems: Problems) -> Iterator[Change]:
    """The source files that a unified diff changes. The folder can be in the state before or after the diff.

    Args:
        root: the folder to which the file names in the diff are relative.
        diff: the output of `git diff` or `diff -u`.
        source: its name, for errors.
        problems: see `changes_since`. It also receives files that match neither side of the diff.

    Raises:
        DataError: the text is not a unified diff.
    """
    folder = Path(root).resolve()
    if diff.count(b"\n") == diff.count(b"\r\n"):  # the line ends of the diff itself were converted
        diff = diff.replace(b"\r\n", b"\n")
    for patch in _of_source(diff, source, problems):
        try:
            versions = _versions(folder, patch, source)
        except DataError as error:
            problems.bad(error)
        else:
            yield _change(patch, *versions, problems)


def _of_source(diff: bytes, source: str, problems: Problems) -> Iterator[FilePatch]:
    """The files of a diff that are source code and not vendored. The others are counted or reported."""
    for patch in parse_patch(diff, source):
        path = PurePosixPath(patch.name)
        if not language_of(path.name):
            problems.note("a changed file that is not source code, skipped", Things(1))
        elif is_vendored(path):
            problems.note("a vendored file, skipped", Things(1))
        elif patch.skip_reason == _MERGE:  # an error, because skipping it would hide that the file changed
            remedy = "give the diff against one parent, such as git diff HEAD^1 HEAD"
            problems.bad(DataError(_MERGE, source=patch.name, remedy=remedy))
        elif patch.skip_reason:
            problems.note(patch.skip_reason, Things(1), source=patch.name)
        else:
            yield patch


def _versions(folder: Path, patch: FilePatch, source: str) -> tuple[bytes, bytes]:
    """The bytes of a file before and after a patch, computed from the current file.

    Raises:
        DataError: the file matches neither side of the patch, or is outside the folder.
    """
    for name, backwards in ((patch.new_name, True), (patch.old_name, False)):
        if name is None:
            continue
        path = file_in_folder(folder, name)
        outside = name.startswith("/") or ".." in PurePosixPath(name).parts
        if path is None and (outside or os.path.lexists(folder / name)):
            raise DataError(
                "a diff of a file outside the folder, or of a link",
                source=source,
                remedy="remove the file from the diff",
            )
        if path is not None and (versions := _both_versions(patch, path.read_bytes(), backwards=backwards)):
            return versions
    if patch.old_name is None or patch.new_name is None:  # the diff has the whole text of the file
        versions = _both_versions(patch, b"", backwards=patch.new_name is None)
        if versions is not None:
            return versions
    remedy = "check out the revision that the diff was made from, or give the folder of that revision"
    raise DataError(f"{patch.name} matches neither side of the diff", source=source, remedy=remedy)


def _both_versions(patch: FilePatch, data: bytes, *, backwards: bool) -> tuple[bytes, bytes] | None:
    """The bytes before and after a patch, or None if `data` does not match the patch.

    If `data` only matches with LF as line ends, both versions have LF.
    """
    for candidate in (data, data.replace(b"\r\n", b"\n")):
        patched = patch.apply(candidate, backwards=backwards)
        if patched is not None:
            return (patched, candidate) if backwards else (candidate, patched)
    return None


def _change(patch: FilePatch, old_bytes: bytes, new_bytes: bytes, problems: Problems) -> Change:
    """The change of one file with both texts. A new text that does not parse is counted."""
    new_text = None if patch.new_name is None else _text(new_bytes, patch.new_name, problems)
    if new_text is not None and (line := broken_line(new_text)) is not None:
        problems.note(SYNTAX, source=patch.new_name, line=line)
    old_text = None if patch.old_name is None else _text(old_bytes, patch.old_name, problems)
    return Change(patch=patch, old_text=old_text, new_text=new_text)


def _text(data: bytes, path: str, problems: Problems) -> SourceText | None:
    """The text of a file, or None if the file is empty or skipped. `problems` counts skipped files."""
    if not data:
        return None
    reason = "a binary file, skipped" if b"\0" in data else ""
    reason = reason or (_LARGE if len(data) > LARGEST else "")
    if reason:
        problems.note(reason, source=path)
        return None
    return text_of_bytes(data, path, problems, language=language_of(path), generated=False)


# Changed lines

_LIKE = 0.4  # minimum share of common characters of a line and the line that it replaces
_MOST_PAIRS = 10_000  # maximum pairs of lines that are compared per hunk


def changed_rows(change: Change, old_rows: Sequence[Row], new_rows: Sequence[Row]) -> list[tuple[int, Row]]:
    """The rows of changed lines. Their score is the increase of the score.

    Args:
        change: the change of one file.
        old_rows, new_rows: rows of the level `line` for both versions. They are empty for a missing version.

    Returns:
        The index in `new_rows` and the row of each changed line, in order. `extra` has both scores, the
        number of the old line, and whether the line is "new" or "modified".
    """
    row_of_line = {row.line: row for row in old_rows}
    origin = _origins(change)
    indexed_rows = []
    for index, row in enumerate(new_rows):
        if row.line not in origin or row.score is None:
            continue
        old_line = origin[row.line]
        old_score = row_of_line[old_line].score if old_line is not None and old_line in row_of_line else None
        increase = row.score - (old_score or 0.0)
        extra = {
            **row.extra,
            "change": "new" if old_line is None else "modified",
            "score_after": row.score,
            "score_before": old_score,
            "line_before": old_line,
        }
        indexed_rows.append((index, replace(row, score=increase, extra=extra)))
    return indexed_rows


def _numbers(change: Change, sign: str) -> list[int]:
    """The 1-based numbers of the removed ("-") or added ("+") lines of a change, ascending."""
    lines = (line for hunk in change.patch.hunks for line in hunk if line.line_type == sign)
    return [(line.source_line_no if sign == "-" else line.target_line_no) or 0 for line in lines]


def line_spans(text: str | None, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The start and end (half open) of lines, including their line ends. Adjacent lines are one span.

    `numbers` are the 1-based numbers of the lines, ascending.

    >>> line_spans("a\\nbc\\nd\\n", [1, 2])
    [(0, 5)]
    """
    if text is None or not numbers:
        return []
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    spans: list[tuple[int, int]] = []
    for number in numbers:
        start, end = starts[number - 1], starts[number]
        if spans and spans[-1][1] == start:
            start = spans.pop()[0]
        spans.append((start, end))
    return spans


def _origins(change: Change) -> dict[int, int | None]:
    """Number of each added line -> number of the old line that it replaces, or None for a new line."""
    if change.new_text is None:
        return {}
    new_lines = change.new_text.split("\n")
    old_lines = change.old_text.split("\n") if change.old_text is not None else []
    origins: dict[int, int | None] = {}
    for hunk in change.patch.hunks:
        old_numbers = [line.source_line_no or 0 for line in hunk if line.is_removed]
        new_numbers = [line.target_line_no or 0 for line in hunk if line.is_added]
        origins |= dict.fromkeys(new_numbers)
        if old_lines:
            texts = (
                [old_lines[number - 1] for number in old_numbers],
                [new_lines[number - 1] for number in new_numbers],
            )
            origins |= {new_numbers[b]: old_numbers[a] for a, b in paired_lines(*texts)}
    return origins


def paired_lines(old_lines: Sequence[str], new_lines: Sequence[str]) -> list[tuple[int, int]]:
    """The index pairs (old, new) of matching lines, with the largest sum of similarities.

    The pairs ascend on both sides. If there are more than `_MOST_PAIRS` comparisons (a rewritten file), lines
    are paired by number.
    """
    rows, columns = len(old_lines), len(new_lines)
    if rows * columns > _MOST_PAIRS:
        return [(i, i) for i in range(min(rows, columns))]
    likeness = np.zeros((rows, columns))
    for j, new_line in enumerate(new_lines):
        matcher = SequenceMatcher(None, b=new_line.strip(), autojunk=False)
        for i, old_line in enumerate(old_lines):
            matcher.set_seq1(old_line.strip())
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

_FILE = re.compile(r"^(?=diff --(?:git|cc|combined) )", re.MULTILINE)
_BODY = re.compile(r"^(?=--- )", re.MULTILINE)
# A merge is compared with two or more versions: each line has several signs, and hunks begin with "@@@".
_MERGED = re.compile(r"diff --(?:cc|combined) (.*)")
_AFTER_MERGED = re.compile(r"^(?=--- .*\n\+\+\+ .*\n@@ -)", re.MULTILINE)
_RENAMED = re.compile(r"^rename from (.*)\nrename to (.*)$", re.MULTILINE)
_BETWEEN = re.compile(
    r"^[^-+ @\\\r\n].*", re.MULTILINE
)  # lines outside of files; unidiff is slow on some of them
_ESCAPE = re.compile(r"\\([0-7]{3}|.)")
_ESCAPED = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
_NO_LINE_END = re.compile(r"\n\\.*")  # the mark after a line without line end; its text can be translated


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePatch:
    """The part of a patch for one file.

    Args:
        old_name, new_name: the names before and after the patch. The old name of an added file and the new
            name of a deleted file are None.
        hunks: the hunks, ascending. Each of their characters is one byte. A renamed file can have no hunks.
        skip_reason: why the hunks have no lines; "" if they have lines.
    """

    old_name: str | None
    new_name: str | None
    hunks: Sequence[Hunk] = ()
    skip_reason: str = ""

    @property
    def name(self) -> str:
        """The new name of the file, or the old name of a deleted file."""
        return self.new_name or self.old_name or ""

    def apply(self, data: bytes, *, backwards: bool = False) -> bytes | None:
        """The bytes of the file after the patch, or None if the patch does not match the file.

        With `backwards`, `data` is the file after the patch, and the result is the file before it.
        """
        lines = list(StringIO(data.decode("latin-1")))
        patched: list[str] = []
        done = 0
        for hunk in self.hunks:
            sides = [
                (hunk.source_start, hunk.source_length, hunk.source_lines()),
                (hunk.target_start, hunk.target_length, hunk.target_lines()),
            ]
            (start, expected), (place, replacement) = (
                # if a side has no lines, its number is that of the line before
                (first - 1 if count else first, [line.value for line in side])
                for first, count, side in (reversed(sides) if backwards else sides)
            )
            if not done <= start <= len(lines) or lines[start : start + len(expected)] != expected:
                return None
            patched += lines[done:start]
            if len(patched) != place:  # the line numbers of the hunk would be those of other lines
                return None
            patched += replacement
            done = start + len(expected)
        patched += lines[done:]
        text = "".join(patched)
        # A line without a line end before the last line would shift the numbers of all later lines.
        return text.encode("latin-1") if list(StringIO(text)) == patched else None


def parse_patch(data: bytes, source: str) -> Iterator[FilePatch]:
    """The files of a unified diff from `git diff` or `diff -u`.

    Args:
        data: the diff. Text between files, such as a commit message, is ignored.
        source: its name, for errors.

    Raises:
        DataError: a hunk ends too early, or there is no file in the diff. The error has the line.
    """
    line, has_files = 1, False
    for part in _FILE.split(data.decode("latin-1")):
        merged = _MERGED.match(part)
        head, *bodies = (_AFTER_MERGED if merged else _BODY).split(part, maxsplit=1)
        has_files = has_files or bool(bodies) or _FILE.match(part) is not None
        if merged:
            name = _name(merged[1], "")
            yield FilePatch(old_name=name, new_name=name, skip_reason=_MERGE)
        line += head.count("\n")
        for body in bodies:
            large = head.startswith("diff --git ") and len(body) > 4 * LARGEST
            yield from _files(body, source, line, lines=not large)
            line += body.count("\n")
        if not bodies and (names := _RENAMED.search(head)) is not None:
            yield FilePatch(old_name=_name(names[1], ""), new_name=_name(names[2], ""))
    if not has_files and data.strip():
        raise DataError("not a unified diff", source=source, remedy="write it with git diff or diff -u")


def _files(text: str, source: str, line: int, *, lines: bool) -> Iterator[FilePatch]:
    """The files of a diff without git headers.

    Args:
        text: the diff.
        source, line: the source of the diff, and the line at which `text` begins.
        lines: whether to read the lines of the hunks. False skips the files. It is used for very large diffs,
            because they are not handwritten, and each line needs 300 bytes of memory.
    """
    text = _NO_LINE_END.sub("\0", _BETWEEN.sub("#", text))
    stream = StringIO(text)
    try:
        files = PatchSet((raw_line.partition("\0")[0] for raw_line in stream), metadata_only=not lines)
    except (UnidiffParseError, ValueError):  # a number with thousands of digits raises a ValueError
        line += sum(text.count(end, 0, stream.tell()) for end in "\0\n") - (stream.tell() < len(text))
        reason = "a hunk with fewer or more lines than declared"
        raise DataError(reason, source=source, line=line, remedy=_AGAIN) from None
    for file in files:
        if not file:
            line += (file.diff_line_no or 1) - 1
            raise DataError("a hunk without its line numbers", source=source, line=line, remedy=_AGAIN)
        yield FilePatch(
            old_name=_name(file.source_file, "a/"),
            new_name=_name(file.target_file, "b/"),
            hunks=file,
            skip_reason="" if lines else _LARGE,
        )


def _name(text: str, prefix: str) -> str | None:
    """The file name in a header, without quotes and prefix; None for /dev/null, which means no file."""
    text = text.rstrip("\r")
    if text.startswith('"'):
        text = _ESCAPE.sub(_byte_of_escape, text[1 : text.rfind('"')])
    name = text.removeprefix(prefix).encode("latin-1").decode("utf-8", "surrogateescape")
    return None if text == "/dev/null" else name


def _byte_of_escape(escape: re.Match[str]) -> str:
    """The byte of an escape in a quoted name, as in C. Unknown escapes keep their letter."""
    code = escape[1]
    return chr(int(code, 8) & 255) if len(code) == 3 else _ESCAPED.get(code, code)
