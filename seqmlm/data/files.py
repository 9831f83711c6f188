"""Read inputs of any size as blocks of bytes.

gzip and Zstandard are decompressed (lines: `seqmlm.data.lines`).

Formats and compression are recognised from the first bytes, because names are often wrong. "-" is standard
input. A live input is a `Source`, which readers receive in place of a path. An input that must be read twice,
or identified by its content, is first saved to a file.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Protocol, Self, cast

from seqmlm.data.compressed import MAGIC, compression, decompress
from seqmlm.data.counts import Things
from seqmlm.data.problems import Problems
from seqmlm.engine.durable import move_into_place
from seqmlm.errors import DataError

MAGIC_BYTES = 6
"""Number of bytes needed to recognise the type of a file."""

RESAVE = "convert it to UTF-8, for example with iconv"
"""Remedy for text in another encoding."""

_BLOCK = 1 << 20
_UNPACK = "unpack it, or pack it as .gz or .zst"
_FOREIGN = {
    b"PK\x03\x04": ("a zip archive", f"{_UNPACK}; save a spreadsheet as CSV"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", _UNPACK),
    b"BZh": ("compressed with bzip2", _UNPACK),
    b"\xfd7zXZ\x00": ("compressed with xz", _UNPACK),
    b"PAR1": ("a parquet file", "name the format parquet and a column"),
    b"ARROW1": ("an Arrow file", "save it as Parquet, or as JSON lines"),
    b"\x93NUMPY": ("an array of numpy", "write its rows as text"),
    b"SQLite": ("a database of SQLite", "export its table as CSV"),
    b"%PDF-": ("a PDF", "extract its text, for example with pdftotext"),
    b"\x89PNG": ("a picture", "name a text file"),
    b"\x7fELF": ("a program", "name a text file"),
    b"version https://git-lfs.github.com/spec/v": (
        "a pointer of git-lfs, not the file itself",
        "fetch the file with git lfs pull",
    ),
}
_MARKS = {  # longer marks first
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


def may_begin(head: bytes) -> bool:
    """Whether these few bytes could be the beginning of a compressed, foreign or marked file."""
    return any(len(head) < len(magic) and magic.startswith(head) for magic in (*MAGIC, *_FOREIGN, *_MARKS))


def refuse_foreign(head: bytes, source: str) -> None:
    """Refuse a file if its first bytes show that it is neither text nor compressed in a known format.

    Raises:
        DataError: it is such a file.
    """
    if (foreign := foreign_kind(head)) is not None:
        kind, remedy = foreign
        raise DataError(f"the file is {kind}", source=source, remedy=remedy)


def foreign_kind(head: bytes) -> tuple[str, str] | None:
    """The kind of a file with these first bytes, and the remedy. None for text and known compressions."""
    return next((kind for magic, kind in _FOREIGN.items() if head.startswith(magic)), None)


def is_packed(head: bytes) -> bool:
    """Whether a file with these first bytes is compressed in a format that `blocks` reads."""
    return compression(head) is not None


def marked_encoding(head: bytes) -> str | None:
    """The encoding of a byte order mark, if it is not UTF-8."""
    return next((codec for mark, codec in _MARKS.items() if head.startswith(mark)), None)


MAX_BYTES = 64 << 20
"""Largest size in bytes of a line, or of a record with several lines."""

REFERENCE = "hf:"
"""Prefix of a data set on the Hugging Face hub, or of a folder that `datasets` can load: hf:NAME."""

COMPRESSED = (".gz", ".bgz", ".zst")

UNDER_WAY = ".resume.json"
"""Suffix of the file next to an output that stores how far it is written."""

_OF_OUTPUT = ("", UNDER_WAY, f"{UNDER_WAY}.lock", ".lock", ".partial.jsonl", ".quarantine.jsonl")


class LiveInput(Protocol):
    """A source of bytes that arrive while they are read."""

    stopped: bool
    """Whether the reader was asked to stop, so that the last bytes may be incomplete."""

    def read(self, size: int) -> bytes | None:
        """Read up to `size` bytes. b"" is the end.

        None is a pause, at which the content so far should be passed on.
        """


class Memory:
    """Lines that a reader of a live input has read but not passed on, so that it can resume in between.
    The reader can then be stopped at any moment while it waits for bytes. Another reader receives the first
    lines of the input, which identify the format, and the lines from the earliest waiting line. It skips
    lines that were passed on.

    Args:
        last_line: number, from 1, of the last line in the records of an earlier reader. 0 for none.
        waiting: lines that wait for others to complete a record, by the name of their group.

    Attributes:
        last_line: the current last line.
        last_line_before: the last line at the beginning.
        held_before: the waiting lines at the beginning.
        held: called while the reader waits for bytes, and returns the lines that are then waiting.
        jump: number of lines before the next line. It is set at a pause.
    """

    def __init__(self, last_line: int = 0, waiting: Mapping[str, Sequence[int]] | None = None) -> None:
        self.last_line = self.last_line_before = last_line
        self.held_before = {name: frozenset(lines) for name, lines in (waiting or {}).items()}
        self._waiting = frozenset[int]().union(*self.held_before.values())
        self.held: Callable[[], dict[str, list[int]]] = dict
        self.jump: int | None = None

    def is_past(self, line: int) -> bool:
        """Whether an earlier reader has passed on this line, in all records that it belongs to."""
        return line <= self.last_line_before and line not in self._waiting

    def numbered(self, number: int) -> int:
        """The number of the line before the next line.

        It is `number` if the input continues without a gap.
        """
        if self.jump is not None:
            number, self.jump = self.jump, None
        return number


class Source(str):
    """The name of an input ("-" for standard input), together with the source of its bytes.

    It is a string, so that readers can pass it on and use it in messages like the path of a file.
    `str(source)` is only the name: a reader that converts its path to a string must use `source_of`.
    """

    live: LiveInput

    def __new__(cls, name: str, live: LiveInput) -> Self:
        source = super().__new__(cls, name)
        source.live = live
        return source


def source_of(path: str | Path) -> str:
    """The path as a string. A `Source` remains a `Source`."""
    return path if isinstance(path, str) else str(path)


def memory_of(source: str | Path) -> Memory | None:
    """The memory that the reader of a live source must keep. None if it needs no memory."""
    memory: Memory | None = getattr(live_of(source), "memory", None)
    return memory


def live_of(source: str | Path) -> LiveInput | None:
    """The input of a live source. None for files, and for standard input that is read like a file."""
    return source.live if isinstance(source, Source) else None


STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
"""Names of standard input. Only the first is used internally."""


def expand(paths: Iterable[str | Path], problems: Problems | None = None) -> list[str]:
    """Expand paths into files. Folders are read recursively, sorted, and without hidden names.

    "-" and hf:NAME are not changed.

    Args:
        paths: files and folders.
        problems: counts what is left out of a folder: links to folders, broken links, pipes, devices, folders
            without permission, and unfinished outputs.

    Raises:
        DataError: a path does not exist or cannot be read, or a folder has no files.
    """
    files: list[str] = []
    for path in map(source_of, paths):
        if path == "-" or is_reference(path) or live_of(path) is not None:
            files.append(path)
            continue
        try:
            mode = os.stat(path).st_mode
        except (OSError, ValueError) as error:
            raise _unopened(path, error, "no such file or folder") from None
        files_of_path = sorted(_inside(path, problems or Problems("skip"))) if stat.S_ISDIR(mode) else [path]
        if not files_of_path:
            remedy = "name a file or another folder"
            raise DataError("the folder contains no files", source=path, remedy=remedy)
        files += files_of_path
    return files


def _inside(folder: str, problems: Problems) -> Iterator[str]:
    """The files below a folder, unsorted. Files that are left out are noted by name."""

    def refused(error: OSError) -> None:
        problems.note(f"a folder that cannot be read: {error.strerror}", Things(1), source=error.filename)

    for inner, folders, names in os.walk(folder, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in folders:
            if os.path.islink(path := os.path.join(inner, name)):
                problems.note("a link to a folder, not followed", Things(1), source=path)
        outputs = [name.removesuffix(UNDER_WAY) for name in names if name.endswith(UNDER_WAY)]
        unfinished = {name + end for name in outputs for end in _OF_OUTPUT}
        for name in names:
            if name.startswith("."):
                continue
            path = os.path.join(inner, name)
            try:
                regular = stat.S_ISREG(os.stat(path).st_mode)
            except OSError:
                problems.note("a link that leads nowhere, left out", Things(1), source=path)
                continue
            if name in unfinished:
                problems.note("a file of an unfinished scoring, left out", Things(1), source=path)
            elif regular:
                yield path
            else:
                problems.note("a pipe, socket or device, left out", Things(1), source=path)


def is_reference(path: str | Path) -> bool:
    """Whether a path names a data set (hf:NAME), not a file."""
    return str(path).startswith(REFERENCE)


def stem_suffix(source: str | Path) -> str:
    """The suffix that indicates the format, in lower case: ".fasta" for "a.fasta.gz", and "" for "-"."""
    path = Path(source)
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower()


def blocks(source: str | Path, *, pauses: bool = False, encoded: bool = False) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file, in blocks of about 1 MiB. "-" is standard input.

    gzip (also with several members, as from bgzip) and Zstandard are recognised from their first bytes. Text
    in UTF-16 or UTF-32 is recognised from its byte order mark, and is converted to UTF-8.

    Args:
        source: the file, or a `Source`.
        pauses: yield b"" at each pause of a live source.
        encoded: do not convert UTF-16 and UTF-32.

    Raises:
        DataError: the file is missing, unreadable, empty or damaged. Everything before the fault has been
            yielded.
    """
    parts = _unpacked(source, pauses)
    return parts if encoded else _by_mark(parts, source)


def _unpacked(source: str | Path, pauses: bool) -> Iterator[bytes]:
    if (live := live_of(source)) is not None:
        parts = _live_blocks(live, str(source))
        if memory_of(source) is not None:  # the blocks of a follower are read without checks
            parts = (block or b"" for block in iter(partial(live.read, _BLOCK), b""))
        yield from (block for block in parts if block or pauses)
        return
    with _opened(source) as handle:
        head = part = _read_part(handle, 1 << 13, str(source))
        while part and len(head) < MAGIC_BYTES:  # a pipe may begin with fewer bytes
            head += (part := _read_part(handle, 1 << 13, str(source)))
        if not head:
            raise _empty(str(source))
        refuse_foreign(head, str(source))
        if (kind := compression(head)) is not None:
            yield from decompress(lambda size: _read_part(handle, size, str(source)), head, str(source), kind)
            return
        while head:
            yield head
            head = _read_part(handle, _BLOCK, str(source))


def _by_mark(parts: Iterator[bytes], source: str | Path) -> Iterator[bytes]:
    """The blocks in UTF-8, converted if a byte order mark shows another encoding.

    If reading may begin in the middle, the blocks are not changed.
    """
    if memory_of(source) is not None:
        yield from parts
        return
    head = b""
    for head in parts:
        if head:
            break
        yield head  # a pause
    codec = marked_encoding(head)
    parts = chain([head] if head else [], parts)
    yield from parts if codec is None else transcoded(parts, codec, str(source))


_NOT_OF_IT = "seqmlm.not_of_the_encoding"
codecs.register_error(_NOT_OF_IT, lambda error: ("\udcff", getattr(error, "end", 0)))


def transcoded(parts: Iterable[bytes], codec: str, source: str) -> Iterator[bytes]:
    """Convert blocks from an encoding to UTF-8. Invalid bytes become a byte that UTF-8 never has.

    Raises:
        DataError: the codec cannot continue after invalid bytes.
    """
    decoder = codecs.getincrementaldecoder(codec)(_NOT_OF_IT)
    try:
        for block in parts:
            text = decoder.decode(block)
            if text or not block:
                yield text.encode("utf-8", "surrogateescape")
        yield decoder.decode(b"", final=True).encode("utf-8", "surrogateescape")
    except UnicodeError:  # some codecs ignore the handler, or create half a character from an escape
        remedy = "name another with --option encoding=NAME, or convert it to UTF-8"
        raise DataError(f"the file is not in the encoding {codec}", source=source, remedy=remedy) from None


def read_whole(source: str, max_bytes: int, kind: str) -> bytes:
    """All bytes of a file that must be in memory as a whole, decompressed.

    Args:
        source: the file.
        max_bytes: size limit.
        kind: kind of the file for messages, such as "notebook".

    Raises:
        DataError: as in `blocks`, or the file has more than `max_bytes`.
    """
    parts, size = list[bytes](), 0
    for block in blocks(source):
        parts.append(block)
        size += len(block)
        if size > max_bytes:
            raise too_long(source, 1, max_bytes, kind)
    return b"".join(parts)


def _live_blocks(live: LiveInput, source: str) -> Iterator[bytes]:
    """The bytes of a live input as they arrive. b"" is a pause."""
    head: bytes | None = b""  # until the kind of input is known
    while (part := live.read(_BLOCK)) != b"":
        if head is None or part is None:
            yield part or b""
            continue
        head += part
        if may_begin(head):
            continue  # too few bytes have arrived
        refuse_foreign(head, source)
        if compression(head) is not None:
            remedy = "decompress it before the pipe (zcat, zstdcat)"
            raise DataError("compressed data cannot be read from a live pipe", source=source, remedy=remedy)
        yield head
        head = None
    if head:
        yield head
    elif head == b"" and not live.stopped:
        raise _empty(source)


def _empty(source: str) -> DataError:
    if source == "-":
        return DataError("standard input is empty", source=source, remedy="pipe sequences into the command")
    return DataError("the file is empty", source=source, remedy="give a file that contains sequences")


_BREAK_UP = "break it up, or raise the limit with --option max_bytes=N"


def too_long(
    source: str, line: int, max_bytes: int, kind: str = "line", remedy: str = _BREAK_UP
) -> DataError:
    """The error for a line or record that is longer than the limit."""
    reason = f"a {kind} longer than the limit of {max_bytes:,} bytes"
    return DataError(reason, source=source, line=line, remedy=remedy)


@contextmanager
def _opened(source: str | Path) -> Iterator[BufferedReader]:
    if str(source) in STANDARD_INPUT:
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    try:
        handle = open(source, "rb", opener=_at_once)  # noqa: SIM115 - closed below
    except (OSError, ValueError) as error:
        raise _unopened(str(source), error, "no such file") from None
    with handle:
        mode = os.fstat(handle.fileno()).st_mode
        if not stat.S_ISREG(mode):
            remedy = "pass its content on standard input: cat PATH | seqmlm ... -"
            raise DataError("a pipe, socket or device, not a file", source=str(source), remedy=remedy)
        yield handle


def require_file(path: str) -> None:
    """Refuse a file that is missing, not regular or not readable, before a library opens it.

    Raises:
        DataError: it is such a file.
    """
    with _opened(path):
        pass


def _at_once(path: str, flags: int) -> int:
    """Open without waiting. Otherwise a named pipe without a writer would block for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _unopened(path: str, error: OSError | ValueError, absent: str) -> DataError:
    """The error for a path that cannot be opened. A ValueError means that its name contains a NUL."""
    remedy = "check the path"
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        reason = "a link that leads nowhere" if "\0" not in path and os.path.islink(path) else absent
    elif isinstance(error, IsADirectoryError):
        reason, remedy = "a folder where a file is needed", "name a file"
    elif isinstance(error, PermissionError):
        reason, remedy = "no permission to read it", "change its mode or owner, or name another"
    else:
        reason = f"cannot be opened: {error.strerror}"
    return DataError(reason, source=path, remedy=remedy)


class Meter:
    """Number of bytes that were read from files, as stored on disk.

    Files that libraries open (Parquet, genomes) do not count.
    """

    bytes = 0


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Context that counts the bytes that are read from files."""
    meter = Meter()
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def _read_part(handle: BufferedReader, size: int, source: str) -> bytes:
    try:
        data = handle.read1(size)  # does not wait for the rest of a slow pipe
        if (meter := _METER.get()) is not None:
            meter.bytes += len(data)
        return data
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", source=source, remedy="check the file") from None


def save_stdin(folder: Path, suffix: str = "") -> Path:
    """Save standard input, unchanged, to a file named after its content, with a suffix (".fasta.gz").

    The same input gives the same file. Only the owner can read it.

    Raises:
        DataError: standard input is empty.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=folder, prefix=".stdin-")
    try:
        with os.fdopen(handle, "wb") as out:
            while block := sys.stdin.buffer.read(1 << 20):
                digest.update(block)
                out.write(block)
            if not out.tell():
                raise DataError(
                    "standard input is empty", source="-", remedy="pipe sequences in, or name a file"
                )
        path = folder / f"stdin-{digest.hexdigest()[:32]}{suffix}"
        move_into_place(Path(name), path)
    except BaseException:
        os.unlink(name)
        raise
    return path
