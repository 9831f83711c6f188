"""Read FASTQ files: four lines per read, with a Phred quality for each base.

This module has its own parser instead of Bio.SeqIO for two reasons. Making the same records with Bio.SeqIO
takes 1.4 times as long (`benchmarks/ingest.py`). Bio.SeqIO also stops at the first bad read. This parser
reports the bad read and continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from seqmlm.data.files import MAX_BYTES, source_of
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna.nucleotides import foreign_letter_error, plain_letters
from seqmlm.errors import DataError

_ZERO = 33  # "!" is a quality of 0 (Sanger, Illumina 1.8 and later)

_STRAY_KEPT = 1 << 18  # characters
_NO_READ = (
    "not a read of four lines (@name, sequence, +, quality)",
    "check that this is FASTQ, and write each sequence and each quality on one line",
)
_TORN = ("the file ends within a read", "fetch the file again, or remove the read")


def read_fastq(
    path: str | Path,
    problems: Problems,
    *,
    min_quality: float = 0.0,
    trim: int = 0,
    min_length: int = 1,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read a FASTQ file with four lines per read (also .gz, .zst, "-").

    Bases that the sequencer did not call (`N` or `.`) become N.

    Args:
        path: the file.
        problems: receives reads whose sequence and quality differ in length, and lines that are not a read.
            It counts reads that are left out or trimmed.
        min_quality: lowest mean Phred quality. Reads below it are left out.
        trim: lowest Phred quality at the ends of a read. Bases below it are removed from both ends.
        min_length: shortest read after trimming, in bases. Shorter reads are left out.
        max_bytes: longest line.
    """
    source = source_of(path)
    for line, record_lines in _reads(source, problems, max_bytes):
        header, letters, _, quality = record_lines
        name = (header[1:].split(maxsplit=1) or [f"{Path(source).name}:{line}"])[0]
        if len(letters) != len(quality):
            reason = "sequence and quality of a read differ in length"
            remedy = "fetch the file again, or remove the read"
            problems.bad(_error(reason, source, line, remedy), "\n".join(record_lines))
            continue
        bases = plain_letters(letters.replace(".", "N").encode("utf-8", "replace"), problems)
        if bases is None or len(bases) != len(letters):
            problems.bad(foreign_letter_error(source, line), "\n".join(record_lines))
            continue
        phred = quality.encode("latin-1", "replace")
        begin, end = _ends(phred, trim) if trim > 0 else (0, len(phred))
        if begin or end < len(phred):
            problems.note("a read trimmed at its ends", 1)
            bases, phred = bases[begin:end], phred[begin:end]
        mean = (sum(phred) - _ZERO * len(phred)) / max(1, len(phred))
        if len(bases) < min_length:
            problems.note("a read that is too short, left out", 1)
        elif min_quality > 0 and mean < min_quality:
            problems.note("a read of low quality, left out", 1)
        else:
            meta = {"quality": round(mean, 2)}
            yield Record(id=name, raw=bases.decode("ascii"), source=source, line=line, meta=meta)


def _reads(source: str, problems: Problems, max_bytes: int) -> Iterator[tuple[int, list[str]]]:
    """The number of the first line and the four lines of each read.

    Lines that are not a read go to `problems`, and the search continues at the next line. If one line of a
    read was refused, the whole read is left out.
    """
    waiting: list[tuple[int, str]] = []
    stray = _StrayLines(source, problems)
    due, gap = 1, False
    for numbered in lines(source, problems, max_bytes=max_bytes):
        gap = gap or numbered[0] != due
        for number, text in (numbered,) if numbered[0] == due else _with_refused(due, numbered):
            if not text and not waiting:
                continue
            waiting.append((number, text))
            if len(waiting) < 4:
                continue
            first, third = waiting[0][1], waiting[2][1]
            if (first.startswith("@") or first == _REFUSED) and (third.startswith("+") or third == _REFUSED):
                stray.tell(_NO_READ)
                texts = [line for _, line in waiting]
                if not gap or _REFUSED not in texts:
                    yield waiting[0][0], texts
                waiting, gap = [], False
            else:
                stray.add(*waiting.pop(0), _NO_READ)
        due = numbered[0] + 1
    last = _NO_READ if stray.lines else _TORN
    for number, text in waiting:
        stray.add(number, text, last)
    stray.tell(last)


_REFUSED = "\0"  # takes the place of a refused line; no real line has this text


def _with_refused(due: int, came: tuple[int, str]) -> Iterator[tuple[int, str]]:
    """The refused lines from number `due` on, each as `_REFUSED`, and then the numbered line that came."""
    yield from ((number, _REFUSED) for number in range(due, came[0]))
    yield came


class _StrayLines:
    """Consecutive lines that are not part of a read. They are reported as one bad record, or as several if
    they are longer than `_STRAY_KEPT` characters."""

    def __init__(self, source: str, problems: Problems) -> None:
        self._source, self._problems = source, problems
        self.lines: list[str] = []
        self._line = self._size = 0

    def add(self, line: int, text: str, why: tuple[str, str]) -> None:
        """Collect a line for the next report. Report at once if errors are raised or there is much text."""
        if text == _REFUSED:
            return  # this line was reported when it was refused
        self._line = self._line if self.lines else line
        self.lines.append(text)
        self._size += len(text)
        if self._size > _STRAY_KEPT or self._problems.on_error == "raise":
            self.tell(why)

    def tell(self, why: tuple[str, str]) -> None:
        """Report the lines collected so far as one bad record."""
        if self.lines:
            text, self.lines, self._size = "\n".join(self.lines), [], 0
            self._problems.bad(_error(why[0], self._source, self._line, why[1]), text)


def _ends(phred: bytes, trim: int) -> tuple[int, int]:
    """Start and end (half open) of the bases from the first to the last base with quality >= `trim`; (0, 0)
    if there is none."""
    good = np.flatnonzero(np.frombuffer(phred, dtype=np.uint8) >= trim + _ZERO)
    return (int(good[0]), int(good[-1]) + 1) if len(good) else (0, 0)


def _error(reason: str, source: str, line: int, remedy: str) -> DataError:
    """The error for a read that begins at a line."""
    return DataError(reason, source=source, line=line, remedy=remedy)
