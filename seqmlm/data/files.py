"""Inputs to blocks of bytes: any size, gzip and Zstandard transparent; `seqmlm.data.lines` makes lines.

Formats and compression are recognised by their first bytes, since names are often wrong. "-" is standard
input; a live one is a `Source` that readers are given, and one that has to be read twice, or named by its
content, is saved to a file first.
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
"""Bytes needed to recognise a file type."""

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
        "a pointer of git-lfs, and not what it points at",
        "fetch that with git lfs pull",
    ),
}
_MARKS = {  # the longer ones first
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


def may_begin(head: bytes) -> bool:
    """Whether these few bytes could be the beginning of a compressed, foreign or marked file."""
    return any(len(head) < len(magic) and magic.startswith(head) for magic in (*MAGIC, *_FOREIGN, *_MARKS))


def refuse_foreign(head: bytes, source: str) -> None:
    """Refuse with a DataError what its first bytes show to be neither text nor packed in a known way."""
    if (foreign := foreign_kind(head)) is not None:
        kind, remedy = foreign
        raise DataError(f"the file is {kind}", source=source, remedy=remedy)


def foreign_kind(head: bytes) -> tuple[str, str] | None:
    """Kind of a file that begins with these bytes, and the remedy; None for text and known compressions."""
    return next((kind for magic, kind in _FOREIGN.items() if head.startswith(magic)), None)


def is_packed(head: bytes) -> bool:
    """Whether a file that begins with these bytes is compressed, in a way that `blocks` reads."""
    return compression(head) is not None


def marked_encoding(head: bytes) -> str | None:
    """The encoding that a byte order mark names, if it is not UTF-8."""
    return next((codec for mark, codec in _MARKS.items() if head.startswith(mark)), None)


MAX_BYTES = 64 << 20
"""Longest line, or record of several lines, that is accepted."""

REFERENCE = "hf:"
"""What a data set of the Hugging Face hub, or a folder that `datasets` can load, begins with: hf:NAME."""

COMPRESSED = (".gz", ".bgz", ".zst")

UNDER_WAY = ".resume.json"
"""What is added to the name of an output, for the file beside it that keeps how far its writing has come."""

_OF_OUTPUT = ("", UNDER_WAY, f"{UNDER_WAY}.lock", ".lock", ".partial.jsonl", ".quarantine.jsonl")


class LiveInput(Protocol):
    """Bytes that come while they are read."""

    stopped: bool
    """Whether the end was asked for, so that what came last may be torn."""

    def read(self, size: int) -> bytes | None:
        """Up to `size` bytes; b"" at the end, None at a pause: what was read should be handed on."""


class Memory:
    """Lines that a reader of a live input has taken and not yet handed on: enough to begin in its middle.

    It can then be given up at any moment while it waits for bytes. Another reader is given the first lines of
    the input, which tell the format, and those from the earliest one held; it passes over what had been
    handed on.

    Args:
        last_line: the last line, from 1 on, that had reached the records of an earlier reader; 0 for none.
        waiting: lines taken that wait for others to become records with, by the name of their group.

    Attributes:
        last_line: now. last_line_before, held_before: at the beginning.
        held: called while the reader waits for bytes; says which lines wait then.
        jump: set at a pause: number of lines before those that come next.
    """

    def __init__(self, last_line: int = 0, waiting: Mapping[str, Sequence[int]] | None = None) -> None:
        self.last_line = self.last_line_before = last_line
        self.held_before = {name: frozenset(lines) for name, lines in (waiting or {}).items()}
        self._waiting = frozenset[int]().union(*self.held_before.values())
        self.held: Callable[[], dict[str, list[int]]] = dict
        self.jump: int | None = None

    def is_past(self, line: int) -> bool:
        """Whether an earlier reader has handed on this line, in all records that it belongs to."""
        return line <= self.last_line_before and line not in self._waiting

    def numbered(self, number: int) -> int:
        """The number of the line before the next one; `number` where the input goes on without a gap."""
        if self.jump is not None:
            number, self.jump = self.jump, None
        return number


class Source(str):
    """The name of an input ("-" for standard input) together with where its bytes come from.

    It is a string, so that readers pass it on, and name it in messages, as they do with the path of a file.
    `str(source)` is the name alone: a reader that turns its path into a string does so with `source_of`.
    """

    live: LiveInput

    def __new__(cls, name: str, live: LiveInput) -> Self:
        source = super().__new__(cls, name)
        source.live = live
        return source


def source_of(path: str | Path) -> str:
    """The path as a string; a `Source` stays one."""
    return path if isinstance(path, str) else str(path)


def memory_of(source: str | Path) -> Memory | None:
    """The memory that the reader of a live source keeps; None where it needs none."""
    memory: Memory | None = getattr(live_of(source), "memory", None)
    return memory


def live_of(source: str | Path) -> LiveInput | None:
    """Where the bytes of a live source come from; None for files and for standard input read as a file."""
    return source.live if isinstance(source, Source) else None


STANDARD_INPUT = ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")
"""Names of standard input; only the first one is used inside."""


def expand(paths: Iterable[str | Path], problems: Problems | None = None) -> list[str]:
    """Expand paths into files: folders recursively (sorted, without hidden names); "-" and hf:NAME unchanged.

    Args:
        paths: files and folders.
        problems: told of what is left out of a folder: links to folders and such that lead nowhere, pipes and
            devices, folders without permission, outputs under way.

    Raises:
        DataError: a path that does not exist or cannot be looked at, or a folder without files.
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
    """The files below a folder, in no order; what is left out is noted with its name."""

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
    """Whether a path names a data set (hf:NAME) rather than a file."""
    return str(path).startswith(REFERENCE)


def stem_suffix(source: str | Path) -> str:
    """The suffix that indicates the format, in lower case: ".fasta" of "a.fasta.gz", "" of "-"."""
    path = Path(source)
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower()


def blocks(source: str | Path, *, pauses: bool = False, encoded: bool = False) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed, in blocks of about 1 MiB; "-" is standard input.

    gzip (also of several members, as bgzip writes it) and Zstandard are recognised by their first bytes, and
    text in UTF-16 or UTF-32 by its byte order mark: it comes in UTF-8.

    Args:
        source: the file, or a `Source`.
        pauses: yield b"" at each pause of a live source.
        encoded: leave UTF-16 and UTF-32 as they are.

    Raises:
        DataError: the file is missing, unreadable or empty, or broken; what came before has been yielded.
    """
    parts = _unpacked(source, pauses)
    return parts if encoded else _by_mark(parts, source)


def _unpacked(source: str | Path, pauses: bool) -> Iterator[bytes]:
    if (live := live_of(source)) is not None:
        parts = _live_blocks(live, str(source))
        if memory_of(source) is not None:  # what a follower gives is read whatever it is
            parts = (block or b"" for block in iter(partial(live.read, _BLOCK), b""))
        yield from (block for block in parts if block or pauses)
        return
    with _opened(source) as handle:
        head = part = _read_part(handle, 1 << 13, str(source))
        while part and len(head) < MAGIC_BYTES:  # a pipe may begin with less
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
    """The same in UTF-8, whatever a byte order mark says; as it is where reading may begin in the middle."""
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
    """Blocks of this encoding in UTF-8; bytes that are not of it become one that UTF-8 never has.

    Raises:
        DataError: a codec cannot go on after such bytes.
    """
    decoder = codecs.getincrementaldecoder(codec)(_NOT_OF_IT)
    try:
        for block in parts:
            text = decoder.decode(block)
            if text or not block:
                yield text.encode("utf-8", "surrogateescape")
        yield decoder.decode(b"", final=True).encode("utf-8", "surrogateescape")
    except UnicodeError:  # codecs that heed no handler, or make half a character of an escape
        remedy = "name another with --option encoding=NAME, or convert it to UTF-8"
        raise DataError(f"the file is not in the encoding {codec}", source=source, remedy=remedy) from None


def read_whole(source: str, max_bytes: int, kind: str) -> bytes:
    """All bytes of a file that has to be held in one piece, decompressed; DataError as of `blocks`, or for a
    `what` ("notebook") of more than `max_bytes`.
    """
    parts, size = list[bytes](), 0
    for block in blocks(source):
        parts.append(block)
        size += len(block)
        if size > max_bytes:
            raise too_long(source, 1, max_bytes, kind)
    return b"".join(parts)


def _live_blocks(live: LiveInput, source: str) -> Iterator[bytes]:
    """The bytes of a live input as they come; b"" is a pause."""
    head: bytes | None = b""  # until it is known what comes
    while (part := live.read(_BLOCK)) != b"":
        if head is None or part is None:
            yield part or b""
            continue
        head += part
        if may_begin(head):
            continue  # too little has come to tell
        refuse_foreign(head, source)
        if compression(head) is not None:
            remedy = "unpack it on the way (zcat, zstdcat)"
            raise DataError("compressed data cannot be read as it comes", source=source, remedy=remedy)
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
    """The error for a line or record beyond the limit."""
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
            remedy = "give what it holds on standard input: cat PATH | seqmlm ... -"
            raise DataError("a pipe, socket or device, and no file", source=str(source), remedy=remedy)
        yield handle


def require_file(path: str) -> None:
    """Refuse with a DataError what is not there, not regular, or closed to us, before a library opens it."""
    with _opened(path):
        pass


def _at_once(path: str, flags: int) -> int:
    """Open without waiting: a named pipe that nobody writes to would be waited for without end."""
    return os.open(path, flags | os.O_NONBLOCK)


def _unopened(path: str, error: OSError | ValueError, absent: str) -> DataError:
    """The error for a path that cannot be opened; ValueError is a NUL in its name."""
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
    """Bytes read of files as they lie on the disk; not of those that libraries open (Parquet, genomes)."""

    bytes = 0


_METER: ContextVar[Meter | None] = ContextVar("meter", default=None)


@contextmanager
def metered() -> Iterator[Meter]:
    """Count what is read of files until the context ends."""
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
    """Write standard input, as it is, into a file named by its content, with a suffix (".fasta.gz").

    The same input gives the same file; only the owner may read it. DataError where nothing came.
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
