"""FASTQ: reads with a quality for every base, four lines each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from seqmlm.data.files import MAX_BYTES, lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.nucleotides import foreign, spelled
from seqmlm.data.record import Record
from seqmlm.errors import DataError

_ZERO = 33  # "!" is a quality of 0 (Sanger, Illumina 1.8 and later)


def read_fastq(
    path: str | Path,
    problems: Problems,
    *,
    min_quality: float = 0.0,
    trim: int = 0,
    min_length: int = 1,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read FASTQ (also .gz, .zst, "-") of four lines a read.

    Args:
        path: the file.
        problems: receives reads whose sequence and quality differ in length, and what is not a read; told of
            reads that were left out or trimmed.
        min_quality: reads with a lower mean Phred quality are left out.
        trim: bases of a lower quality go from both ends.
        min_length: shorter reads are left out, after trimming.
        max_bytes: longest line.
    """
    source = str(path)
    for line, name, letters, quality in _reads(source, problems, max_bytes):
        if len(letters) != len(quality):
            reason = "sequence and quality of a read differ in length"
            problems.bad(_error(reason, source, line, "fetch the file again, or leave the read out"), name)
            continue
        bases = spelled(letters.encode("utf-8", "replace"), problems)
        if bases is None or len(bases) != len(letters):
            problems.bad(foreign(source, line), letters[:1000])
            continue
        phred = np.frombuffer(quality.encode("latin-1", "replace"), dtype=np.uint8).astype(np.int16) - _ZERO
        begin, end = _ends(phred, trim)
        if begin or end < len(phred):
            problems.note("a read trimmed at its ends", 1)
            bases, phred = bases[begin:end], phred[begin:end]
        if len(bases) < min_length:
            problems.note("a read that is too short, left out", 1)
        elif min_quality > 0 and phred.mean() < min_quality:
            problems.note("a read of low quality, left out", 1)
        else:
            meta = {"quality": round(float(phred.mean()), 2)}
            yield Record(id=name, raw=bases.decode("ascii"), source=source, line=line, meta=meta)


def _reads(source: str, problems: Problems, max_bytes: int) -> Iterator[tuple[int, str, str, str]]:
    """(line, id, sequence, quality); after something else the search goes on for the next read."""
    held: list[tuple[int, str]] = []
    lost = False  # what is wrong has been said
    for number, text in lines(source, problems, max_bytes=max_bytes):
        if not text and not held:
            continue
        held.append((number, text))
        if len(held) < 4:
            continue
        if held[0][1].startswith("@") and held[2][1].startswith("+"):
            name = held[0][1][1:].split(maxsplit=1)
            yield held[0][0], name[0] if name else f"{Path(source).name}:{held[0][0]}", held[1][1], held[3][1]
            held, lost = [], False
            continue
        if not lost:
            reason = "not a read of four lines (@name, sequence, +, quality)"
            remedy = "reads over more lines must be joined; check that this is FASTQ"
            problems.bad(_error(reason, source, held[0][0], remedy), held[0][1][:1000])
        held, lost = held[1:], True
    if held and not lost:
        remedy = "fetch the file again, or leave the read out"
        problems.bad(_error("the file ends within a read", source, held[0][0], remedy), held[0][1][:1000])


def _ends(phred: np.ndarray[tuple[int], np.dtype[np.int16]], trim: int) -> tuple[int, int]:
    """Where the first and behind the last base of sufficient quality are."""
    if trim <= 0:
        return 0, len(phred)
    good = np.flatnonzero(phred >= trim)
    return (int(good[0]), int(good[-1]) + 1) if len(good) else (0, 0)


def _error(reason: str, source: str, line: int, remedy: str) -> DataError:
    return DataError(reason, source=source, line=line, remedy=remedy)
