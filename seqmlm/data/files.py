"""Files to blocks of bytes and lines of text: any size, gz and zst transparent, faults with their place."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

MAX_BYTES = 64 << 20
"""Longest line, or longest record of several lines, that is taken for data rather than for a mistake."""

COMPRESSED = (".gz", ".bgz", ".zst")

_BLOCK = 1 << 20
_INPUT = {"gzip": 1 << 16, "Zstandard": 1 << 13}  # compressed bytes at a time bound what one step expands to
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard"}
_MAGIC_BYTES = 6
_BOM = b"\xef\xbb\xbf"
_ZLIB = type(zlib.decompressobj())
_UNPACK = "unpack it, or pack it as .gz or .zst"
_RESAVE = "convert it to UTF-8, for example with iconv"
_FOREIGN = {
    b"PK\x03\x04": ("a zip archive", _UNPACK),
    b"BZh": ("compressed with bzip2", _UNPACK),
    b"\xfd7zXZ\x00": ("compressed with xz", _UNPACK),
    b"PAR1": ("a parquet file", "name the format parquet and a column"),
    b"\xff\xfe": ("UTF-16 text", _RESAVE),
    b"\xfe\xff": ("UTF-16 text", _RESAVE),
}


def expand(paths: Iterable[str | Path]) -> list[str]:
    """Turn what the user named into files: folders are walked (sorted, hidden names left out), "-" stays.

    Raises:
        DataError: a path that does not exist, or a folder without files.
    """
    files: list[str] = []
    for path in map(str, paths):
        if path == "-":
            files.append(path)
        elif Path(path).is_dir():
            found = sorted(
                str(f) for f in Path(path).rglob("*") if f.is_file() and not _hidden(f, Path(path))
            )
            if not found:
                raise DataError(
                    "the folder holds no files", source=path, remedy="name a file or another folder"
                )
            files += found
        elif Path(path).exists():
            files.append(path)
        else:
            raise DataError("no such file or folder", source=path, remedy="check the path")
    return files


def stem_suffix(source: str | Path) -> str:
    """The suffix that tells the format, in lower case: ".fasta" of "a.fasta.gz", "" of "-"."""
    path = Path(source)
    if path.suffix.lower() in COMPRESSED:
        path = path.with_suffix("")
    return path.suffix.lower()


def blocks(source: str | Path) -> Iterator[bytes]:
    """Yield a file's bytes, decompressed, in blocks of about 1 MiB; "-" is standard input.

    gzip (also of several members, as bgzip writes it) and Zstandard are known by their first bytes.

    Raises:
        DataError: the file is missing, unreadable or empty, or its compressed data is broken; whatever could
            be decompressed before the fault has been yielded by then.
    """
    with _opened(source) as handle:
        head = part = _read(handle, 1 << 13, str(source))
        while part and len(head) < _MAGIC_BYTES:  # a pipe may begin with less
            head += (part := _read(handle, 1 << 13, str(source)))
        if not head:
            raise DataError(
                "the file is empty", source=str(source), remedy="give a file with sequences in it"
            )
        for magic, (what, remedy) in _FOREIGN.items():
            if head.startswith(magic):
                raise DataError(f"the file is {what}", source=str(source), remedy=remedy)
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                yield from _decompress(handle, head, str(source), kind)
                return
        while head:
            yield head
            head = _read(handle, _BLOCK, str(source))


def lines(source: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[tuple[int, str]]:
    """Yield (1-based number, text without its line end) for every line of a UTF-8 file.

    Faults go to `problems`, each with its line: bytes that are not UTF-8, binary data, a line longer than
    `max_bytes`, compressed data that breaks off (the whole lines before it have been yielded).
    """
    name = str(source)
    number = 0
    stream = TextBlocks(name, problems, lambda: number + 1)
    for chunk in _chunks_of_lines(stream, max_bytes):
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

    After the iteration `broken` tells whether it ended early, so that the last line or record is a torso.
    """

    def __init__(self, source: str, problems: Problems, line: Callable[[], int]) -> None:
        self._source, self._problems, self._line = source, problems, line
        self.broken = False

    def __iter__(self) -> Iterator[bytes]:
        started = False
        try:
            for block in blocks(self._source):
                if not started:
                    block = block.removeprefix(_BOM)
                    if b"\0" in block[:4096]:
                        raise _binary(self._source, None)
                    started = True
                yield block
        except DataError as error:
            self.broken = True
            at = self._line() if started else None
            self._problems.bad(DataError(error.reason, source=self._source, line=at, remedy=error.remedy))


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
            error = DataError("bytes that are not UTF-8", source=source, line=number, remedy=_RESAVE)
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


def _decompress(handle: BufferedReader, data: bytes, source: str, kind: str) -> Iterator[bytes]:
    """Decompress member after member; zero bytes may follow the last one, as tape padding does."""
    import zstandard

    out: list[bytes] = []
    whole = True
    try:
        while data := data or _read(handle, _INPUT[kind], source):
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
            f"the {kind} data is broken or cut off",
            source=source,
            remedy="fetch or pack the file again; on_error skip keeps what came before",
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


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)
