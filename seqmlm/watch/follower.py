"""Follow files while other programs write, rename, truncate and compress them. Each line is read once.

A *generation* is one content that grows under a name: `app.log` until it is rotated, then the next content.
It is recognised by hashes, even after a rename. One hash is for its first bytes (at most 1,024), the other
for the last bytes before the read position. The inode is only a hint. Each generation has its own reader, the
same that reads whole files. Here the reader gets whole lines, and pauses.

The stored state is small and contains no text: offsets, and the numbers of lines that wait for more lines of
their record (`data.files.Memory`). After a restart, reading begins at the earliest waiting line, with the
same pauses. The trade-off: waiting lines are lost if their file is destroyed while nobody follows it. Storing
the lines would avoid that. The loss is reported as a gap.
"""

from __future__ import annotations

import glob
import math
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from seqmlm.data.files import Source, marked_encoding
from seqmlm.data.record import Record
from seqmlm.errors import DataError
from seqmlm.watch.generations import (
    DAMAGED,
    FILE_BYTES,
    LONGEST_LINE,
    PREFIX,
    Content,
    Destroyed,
    FileState,
    Gap,
    Generation,
    NoFile,
    Packed,
    begin_alike,
    goes_on,
    is_of,
    opened,
    packed_prefix,
)

TURN_BYTES = 1 << 20
"""Largest number of bytes, over all files, that are read before they are scored. It is lower if scoring is
slow. Only these bytes and the waiting lines are in memory."""

PATIENCE = 5.0
"""Seconds for which a renamed file may still be written, and a copy of a lost file may still appear."""

COMPRESSED = (".gz", ".bgz", ".zst", ".bz2", ".xz", ".zip")

_FORGOTTEN = 1000  # number of completely read generations that are remembered


class Follower:
    """Reads growing files in turns, each line once, and new files of its patterns when they appear.

    After each `turn`, when its records are processed, `states` returns the read positions. A new follower
    with all these states continues there. Only one thread may use a follower at a time.

    Args:
        patterns: absolute paths, which may have `*`, `?`, `[...]` and `**`.
        reader: a function that reads a source and yields records.
        states: states of an earlier follower.
        tick: seconds, above 0. Lines become records at most twice this time after they were written.
        tell: receives messages for the user, each once.
        replay: context in which lines are read that an earlier follower has already read.
        rotation: sort key of the files of a log, by the time of writing. Its first part identifies the log.
        exclude: absolute paths of files that are not followed, such as the output.
        patience: see `PATIENCE`.
        clock: returns monotonic time in seconds.

    Attributes:
        gaps: gaps of the last turn.
        idle: whether there was nothing to read in the last turn.
        lines: number of lines read from all generations, including earlier followers.
        bytes: number of bytes read from all generations, including earlier followers.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        reader: Callable[[Source], Iterator[Record]],
        states: Iterable[FileState] = (),
        *,
        tick: float,
        tell: Callable[[str], None] = lambda text: None,
        replay: Callable[[], AbstractContextManager[None]] = nullcontext,
        rotation: Callable[[str], tuple[Any, ...]] = lambda path: (path,),
        exclude: Iterable[str] = (),
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patterns, self._read, self._tell, self._replay = patterns, reader, tell, replay
        self._tick, self._patience, self._clock, self._rotation = tick, patience, clock, rotation
        self._exclude, self._messages = set(exclude), set[str]()
        states = list(states)
        self._files = [Generation(state, reader, math.inf) for state in states if not state.done]
        self._done = [state for state in states if state.done][-_FORGOTTEN:]
        self._copies: set[tuple[int, ...]] = set()  # files without new content
        self._damaged: dict[tuple[int, ...], float] = {}  # files that cannot be decompressed, and since when
        self._ended: list[FileState] = []
        self._scan_at = self._turned = self._clock()
        self._size, self._read_much = FILE_BYTES, False
        self._number = max((state.number for state in states), default=0)
        self.gaps: list[Gap] = []
        self.idle = False
        self.lines = sum(state.line for state in states)
        self.bytes = sum(state.offset for state in states)

    @property
    def place(self) -> tuple[str, int] | None:
        """The path of the newest followed file, and the number of lines read from it; None without files."""
        states = (file.state for file in self._files)
        newest = max(states, key=lambda state: state.number, default=None)
        return None if newest is None else (newest.path, newest.line)

    def turn(self) -> list[Record]:
        """Read some bytes of every file that has grown, and return the records that are now complete.

        No content of a file raises an error. Unreadable bytes are reported in `gaps`.
        """
        self.gaps = []
        records: list[Record] = []
        now = self._clock()
        if now >= self._scan_at:
            records += self._scan(now)
            self._scan_at = now + min(1.0, self._tick)
        if self._read_much:  # adapt the size, so that processing takes less than a tick if possible
            late = now - self._turned > self._tick
            self._size = max(FILE_BYTES // 4, self._size // 2) if late else min(TURN_BYTES, 2 * self._size)
        self._turned = now
        budget, self.idle, unfinished = min(self._size, TURN_BYTES), True, True
        while unfinished and budget > 0:  # if there are few files, each is read several times
            unfinished = False
            self._files = self._files[1:] + self._files[:1]
            for file in list(self._files):
                if budget <= 0:
                    break
                offset, lines = file.state.offset, file.state.line
                records += self._records(file, now, min(FILE_BYTES, budget))
                size = file.state.offset - offset
                budget -= max(0, size)
                self.bytes += size
                self.lines += file.state.line - lines
                unfinished = unfinished or (size > 0 and not file.at_end)
                self.idle = self.idle and not size
        self._read_much = budget <= 0
        return records

    @property
    def has_changes(self) -> bool:
        """Whether there are `states` to save."""
        return bool(self._ended) or any(file.changed for file in self._files)

    @property
    def unread(self) -> int:
        """Number of bytes in complete lines that were not read yet. Compressed files count decompressed."""
        sizes = [file.state.size if file.content is None else file.content.size() for file in self._files]
        return sum(
            max(0, size - file.state.offset - file.partial)
            for file, size in zip(self._files, sizes, strict=True)
        )

    def states(self) -> list[FileState]:
        """The states of the generations that have changed since the last call."""
        states = [*(file.snapshot() for file in self._files if file.changed), *self._ended]
        self._ended = []
        for file in self._files:
            file.changed = False
        return states

    def close(self) -> None:
        """Close all files. The next follower reads waiting lines again."""
        for file in self._files:
            file.close()

    # one file

    def _records(self, file: Generation, now: float, size: int) -> list[Record]:
        """The records of the next bytes of a file."""
        records: list[Record] = []
        try:
            for batch in self._batches(file, now, size):
                records += batch
        except (Destroyed, OSError):  # the bytes that were read last have given no records
            self._lose(file, now)
        except DataError:  # the compressed data cannot be decompressed
            if isinstance(file.content, Packed):
                records += self._not_unpacked(file, file.content, now)
        self._take_gaps(file)
        return records

    def _take_gaps(self, file: Generation) -> None:
        self.gaps += file.gaps
        file.gaps = []

    def _batches(self, file: Generation, now: float, size: int) -> Iterator[list[Record]]:
        if file.content is None:
            return
        yield file.read(size, now)
        late = None if file.unpaused is None else now - file.unpaused
        if file.at_end and late is None and file.fed is not None and file.memory.held():
            file.unpaused = now  # lines wait in the reader, and a pause may end a session
        if file.at_end and late is not None and late >= (1 if file.since < now else 2) * self._tick:
            yield file.pause()
        quiet = 0.0 if file.content.packed else self._patience
        if file.at_end and not file.in_place and now - file.since >= quiet:
            offset = -1
            while offset < file.state.offset:  # whole lines, and then an incomplete one
                offset = file.state.offset
                yield file.read(LONGEST_LINE, now, final=True)
            yield self._end(file)
            if not os.path.exists(file.state.path):
                self._say(f"{file.state.path} no longer exists; a new file is followed when it appears")

    def _not_unpacked(self, file: Generation, content: Packed, now: float) -> list[Record]:
        """Wait, because the file may still be being compressed. After `patience`, report a gap and end."""
        if now - file.since < self._patience:
            content.restart()
            return []
        state = file.state
        self._say(f"the end of {state.path} cannot be decompressed, and is left out")
        cause = {"fate": "could not be decompressed", "cause": DAMAGED}
        self.gaps.append(Gap(path=state.path, line=state.line + 1, offset=state.offset, size=0, **cause))
        if not state.offset:  # without content, it is recognised by its compressed bytes
            with suppress(OSError):
                state.prefix = packed_prefix(content.path)
        return self._end(file)

    def _end(self, file: Generation) -> list[Record]:
        records = file.end()
        self._files.remove(file)
        self._ended.append(file.state)
        self._done = [*self._done, file.state][-_FORGOTTEN:]
        return records

    def _lose(self, file: Generation, now: float) -> None:
        """Close a generation whose bytes no longer exist, and scan for a copy in the next turn."""
        if file.content is not None:
            file.content.close()
        file.content, file.in_place, file.since = None, False, math.inf
        self._scan_at = now

    # all files

    def _scan(self, now: float) -> list[Record]:
        paths: set[str] = set()
        for pattern in self._patterns:
            if glob.has_magic(pattern) and not os.path.exists(pattern):
                matching = list(glob.iglob(pattern, recursive=True))
                if not matching:
                    self._say(f"nothing matches {pattern} yet; files are followed when they appear")
                paths.update(matching)
            else:
                paths.add(pattern)
        matches, records = sorted(paths), list[Record]()
        for file in list(self._files):
            content, was_in_place = file.content, file.in_place
            device_and_inode = _device_and_inode(file.state.path)
            file.in_place = content is not None and not content.packed and content.node == device_and_inode
            if was_in_place and not file.in_place:
                file.since = now  # its program may continue to write for some time
                for path in self._renamed_later(file):
                    records += self._meet(path, now, file.state.path)
            if content is None:
                records += self._sought(file, matches, now)
                self._take_gaps(file)
        self._forget_damaged(matches)
        for path in matches:
            if path not in self._exclude:
                records += self._meet(path, now)
        return records

    def _forget_damaged(self, matches: Sequence[str]) -> None:
        """Forget damaged files that no longer exist or have changed."""
        present = set[tuple[int, ...]]()
        for path in matches if self._damaged else ():
            with suppress(OSError):
                present.add(_key(path))
        self._damaged = {key: since for key, since in self._damaged.items() if key in present}

    def _sought(self, file: Generation, matches: Sequence[str], now: float) -> list[Record]:
        """Search for the content of a generation. After `patience` without success, give it up."""
        records: list[Record] = []
        try:
            newer = self._find(file, matches, now)
            if file.content is not None and file.fed is None:
                with self._replay():
                    records += file.restored()
            for path in newer:
                records += self._meet(path, now, file.state.path)
        except (Destroyed, DataError):
            self._lose(file, now)
        if file.content is None:
            file.since = min(file.since, now)  # it may be renamed during the search
            if file.since < now and now - file.since >= self._patience:
                records += self._give_up(file)
        return records

    def _open_elsewhere(self, node: tuple[int, ...]) -> bool:
        return any(file.content is not None and file.content.node == node for file in self._files)

    def _find(self, file: Generation, matches: Sequence[str], now: float) -> Sequence[str]:
        """Search for the content of a generation: at its path, then in files with similar names.

        Returns:
            If it is found in a copy, the later copies, which were made between two scans.
        """
        original = file.state.path
        copies = (self._copies_of(original) | {*matches}) - {original}
        if os.path.isfile(original) and not os.access(original, os.R_OK):
            file.since = now  # the file exists but cannot be read, so nothing is lost
        for path in [original, *sorted(copies)]:
            with suppress(OSError, NoFile, DataError):
                key = _key(path)
                if path in self._exclude or key in file.refused:
                    continue
                content = opened(path)
                if not self._open_elsewhere(content.node):
                    if is_of(content, file.state):
                        file.content, file.since = content, now
                        file.in_place = path == original and not content.packed
                        file.state.device, file.state.inode = content.node
                        return self._later_copies(path, original, copies - {path})
                    file.refused.add(key)
                content.close()
        return ()

    def _renamed_later(self, file: Generation) -> list[str]:
        """The copies of a log that were made after a generation was renamed; oldest first."""
        path, node = file.state.path, None if file.content is None else file.content.node
        copies = self._copies_of(path)
        name = next((copy for copy in sorted(copies) if _device_and_inode(copy) == node), None)
        return [] if name is None else self._later_copies(name, path, copies - {name})

    def _copies_of(self, path: str) -> set[str]:
        """The files next to a log whose names begin like its name."""
        folder, name = os.path.split(path)
        stem = glob.escape(name.split(".")[0] or name)
        return {*glob.iglob(os.path.join(glob.escape(folder), f"{stem}*"))} - {path}

    def _later_copies(self, copy: str, path: str, candidates: Iterable[str]) -> list[str]:
        """The copies of a log that were made after a given copy; oldest first.

        Some programs give the newest copy the number 1, others the highest number. Therefore a copy counts as
        later by its name or by its modification time. Compression changes that time, so that for compressed
        copies only the name counts.
        """
        low, high, changed = self._rotation(copy), self._rotation(path), _modification_time(copy)
        if copy == path or low[0] != high[0]:
            return []
        later = [
            (_modification_time(name), self._rotation(name), name)
            for name in candidates
            if self._rotation(name)[0] == high[0]
            and (
                low < self._rotation(name) < high
                or (_modification_time(name) > changed and Path(name).suffix not in COMPRESSED)
            )
        ]
        return [name for _, _, name in sorted(later)]

    def _give_up(self, file: Generation) -> list[Record]:
        """End a generation whose content was not found, and report the gap."""
        state, line = file.state, file.state.line + 1
        unread = max(0, state.size - state.offset)
        if file.fed is None:
            line = min([line, *(min(lines) for lines in state.held.values())])
        # If a file was truncated in place, nobody knows what was written to it before.
        cut_off = _device_and_inode(state.path) == (state.device, state.inode)
        if unread or (file.fed is None and (file.waits or cut_off)):
            self.gaps.append(Gap(path=state.path, line=line, offset=state.offset, size=unread))
        return self._end(file)

    def _meet(self, path: str, now: float, name: str | None = None) -> list[Record]:
        """Begin to follow the content of a path if it is new, and return its first records.

        Args:
            path: the path.
            now: the current time in seconds.
            name: the path of its log, if `path` is a copy.
        """
        try:
            key = _key(path)
            if key in self._copies or stat.S_ISDIR(key[4]) or self._open_elsewhere(key[:2]):
                return []
            if stat.S_ISREG(key[4]) and not key[2]:
                return []  # an empty file cannot be recognised yet
            content = opened(path)
        except FileNotFoundError:
            if not glob.has_magic(path):
                self._say(f"{path} does not exist; it is followed when it appears")
            return []
        except OSError as error:
            self._say(f"{path} cannot be read ({error.strerror}); `watch` keeps trying")
            return []
        except NoFile as error:
            self._say(f"{path} is {error}")
            return []
        try:
            is_new = self._is_new(content) if not self._is_left_out(content) else False
        except (DataError, OSError):
            # It is still being compressed, or it is damaged. Damage is reported when it is read.
            since = self._damaged.setdefault(key, now)
            is_new = None if now - since < self._patience else True
        else:
            self._copies |= {key} if is_new is False else set()
        if not is_new:
            content.close()
            return []
        if not content.packed and (codec := marked_encoding(content.read(0, 4))):
            self._say(
                f"{path} is {codec.upper()} text, so each of its lines is scored as "
                "'(binary)': write the log as UTF-8"
            )
        return self._begin(name or path, content, now)

    def _is_left_out(self, content: Content) -> bool:
        """Whether it is a compressed file of which nothing could be decompressed."""
        prefixes = {state.prefix for state in self._done if state.prefix and not state.offset}
        return bool(prefixes) and isinstance(content, Packed) and packed_prefix(content.path) in prefixes

    def _is_new(self, content: Content) -> bool | None:
        """Whether a content is new.

        Returns:
            False if it was read under another name. None if it equals another content so far.
        """
        if any(is_of(content, state) and not content.read(state.offset, 1) for state in self._done):
            return False
        for file in self._files:
            followed = file.content
            if not file.state.offset:  # nothing was read from it yet
                content.read(0, PREFIX)
                with suppress(DataError):  # the other content may be damaged
                    if followed is not None and begin_alike(content, followed):
                        return None
            elif is_of(content, file.state):
                if followed is None or not content.read(max(followed.size(), file.state.offset), 1):
                    return None
                if not is_of(followed, file.state):  # it has just been truncated, and this may be the copy
                    return None
        return True

    def _begin(self, path: str, content: Content, now: float) -> list[Record]:
        """Follow a content as a new generation, or as the continuation of a completed one."""
        state = next((state for state in self._done if goes_on(content, state)), None)
        if state is None:
            self._number += 1
            state = FileState(number=self._number, path=path)
        else:
            self._done.remove(state)
            state.done, state.begin, state.begin_line = False, 0, 0
            state.taken = state.line
        state.device, state.inode = content.node
        file = Generation(state, self._read, now)
        file.content, file.in_place = content, not content.packed and content.node == _device_and_inode(path)
        self._files.append(file)
        try:
            with self._replay():
                return file.restored()
        except (Destroyed, DataError):
            self._lose(file, now)
            return []
        finally:
            self._take_gaps(file)

    def _say(self, text: str) -> None:
        if text not in self._messages:
            self._messages.add(text)
            self._tell(text)


def _key(path: str) -> tuple[int, ...]:
    """Facts that change if a file changes: device, inode, size, modification time, mode."""
    about = os.stat(path)
    return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode)


def _modification_time(path: str) -> int:
    """The modification time of a file in nanoseconds; 0 if it does not exist."""
    with suppress(OSError):
        return os.stat(path).st_mtime_ns
    return 0


def _device_and_inode(path: str) -> tuple[int, ...] | None:
    """The device and inode of a file; None if it cannot be read."""
    with suppress(OSError):
        return _key(path)[:2]
    return None


def absolute(pattern: str) -> str:
    """A path or pattern as an absolute path, because the working folder may differ next time."""
    return os.path.abspath(Path(pattern).expanduser())
