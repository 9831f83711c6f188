"""Lines of a log in batches, as every format begins: whole lists, so that later steps run in C."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from seqmlm.data.files import blocks, lines, lines_and_pauses, live_of, too_long
from seqmlm.data.problems import Problems
from seqmlm.errors import DataError

BATCH = 4096
"""Lines of a batch."""

UNDECODABLE = "bytes that are not text were replaced"


class Lines(NamedTuple):
    """Some lines of a file, one after the other; none at all is a pause of a live input.

    At a pause every later step hands on what it keeps, and then the pause, as an empty value of its own kind.

    numbers: 1-based number of each; a number is left out where a line was refused.
    texts: the lines without their ends.
    """

    numbers: list[int]
    texts: list[str]


def line_batches(source: str, problems: Problems, *, replace: bool, max_bytes: int) -> Iterator[Lines]:
    """Yield the lines of a file (also .gz, .zst, "-") in batches; faults go to `problems` with their line.

    Args:
        source: the file.
        problems: receives lines that cannot be read.
        replace: put U+FFFD for bytes that are no UTF-8 and leave out NUL bytes (what a machine that lost
            power or a log cut off in place leaves), with a note, instead of refusing the line.
        max_bytes: longest line.
    """
    if live_of(source) is not None:
        yield from _as_they_come(
            _replaced(source, problems, max_bytes)
            if replace
            else lines_and_pauses(source, problems, max_bytes=max_bytes)
        )
        return
    numbered = (
        (pair for pair in _replaced(source, problems, max_bytes) if pair is not None)
        if replace
        else lines(source, problems, max_bytes=max_bytes)
    )
    while batch := list(islice(numbered, BATCH)):
        yield Lines(*map(list, zip(*batch, strict=True)))


def _as_they_come(numbered: Iterator[tuple[int, str] | None]) -> Iterator[Lines]:
    """Lines of a live input: at a pause those that have come, and then the pause."""
    held = Lines([], [])
    for pair in numbered:
        if pair is not None:
            held.numbers.append(pair[0])
            held.texts.append(pair[1])
        if held.texts and (pair is None or len(held.texts) >= BATCH):
            yield held
            held = Lines([], [])
        if pair is None:
            yield Lines([], [])
    if held.texts:
        yield held


def peek(batches: Iterator[Lines]) -> tuple[Lines, Iterator[Lines]]:
    """The first lines, and all of them again."""
    first = next((batch for batch in batches if batch.texts), Lines([], []))
    return first, chain([first] if first.texts else [], batches)


def _replaced(source: str, problems: Problems, max_bytes: int) -> Iterator[tuple[int, str] | None]:
    number = 0
    for raw in _raw_lines(source, problems, max_bytes):
        if raw is None:
            yield None
            continue
        number += 1
        if isinstance(raw, int):
            problems.bad(too_long(source, number, max_bytes))
            continue
        if b"\0" in raw:
            problems.note("NUL bytes were left out")
            raw = raw.replace(b"\0", b"")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            problems.note(UNDECODABLE)
            text = raw.decode("utf-8", "replace")
        yield number, text.removesuffix("\r")


def _raw_lines(source: str, problems: Problems, max_bytes: int) -> Iterator[bytes | int | None]:
    """Every line as bytes, its length alone where that is beyond the limit; None at a pause."""
    held: list[bytes] = []
    size = number = 0
    try:
        for block in blocks(source, pauses=True):
            if not block:
                yield None
                continue
            first, *rest = block.split(b"\n")
            for part in rest:
                number += 1
                size += len(first)
                yield size if size > max_bytes else b"".join([*held, first])
                held, size, first = [], 0, part
            size += len(first)
            held = [*held, first] if size <= max_bytes else []
    except DataError as error:
        at = number + 1 if number else None
        problems.bad(DataError(error.reason, source=source, line=at, remedy=error.remedy))
        return
    live = live_of(source)
    if size and not (live is not None and live.stopped):  # a line whose end was not waited for is a torso
        yield size if size > max_bytes else b"".join(held)
