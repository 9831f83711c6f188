"""Inputs to blocks of bytes and lines of text: any size, gzip and Zstandard transparent, faults with line.

Formats and compression are recognised by their first bytes, since names are often wrong. "-" is standard
input; a live one is a `Source` that readers are given, and one that has to be read twice, or named by its
content, is saved to a file first.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol, Self, cast

from seqmlm.data.problems import Problems
from seqmlm.engine.durable import move_into_place
from seqmlm.errors import DataError

MAGIC_BYTES = 6
"""Bytes needed to recognise a file type."""

RESAVE = "convert it to UTF-8, for example with iconv"
"""Remedy for text in another encoding."""

_BLOCK = 1 << 20
_INPUT = {"gzip": 1 << 16, "Zstandard": 1 << 13}  # compressed bytes at a time bound what one step expands to
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard"}
_ZLIB = type(zlib.decompressobj())
_UNPACK = "unpack it, or pack it as .gz or .zst"
_FOREIGN = {
    b"PK\x03\x04": ("a zip archive", _UNPACK),
    b"BZh": ("compressed with bzip2", _UNPACK),
    b"\xfd7zXZ\x00": ("compressed with xz", _UNPACK),
    b"PAR1": ("a parquet file", "name the format parquet and a column"),
    b"\xff\xfe": ("UTF-16 text", RESAVE),
    b"\xfe\xff": ("UTF-16 text", RESAVE),
}


def compression(head: bytes) -> str | None:
    """Compression of a file that begins with these bytes: "gzip", "Zstandard", or None."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def may_begin(head: bytes) -> bool:
    """Whether these few bytes could be the beginning of a compressed or foreign file."""
    return any(len(head) < len(magic) and magic.startswith(head) for magic in (*_MAGIC, *_FOREIGN))


def refuse_foreign(head: bytes, source: str) -> None:
    """Refuse a file that is neither text nor compressed in a known way.

    Raises:
        DataError: says what the file is.
    """
    for magic, (what, remedy) in _FOREIGN.items():
        if head.startswith(magic):
            raise DataError(f"the file is {what}", source=source, remedy=remedy)


def decompress(read: Callable[[int], bytes], data: bytes, source: str, kind: str) -> Iterator[bytes]:
    """Decompress member after member; zero bytes may follow the last one, as tape padding does.

    Args:
        read: returns up to so many further bytes, b"" at the end.
        data: the bytes read so far.
        source: for messages.
        kind: what `compression` says.

    Raises:
        DataError: the data are damaged or truncated; what came before has been yielded.
    """
    import zstandard

    out: list[bytes] = []
    whole = True
    try:
        while data := data or read(_INPUT[kind]):
            if whole and not (data := data.lstrip(b"\0")):
                continue
            if whole:
                member = (
                    zlib.decompressobj(31) if kind == "gzip" else zstandard.ZstdDecompressor().decompressobj()
                )
            for piece in _pieces(member, data):
                out.append(piece)
                if sum(map(len, out)) >= _BLOCK:
                    yield b"".join(out)
                    out.clear()
            whole = member.eof
            data = member.unused_data if whole else b""
    except (zlib.error, zstandard.ZstdError):
        whole = False
    if out:
        yield b"".join(out)
    if not whole:
        raise DataError(
            f"the {kind} data are damaged or truncated",
            source=source,
            remedy="download or compress the file again; --on-error skip keeps what came before",
        )


def _pieces(member: Any, data: bytes) -> Iterator[bytes]:
    """Feed `data` to one member of a compressed file, in steps of bounded output."""
    if not isinstance(member, _ZLIB):
        yield member.decompress(data)
        return
    piece = b""
    while data or len(piece) == _BLOCK:
        piece = member.decompress(data, _BLOCK)
        yield piece
        data = member.unconsumed_tail


MAX_BYTES = 64 << 20
"""Longest line, or record of several lines, that is accepted."""

REFERENCE = "hf:"
"""What a data set of the Hugging Face hub, or a folder that `datasets` can load, begins with: hf:NAME."""

COMPRESSED = (".gz", ".bgz", ".zst")

_BOM = b"\xef\xbb\xbf"


class Live(Protocol):
    """Bytes that come while they are read."""

    stopped: bool
    """Whether the end was asked for, so that what came last may be torn."""

    def read(self, size: int) -> bytes | None:
        """Up to `size` bytes; b"" at the end, None at a pause: what was read should be handed on."""


class Source(str):
    """The name of an input together with the object to read it from, where it is not a file to be opened.

    It is a string, so that readers pass it on, and name it in messages, as they do with the path of a file.
    `str(source)` is the name alone: a reader that turns its path into a string does so with `source_of`.

    Args:
        name: "-" for standard input.
        live: where its bytes come from.
    """

    live: Live

    def __new__(cls, name: str, live: Live) -> Self:
        source = super().__new__(cls, name)
        source.live = live
        return source


def source_of(path: str | Path) -> str:
    """The path as a string; a `Source` stays one."""
    return path if isinstance(path, str) else str(path)


def live_of(source: str | Path) -> Live | None:
    """Where the bytes of a live source come from; None for files and for standard input read as a file."""
    return source.live if isinstance(source, Source) else None


def expand(paths: Iterable[str | Path]) -> list[str]:
    """Expand paths into files: folders recursively (sorted, without hidden names); "-" and references to data
    sets (hf:NAME) unchanged.

    Raises:
        DataError: a path that does not exist, or a folder without files.
    """
    files: list[str] = []
    for path in map(source_of, paths):
        if path == "-" or is_reference(path):
            files.append(path)
        elif Path(path).is_dir():
            found = sorted(
                str(f) for f in Path(path).rglob("*") if f.is_file() and not _hidden(f, Path(path))
            )
            if not found:
                raise DataError(
                    "the folder contains no files", source=path, remedy="name a file or another folder"
                )
            files += found
        elif Path(path).exists():
            files.append(path)
        else:
            raise DataError("no such file or folder", source=path, remedy="check the path")
    return files


def is_reference(path: str | Path) -> bool:
    """Whether a path names a data set (hf:NAME) rather than a file."""
    return str(path).startswith(REFERENCE)


def stem_suffix(source: str | Path) -> str:
    """The suffix that indicates the format, in lower case: ".fasta" of "a.fasta.gz", "" of "-"."""
    path = Path(source)
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower()


def blocks(source: str | Path, *, pauses: bool = False) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed, in blocks of about 1 MiB; "-" is standard input.

    gzip (also of several members, as bgzip writes it) and Zstandard are recognised by their first bytes.

    Args:
        source: the file, or a `Source`.
        pauses: yield b"" at each pause of a live source.

    Raises:
        DataError: the file is missing, unreadable or empty, or its compressed data is broken; whatever could
            be decompressed before the fault has been yielded by then.
    """
    if (live := live_of(source)) is not None:
        yield from (block for block in _live_blocks(live, str(source)) if block or pauses)
        return
    with _opened(source) as handle:
        head = part = _read(handle, 1 << 13, str(source))
        while part and len(head) < MAGIC_BYTES:  # a pipe may begin with less
            head += (part := _read(handle, 1 << 13, str(source)))
        if not head:
            raise DataError(
                "the file is empty", source=str(source), remedy="give a file that contains sequences"
            )
        refuse_foreign(head, str(source))
        if (kind := compression(head)) is not None:
            yield from decompress(lambda size: _read(handle, size, str(source)), head, str(source), kind)
            return
        while head:
            yield head
            head = _read(handle, _BLOCK, str(source))


def _live_blocks(live: Live, source: str) -> Iterator[bytes]:
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
            raise DataError(
                "compressed data cannot be read as it comes",
                source=source,
                remedy="unpack it on the way (zcat, zstdcat)",
            )
        yield head
        head = None
    if head:
        yield head
    elif head == b"" and not live.stopped:
        raise DataError("the file is empty", source=source, remedy="give a file that contains sequences")


def lines(source: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[tuple[int, str]]:
    """Yield (1-based number, text without its line end) for every line of a UTF-8 file.

    Faults go to `problems`, each with its line: bytes that are not UTF-8, binary data, a line longer than
    `max_bytes`, compressed data that breaks off (the whole lines before it have been yielded).
    """
    numbered = lines_and_pauses(source, problems, max_bytes=max_bytes, pauses=False)
    return cast("Iterator[tuple[int, str]]", numbered)


def lines_and_pauses(
    source: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES, pauses: bool = True
) -> Iterator[tuple[int, str] | None]:
    """The same as `lines`, and None at each pause of a live source."""
    name = source_of(source)
    number = 0
    stream = TextBlocks(name, problems, lambda: number + 1, pauses=pauses)
    for chunk in _chunks_of_lines(stream, max_bytes):
        if chunk == b"":
            yield None
            continue
        if isinstance(chunk, _TooLong):
            number += 1
            problems.bad(too_long(name, number, max_bytes), chunk.head.decode("utf-8", "backslashreplace"))
            continue
        try:
            if b"\0" in chunk or len(chunk) > max_bytes:
                raise ValueError
            texts = chunk.decode("utf-8").split("\n")
        except ValueError:
            for raw in chunk.removesuffix(b"\n").split(b"\n"):
                number += 1
                text = _decode_line(raw, name, number, problems, max_bytes)
                if text is not None:
                    yield number, text
            continue
        if not texts[-1]:
            texts.pop()
        for text in texts:
            number += 1
            yield number, text.removesuffix("\r")


class TextBlocks:
    """The blocks of a text file, its byte order mark removed; a fault of the file goes to `problems`.

    Args:
        source: the file, "-" for standard input.
        problems: receives the fault.
        line: called when a fault is met after the first block; gives the line reached.
        pauses: see `blocks`.

    After the iteration `broken` says whether it ended early, so that the last line or record is incomplete.
    """

    def __init__(
        self, source: str, problems: Problems, line: Callable[[], int], *, pauses: bool = False
    ) -> None:
        self._source, self._problems, self._line = source, problems, line
        self._pauses = pauses
        self.broken = False

    def __iter__(self) -> Iterator[bytes]:
        started = False
        try:
            for block in blocks(self._source, pauses=True) if self._pauses else blocks(self._source):
                if not started and block:
                    block = block.removeprefix(_BOM)
                    if b"\0" in block[:4096]:
                        raise _binary(self._source, None)
                    started = True
                if block or self._pauses:
                    yield block
        except DataError as error:
            self.broken = True
            at = self._line() if started else None
            self._problems.bad(DataError(error.reason, source=self._source, line=at, remedy=error.remedy))
        live = live_of(self._source)
        self.broken = self.broken or (live is not None and live.stopped)


def too_long(source: str, line: int, max_bytes: int, what: str = "line") -> DataError:
    """The error for a line or record beyond the limit."""
    return DataError(
        f"a {what} longer than the limit of {max_bytes:,} bytes",
        source=source,
        line=line,
        remedy="break it up, or raise the limit with --option max_bytes=N",
    )


class _TooLong:
    """Stands for a line that was too long to keep."""

    def __init__(self, head: bytes) -> None:
        self.head = head


def _chunks_of_lines(parts: TextBlocks, limit: int) -> Iterator[bytes | _TooLong]:
    held: list[bytes] = []
    size = 0
    for block in parts:
        if not block:
            yield b""  # a pause
            continue
        cut = block.rfind(b"\n") + 1
        if not cut:
            size += len(block)
            # Beyond the limit only its first bytes stay, to name it by.
            held = [*held, block] if size <= limit else [b"".join(held)[:1000] or block[:1000]]
            continue
        first = block.find(b"\n") + 1
        if size and size + first - 1 > limit:
            yield _TooLong((held[0] + block[:first])[:1000])
            if first < cut:
                yield block[first:cut]
        else:
            yield b"".join(held) + block[:cut]
        held, size = [block[cut:]], len(block) - cut
    if size > limit:
        yield _TooLong(held[0][:1000])
    elif size and not parts.broken:
        yield b"".join(held)


def _decode_line(raw: bytes, source: str, number: int, problems: Problems, limit: int) -> str | None:
    if len(raw) > limit:
        problems.bad(too_long(source, number, limit), raw[:1000].decode("utf-8", "backslashreplace"))
        return None
    error = _binary(source, number)
    if b"\0" not in raw:
        try:
            return raw.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            error = DataError("bytes that are not UTF-8", source=source, line=number, remedy=RESAVE)
    problems.bad(error, raw.decode("utf-8", "backslashreplace"))
    return None


def _binary(source: str, line: int | None) -> DataError:
    return DataError(
        "binary data where text was expected", source=source, line=line, remedy="name a text file"
    )


@contextmanager
def _opened(source: str | Path) -> Iterator[BufferedReader]:
    if str(source) == "-":
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    try:
        handle = open(source, "rb")  # noqa: SIM115 - closed below; opening alone may fail with our message
    except FileNotFoundError:
        raise DataError("no such file", source=str(source), remedy="check the path") from None
    except OSError as error:
        raise DataError(
            f"cannot be opened: {error.strerror}", source=str(source), remedy="check the path"
        ) from None
    with handle:
        yield handle


def _read(handle: BufferedReader, size: int, source: str) -> bytes:
    try:
        return handle.read1(size)  # does not wait for the rest of a slow pipe
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", source=source, remedy="check the file") from None


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def save_stdin(folder: Path, suffix: str = "") -> Path:
    """Write standard input, as it is, into a file named by its content, and return its path.

    The same input gives the same file; only the owner may read it.

    Args:
        folder: made if missing.
        suffix: of the file, such as ".fasta.gz".

    Raises:
        DataError: nothing came.
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
