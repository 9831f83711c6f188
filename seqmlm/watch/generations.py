"""One generation of a followed file: its content, wherever that is by now, and the reader that takes it."""

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
"""Bytes at the beginning, and before the place that was reached, by which a content is recognised."""

FILE_BYTES = 1 << 17
"""Bytes that are read of a file before others have their turn."""

LONGEST_LINE = 1 << 23
"""Bytes of a line that are waited for; of a longer one the beginning is handed on."""

_HEAD_LINES = 4096  # lines by which readers tell the format, at most


@dataclass(kw_only=True)
class FileState:
    """How far one generation of a file has been read; JSON can hold all of it."""

    number: int  # of the generation, from 1, in the order they were met
    path: str  # absolute; what it was called first
    device: int = 0  # of the file it was last read in
    inode: int = 0
    prefix: str = ""  # hashes of its first, and its last `PREFIX` bytes before `offset`
    tail: str = ""
    offset: int = 0  # bytes that were handed to the reader: whole lines
    line: int = 0  # number of these lines
    size: int = 0  # bytes that were seen
    taken: int = 0  # `Memory.last_line`
    held: dict[str, list[int]] = field(default_factory=dict)  # lines that wait, see `Memory`
    begin: int = 0  # bytes and lines before those that a new reader has to be given
    begin_line: int = 0
    head: int = 0  # bytes of the first lines, which every reader is given; 0 until these are there
    pauses: list[int] = field(default_factory=list)  # offsets where the reader handed on what it kept
    done: bool = False  # it has been read to its end, or is gone


DESTROYED = "the file was cut off or removed, and no copy of it was found"
HOLE = (
    "a program that goes on where it was, behind the new end of a file that was cut off, leaves such a hole"
)
DAMAGED = "the compressed data are damaged or cut off"


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Bytes that could not be read."""

    path: str
    line: int  # the first one that is missing, in its generation
    offset: int
    size: int  # bytes that are known to be missing; 0 where that is not known
    fate: str = "was destroyed before it could be read"
    cause: str = DESTROYED
    missing: str = ""  # what is missing, where that is known better than by bytes

    @property
    def reason(self) -> str:
        """The missing bytes and the cause, in a sentence."""
        bound = "" if self.cause == HOLE else "at least "
        size = f"{bound}{number_of(self.size, 'byte')}" if self.size else "what was written"
        return f"{self.missing or f'{size} from here on'} {self.fate}: {self.cause}"


class Plain:
    """The bytes of a file as they lie on the disk."""

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
    """A hash of the first bytes of a compressed file, as they lie on the disk."""
    with open(path, "rb") as file:
        return _hash(file.read(PREFIX))


class Packed:
    """The content that a compressed file expands to; it is not expected to grow."""

    packed = True

    def __init__(self, path: str, node: tuple[int, int]) -> None:
        self.path, self.node = path, node
        self.restart()

    def restart(self) -> None:
        """Read the file from its beginning, as it is now."""
        self._blocks: Iterator[bytes] = blocks(self.path)
        self._buffer, self._at = b"", 0

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes, fewer only at the end; fast where the next ones are asked for; DataError: the
        compressed data are damaged or not all there."""
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
            self.restart()  # a generator that has raised would seem to be at its end
            raise

    def size(self) -> int:
        return self._at + len(self._buffer)

    def close(self) -> None:
        self._buffer = b""


Content = Plain | Packed


ARCHIVE = re.compile(rb"BZh[1-9]1AY&SY|\xfd7zXZ\0|7z\xbc\xaf\x27\x1c|PK\x03\x04[\n-?]\0")
"""What a copy in a format begins with that cannot be unpacked here."""


class NoFile(Exception):
    """A path leads to something that cannot be followed: the reason."""


def opened(path: str) -> Content:
    """The content under a path; OSError: it cannot be opened; NoFile: it is no file."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(handle)
    node = about.st_dev, about.st_ino
    head = os.pread(handle, PREFIX, 0) if stat.S_ISREG(about.st_mode) else b""
    foreign = foreign_kind(head) if ARCHIVE.match(head) else None
    if stat.S_ISREG(about.st_mode) and foreign is None and not is_packed(head):
        return Plain(handle, node)
    os.close(handle)
    if foreign is not None:
        raise NoFile(f"{foreign[0]}, which is not followed: {foreign[1]}")
    if stat.S_ISREG(about.st_mode):
        return Packed(path, node)
    raise NoFile(
        "a pipe, socket or device, which has no durability: read it with "
        f"'cat {path} | seqmlm score MODEL - --max-latency 1s'"
    )


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def is_of(content: Content, state: FileState) -> bool:
    """Whether this content is that of a generation, as far as that was read."""
    near = min(PREFIX, state.offset)
    return (
        state.offset > 0
        and _hash(content.read(0, near)) == state.prefix
        and len(end := content.read(state.offset - near, near)) == near
        and _hash(end) == state.tail
    )


def begin_alike(content: Content, copy: Content) -> bool:
    """Whether two contents have the same first bytes, a whole line among them, as far as both go.

    A hole of NUL bytes is compared by its length: all holes begin alike.
    """
    first_hole, first = _beginning(content)
    second_hole, second = _beginning(copy)
    near = min(len(first), len(second))
    alike = first[:near] == second[:near] and (near == PREFIX or b"\n" in first[:near])
    return first_hole == second_hole and alike


def _beginning(content: Content) -> tuple[int, bytes]:
    """The number of NUL bytes that a content begins with, and the `PREFIX` bytes behind them."""
    at = 0
    while block := content.read(at, FILE_BYTES if at else PREFIX):
        if text := block.lstrip(b"\0"):
            at += len(block) - len(text)
            break
        at += len(block)
    return at, content.read(at, PREFIX)


def goes_on(content: Content, state: FileState) -> bool:
    """Whether a content continues a generation that was read to its end; few bytes alone do not tell that."""
    sure = state.offset >= PREFIX or content.node == (state.device, state.inode)
    return sure and is_of(content, state)


class Destroyed(Exception):
    """The bytes that were read are no longer those of the file: it was cut off, and perhaps written anew."""


_NULS = re.compile(rb"^\0+", re.MULTILINE)


class Hole(NamedTuple):
    """A run of NUL bytes: the line and the offset it begins at, and its size."""

    line: int
    offset: int
    size: int


class Holes:
    """Leaves out runs of NUL bytes where a line begins, in blocks that follow each other."""

    def __init__(self) -> None:
        self._bare = True  # whether the line has had no other byte yet
        self._runs: list[Hole] = []
        self._at = 0  # the offset that was reached

    def left_out(self, block: bytes, line: int = 0, offset: int = 0) -> bytes:
        """A block without them, which begins in this line of its file, at this offset."""
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
        """The runs that are over, each once; more may come of the last one, unless nothing does."""
        growing = not last and bool(self._runs) and sum(self._runs[-1][1:]) == self._at
        over, self._runs = (self._runs[:-1], self._runs[-1:]) if growing else (self._runs, [])
        return over


class Generation:
    """A generation that is being followed."""

    content: Content | None = None  # while it cannot be found
    fed: Fed[Record] | None = None
    in_place = True  # it is what its path leads to, so that it may grow
    at_end = False  # at the last look its end was reached; a line without an end waits for it
    partial = 0  # bytes of that line
    unpaused: float | None = None  # when the first byte behind the last pause came
    changed = False
    _first = _last = b""  # bytes that its hashes are of
    _at_line_start = True
    _failed = False  # its reader has ended with an error

    def __init__(self, state: FileState, reader: Callable[[Source], Iterator[Record]], now: float) -> None:
        self.state, self._read = state, reader
        self.since = now  # of the last bytes, or since when it cannot be found
        self.memory = Memory()  # of the reader
        self.marks = [(state.begin_line, state.begin)]
        self.gaps: list[Gap] = []  # that were found since somebody took them
        self._holes = Holes()
        self.refused: set[tuple[int, ...]] = set()  # files that are not its copies

    @property
    def waits(self) -> bool:
        """Whether lines wait for others of their record, as far as the state of an earlier process says: none
        do behind a pause, unless it names them."""
        return bool(self.state.held) or self.state.offset not in self.state.pauses

    def restored(self) -> list[Record]:
        """Give a new reader what it needs to go on; no record comes of it, unless a limit has changed;
        Destroyed: the bytes are not there."""
        state = self.state
        assert self.content is not None
        near = min(PREFIX, state.offset)
        self._first, self._last = self.content.read(0, near), self.content.read(state.offset - near, near)
        self.unpaused = self.since if state.offset else None
        self.memory = Memory(state.taken, state.held)
        self.fed, self._holes = Fed(state.path, self._read, self.memory), Holes()
        try:
            records = list(self._given_again(self.content, self.fed))
        except Destroyed:  # a reader that was given a part must not go on with what comes after it
            self.fed.close()
            self.fed = None
            raise
        except DataError as error:
            self._begin_anew(error)
            return []
        self._holes.ended()  # they were told, but for one that goes on where the reading stopped
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
        """Hand on the next whole lines, of about so many bytes; at the very end also a line without its end;
        Destroyed: what was read is not there any more."""
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
        """The records that are whole with a block; where the reader fails, those that it made before."""
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
        """A new reader for what comes next, in place of one that has failed."""
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
        """Let the reader hand on what it keeps."""
        state = self.state
        state.head = state.head or state.offset
        if state.offset > max(state.pauses, default=state.begin):
            state.pauses.append(state.offset)
        self.unpaused, self.changed = None, True
        return self._feed(None)

    def end(self) -> list[Record]:
        """No more will come."""
        records = [] if self.fed is None else self._feed(b"")
        self._tell_holes(last=True)
        self.close()
        self.state.done, self.changed = True, True
        self.state.held, self.state.pauses = {}, []
        return records

    def snapshot(self) -> FileState:
        """How far it is, now that the reader waits; what no new reader would need is dropped."""
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
