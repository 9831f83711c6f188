"""Read BED files: windows of a genome, which are cut out of an indexed FASTA file."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from seqmlm.data.files import COMPRESSED, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.features import Feature, bed_features, name_among
from seqmlm.data.record import Record
from seqmlm.domains.dna.genes import Genes, genes_of
from seqmlm.domains.dna.nucleotides import BLOCK, GENES, LONGEST_GAP, Contig
from seqmlm.errors import DataError, UsageError

_OTHER_STRAND = bytes.maketrans(b"ACGTUacgtuRYKMBVDHrykmbvdh", b"TGCAAtgcaaYRMKVBHDyrmkvbhd")
_STRETCH = 1 << 20


def read_bed(
    path: str | Path,
    problems: Problems,
    *,
    genome: str | None = None,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    genes: str | None = None,
) -> Iterator[Record]:
    """Read the bases of the windows in a BED file (also .gz, .zst, "-").

    Start and end are 0-based and half open. Strand `-` gives the reverse complement.

    Args:
        path: the file. Its columns are contig, start, end and, optionally, name, score and strand.
        problems: receives lines that are not windows, windows on contigs that the genome does not have, and
            VCF files. It counts windows that are clipped at the end of a contig.
        genome: a FASTA file, plain or compressed with bgzip. The index is written next to it, or in a
            temporary folder if its folder is not writable.
        block, max_n, genes: as in `read_genome`.

    Raises:
        UsageError: no genome was given.
        DataError: the genome cannot be indexed, or the file of genes cannot be read.
    """
    source = source_of(path)
    if genome is None:
        raise UsageError("a BED file lists windows of a genome: add --option genome=FILE.fasta")
    with open_genome(genome) as fasta:
        for number, feature in bed_features(source, problems):
            window = _window(feature, source, number, fasta, problems)
            if window is not None:
                cutter = Contig(
                    window.name, source=source, line=number, problems=problems, block=block, max_n=max_n
                )
                over = None if genes is None else genes_of(genes, window.contig, problems)
                for letters in _letters(fasta, window):
                    yield from (window.record(record, over) for record in cutter.add(letters))
                yield from (window.record(record, over) for record in cutter.finish())


@dataclass(frozen=True, slots=True)
class _Window:
    """A line of a BED file: the bases from start to end (0-based, half open) of a contig."""

    contig: str
    start: int
    end: int
    strand: str
    name: str

    @property
    def reverse(self) -> bool:
        return self.strand == "-"

    def record(self, record: Record, genes: Genes | None) -> Record:
        """The record with its position in the genome. `record` was cut from the letters of this window."""
        inside = int(record.meta.get("start", 0))
        first = self.end - inside - len(record.raw) if self.reverse else self.start + inside
        meta: dict[str, Any] = {"contig": self.contig, "start": first, "strand": self.strand}
        if genes is not None:
            meta[GENES] = genes.overlapping(first, first + len(record.raw))
        return replace(record, document=self.contig, meta=meta)


def _letters(fasta: Any, window: _Window) -> Iterator[bytes]:
    """The letters of a window in the direction of its strand, in pieces of at most `_STRETCH` bases."""
    starts = range(window.start, window.end, _STRETCH)
    for start in reversed(starts) if window.reverse else starts:
        letters = str(fasta[window.contig][start : min(start + _STRETCH, window.end)])
        encoded = letters.encode("ascii", "replace")
        yield encoded[::-1].translate(_OTHER_STRAND) if window.reverse else encoded


def _window(feature: Feature, source: str, line: int, fasta: Any, problems: Problems) -> _Window | None:
    """The window of a line, or None if the line is bad. `problems` receives bad lines."""

    def refuse(reason: str, remedy: str) -> None:
        """Add the line to `problems`."""
        error = DataError(reason, source=source, line=line, remedy=remedy)
        problems.bad(error, "\t".join(feature.columns)[:1000])

    contig = name_among(feature.name, fasta)
    if contig is None:
        refuse("a contig that the genome does not have", "use the genome that the windows were made for")
        return None
    size = len(fasta[contig])
    if feature.start >= feature.end or feature.start >= size:
        refuse(
            "an empty window, or a window after the end of its contig", "BED counts from 0 and excludes end"
        )
        return None
    if feature.end > size:
        problems.note("a window clipped at the end of its contig")
    _, _, _, name, _, strand, *_ = [*feature.columns, *[""] * 6]
    strand, end = "-" if strand.strip() == "-" else "+", min(feature.end, size)
    place = f"{contig}:{feature.start}-{end}({strand})"
    return _Window(contig, feature.start, end, strand, place if name in ("", ".") else name)


@contextmanager
def open_genome(genome: str, option: str = "--option genome=FILE") -> Iterator[Any]:
    """Open a genome for random access by contig name and position.

    Args:
        genome: a FASTA file, plain or compressed with bgzip. The index is written next to it, or in a
            temporary folder if its folder is not writable.
        option: the option that named the file, for the error message.

    Raises:
        DataError: the file does not exist or cannot be indexed.
    """
    import pyfaidx

    path = Path(genome)
    if not path.is_file():
        raise DataError("no such genome file", source=genome, remedy=f"check {option}")
    try:
        fasta = pyfaidx.Fasta(str(_indexable_path(path)), as_raw=True, rebuild=True)
    except Exception as error:  # pyfaidx and bgzf document no exceptions, and raise many kinds
        reason = f"the genome cannot be indexed ({type(error).__name__})"
        remedy = "use a FASTA file with lines of equal length, plain or compressed with bgzip (not gzip)"
        if twice := re.search('Duplicate key "(.*)"', str(error)):
            reason = f"two contigs of the genome have the name {twice[1][:60]}"
            remedy = "remove or rename one of them"
        raise DataError(reason, source=genome, remedy=remedy) from None
    with fasta:
        yield fasta


def _indexable_path(path: Path) -> Path:
    """The path of the genome if its index exists or can be written next to it.

    Otherwise, the path of a link to the genome in a temporary folder of this user.
    """
    needed = [".fai", ".gzi"] if path.suffix in COMPRESSED else [".fai"]
    if os.access(path.parent, os.W_OK) or all(Path(f"{path}{ending}").exists() for ending in needed):
        return path
    name = sha256(str(path.resolve()).encode()).hexdigest()[:16]
    link = Path(tempfile.gettempdir()) / f"seqmlm-genomes-{os.getuid()}" / name / path.name
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(path.resolve())
    return link
