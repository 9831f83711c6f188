"""GenBank flat files, read by Biopython, one entry at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqmlm.data.files import lines
from seqmlm.data.problems import Problems
from seqmlm.data.readers.nucleotides import BLOCK, LONGEST_GAP, Contig
from seqmlm.data.record import Record
from seqmlm.errors import DataError


def read_genbank(
    path: str | Path, problems: Problems, *, block: int = BLOCK, max_n: int = LONGEST_GAP
) -> Iterator[Record]:
    """Read the sequences of GenBank entries (also .gz, .zst, "-"); annotations are left aside.

    Args:
        path: the file.
        problems: receives entries that cannot be parsed or have no sequence, and all that follows a fault.
        block, max_n: as in `read_genome`.
    """
    from Bio import SeqIO
    from Bio.Seq import UndefinedSequenceError

    source = str(path)
    handle = _Handle(lines(source, problems))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of annotations, which are not used
        entries = SeqIO.parse(handle, "genbank")
        while True:
            try:
                entry = next(entries, None)
                if entry is None:
                    break
                letters = bytes(entry.seq)
            except UndefinedSequenceError:
                problems.bad(_error("an entry without a sequence", source, handle.begins))
                continue
            except (ValueError, AssertionError, KeyError, IndexError, TypeError) as error:
                if isinstance(error, DataError):
                    raise
                problems.bad(_error("an entry that is not GenBank", source, handle.begins))
                return
            name = entry.id or f"{Path(source).name}:{handle.begins}"
            described: dict[str, Any] = {"description": entry.description} if entry.description else {}
            contig = Contig(
                name,
                source=source,
                line=handle.begins,
                problems=problems,
                block=block,
                max_n=max_n,
                meta=described,
            )
            yield from contig.add(letters)
            yield from contig.finish()
    if not handle.begins:
        problems.bad(_error("no GenBank entry: no line begins with LOCUS", source, None))


def _error(reason: str, source: str, line: int | None) -> DataError:
    return DataError(reason, source=source, line=line, remedy="fetch the entry again, with its sequence")


class _Handle:
    """Numbered lines as the file object that Biopython wants; remembers where the entry begins."""

    def __init__(self, numbered: Iterator[tuple[int, str]]) -> None:
        self._numbered = numbered
        self.begins = 0

    def readline(self) -> str:
        number, text = next(self._numbered, (0, None))
        if text is None:
            return ""
        if text.startswith("LOCUS"):
            self.begins = number
        return text + "\n"

    def read(self, size: int = -1) -> str:
        """Biopython reads nothing to find out whether a file holds text."""
        return "" if size == 0 else "".join(iter(self.readline, ""))

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")

    def close(self) -> None:
        """Nothing to do: the lines close their file."""
