"""One generation of a followed file: its content, wherever the file is now, and its reader."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import NamedTuple

from seqmlm.data.files import Memory, Source, blocks, foreign_kind, is_packed
from seqmlm.data.record import Record
from seqmlm.errors import DataError, number_of
from seqmlm.streams.sources import Fed

PREFIX = 1024
"""Number of bytes at the beginning, and before the read position, by which a content is recognised."""

FILE_BYTES = 1 << 17
"""Number of bytes that are read from a file before other files have their turn."""

LONGEST_LINE = 1 << 23
"""Longest line in bytes. If a line is longer, its beginning is passed to the reader."""

_HEAD_LINES = 4096  # largest number of lines by which readers detect the format


@dataclass(kw_only=True)
class FileState:
    """The read position in one generation of a file, as JSON values.

    Attributes:
        number: number of the generation, from 1, in the order of discovery.
        path: its first path, absolute.
        device: device of the file in which it was last read.
        inode: inode of this file.
        prefix: hash of its first `PREFIX` bytes, or of all bytes before `offset` if there are fewer.
        tail: hash of the last `PREFIX` bytes before `offset`.
        offset: number of bytes that were passed to the reader; always whole lines.
        line: number of these lines.
        size: largest size in bytes that was seen.
        taken: `Memory.last_line` of the reader.
        held: lines that wait for more lines of their record, see `Memory`.
        begin: offset from which a new reader must read again.
        begin_line: number of lines before `begin`.
        head: size in bytes of the first lines, which every reader gets; 0 until they are complete.
        pauses: offsets at which the reader got a pause.
        done: whether it was read to its end, or no longer exists.
    """

    number: int
    path: str
    device: int = 0
    inode: int = 0
    prefix: str = ""
    tail: str = ""
    offset: int = 0
    line: int = 0
    size: int = 0
    taken: int = 0
    held: dict[str, list[int]] = field(default_factory=dict)
    begin: int = 0
    begin_line: int = 0
    head: int = 0
    pauses: list[int] = field(default_factory=list)
    done: bool = False


DESTROYED = "the file was truncated or removed, and no copy of it was found"
HOLE = "a program that continues at its old position after a truncation leaves such a hole"
DAMAGED = "the compressed data are damaged or truncated"


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Bytes that could not be read.

    Args:
        path: the file.
        line: number of the first missing line in its generation.
        offset: offset of the first missing byte.
        size: number of bytes that are known to be missing; 0 if unknown.
        fate: the predicate of the sentence in `reason`.
        cause: the cause.
        missing: a description of the missing part, if it is known better than by its size.
    """

    path: str
    line: int
    offset: int
    size: int
    fate: str = "was destroyed before it could be read"
    cause: str = DESTROYED
    missing: str = ""

    @property
    def reason(self) -> str:
        """A sentence with the missing bytes and the cause."""
        bound = "" if self.cause == HOLE else "at least "
        size = f"{bound}{number_of(self.size, 'byte')}" if self.size else "an unknown number of bytes"
        return f"{self.missing or f'{size} from here on'} {self.fate}: {self.cause}"


class Plain:
    """The bytes of an uncompressed file."""

    packed = False

    def __init__(self, handle: int, node: tuple[int, int]) -> None:
        self._handle, self.node = handle, node

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._handle, size, offset)

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def close(self) -> None:
        os.close(self._handle)


def packed_prefix(path: str) -> str:
    """A hash of the first bytes of a compressed file, without decompression."""
    with open(path, "rb") as file:
        return _hash(file.read(PREFIX))


class Packed:
    """The decompressed content of a compressed file. It is not expected to grow."""

    packed = True

    def __init__(self, path: str, node: tuple[int, int]) -> None:
        self.path, self.node = path, node
        self.restart()

    def restart(self) -> None:
        """Read the file from its beginning again, because it may have changed."""
        self._blocks: Iterator[bytes] = blocks(self.path)
        self._buffer, self._at = b"", 0

    def read(self, offset: int, size: int) -> bytes:
        """Read bytes at an offset; fewer than `size` only at the end. Sequential reading is fast.

        Raises:
            DataError: the compressed data are damaged or incomplete.
        """
        if offset < self._at:
            self.restart()
        while self.size() < offset + size and (block := self._next()):
            spare = min(max(0, offset - PREFIX - self._at), len(self._buffer))
            self._buffer, self._at = self._buffer[spare:] + block, self._at + spare
        return self._buffer[max(0, offset - self._at) : max(0, offset + size - self._at)]

    def _next(self) -> bytes:
        try:
            return next(self._blocks, b"")
        except DataError:
            self.restart()  # a generator that has raised would look like one at its end
            raise

    def size(self) -> int:
        return self._at + len(self._buffer)

    def close(self) -> None:
        self._buffer = b""


Content = Plain | Packed


ARCHIVE = re.compile(rb"BZh[1-9]1AY&SY|\xfd7zXZ\0|7z\xbc\xaf\x27\x1c|PK\x03\x04[\n-?]\0")
"""The first bytes of archive formats that cannot be decompressed here."""


class NoFile(Exception):
    """A path does not lead to a file that can be followed. The message contains the reason."""


def opened(path: str) -> Content:
    """Open the content of a path.

    Raises:
        OSError: it cannot be opened.
        NoFile: it is not a file that can be followed.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(handle)
    node = about.st_dev, about.st_ino
    head = os.pread(handle, PREFIX, 0) if stat.S_ISREG(about.st_mode) else b""
    foreign = foreign_kind(head) if ARCHIVE.match(head) else None
    if stat.S_ISREG(about.st_mode) and foreign is None and not is_packed(head):
        return Plain(handle, node)
    os.close(handle)
    if foreign is not None:
        raise NoFile(f"{foreign[0]}, which cannot be followed: {foreign[1]}")
    if stat.S_ISREG(about.st_mode):
        return Packed(path, node)
    raise NoFile(
        "a pipe, socket or device, which cannot be read twice: read it with "
        f"'cat {path} | seqmlm score MODEL - --max-latency 1s'"
    )


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def is_of(content: Content, state: FileState) -> bool:
    """Whether a content belongs to a generation: the bytes that were read are still the same."""
    near = min(PREFIX, state.offset)
    return (
        state.offset > 0
        and _hash(content.read(0, near)) == state.prefix
        and len(end := content.read(state.offset - near, near)) == near
        and _hash(end) == state.tail
    )


def begin_alike(content: Content, copy: Content) -> bool:
    """Whether two contents have the same first bytes, up to the shorter one and with a whole line at least.

    Holes of NUL bytes at the beginning are compared by their lengths.
    """
    first_hole, first = _beginning(content)
    second_hole, second = _beginning(copy)
    near = min(len(first), len(second))
    alike = first[:near] == second[:near] and (near == PREFIX or b"\n" in first[:near])
    return first_hole == second_hole and alike


def _beginning(content: Content) -> tuple[int, bytes]:
    """The number of NUL bytes at the beginning of a content, and the next `PREFIX` bytes."""
    at = 0
    while block := content.read(at, FILE_BYTES if at else PREFIX):
        if text := block.lstrip(b"\0"):
            at += len(block) - len(text)
            break
        at += len(block)
    return at, content.read(at, PREFIX)


def goes_on(content: Content, state: FileState) -> bool:
    """Whether a content continues a generation that was read to its end.

    Fewer than `PREFIX` bytes are not enough to decide this. The file must then also have the same inode.
    """
    sure = state.offset >= PREFIX or content.node == (state.device, state.inode)
    return sure and is_of(content, state)


class Destroyed(Exception):
    """The bytes that were read are no longer in the file: it was truncated, and perhaps rewritten."""


_NULS = re.compile(rb"^\0+", re.MULTILINE)


class Hole(NamedTuple):
    """A run of NUL bytes: its first line, its offset and its size in bytes."""

    line: int
    offset: int
    size: int


class Holes:
    """A filter that removes runs of NUL bytes at the beginnings of lines from successive blocks."""

    def __init__(self) -> None:
        self._bare = True  # whether the current line has only NUL bytes so far
        self._runs: list[Hole] = []
        self._at = 0  # the current offset

    def left_out(self, block: bytes, line: int = 0, offset: int = 0) -> bytes:
        """A block without runs of NUL bytes.

        Args:
            block: the next bytes of the file.
            line: number of its first line in the file.
            offset: offset of the block in the file.
        """
        bare, end = self._bare, block.rfind(b"\n") + 1
        self._bare, self._at = (bare or end > 0) and not block[end:].strip(b"\0"), offset + len(block)
        if b"\0" not in block:
            return block
        parts, at = list[bytes](), 0
        for run in _NULS.finditer(block):
            if run.start() == 0 and not bare:
                continue  # within a line
            self._add(Hole(line + block.count(b"\n", 0, run.start()), offset + run.start(), len(run[0])))
            parts.append(block[at : run.start()])
            at = run.end()
        return b"".join([*parts, block[at:]])

    def _add(self, hole: Hole) -> None:
        last = self._runs[-1] if self._runs else None
        if last is not None and last.offset + last.size == hole.offset:
            self._runs[-1] = last._replace(size=last.size + hole.size)
        else:
            self._runs.append(hole)

    def ended(self, *, last: bool = False) -> list[Hole]:
        """The runs that have ended, each once.

        Args:
            last: no more blocks follow, so that a run at the end has ended, too.
        """
        growing = not last and bool(self._runs) and sum(self._runs[-1][1:]) == self._at
        over, self._runs = (self._runs[:-1], self._runs[-1:]) if growing else (self._runs, [])
        return over


class Generation:
    """A generation that is being followed.

    Args:
        state: its read position.
        reader: a function that reads a source and yields records.
        now: the current time in seconds.

    Attributes:
        content: its content; None while the content cannot be found.
        fed: its reader.
        in_place: whether its path leads to this content, so that it may grow.
        at_end: whether its end was reached at the last read.
        partial: number of bytes of an incomplete last line.
        unpaused: time of the first byte after the last pause.
        changed: whether its state has changed since it was last saved.
        since: time of its last bytes, or the time since when it cannot be found.
        memory: the memory of the reader.
        marks: number of lines and offset of positions from which a new reader could start.
        gaps: gaps that were found and not yet collected.
        refused: files that are not copies of it.
    """

    content: Content | None = None
    fed: Fed[Record] | None = None
    in_place = True
    at_end = False
    partial = 0
    unpaused: float | None = None
    changed = False
    _first = _last = b""  # the bytes whose hashes are in the state
    _at_line_start = True
    _failed = False  # its reader has ended with an error

    def __init__(self, state: FileState, reader: Callable[[Source], Iterator[Record]], now: float) -> None:
        self.state, self._read = state, reader
        self.since = now
        self.memory = Memory()
        self.marks = [(state.begin_line, state.begin)]
        self.gaps: list[Gap] = []
        self._holes = Holes()
        self.refused: set[tuple[int, ...]] = set()

    @property
    def waits(self) -> bool:
        """Whether lines may wait for more lines of their record, by the state of an earlier process.

        After a pause, only the lines in `held` wait.
        """
        return bool(self.state.held) or self.state.offset not in self.state.pauses

    def restored(self) -> list[Record]:
        """Start a new reader, and pass it the lines that it needs to continue.

        Returns:
            Records, which occur only if a limit of the reader has changed.

        Raises:
            Destroyed: the bytes no longer exist.
        """
        state = self.state
        assert self.content is not None
        near = min(PREFIX, state.offset)
        self._first, self._last = self.content.read(0, near), self.content.read(state.offset - near, near)
        self.unpaused = self.since if state.offset else None
        self.memory = Memory(state.taken, state.held)
        self.fed, self._holes = Fed(state.path, self._read, self.memory), Holes()
        try:
            records = list(self._given_again(self.content, self.fed))
        except Destroyed:  # a reader with incomplete input must not be used any more
            self.fed.close()
            self.fed = None
            raise
        except DataError as error:
            self._begin_anew(error)
            return []
        self._holes.ended()  # drops holes that were reported before; one at the read position may grow
        return records

    def _given_again(self, content: Content, fed: Fed[Record]) -> Iterator[Record]:
        state, at, line = self.state, 0, 0

        def reread(end: int) -> Iterator[Record]:
            nonlocal at, line
            while at < end:
                block = content.read(at, min(FILE_BYTES, end - at))
                if not block:
                    raise Destroyed
                if filled := self._holes.left_out(block, line + 1, at):
                    yield from fed.feed(filled)
                at, line = at + len(block), line + block.count(b"\n")

        if state.begin > state.head:
            yield from reread(state.head)
            self.memory.jump = state.begin_line
            yield from fed.feed(None)
            at, line, self._holes = state.begin, state.begin_line, Holes()
        for pause in [offset for offset in sorted(state.pauses) if at < offset <= state.offset]:
            yield from reread(pause)
            yield from fed.feed(None)
        yield from reread(state.offset)

    def read(self, size: int, now: float, *, final: bool = False) -> list[Record]:
        """Pass the next whole lines to the reader, and return the records that are complete.

        Args:
            size: number of bytes to read, approximately.
            now: the current time in seconds.
            final: whether the content has ended, so that an incomplete last line is passed, too.

        Raises:
            Destroyed: the bytes that were read before no longer exist.
        """
        assert self.content is not None
        state = self.state
        block = self.content.read(state.offset, size)
        if not self.content.packed:
            length = self.content.size()
            if length < state.offset or (block and state.offset and not is_of(self.content, state)):
                raise Destroyed
            state.size = max(state.size, length)
        while not (cut := block.rfind(b"\n") + 1) and len(block) == size and size < LONGEST_LINE:
            size *= 2
            block = self.content.read(state.offset, size)
        self.at_end = len(block) < size
        cut = cut or (len(block) if not self.at_end or final else 0)
        self.partial = len(block) - cut if self.at_end else 0
        if not cut:
            return []
        block, self.since, self.changed = block[:cut], now, True
        self.unpaused = now if self.unpaused is None else self.unpaused
        if not state.offset or self._at_line_start:
            self.marks.append((state.line, state.offset))
        self._at_line_start = block.endswith(b"\n")
        filled = self._holes.left_out(block, state.line + 1, state.offset)
        records = self._feed(filled) if filled else []
        state.offset += len(block)
        state.line += block.count(b"\n")
        state.size = max(state.size, state.offset)
        self._first, self._last = (self._first + block)[:PREFIX], (self._last + block)[-PREFIX:]
        state.prefix, state.tail = _hash(self._first), _hash(self._last)
        if not state.head and state.line >= _HEAD_LINES and self._at_line_start:
            state.head = state.offset
        self._tell_holes()
        return records

    def _feed(self, block: bytes | None) -> list[Record]:
        """The records that are complete after a block. If the reader fails, the records before that."""
        if self._failed:
            self._begin_anew()
        assert self.fed is not None
        try:
            return self.fed.feed(block)
        except DataError as error:
            self._failed = True
            records, lines = self.fed.records, self.memory.held().values()
            numbers = {number for record in records for number in record.meta.get("lines", (record.line,))}
            waiting = set().union(*lines) - numbers
            self._miss(error, min({self.memory.last_line + 1, *waiting}), len(block or b""))
            return records

    def _begin_anew(self, error: DataError | None = None) -> None:
        """Replace a failed reader by a new one, which begins at the current position."""
        state = self.state
        if error is not None:
            waiting = [min(lines) for lines in state.held.values()]
            self._miss(error, min([state.taken + 1, *waiting]), 0)
        if self.fed is not None:
            self.fed.close()
        state.taken, state.held, state.pauses, state.head = state.line, {}, [], 0
        state.begin, state.begin_line, self._failed = state.offset, state.line, False
        self.marks, self.changed = [(state.line, state.offset)], True
        self.memory = Memory(state.taken)
        self.fed, self.memory.jump = Fed(state.path, self._read, self.memory), state.line
        self.fed.feed(None)

    def _miss(self, error: DataError, line: int, size: int) -> None:
        cause = {"fate": "could not be read", "cause": error.reason}
        self.gaps.append(Gap(path=self.state.path, line=line, offset=self.state.offset, size=size, **cause))

    def _tell_holes(self, *, last: bool = False) -> None:
        for hole in self._holes.ended(last=last):
            gap = Gap(path=self.state.path, line=hole.line, offset=hole.offset, size=hole.size, cause=HOLE)
            self.gaps.append(replace(gap, fate="held nothing but NUL bytes"))

    def pause(self) -> list[Record]:
        """Give the reader a pause, and return the records that it held back."""
        state = self.state
        state.head = state.head or state.offset
        if state.offset > max(state.pauses, default=state.begin):
            state.pauses.append(state.offset)
        self.unpaused, self.changed = None, True
        return self._feed(None)

    def end(self) -> list[Record]:
        """End the generation, and return its last records."""
        records = [] if self.fed is None else self._feed(b"")
        self._tell_holes(last=True)
        self.close()
        self.state.done, self.changed = True, True
        self.state.held, self.state.pauses = {}, []
        return records

    def snapshot(self) -> FileState:
        """The current state, without positions that no new reader needs. Call it while the reader waits."""
        state = self.state
        if self._failed and not state.done:
            self._begin_anew()
        if self.fed is not None and not state.done:
            state.taken, state.held = self.memory.last_line, self.memory.held()
            first = min([state.taken, *(min(lines) for lines in state.held.values())])
            while len(self.marks) > 1 and self.marks[1][0] < first:
                del self.marks[0]
            state.begin_line, state.begin = self.marks[0]
            state.pauses = [at for at in state.pauses if at > state.begin or at == state.head]
        return replace(state, pauses=list(state.pauses))

    def close(self) -> None:
        if self.fed is not None:
            self.fed.close()
        if self.content is not None:
            self.content.close()
        self.fed = self.content = None
