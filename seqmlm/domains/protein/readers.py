"""Read protein formats with Biopython: Clustal, Swiss-Prot, and structures with their contacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.files import COMPRESSED, MAX_BYTES, source_of
from seqmlm.data.problems import Problems
from seqmlm.data.readers.biopython import Entry, aligned, entries, flat, parse_entry, whole_file
from seqmlm.data.readers.fasta import Gaps
from seqmlm.data.record import Record
from seqmlm.errors import DataError

CONTACT = 8.0
"""Distance in angstrom below which the C-beta atoms of two residues are in contact (CASP's definition)."""

UNRESOLVED = "a gap in the numbers of a chain's residues: unresolved residues are not in its sequence"
WARNED = "a structure that Biopython read with a warning: check its chains and residues"


def read_clustal(
    path: str | Path, problems: Problems, *, gaps: Gaps = "drop", max_bytes: int = MAX_BYTES
) -> Iterator[Record]:
    """Read a Clustal alignment, as written by Clustal, MUSCLE, PROBCONS and Kalign (also .gz, .zst, "-").

    Args:
        path: the file.
        problems: receives a file that cannot be read; notes rows of gaps only.
        gaps: "drop" gives sequences; "keep" gives the rows of the alignment, all with the same length.
        max_bytes: largest file.
    """
    for entry in whole_file(source_of(path), problems, max_bytes):
        yield from aligned(entry, "clustal", source_of(path), problems, gaps)


def read_swissprot(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read UniProt flat files, Swiss-Prot and TrEMBL (also .gz, .zst, "-"), one record per entry.

    The id is the first accession. `meta` has the entry's name, description and organism.

    Args:
        path: the file.
        problems: receives entries that cannot be read or have no end.
        max_bytes: largest entry.
    """
    for entry in entries(source_of(path), problems, max_bytes, "entry"):
        for protein in flat(entry, "swiss", "a Swiss-Prot entry", source_of(path), problems):
            organism = protein.annotations.get("organism", "").removesuffix(".")
            meta = {"name": protein.name, "description": protein.description, "organism": organism}
            fields = {key: value for key, value in meta.items() if value}
            yield Record(
                id=protein.id, raw=str(protein.seq), source=source_of(path), line=entry.line, meta=fields
            )


def read_pdb(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read a structure in PDB format (also .gz, .zst, "-"), one record per chain of its first model.

    The sequence has only residues with coordinates, and no unresolved residues. `meta` has `chain`, the
    residue `numbers` of the file, `contacts` (see `contacts`), and the residues that are `unplaced` there.

    Args:
        path: the file.
        problems: receives a file that cannot be read or has no protein. It also notes chains of other
            molecules, other models, and Biopython's warnings.
        max_bytes: largest file.
    """
    from Bio.PDB.PDBParser import PDBParser

    for entry in whole_file(source_of(path), problems, max_bytes):
        parser = PDBParser(PERMISSIVE=True)  # type: ignore[no-untyped-call]
        yield from _chains(entry, parser.get_structure, source_of(path), problems)


def read_mmcif(path: str | Path, problems: Problems, *, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """Read a structure in mmCIF format (also .gz, .zst, "-"), one record per chain, as in `read_pdb`.

    Chains and residues have the authors' names, as in the PDB file.

    Args:
        path, problems, max_bytes: as for the format pdb.
    """
    from Bio.PDB.MMCIFParser import MMCIFParser

    for entry in whole_file(source_of(path), problems, max_bytes):
        parser = MMCIFParser()  # type: ignore[no-untyped-call]
        yield from _chains(entry, parser.get_structure, source_of(path), problems)


def contacts(residues: list[Any]) -> NDArray[np.int32]:
    """(P, 2) pairs i < j of residues whose C-beta atoms are closer than 8 angstrom, in order.

    Pairs at all separations are included, although contact predictions are evaluated from |i - j| >= 6. A
    residue without a place (`places`) is in no pair.

    Args:
        residues: the residues of a chain, from Bio.PDB.
    """
    from scipy.spatial import KDTree

    coordinates = places(residues)
    resolved = np.flatnonzero(~np.isnan(coordinates[:, 0])).astype(np.int32)
    if len(resolved) < 2:
        return np.zeros((0, 2), dtype=np.int32)
    points = coordinates[resolved]
    pairs = KDTree(points).query_pairs(CONTACT, output_type="ndarray")
    is_near = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1) < CONTACT
    contact_pairs: NDArray[np.int32] = resolved[np.sort(pairs[is_near], axis=1)]
    return contact_pairs[np.lexsort((contact_pairs[:, 1], contact_pairs[:, 0]))]


def places(residues: list[Any]) -> NDArray[np.float64]:
    """(L, 3) coordinates of each residue's C-beta atom, in angstrom; NaN if the file has none.

    For glycine, it is the C-alpha. A missing C-beta atom is computed from N, C-alpha and C, as in ESM and
    trRosetta. The bond has 1.522 angstrom, the angle is 1.927, and the dihedral angle is -2.143.
    """
    coordinates = np.full((len(residues), 3), np.nan)
    for number, residue in enumerate(residues):
        name = "CA" if residue.get_resname() == "GLY" else "CB"
        if name in residue:
            coordinates[number] = residue[name].get_coord()
        elif name == "CB" and all(atom in residue for atom in ("N", "CA", "C")):
            coordinates[number] = _beta(
                *(residue[atom].get_coord().astype(np.float64) for atom in ("N", "CA", "C"))
            )
    return coordinates


def _beta(n: NDArray[np.float64], alpha: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3,) coordinates of the C-beta atom in angstrom, computed from the coordinates of N, C-alpha and C."""
    length, angle, dihedral = 1.522, 1.927, -2.143
    to_n = n - alpha
    to_n /= np.linalg.norm(to_n)
    normal = np.cross(n - c, to_n)
    normal /= np.linalg.norm(normal)
    side = np.cross(normal, to_n)
    along = length * np.cos(angle) * to_n
    across = length * np.sin(angle) * (np.cos(dihedral) * side - np.sin(dihedral) * normal)
    return np.asarray(alpha + along + across, dtype=np.float64)


def _chains(
    entry: Entry, structure: Callable[[str, StringIO], Any], source: str, problems: Problems
) -> Iterator[Record]:
    """The protein chains in the first model of a structure."""
    file = Path(source)
    name = file.with_suffix("").stem if file.suffix.lower() in COMPRESSED else file.stem
    models, messages = parse_entry(partial(structure, name), entry, "a structure", source, problems)
    problems.note(WARNED, len(messages), source=source)
    problems.note("another model of a structure, left out", len(models) - 1, source=source)
    chain_count = 0
    for chain in models[0] if models else ():
        residues, letters = _residues(chain)
        if not residues:
            problems.note("a chain without amino acids, left out", source=source)
            continue
        chain_count += 1
        numbers = [residue.id[1] for residue in residues]
        problems.note(UNRESOLVED, sum(b - a > 1 for a, b in pairwise(numbers)), source=source)
        yield Record(
            id=f"{name}_{chain.id}" if chain.id.strip() else name,
            raw=letters,
            source=source,
            line=entry.line,
            document=name,
            meta={
                "chain": chain.id,
                "numbers": tuple(f"{residue.id[1]}{residue.id[2].strip()}" for residue in residues),
                "contacts": tuple(map(tuple, contacts(residues).tolist())),
                "unplaced": tuple(np.flatnonzero(np.isnan(places(residues)[:, 0])).tolist()),
            },
        )
    if models and not chain_count:
        remedy = "check that this is the structure of a protein, with coordinates"
        problems.bad(DataError("a structure without a protein chain", source=source, remedy=remedy))


def _occupancy(residue: Any) -> float:
    """Mean occupancy of a residue's atoms, 0 to 1."""
    return sum(atom.get_occupancy() or 0.0 for atom in residue) / max(1, len(residue))


def _residues(chain: Any) -> tuple[list[Any], str]:
    """The amino acids of a chain and their letters; a modified residue has the letter of its parent."""
    from Bio.Data.PDBData import protein_letters_3to1, protein_letters_3to1_extended

    residues, letters = [], []
    for residue in chain:
        if residue.is_disordered() == 2:  # several residues were observed at one place
            residue.disordered_select(max(residue.disordered_get_list(), key=_occupancy).get_resname())
        name = residue.get_resname().strip()
        letter = "X" if name == "UNK" else protein_letters_3to1_extended.get(name)
        # A free amino acid next to the chain.
        ligand = residue.id[0].strip() and name in protein_letters_3to1
        if letter and not ligand:
            residues.append(residue)
            letters.append(letter)
    return residues, "".join(letters)
