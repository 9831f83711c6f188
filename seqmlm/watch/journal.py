"""The journal of systemd: what `journalctl` tells is kept in a file of ours, and that is followed.

A pipe has no durability and a journal no offsets, so entries are first written to a file beside the output,
whole lines only. Everything else is as of any followed file, restarts included, and the last entry of the
file says by its cursor where journalctl is to go on. The trade-off: some MB of entries lie on the disk twice.
"""

from __future__ import annotations

import getopt
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from seqmlm.data.files import Source
from seqmlm.data.record import Record
from seqmlm.engine.durable import DISK, move_into_place
from seqmlm.errors import StateError, UsageError
from seqmlm.watch.follower import Follower
from seqmlm.watch.generations import FileState, Gap

NAME = "journald"
"""What `--source` and the rows call it."""

FILE_BYTES = 1 << 26
"""Bytes of a file of entries, after which another is begun as soon as all of it was read."""

MOST_UNREAD = 1 << 24
"""Bytes that are not read yet, beyond which the journal waits: it keeps what it has."""

_BLOCK = 1 << 16
_TAIL = 1 << 20  # bytes in which the end of a file is looked for first
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before journalctl is started again
_MOMENT = 0.05
_NAMED = "entries.json"
# What of journalctl's options says which entries; others would change how they are told.
_SHORT = {"-u": "--unit", "-t": "--identifier", "-p": "--priority", "-g": "--grep", "-D": "--directory"}
_SHORT |= {"-M": "--machine", "-S": "--since", "-k": "--dmesg", "-m": "--merge"}
_KERNEL = "_TRANSPORT=kernel"  # --dmesg means also: of this boot
_VALUED = ["unit=", "user-unit=", "identifier=", "priority=", "grep=", "facility=", "directory=", "machine="]
_LONG = [*_VALUED, "namespace=", "since=", "dmesg", "merge", "system", "user"]


def asked(source: str) -> tuple[list[str], str | None]:
    """What `--source` says: arguments of journalctl that choose entries, and since when to begin.

    Args:
        source: "journald", perhaps with such arguments as in a shell.

    Raises:
        UsageError: it is another source, or has other arguments.
    """
    try:
        name, *arguments = shlex.split(source) or [""]
    except ValueError as error:
        raise UsageError(f"--source {source!r} cannot be read: {error}") from None
    if name != NAME:
        raise UsageError(f"--source is {NAME}, perhaps with options of journalctl; got {source!r}")
    try:
        found, fields = getopt.gnu_getopt(arguments, "u:t:p:g:D:M:S:km", _LONG)
    except getopt.GetoptError as error:
        raise UsageError(
            f"--source {NAME}: {error}; possible are options that say which entries, such as "
            f"'{NAME} -u nginx --since today'"
        ) from None
    if other := next((one for one in fields if "=" not in one and one != "+"), None):
        raise UsageError(f"--source {NAME}: {other!r} is neither an option nor FIELD=VALUE")
    chosen, since = [], None
    for name, value in found:
        name = _SHORT.get(name, name)
        if name == "--since":
            since = value
        elif name == "--dmesg":
            fields.append(_KERNEL)
        else:
            chosen.append(f"{name}={value}" if value else name)
    return [*chosen, *fields], since


class JournalFollower(Follower):
    """Follows the journal; its entries are JSON lines in a folder of ours.

    Args:
        source: see `asked`.
        folder: for the entries; only the owner may look into it.
        read: begins to read a source, which is called `NAME`.
        tell: takes a sentence for a person.
        command: the program.
        options: of `Follower`.

    Raises:
        UsageError: see `asked`; or there is no such program.
        StateError: the folder cannot be made.
    """

    def __init__(
        self,
        source: str,
        folder: Path,
        read: Callable[[Source], Iterator[Record]],
        states: Iterable[FileState] = (),
        *,
        tell: Callable[[str], None],
        command: str = "journalctl",
        **options: Any,
    ) -> None:
        self._arguments, self._since = asked(source)
        if shutil.which(command) is None:
            raise UsageError(
                f"{command} is not on this machine, so there is no journal to read; follow files instead"
            )
        self._command, self._file = command, folder / _NAMED
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._out = self._opened()
        except OSError as error:
            raise StateError(f"{folder} cannot be written: {error.strerror}") from None
        super().__init__(
            [str(self._file)], lambda given: read(Source(NAME, given.live)), states, tell=tell, **options
        )
        if self.open and self._cursor() is None:
            tell(
                f"the entries that were kept in {folder} are gone, and with them where the journal was left: "
                "it goes on with its newest entry"
            )
        self._lock, self._stopping, self._room = threading.RLock(), threading.Event(), threading.Event()
        self._lost, self._told_lost = threading.Event(), threading.Event()
        self._failed: Exception | None = None
        self._waited = False  # for room, in this run of journalctl
        self._child: subprocess.Popen[bytes] | None = None
        self._room.set()
        self._thread = threading.Thread(target=self._pump, name="journal", daemon=True)
        self._thread.start()

    def turn(self) -> list[Record]:
        """As of the base class; an entry that the journal has lost is told before those behind it are read.

        Raises:
            StateError: entries cannot be written.
        """
        if self._lost.is_set() and not self._told_lost.is_set():
            self._told_lost.set()
            state = self._files[-1].state if self._files else FileState(number=0, path="")
            cause = "the journal keeps the entry no more that was read last"
            gap = Gap(path=NAME, line=state.line + 1, offset=state.offset, size=0, cause=cause)
            self.gaps, self.idle = [gap], True
            return []
        if self._told_lost.is_set():  # that was committed: now the entries behind it may come
            self._told_lost.clear()
            self._lost.clear()
        with self._lock:  # what is read is on the disk by then
            if self._failed is not None:
                reason = getattr(self._failed, "strerror", None) or repr(self._failed)
                raise StateError(
                    f"{self._file} cannot be written: {reason}; make room there"
                ) from self._failed
            records = super().turn()
            unread = self.unread
            (self._room.set if unread < MOST_UNREAD else self._room.clear)()
            if not unread and self.idle:
                try:
                    self._rotate()
                except OSError as error:
                    raise StateError(f"{self._file} cannot be moved: {error.strerror}") from None
        self.gaps = [replace(gap, path=NAME) for gap in self.gaps]
        return records

    def close(self) -> None:
        """End journalctl, and let go of all files."""
        self._stopping.set()
        self._room.set()
        with self._lock:
            if self._child is not None:
                self._child.terminate()
        self._thread.join()
        self._out.close()
        super().close()

    # entries

    def _opened(self) -> IO[bytes]:
        """The file of entries, without a line that has no end."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.fdopen(os.open(self._file, flags, 0o600), "ab")
        at, tail = _tail(self._file)
        whole = tail.rfind(b"\n") + 1
        if whole < len(tail):
            file.truncate(at + whole)
        DISK.sync(self._file.parent)
        return file

    def _rotate(self) -> None:
        """Begin another file, where this one is long enough; the one before it is done by then."""
        if self._out.tell() < FILE_BYTES or self.unread or self.open > 1:
            return
        numbers = self._numbers()
        for number in numbers:
            self._file.with_name(f"{_NAMED}.{number}").unlink(missing_ok=True)
        self._out.close()
        move_into_place(self._file, self._file.with_name(f"{_NAMED}.{max(numbers, default=0) + 1}"))
        self._out = self._opened()

    def _numbers(self) -> list[int]:
        found = (path.suffix[1:] for path in self._file.parent.glob(f"{_NAMED}.*"))
        return sorted(int(one) for one in found if one.isdecimal())

    def _cursor(self) -> str | None:
        """Of the last entry that was written."""
        files = [self._file.with_name(f"{_NAMED}.{number}") for number in self._numbers()] + [self._file]
        for file in reversed(files):
            for line in reversed(_tail(file)[1].splitlines()):
                if cursor := _cursor_of(line):
                    return cursor
        return None

    def _pump(self) -> None:
        """The thread: journalctl into the file, as long as this is not closed."""
        tries = 0
        try:
            while not self._stopping.is_set():
                self._waited = False
                came, said = self._run()
                tries = 0 if came else tries + 1
                if not self._stopping.is_set() and not self._waited:
                    self._say(f"journalctl has ended ({said}); it is started again and again")
                    self._stopping.wait(_PAUSES[min(tries, len(_PAUSES) - 1)])
        except Exception as error:  # told by the next turn
            self._failed = error

    def _run(self) -> tuple[bool, str]:
        """What the journal has, and then what comes: whether anything did, and what journalctl said last.

        `--follow` tells entries of the present boot alone, whatever the cursor (systemd issue 36102).
        """
        cursor, came = self._cursor(), False
        since = [] if self._since is None else [f"--since={self._since}"]
        if begin := [f"--cursor={cursor}"] if cursor else since:
            came, said = self._fetch(begin, cursor, ends=True)
            if self._stopping.is_set() or self._waited:
                return came, said
            cursor = self._cursor()
        begin = ["--no-tail", f"--cursor={cursor}"] if cursor else ["--no-tail", *since]
        more, said = self._fetch(["--follow", *(begin if cursor or since else ["--lines=1"])], cursor)
        return came or more, said

    def _fetch(self, begin: Sequence[str], cursor: str | None, *, ends: bool = False) -> tuple[bool, str]:
        """Keep what one journalctl tells behind a cursor, which must be there if it tells all to its end."""
        given = [self._command, "--output=json", "--all", "--quiet", *begin, *self._arguments]
        came, left = False, b""
        with tempfile.TemporaryFile() as errors:
            with self._lock:
                if self._stopping.is_set():
                    return False, ""
                try:
                    child = self._child = subprocess.Popen(
                        given,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        start_new_session=True,  # Ctrl-C is for us alone
                    )
                except OSError as error:
                    return False, str(error.strerror)
            assert child.stdout is not None
            with child:
                while not self._stopping.is_set() and (block := os.read(child.stdout.fileno(), _BLOCK)):
                    lines, end, left = (left + block).rpartition(b"\n")
                    if not end:
                        continue
                    if not came and cursor is not None:
                        lines = self._behind(cursor, lines, ends=ends)
                    came = True
                    self._keep(lines)
                    if self._waited:
                        break
                if self._stopping.is_set() or self._waited:
                    child.terminate()
            errors.seek(0)
            said = errors.read().decode("utf-8", "replace").strip().splitlines()
        return came, said[-1] if said else f"exit code {child.returncode}"

    def _behind(self, cursor: str, lines: bytes, *, ends: bool) -> bytes:
        """The lines behind the entry that was kept last; all of them where the journal has it no more."""
        found = lines.split(b"\n")
        place = next((at for at, line in enumerate(found) if _cursor_of(line) == cursor), None)
        if place is not None:
            return b"\n".join(found[place + 1 :])
        if ends:
            self._lost.set()
            while self._lost.is_set() and not self._stopping.is_set():
                self._stopping.wait(_MOMENT)
        return b"" if self._stopping.is_set() else lines  # not kept before the loss is

    def _keep(self, lines: bytes) -> None:
        """Write entries when there is room for them.

        What the journal has let go of meanwhile a journalctl that waits leaves out in silence; another, which
        looks for the entry that was kept last, tells it.
        """
        while not self._room.wait(_MOMENT) and not self._stopping.is_set():
            self._waited = True
        if lines:
            with self._lock:
                try:
                    self._out.write(lines + b"\n")
                    self._out.flush()
                    DISK.sync(self._file)
                except OSError as error:
                    self._failed = error  # before anybody can read them
                    raise


def _tail(file: Path) -> tuple[int, bytes]:
    """Where the end of a file begins, at least one whole line of it if there is one, and these bytes."""
    if not file.exists():
        return 0, b""
    with file.open("rb") as content:
        size, length = content.seek(0, os.SEEK_END), _TAIL
        while True:
            at = content.seek(max(0, size - length))
            tail = content.read()
            if not at or tail.count(b"\n") > 1:
                return at, tail
            length *= 2


def _cursor_of(line: bytes) -> str | None:
    with suppress(ValueError, AttributeError):
        return str(json.loads(line).get("__CURSOR") or "") or None
    return None
