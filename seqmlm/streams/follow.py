"""Files that others still write to, rename, cut off and compress: each line once, from where it was left.

A *generation* is one content that grows under a name: `app.log` until it is rotated, then the next one. It is
recognised by a hash of its first bytes (at most 1,024, those that were read), and of the last ones before the
place that was reached, whatever it is called meanwhile; the number of its node is a hint only. Each has a
reader of its own, the one that reads whole files, which is given whole lines, and pauses.

What has to survive is small and says nothing of the content: offsets, and the numbers of the lines that wait
for others of their record (`data.files.Memory`). After a restart the lines are read again, from the earliest
one that waits, with the pauses where they were; the trade-off, against storing the lines themselves, is that
lines that wait are lost with the bytes of a file that is destroyed while nobody follows it. Such a gap is
told.
"""

from __future__ import annotations

import glob
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

from seqmlm.data.compressed import compression
from seqmlm.data.files import MAGIC_BYTES, Memory, Source, blocks
from seqmlm.data.record import Record
from seqmlm.errors import DataError

PREFIX = 1024
"""Bytes at the beginning, and before the place that was reached, by which a content is recognised."""

FILE_BYTES, TURN_BYTES = 1 << 17, 1 << 20
"""Bytes that are read of a file before others have their turn, and at most of all files before what was read
is scored, less where scoring is slow: with the lines that wait, all that is in memory."""

PATIENCE = 5.0
"""Seconds for which a file that was renamed may still be written to, and a copy of one may come to light."""

_HEAD_LINES = 4096  # lines by which readers tell the format, at most
_LONGEST_LINE = 1 << 23  # bytes that are waited for; of a longer line the beginning is handed on
_FORGOTTEN = 1000  # generations read to their end that are still recognised


@dataclass(kw_only=True)
class FileState:
    """How far one generation of a file has been read; JSON can hold all of it.

    Args:
        number: of the generation, from 1, in the order they were met.
        path: absolute; what it was called first.
        device, inode: of the file it was last read in.
        prefix, tail: hashes of its first, and its last `PREFIX` bytes before `offset`.
        offset: bytes that were handed to the reader: whole lines.
        line: number of these lines.
        size: bytes that were seen.
        taken, held: see `Memory`.
        begin, begin_line: bytes and lines before those that a new reader has to be given.
        head: bytes of the first lines, which every reader is given; 0 until these are there.
        pauses: offsets, behind `begin`, at which the reader was told to hand on what it kept.
        head_paused: so was it behind the first lines.
        done: it has been read to its end, or is gone.
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
    head_paused: bool = False
    pauses: list[int] = field(default_factory=list)
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Bytes that were destroyed before they could be read.

    Args:
        path: of the file.
        line: the first line that is missing, in its generation.
        offset: bytes before it.
        size: bytes that are known to be missing; 0 where it is not known how many were there.
    """

    path: str
    line: int
    offset: int
    size: int


# One reader


class _GivenUp(BaseException):
    """Ends a reader that waits; not an `Exception`, so that no reader handles it."""


class Fed:
    """A reader that is given its input piece by piece, and gives back the records it makes of each.

    Readers ask for bytes; here one runs in a thread of its own, which waits whenever it asks: at any time
    either the reader runs or whoever feeds it.

    Args:
        path: what the reader is to call its input.
        read: begins to read it.
        memory: what the reader is to keep.
    """

    def __init__(self, path: str, read: Callable[[Source], Iterator[Record]], memory: Memory) -> None:
        self.memory, self.stopped = memory, False
        self._path, self._read = path, read
        self._asks, self._given = threading.Semaphore(0), threading.Semaphore(0)
        self._block: bytes | None = b""
        self._records: list[Record] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._over = False

    def feed(self, block: bytes | None) -> list[Record]:
        """Hand on some bytes, None for a pause, or b"" at the end; the records that are whole with them.

        Raises:
            whatever the reader raises; then it has ended.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="followed-file", daemon=True)
            self._thread.start()
            self._asks.acquire()
        if not self._over:
            self._block = block
            self._given.release()
            self._asks.acquire()
        if self._error is not None:
            raise self._error
        records, self._records = self._records, []
        return records

    def read(self, size: int) -> bytes | None:
        """What the reader calls: waits for the next block."""
        self._asks.release()
        self._given.acquire()
        if self.stopped:
            raise _GivenUp
        return self._block

    def close(self) -> None:
        """Give the reader up; what it keeps is forgotten."""
        if self._thread is not None and not self.stopped:
            self.stopped = True
            self._given.release()
            self._thread.join()

    def _run(self) -> None:
        try:
            for record in self._read(Source(self._path, self)):
                self._records.append(record)
        except _GivenUp:
            pass
        except BaseException as error:
            self._error = error
        self._over = True
        self._asks.release()


# Contents


class _Plain:
    """The bytes of a file as they lie on the disk."""

    packed = False

    def __init__(self, handle: int) -> None:
        self._handle = handle
        about = os.fstat(handle)
        self.node = (about.st_dev, about.st_ino)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._handle, size, offset)

    def size(self) -> int:
        return os.fstat(self._handle).st_size

    def close(self) -> None:
        os.close(self._handle)


class _Packed:
    """What a compressed file expands to; it is not expected to grow."""

    packed = True

    def __init__(self, path: str, node: tuple[int, int]) -> None:
        self._path, self.node = path, node
        self.restart()

    def restart(self) -> None:
        """Read the file from its beginning, as it is now."""
        self._blocks: Iterator[bytes] = blocks(self._path)
        self._held, self._at = b"", 0

    def read(self, offset: int, size: int) -> bytes:
        """Some bytes, fewer only at the end; fast where the next ones are asked for.

        Raises:
            DataError: the compressed data are damaged or not all there.
        """
        if offset < self._at:
            self.restart()
        while self._at + len(self._held) < offset + size:
            block = next(self._blocks, b"")
            if not block:
                break
            spare = min(max(0, offset - PREFIX - self._at), len(self._held))
            self._held, self._at = self._held[spare:] + block, self._at + spare
        return self._held[max(0, offset - self._at) : max(0, offset + size - self._at)]

    def size(self) -> int:
        return self._at + len(self._held)

    def close(self) -> None:
        self._held = b""


_Content = _Plain | _Packed


class _NoFile(Exception):
    """What is under a path cannot be followed: why."""


def _opened(path: str) -> _Content:
    """The content under a path.

    Raises:
        OSError: it cannot be opened; _NoFile: it is no file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise _NoFile(
            "a pipe, socket or device, which has no durability: read it with "
            f"'cat {path} | seqmlm score MODEL - --max-latency 1s'"
        )
    if compression(os.pread(handle, MAGIC_BYTES, 0)) is not None:
        os.close(handle)
        return _Packed(path, (about.st_dev, about.st_ino))
    return _Plain(handle)


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _is_of(content: _Content, state: FileState) -> bool:
    """Whether this content is that of a generation, as far as that was read."""
    near = min(PREFIX, state.offset)
    return (
        state.offset > 0
        and _hash(content.read(0, near)) == state.prefix
        and len(end := content.read(state.offset - near, near)) == near
        and _hash(end) == state.tail
    )


# One generation


class _Destroyed(Exception):
    """The bytes that were read are no longer those of the file: it was cut off, and perhaps written anew."""


class _File:
    """A generation that is being followed.

    Attributes:
        content: None while it cannot be found.
        in_place: it is what its path leads to, so that it may grow.
        whole: at the last look its end was reached; a line without an end waits for it.
    """

    def __init__(self, state: FileState, read: Callable[[Source], Iterator[Record]], now: float) -> None:
        self.state, self._read = state, read
        self.content: _Content | None = None
        self.fed: Fed | None = None
        self.in_place, self.whole, self.broken, self.changed = True, False, False, False
        self.since = now  # of the last bytes, or since when it cannot be found
        self.marks = [(state.begin_line, state.begin)]
        self.unpaused: float | None = None  # when the first byte behind the last pause came
        self.refused: set[tuple[int, ...]] = set()  # files that are not its copies
        self._first = self._last = b""  # bytes that its hashes are of
        self._at_line_start = True

    def restored(self) -> list[Record]:
        """Give a new reader what it needs to go on; no record comes of it, unless a limit has changed.

        Raises:
            _Destroyed: the bytes are not there; DataError: a line cannot be read now that could be before.
        """
        state = self.state
        self.fed = Fed(state.path, self._read, Memory(state.taken, state.held))
        assert self.content is not None
        near = min(PREFIX, state.offset)
        self._first, self._last = self.content.read(0, near), self.content.read(state.offset - near, near)
        self.unpaused = self.since if state.offset else None
        records: list[Record] = []
        pauses = sorted({*state.pauses, *([state.head] if state.head_paused else [])})
        at = 0
        if state.begin > state.head:
            records += self._again(0, state.head)
            self.fed.memory.jump = state.begin_line
            records += self.fed.feed(None)
            at = state.begin
        for pause in [one for one in pauses if at < one <= state.offset]:
            records += self._again(at, pause)
            records += self.fed.feed(None)
            at = pause
        return records + self._again(at, state.offset)

    def _again(self, start: int, end: int) -> list[Record]:
        assert self.fed is not None
        assert self.content is not None
        records: list[Record] = []
        while start < end:
            block = self.content.read(start, min(FILE_BYTES, end - start))
            if not block:
                raise _Destroyed
            records += self.fed.feed(block)
            start += len(block)
        return records

    def take(self, most: int, now: float, *, final: bool = False) -> list[Record]:
        """Hand on the next whole lines, of about so many bytes; at the very end also a line without its end.

        Raises:
            _Destroyed: what was read is not there any more.
        """
        assert self.content is not None
        state = self.state
        block = self.content.read(state.offset, most)
        if not self.content.packed:
            size = self.content.size()
            if size < state.offset or (block and state.offset and not _is_of(self.content, state)):
                raise _Destroyed
            state.size = max(state.size, size)
        cut = block.rfind(b"\n") + 1
        while not cut and len(block) == most and most < _LONGEST_LINE:
            most *= 2
            block = self.content.read(state.offset, most)
            cut = block.rfind(b"\n") + 1
        self.whole = len(block) < most
        cut = cut or (len(block) if not self.whole or final else 0)
        if not cut:
            return []
        block, self.since, self.changed = block[:cut], now, True
        self.unpaused = now if self.unpaused is None else self.unpaused
        if not state.offset or self._at_line_start:
            self.marks.append((state.line, state.offset))
        self._at_line_start = block.endswith(b"\n")
        assert self.fed is not None
        records = self.fed.feed(block)
        state.offset += len(block)
        state.line += block.count(b"\n")
        state.size = max(state.size, state.offset)
        self._first, self._last = (self._first + block)[:PREFIX], (self._last + block)[-PREFIX:]
        state.prefix, state.tail = _hash(self._first), _hash(self._last)
        if not state.head and state.line >= _HEAD_LINES and self._at_line_start:
            state.head = state.offset
        return records

    def pause(self) -> list[Record]:
        """Let the reader hand on what it keeps."""
        state = self.state
        assert self.fed is not None
        if not state.head and state.offset:
            state.head, state.head_paused = state.offset, True
        if state.offset > max(state.pauses, default=state.begin):
            state.pauses.append(state.offset)
        self.unpaused, self.changed = None, True
        return self.fed.feed(None)

    def end(self) -> list[Record]:
        """No more will come."""
        assert self.fed is not None
        records = self.fed.feed(b"")
        self.close()
        self.state.done, self.changed = True, True
        self.state.held, self.state.pauses = {}, []
        return records

    def snapshot(self) -> FileState:
        """How far it is, now that the reader waits; what no new reader would need is dropped."""
        state = self.state
        if self.fed is not None and not state.done:
            state.taken, state.held = self.fed.memory.taken, self.fed.memory.held()
            first = min([state.taken, *(min(lines) for lines in state.held.values())])
            while len(self.marks) > 1 and self.marks[1][0] < first:
                del self.marks[0]
            state.begin_line, state.begin = self.marks[0]
            state.pauses = [one for one in state.pauses if one > state.begin]
        return replace(state, pauses=list(state.pauses))

    @property
    def waits(self) -> bool:
        """Whether lines wait in the reader, so that a pause may end a session."""
        return self.fed is not None and bool(self.fed.memory.held())

    def close(self) -> None:
        if self.fed is not None:
            self.fed.close()
            self.fed = None
        if self.content is not None:
            self.content.close()
            self.content = None


# All of them


class Follower:
    """Reads files that grow, fairly, each line once; new files of the patterns as they appear.

    One thread at a time works. After each `turn`, when its records are dealt with, `states` says how far
    everything is; a new follower that is given all of them goes on.

    Args:
        patterns: absolute paths, also with `*`, `?`, `[...]` and `**`.
        read: begins to read a source.
        states: of an earlier follower.
        tick: seconds, above 0: lines become records at the latest twice this after they were written.
        tell: takes a sentence for a person; each is said once.
        again: context in which lines are read that an earlier follower has read.
        exclude: absolute paths of files that are not followed: the output.
        patience: see `PATIENCE`.
        clock: seconds; one that never goes back.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        read: Callable[[Source], Iterator[Record]],
        states: Iterable[FileState] = (),
        *,
        tick: float,
        tell: Callable[[str], None] = lambda text: None,
        again: Callable[[], AbstractContextManager[None]] = nullcontext,
        exclude: Iterable[str] = (),
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patterns, self._read, self._tell, self._again = patterns, read, tell, again
        self._tick, self._patience, self._clock = tick, patience, clock
        self._exclude, self._told = set(exclude), set[str]()
        self._files: list[_File] = []
        self._done: list[FileState] = []
        self._copies: set[tuple[int, ...]] = set()  # files that hold nothing new
        self._ended: list[FileState] = []
        self._error: DataError | None = None
        self._scan_at = self._clock()
        self._number, self._size, self._turned, self._read_much = 0, FILE_BYTES, self._scan_at, False
        self.gaps: list[Gap] = []
        """What was found missing in the last turn."""
        self.idle = False
        """Whether the last turn found nothing to read."""
        for state in states:
            self._number = max(self._number, state.number)
            if state.done:
                self._done.append(state)
            else:
                self._files.append(_File(state, read, self._scan_at))
        self._done = self._done[-_FORGOTTEN:]

    @property
    def open(self) -> int:
        """Generations that are being read."""
        return len(self._files)

    def turn(self) -> list[Record]:
        """Read a little of every file that has grown; the records that are whole now.

        Raises:
            DataError: a record that cannot be read, a turn after the records before it were given.
        """
        if self._error is not None:
            raise self._error
        self.gaps = []
        records: list[Record] = []
        now = self._clock()
        if now >= self._scan_at:
            records += self._scan(now)
            self._scan_at = now + min(1.0, self._tick)
        left, self.idle, more = self._share(now), True, True
        while more and left > 0:  # few files have several turns
            more = False
            self._files = self._files[1:] + self._files[:1]
            for file in list(self._files):
                if left <= 0:
                    break
                before = file.state.offset
                records += self._careful(file, now, min(FILE_BYTES, left))
                left -= max(0, file.state.offset - before)
                more = more or (file.state.offset > before and not file.whole)
                self.idle = self.idle and file.state.offset == before
        self._read_much = left <= 0
        return records

    def _share(self, now: float) -> int:
        """Bytes of this turn: so many that it is dealt with in less than a tick, where it can be."""
        if self._read_much:
            late = now - self._turned > self._tick
            self._size = max(FILE_BYTES // 4, self._size // 2) if late else min(TURN_BYTES, 2 * self._size)
        self._turned = now
        return min(self._size, TURN_BYTES)

    @property
    def changed(self) -> bool:
        """Whether there are `states` to keep."""
        return bool(self._ended) or any(file.changed and not file.broken for file in self._files)

    def states(self) -> list[FileState]:
        """How far the generations are that have changed since this was asked last."""
        found = [file.snapshot() for file in self._files if file.changed and not file.broken]
        for file in self._files:
            file.changed = False
        ended, self._ended = self._ended, []
        return found + ended

    def close(self) -> None:
        """Let go of all files; what waits is read again by the next follower."""
        for file in self._files:
            file.close()

    # one file

    def _careful(self, file: _File, now: float, most: int) -> list[Record]:
        """What one file has; a record that cannot be read ends the turns, after this one."""
        try:
            return self._some(file, now, most)
        except (_Destroyed, OSError):  # nothing has come of the bytes that were read last
            self._lose(file, now)
            return []
        except DataError as error:
            file.broken, self._error = True, error
            return []

    def _some(self, file: _File, now: float, most: int) -> list[Record]:
        if file.content is None or file.broken:
            return []
        try:
            records = file.take(most, now)
        except DataError:
            if not isinstance(file.content, _Packed):
                raise
            if now - file.since < self._patience:
                file.content.restart()  # it may still be being compressed
                return []
            self._say(f"the end of {file.state.path} cannot be unpacked, and is left out")
            return self._end(file)
        late = None if file.unpaused is None else now - file.unpaused
        if file.whole and late is None and file.waits:
            file.unpaused = now
        if file.whole and late is not None and late >= (1 if file.since < now else 2) * self._tick:
            records += file.pause()
        quiet = 0.0 if file.content.packed else self._patience
        if file.whole and not file.in_place and now - file.since >= quiet:
            before = -1
            while before < file.state.offset:  # lines, and then one without its end
                before = file.state.offset
                records += file.take(_LONGEST_LINE, now, final=True)
            records += self._end(file)
            if not os.path.exists(file.state.path):
                self._say(f"{file.state.path} is gone; a new one is followed when it appears")
        return records

    def _end(self, file: _File) -> list[Record]:
        records = file.end()
        self._files.remove(file)
        self._ended.append(file.state)
        self._done = [*self._done, file.state][-_FORGOTTEN:]
        return records

    def _lose(self, file: _File, now: float) -> None:
        """Its bytes are gone: look for a copy at the next scan, which is at once."""
        if file.content is not None:
            file.content.close()
        file.content, file.in_place, file.since = None, False, now
        self._scan_at = now

    # all files

    def _scan(self, now: float) -> list[Record]:
        records: list[Record] = []
        matches = self._matches()
        for file in list(self._files):
            own, before = file.content, file.in_place
            file.in_place = own is not None and not own.packed and own.node == _node(file.state.path)
            if before and not file.in_place:
                file.since = now  # whoever writes it may go on for a while
            if file.content is None and not file.broken:
                try:
                    self._find(file, matches, now)
                    if file.content is not None and file.fed is None:
                        with self._again():
                            records += file.restored()
                except _Destroyed:
                    self._lose(file, now)
                if file.content is None and now - file.since >= self._patience:
                    records += self._give_up(file)
        for path in matches:
            if path not in self._exclude:
                records += self._meet(path, now)
        return records

    def _matches(self) -> list[str]:
        found: set[str] = set()
        for pattern in self._patterns:
            if glob.has_magic(pattern) and not os.path.exists(pattern):
                matching = list(glob.iglob(pattern, recursive=True))
                if not matching:
                    self._say(f"nothing matches {pattern} yet; files are followed when they appear")
                found.update(matching)
            else:
                found.add(pattern)
        return sorted(found)

    def _find(self, file: _File, matches: Sequence[str], now: float) -> None:
        """Look for the content of a generation: under its path, else in the files that are called like it."""
        own = file.state.path
        folder, name = os.path.split(own)
        stem = glob.escape(name.split(".")[0] or name)
        beside = {*glob.iglob(os.path.join(glob.escape(folder), f"{stem}*")), *matches} - {own}
        if os.path.isfile(own) and not os.access(own, os.R_OK):
            file.since = now  # it is there, and cannot be read: nothing is gone
        for path in [own, *sorted(beside)]:
            with suppress(OSError, _NoFile, DataError):
                key = _key(path)
                if path in self._exclude or key in file.refused:
                    continue
                content = _opened(path)
                if any(one.content is not None and one.content.node == content.node for one in self._files):
                    content.close()
                elif _is_of(content, file.state):
                    file.content, file.since = content, now
                    file.in_place = path == own and not content.packed
                    file.state.device, file.state.inode = content.node
                    return
                else:
                    content.close()
                    file.refused.add(key)

    def _give_up(self, file: _File) -> list[Record]:
        """A generation is gone: end its reader, if it has one, and tell what is missing."""
        state = file.state
        unread = max(0, state.size - state.offset)
        if file.fed is None or unread:
            waiting = [min(lines) for lines in state.held.values()]
            known = file.fed is not None
            self.gaps.append(
                Gap(
                    path=state.path,
                    line=state.line + 1 if known else min([state.line + 1, *waiting]),
                    offset=state.offset,
                    size=unread,
                )
            )
        if file.fed is not None:
            return self._end(file)
        state.done, state.held, state.pauses = True, {}, []
        self._files.remove(file)
        self._ended.append(state)
        self._done = [*self._done, state][-_FORGOTTEN:]
        return []

    def _meet(self, path: str, now: float) -> list[Record]:
        """What is under a path: known, or a new generation."""
        try:
            key = _key(path)
            if key in self._copies or stat.S_ISDIR(key[4]):
                return []
            if any(one.content is not None and one.content.node == key[:2] for one in self._files):
                return []
            if stat.S_ISREG(key[4]) and not key[2]:
                return []  # an empty file says not yet what it is
            content = _opened(path)
        except FileNotFoundError:
            if not glob.has_magic(path):
                self._say(f"{path} is not there; it is followed when it appears")
            return []
        except OSError as error:
            self._say(f"{path} cannot be read ({error.strerror}); this is tried again and again")
            return []
        except _NoFile as error:
            self._say(f"{path} is {error}")
            return []
        try:
            known = self._known(content)
        except DataError:
            content.close()  # still being compressed, or damaged
            self._say(f"{path} cannot be unpacked; this is tried again and again")
            return []
        if known is _COPY:
            self._copies.add(key)
        if known is not None:
            content.close()
            return []
        return self._begin(path, content, now)

    def _known(self, content: _Content) -> object | None:
        """Whether nothing new is in a content: it was read under another name, or is so far like another."""
        for state in self._done:
            if _is_of(content, state) and not content.read(state.offset, 1):
                return _COPY
        for file in self._files:
            if _is_of(content, file.state):
                own = file.content
                if own is None or not content.read(max(own.size(), file.state.offset), 1):
                    return _PERHAPS
        return None

    def _begin(self, path: str, content: _Content, now: float) -> list[Record]:
        """A new generation, or one that had come to its end and goes on in this content."""
        state = next((one for one in self._done if _goes_on(content, one)), None)
        if state is None:
            self._number += 1
            state = FileState(number=self._number, path=path)
        else:
            self._done.remove(state)
            state.done, state.begin, state.begin_line, state.taken = False, 0, 0, state.line
        state.device, state.inode = content.node
        file = _File(state, self._read, now)
        file.content, file.in_place = content, not content.packed
        self._files.append(file)
        try:
            with self._again():
                return file.restored()
        except _Destroyed:
            self._lose(file, now)
            return []

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._tell(text)


def _goes_on(content: _Content, state: FileState) -> bool:
    """Whether a content continues a generation that was read to its end; few bytes alone do not tell that."""
    sure = state.offset >= PREFIX or content.node == (state.device, state.inode)
    return sure and _is_of(content, state)


_COPY, _PERHAPS = "a copy", "perhaps a copy"


def _key(path: str) -> tuple[int, ...]:
    """What changes when a file does: device, node, size, time, mode."""
    about = os.stat(path)
    return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode)


def _node(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        about = os.stat(path)
        return about.st_dev, about.st_ino
    return None


def absolute(pattern: str) -> str:
    """A path or pattern from the root on, for the working folder may be another next time."""
    return os.path.abspath(Path(pattern).expanduser())
