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
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from select import select
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

_BLOCK = 1 << 20  # bytes that are taken of it in a turn
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before journalctl is started again
_MOMENT = 0.01  # seconds that the next entries are waited for
_NAMED = "entries.json"
_COMMAND = "journalctl"
# What of journalctl's options says which entries; others would change how they are told.
_SHORT = {"-u": "--unit", "-t": "--identifier", "-p": "--priority", "-g": "--grep", "-D": "--directory"}
_SHORT |= {"-M": "--machine", "-S": "--since", "-k": "--dmesg", "-m": "--merge"}
_KERNEL = "_TRANSPORT=kernel"  # --dmesg means also: of this boot
_VALUED = ["unit=", "user-unit=", "identifier=", "priority=", "grep=", "facility=", "directory=", "machine="]
_LONG = [*_VALUED, "namespace=", "since=", "dmesg", "merge", "system", "user"]


def asked(source: str) -> tuple[list[str], str | None]:
    """What `--source` says: arguments of journalctl that choose entries, and since when to begin; UsageError:
    it is another source, or has other arguments."""
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


class Journalctl:
    """One run of journalctl, whose entries are taken as they are there; it begins with the entry of the
    `cursor`, which was kept before, and `ends` where it tells only what there is; OSError: it cannot be
    started."""

    def __init__(self, command: list[str], cursor: str | None, *, ends: bool) -> None:
        self.cursor, self.ends, self._left = cursor, ends, b""
        self.came = self.over = False
        with ExitStack() as opening:
            self._errors = opening.enter_context(tempfile.TemporaryFile())
            to: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": self._errors}
            to |= {"stdin": subprocess.DEVNULL, "start_new_session": True}  # Ctrl-C is for us alone
            self._child = subprocess.Popen(command, **to)
            opening.pop_all()  # closed by `close`
        assert self._child.stdout is not None
        self._pipe = self._child.stdout.fileno()

    def take(self) -> bytes:
        """Whole lines that it has told; `over` says that no more will come."""
        parts, size = [self._left], 0
        while size < _BLOCK and not self.over and select([self._pipe], (), (), _MOMENT)[0]:
            parts.append(os.read(self._pipe, _BLOCK))
            size, self.over = size + len(parts[-1]), not parts[-1]
        lines, end, self._left = b"".join(parts).rpartition(b"\n")
        self.came = self.came or bool(end)
        return lines + end

    def close(self) -> str:
        """End it; what it said last."""
        with self._child, self._errors:
            if not self.over:
                self._child.terminate()
            code = self._child.wait()
            self._errors.seek(0)
            said = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return said[-1] if said else f"exit code {code}"


class JournalFollower(Follower):
    """Follows the journal; its entries are JSON lines in a folder that only the owner may look into;
    UsageError: see `asked`, or there is no such program; StateError: the folder cannot be made."""

    removal_is_loss = True  # the last entry says where the journal was left

    def __init__(
        self,
        source: str,
        folder: Path,
        read: Callable[[Source], Iterator[Record]],
        states: Iterable[FileState] = (),
        **options: Any,
    ) -> None:
        self._arguments, self._since = asked(source)
        if shutil.which(_COMMAND) is None:
            raise UsageError(
                f"{_COMMAND} is not on this machine, so there is no journal to read; follow files instead"
            )
        self._file = folder / _NAMED
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._out = self._opened()
        except OSError as error:
            raise StateError(f"{folder} cannot be written: {error.strerror}") from None
        super().__init__([str(self._file)], lambda given: read(Source(NAME, given.live)), states, **options)
        if self.open and self._cursor() is None:
            self._say(
                f"the entries that were kept in {folder} are gone, and with them where the journal was left: "
                "it goes on with its newest entry"
            )
        self._child: Journalctl | None = None
        self._behind_loss = b""  # entries that are kept once the loss before them is told
        self._tries, self._start_at = 0, 0.0

    def turn(self) -> list[Record]:
        """As of the base class; what the journal has lost is told before the entries behind it are read."""
        try:
            self._keep(self._behind_loss)  # that was committed: now they may come
            self._behind_loss = b""
            if self._lost():
                state = self._files[-1].state if self._files else FileState(number=0, path="")
                cause = "the journal keeps the entry no more that was read last"
                gap = Gap(path=NAME, line=state.line + 1, offset=state.offset, size=0, cause=cause)
                self.gaps, self.idle = [gap], True
                return []
        except OSError as error:
            raise StateError(f"{self._file} cannot be written: {error.strerror}; make room there") from error
        records = super().turn()
        if self.idle and not self.unread:
            try:
                self._rotate()
            except OSError as error:
                raise StateError(f"{self._file} cannot be moved: {error.strerror}") from None
        self.gaps = [replace(gap, path=NAME) for gap in self.gaps]
        return records

    def close(self) -> None:
        """End journalctl, and let go of all files."""
        if self._child is not None:
            self._child.close()
        self._out.close()
        super().close()

    # journalctl

    def _lost(self) -> bool:
        """Keep what journalctl has told meanwhile; whether it lacks the entry that was kept last.

        What the journal has let go of meanwhile a journalctl that waits leaves out in silence; another, which
        looks for the entry that was kept last, tells it.
        """
        if self.unread >= MOST_UNREAD and self._child is not None:
            self._child.close()
            self._child = None
        elif self.unread < MOST_UNREAD and self._child is None:
            self._launch()
        if (child := self._child) is None:
            return False
        first, lines, lost = not child.came, child.take(), False
        if first and child.came and child.cursor is not None:
            found = lines.split(b"\n")
            place = next((at for at, line in enumerate(found) if _cursor_of(line) == child.cursor), None)
            lost = place is None and child.ends
            lines = lines if place is None else b"\n".join(found[place + 1 :])
        if lost:
            self._behind_loss = lines
        else:
            self._keep(lines)
        if child.over:
            self._child, said = None, child.close()
            if not child.ends:
                self._retry(said, came=child.came)
            elif not lost:
                self._launch(all_told=True)
        return lost

    def _launch(self, *, all_told: bool = False) -> None:
        """Start one that tells what the journal has, and behind that another, which tells what comes.

        `--follow` tells entries of the present boot alone, whatever the cursor (systemd issue 36102).
        """
        if time.monotonic() < self._start_at:
            return
        begin = [] if self._since is None else [f"--since={self._since}"]
        if cursor := self._cursor():
            begin = [f"--cursor={cursor}"]
        ends = bool(begin) and not all_told
        if not ends:
            begin = ["--follow", *(["--no-tail", *begin] if begin else ["--lines=1"])]
        given = [_COMMAND, "--output=json", "--all", "--quiet", *begin, *self._arguments]
        try:
            self._child = Journalctl(given, cursor, ends=ends)
        except OSError as error:
            self._retry(str(error.strerror), came=False)

    def _retry(self, said: str, *, came: bool) -> None:
        """It ended though nobody wanted that: start another, later and later."""
        self._tries = 0 if came else self._tries + 1
        self._start_at = time.monotonic() + _PAUSES[min(self._tries, len(_PAUSES) - 1)]
        self._say(f"journalctl has ended ({said}); it is started again and again")

    # entries

    def _opened(self) -> IO[bytes]:
        """The file of entries, without a line that has no end."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.fdopen(os.open(self._file, flags, 0o600), "ab")
        file.truncate(_last_line(self._file)[0])
        DISK.sync(self._file.parent)
        return file

    def _keep(self, lines: bytes) -> None:
        """Write entries; they are on the disk before anybody reads them."""
        if lines:
            self._out.write(lines)
            self._out.flush()
            DISK.sync(self._file)

    def _rotate(self) -> None:
        """Begin another file, where this one is long enough; the one before it is done by then."""
        if self._out.tell() < FILE_BYTES or self.unread or self.open > 1:
            return
        earlier = self._earlier()
        for file in earlier.values():
            file.unlink(missing_ok=True)
        self._out.close()
        move_into_place(self._file, self._file.with_name(f"{_NAMED}.{max(earlier, default=0) + 1}"))
        self._out = self._opened()

    def _earlier(self) -> dict[int, Path]:
        """The files of entries that are done, by number."""
        found = {path.suffix[1:]: path for path in self._file.parent.glob(f"{_NAMED}.*")}
        return {int(one): found[one] for one in sorted(filter(str.isdecimal, found), key=int)}

    def _cursor(self) -> str | None:
        """Of the last entry that was written."""
        files = [self._file, *reversed(self._earlier().values())]
        return next(filter(None, (_cursor_of(_last_line(file)[1]) for file in files)), None)


def _last_line(file: Path) -> tuple[int, bytes]:
    """Where the last whole line of a file ends, and that line."""
    if not file.exists() or not file.stat().st_size:
        return 0, b""
    with file.open("rb") as content, mmap(content.fileno(), 0, access=ACCESS_READ) as lines:
        end = lines.rfind(b"\n") + 1
        return end, lines[lines.rfind(b"\n", 0, max(0, end - 1)) + 1 : end]


def _cursor_of(line: bytes) -> str | None:
    with suppress(ValueError, AttributeError):
        return str(json.loads(line).get("__CURSOR") or "") or None
    return None
