"""The formats of proteins and nucleotides that Biopython reads: alignments, flat files, structures.

A file is cut into its entries here, and Biopython is given one at a time: a bad entry is named by the line it
begins on and takes no other with it, and memory holds one entry (of an alignment, all its rows). The formats
that carry most of the data (FASTA, FASTQ, GenBank) have readers of our own, which are faster; each says at
its head by how much.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.files import COMPRESSED, MAX_BYTES, lines, too_long
from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import Gaps
from seqmlm.data.readers.nucleotides import BLOCK, LONGEST_GAP, Contig
from seqmlm.data.record import Record
from seqmlm.errors import DataError, UsageError, nearest

CONTACT = 8.0
"""Angstrom: two residues are in contact whose C-beta atoms are nearer than that (CASP's definition)."""

WARNED = "a structure that Biopython read with a warning"

_GAPS = str.maketrans("", "", "-.~")
_NAMED = re.compile(r"^#=GF\s+(?:AC|ID)\s+(\S+)", re.MULTILINE)
_AT_LINE = re.compile(r"\bline (\d+)")

Parse = Callable[[StringIO], Iterator[Any]]


class Entry(NamedTuple):
    """One entry of a file: the line it begins on, and its text."""

    line: int
    text: str


def read_stockholm(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read Stockholm alignments, as Pfam and Rfam have them (also .gz, .zst, "-"), a record a row.

    `document` is the alignment's accession, or else its name. Letters become upper case.

    Args:
        path: the file.
        problems: receives alignments that cannot be read or have no end; notes rows of gaps only.
        gaps: "drop" gives sequences, "keep" gives the rows of the alignment, all of one length.
        max_bytes: largest alignment.
    """
    for entry in _entries(str(path), problems, max_bytes, "alignment"):
        for number, row in enumerate(_alignments(entry, "stockholm", str(path), problems)):
            name = _NAMED.search(entry.text)
            document = name[1] if name else None
            yield from _row(row, number, entry, str(path), problems, gaps, document)


def read_clustal(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read a Clustal alignment, as Clustal, MUSCLE, PROBCONS and Kalign write it (also .gz, .zst, "-").

    Args:
        path: the file.
        problems: receives a file that cannot be read; notes rows of gaps only.
        gaps: "drop" gives sequences, "keep" gives the rows of the alignment, all of one length.
        max_bytes: largest file.
    """
    for entry in _whole(str(path), problems, max_bytes):
        for number, row in enumerate(_alignments(entry, "clustal", str(path), problems)):
            yield from _row(row, number, entry, str(path), problems, gaps, None)


def read_swissprot(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read UniProt flat files, Swiss-Prot and TrEMBL (also .gz, .zst, "-"), a record an entry.

    The id is the first accession; `meta` has the entry's name, description and organism.

    Args:
        path: the file.
        problems: receives entries that cannot be read or have no end.
        max_bytes: largest entry.
    """
    for entry in _entries(str(path), problems, max_bytes, "entry"):
        for found in _flat(entry, "swiss", "a Swiss-Prot entry", str(path), problems):
            organism = found.annotations.get("organism", "").removesuffix(".")
            meta = {"name": found.name, "description": found.description, "organism": organism}
            known = {key: value for key, value in meta.items() if value}
            yield Record(id=found.id, raw=str(found.seq), source=str(path), line=entry.line, meta=known)


def read_embl(
    path: str | Path,
    problems: Problems,
    *,
    block: int = BLOCK,
    max_n: int = LONGEST_GAP,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Record]:
    """Read the sequences of EMBL (ENA) flat files (also .gz, .zst, "-"); annotations are left aside.

    Args:
        path: the file.
        problems: receives entries that cannot be read, or without a sequence or an end.
        block, max_n: as in `read_genome`.
        max_bytes: largest entry, which is held in memory whole.
    """
    for entry in _entries(str(path), problems, max_bytes, "entry"):
        for found in _flat(entry, "embl", "an EMBL entry", str(path), problems):
            contig = Contig(
                found.id,
                source=str(path),
                line=entry.line,
                problems=problems,
                block=block,
                max_n=max_n,
                meta={"description": found.description} if found.description else None,
            )
            yield from contig.add(bytes(found.seq))
            yield from contig.finish()


def read_rna_families(
    path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read Stockholm alignments of DNA or RNA (also .gz, .zst, "-"), a record a row, without gaps.

    Args:
        path: the file.
        problems: receives alignments that cannot be read, and rows with letters of proteins.
        max_bytes: largest alignment.
    """
    for row in read_stockholm(path, problems, max_bytes=max_bytes):
        contig = Contig(row.id, source=row.source, line=row.line, problems=problems)
        yield from contig.add(row.raw.encode())
        yield from contig.finish()


def read_pdb(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read a structure in PDB format (also .gz, .zst, "-"), a record a chain of its first model.

    The sequence is that of the residues with coordinates; what was not resolved is not in it. `meta` has
    `chain`, the residue `numbers` of the file, and `contacts`: see `contacts`.

    Args:
        path: the file.
        problems: receives a file that cannot be read, or without a protein; notes chains of other molecules,
            further models, and what Biopython warned of.
        max_bytes: largest file.
    """
    from Bio.PDB.PDBParser import PDBParser

    for entry in _whole(str(path), problems, max_bytes):
        parser = PDBParser(PERMISSIVE=True)  # type: ignore[no-untyped-call]
        yield from _chains(entry, parser.get_structure, str(path), problems)


def read_mmcif(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read a structure in mmCIF format (also .gz, .zst, "-"), a record a chain, as `read_pdb` does.

    Chains and residues go by the names of the authors, which are those of the PDB file.

    Args:
        path, problems, max_bytes: as of the format pdb.
    """
    from Bio.PDB.MMCIFParser import MMCIFParser

    for entry in _whole(str(path), problems, max_bytes):
        parser = MMCIFParser()  # type: ignore[no-untyped-call]
        yield from _chains(entry, parser.get_structure, str(path), problems)


def contacts(residues: list[Any]) -> NDArray[np.int32]:
    """(P, 2) pairs i < j of a chain's residues whose C-beta atoms are nearer than 8 angstrom, in order.

    For glycine the C-alpha counts; a residue without the atom is in no pair. Pairs of all separations are
    there: contact predictions are judged from |i - j| >= 6 on.

    Args:
        residues: of Bio.PDB, in the order of the sequence; numbered from 0.
    """
    from scipy.spatial import KDTree

    atoms = [(i, "CA" if one.get_resname() == "GLY" else "CB", one) for i, one in enumerate(residues)]
    placed = [(i, one[name].get_coord()) for i, name, one in atoms if name in one]
    if len(placed) < 2:
        return np.zeros((0, 2), dtype=np.int32)
    where = np.array([i for i, _ in placed], dtype=np.int32)
    points = np.array([point for _, point in placed], dtype=np.float64)
    pairs = KDTree(points).query_pairs(CONTACT, output_type="ndarray")
    near = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1) < CONTACT
    found: NDArray[np.int32] = where[np.sort(pairs[near], axis=1)]
    return found[np.lexsort((found[:, 1], found[:, 0]))]


def substitution_matrix(name: str = "BLOSUM62", letters: str = "ACDEFGHIKLMNPQRSTVWY") -> NDArray[np.float64]:
    """(A, A) log-odds of one residue in place of another, in the matrix's own units (BLOSUM62: half bits).

    The strongest baseline of a variant's effect that needs neither a model nor an alignment (Henikoff and
    Henikoff 1992).

    Args:
        name: of a matrix that Biopython has: BLOSUM45 to BLOSUM90, PAM30 to PAM250 and others.
        letters: A residues, which are the rows and columns.

    Raises:
        UsageError: an unknown matrix, or a letter it does not have.

    >>> matrix = substitution_matrix(letters="AW")
    >>> matrix.tolist()
    [[4.0, -3.0], [-3.0, 11.0]]
    """
    from Bio.Align import substitution_matrices

    known = substitution_matrices.load()
    if name not in known:
        raise UsageError(f"there is no substitution matrix {name!r}{nearest(name, known)}")
    matrix = substitution_matrices.load(name)
    foreign = set(letters) - set(matrix.alphabet)
    if foreign:
        raise UsageError(f"the matrix {name} has no {', '.join(sorted(foreign))}")
    return np.array([[matrix[a, b] for b in letters] for a in letters], dtype=np.float64)


def _entries(source: str, problems: Problems, max_bytes: int, what: str) -> Iterator[Entry]:
    """The entries of a file that end with `//`; one without an end, or too long, goes to `problems`."""
    held: list[str] = []
    begins = size = 0
    for number, text in lines(source, problems, max_bytes=max_bytes):
        if not held:
            if not text.strip():
                continue
            begins, size = number, 0
        size += len(text) + 1
        held = [*held[:1]] if size > max_bytes else held
        held.append(text)
        if text.startswith("//"):
            if size > max_bytes:
                problems.bad(too_long(source, begins, max_bytes, what), held[0])
            else:
                yield Entry(begins, "\n".join(held) + "\n")
            held = []
    if held:
        remedy = f"the file breaks off; an {what} ends with a line //"
        error = DataError(f"an {what} without an end", source=source, line=begins, remedy=remedy)
        problems.bad(error, "\n".join(held)[:1000])


def _whole(source: str, problems: Problems, max_bytes: int) -> Iterator[Entry]:
    """The text of a file that is one entry, blank lines in front of it left out."""
    held: list[str] = []
    begins = size = 0
    for number, text in lines(source, problems, max_bytes=max_bytes):
        if not held and not text.strip():
            continue
        begins = begins or number
        size += len(text) + 1
        if size > max_bytes:
            problems.bad(too_long(source, begins, max_bytes, "file"), held[0] if held else None)
            return
        held.append(text)
    if held:
        yield Entry(begins, "\n".join(held) + "\n")


def _parsed(
    parse: Parse, entry: Entry, what: str, source: str, problems: Problems
) -> tuple[list[Any], list[str]]:
    """What Biopython makes of an entry, and what it warned of; its errors go to `problems`."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = list(parse(StringIO(entry.text)))
        # Its parsers raise whatever a line they do not expect leads to: AssertionError, KeyError, IndexError.
        except Exception as error:
            at = _AT_LINE.search(str(error))
            line = entry.line + int(at[1]) - 1 if at else entry.line
            said = "" if problems.sensitive or not str(error) else f"Biopython says: {_sentence(error)}; "
            remedy = f"{said}correct it, or name the format the file really has"
            reason = f"{what} that cannot be read"
            problems.bad(DataError(reason, source=source, line=line, remedy=remedy), entry.text[:1000])
            return [], []
    return found, [str(one.message) for one in warned]


def _sentence(error: Exception) -> str:
    return " ".join(str(error.args[0] if error.args else error).split())[:200].rstrip(".")


def _flat(entry: Entry, format: str, what: str, source: str, problems: Problems) -> Iterator[Any]:
    """The records of an entry of a flat file that have a sequence."""
    from Bio import SeqIO

    parse: Parse = lambda handle: SeqIO.parse(handle, format)  # noqa: E731
    found, _ = _parsed(parse, entry, what, source, problems)
    for one in found:
        if len(one.seq) and one.seq.defined:
            yield one
            continue
        remedy = "fetch the entry again with its sequence, or leave it out"
        problems.bad(DataError(f"{what} without a sequence", source=source, line=entry.line, remedy=remedy))


def _alignments(entry: Entry, format: str, source: str, problems: Problems) -> Iterator[Any]:
    """The rows of the alignments in a text."""
    from Bio import AlignIO

    parse: Parse = lambda handle: AlignIO.parse(handle, format)  # noqa: E731
    what = f"a {format.capitalize()} alignment"
    found, _ = _parsed(parse, entry, what, source, problems)
    for alignment in found:
        yield from alignment


def _row(
    row: Any, number: int, entry: Entry, source: str, problems: Problems, gaps: Gaps, document: str | None
) -> Iterator[Record]:
    """One row of an alignment; none where it has gaps only."""
    letters = str(row.seq).upper()
    without = letters.translate(_GAPS)
    if not without:
        problems.note("a row of gaps only, left out")
        return
    name = row.id or f"{Path(source).name}:{entry.line}:{number + 1}"
    yield Record(
        id=name,
        raw=without if gaps == "drop" else letters,
        source=source,
        line=entry.line,
        document=document,
    )


def _chains(
    entry: Entry, structure: Callable[[str, StringIO], Any], source: str, problems: Problems
) -> Iterator[Record]:
    """The protein chains of the first model of a structure."""
    file = Path(source)
    name = file.with_suffix("").stem if file.suffix.lower() in COMPRESSED else file.stem
    parse: Parse = lambda handle: iter(structure(name, handle))  # noqa: E731
    models, warned = _parsed(parse, entry, "a structure", source, problems)
    problems.note(WARNED, len(warned), source=source)
    problems.note("a further model of a structure, left out", len(models) - 1, source=source)
    found = 0
    for chain in models[0] if models else ():
        residues, letters = _residues(chain)
        if not residues:
            problems.note("a chain without amino acids, left out", source=source)
            continue
        found += 1
        yield Record(
            id=f"{name}_{chain.id}" if chain.id.strip() else name,
            raw=letters,
            source=source,
            line=entry.line,
            document=name,
            meta={
                "chain": chain.id,
                "numbers": tuple(f"{one.id[1]}{one.id[2].strip()}" for one in residues),
                "contacts": tuple(map(tuple, contacts(residues).tolist())),
            },
        )
    if models and not found:
        remedy = "check that this is the structure of a protein, with coordinates"
        problems.bad(DataError("a structure without a protein chain", source=source, remedy=remedy))


def _residues(chain: Any) -> tuple[list[Any], str]:
    """The amino acids of a chain and their letters; modified ones are read as what they were made from."""
    from Bio.Data.PDBData import protein_letters_3to1, protein_letters_3to1_extended

    residues, letters = [], []
    for one in chain:
        name = one.get_resname().strip()
        letter = "X" if name == "UNK" else protein_letters_3to1_extended.get(name)
        ligand = one.id[0].strip() and name in protein_letters_3to1  # a free amino acid beside the chain
        if letter and not ligand:
            residues.append(one)
            letters.append(letter)
    return residues, "".join(letters)
