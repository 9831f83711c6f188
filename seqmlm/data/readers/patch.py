"""Unified diffs: which files a patch touches, which lines of them, and how to put it on or take it off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from seqmlm.errors import DataError

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
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
