"""Find contacts of proteins in maps of dependence, and measure how many of the strongest pairs are contacts.

The measure is P@L: the share of contacts among the L strongest pairs, for L residues and pairs at least 6
apart. Its rivals need no model: the density of contacts, and the nearest pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.data.files import MAX_BYTES, source_of, stem_suffix
from seqmlm.data.lines import lines
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.field import Field
from seqmlm.domains.protein.readers import CONTACT, read_mmcif, read_pdb
from seqmlm.domains.protein.variants import aligned_places
from seqmlm.domains.samples import TRUTH, read_truth
from seqmlm.domains.structure import Decoded, Decoder, Pair, Truth
from seqmlm.errors import DataError, SeqmlmError
from seqmlm.evaluation.detection import Detection
from seqmlm.evaluation.intervals import ratio
from seqmlm.structure.maps import DependenceMap

Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Knows = Callable[[Record, Sequence[str]], Truth | None]

SCHEMA = "seqmlm.sample.protein.v1"

RANGES = {"local": (3, 6), "short": (6, 12), "medium": (12, 24), "long": (24, 1 << 30)}
"""|i - j| of pairs, half open."""

PARTS = {"p_at_l": 1, "p_at_l2": 2, "p_at_l5": 5}

MOST_ROWS = 5000
"""Number of rows that are read from an alignment."""

IDENTITY = 0.5
"""Least share of equal residues at which a chain is taken to be the sequence's."""

_STRUCTURES = {".pdb": read_pdb, ".ent": read_pdb, ".cif": read_mmcif, ".mmcif": read_mmcif}


class ContactsDecoder(Decoder):
    """Predict contacts: the L strongest pairs after the average product correction.

    Args:
        domain: the protein field, which reads alignments.
    """

    separation: int = 6
    apc: bool = True
    measure: str = "p_at_l"

    def __init__(self, domain: Field) -> None:
        self._alignments = cache(partial(_alignments, domain))  # by the source of a record

    def decode(self, record: Record, units: Sequence[str], dependence: DependenceMap) -> frozenset[Pair]:
        """The L strongest pairs of L residues, if their values are above zero."""
        first, second = np.triu_indices(len(units), self.separation)
        values = dependence.values[first, second]
        order = strongest(values)[: len(units)]
        chosen = order[values[order] > 0]
        return frozenset(zip(first[chosen].tolist(), second[chosen].tolist(), strict=True))

    def truths(self, path: Path, problems: Problems) -> Knows:
        """Read contacts from `truth.json`, a structure (or a folder of structures), or a file of contacts.

        A structure's chain is found by alignment, even if it begins at another residue. A file of contacts
        has two columns with residues numbered from 1, or three with their distance in angstrom.
        Alternatively, it has a header with `pfam`, `col_i`, `col_j` (columns of the alignment from 0) and
        `cb_dist`. Then it applies to rows of the alignments with these names.
        """
        if path.suffix.lower() == ".json" or (path / TRUTH).is_file():
            return self._sample_truths(read_truth(path, SCHEMA, ("families",)))
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        if chains := [chain for file in files for chain in _chains(file, problems)]:
            return lambda record, units: _chain_truth(chains, "".join(units), problems)
        if path.is_dir() or stem_suffix(path) in _STRUCTURES:
            remedy = "give truth.json, files in PDB or mmCIF format, or a file of contacts"
            raise DataError("there is no protein chain", source=str(path), remedy=remedy)
        return self._table_truths(_table(path, problems))

    def _sample_truths(self, truth: Mapping[str, Any]) -> Knows:
        """A function that returns the planted contacts of a sample record, by its family."""
        families = {planted["name"]: planted for planted in truth["families"]}

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            family = families.get(record.id.rpartition("-")[0])
            if family is None or family["length"] != len(units):
                return None
            contacts = frozenset((int(i), int(j)) for i, j in family["contacts"])
            through = dict.fromkeys(connected_pairs(contacts) - contacts, "indirect")
            return Truth(edges=contacts, kinds=through | _ranges(contacts))

        return truth_of

    def _table_truths(self, families: Mapping[str, Mapping[Pair, float | None]]) -> Knows:
        """A function that returns the contacts of a record, from a file of contacts."""

        def truth_of(record: Record, units: Sequence[str]) -> Truth | None:
            if "" in families:
                return _distance_truth(families[""], {place + 1: place for place in range(len(units))})
            name = next((family for family in families if _is_family(record, family)), None)
            columns = None if name is None else self._columns(record)
            if name is None or columns is None:
                return None
            return _distance_truth(families[name], {column: place for place, column in enumerate(columns)})

        return truth_of

    def _columns(self, record: Record) -> list[int] | None:
        """The column of each residue of a record; None if the record is not a row of its file's alignment."""
        if record.source == "-":
            return None
        row = self._alignments(record.source).get(record.document or "", {}).get(record.id, "")
        columns = [place for place, letter in enumerate(row) if letter not in "-."]
        is_same = "".join(row[place] for place in columns) == str(record.raw).replace("-", "").replace(
            ".", ""
        )
        return columns if row and is_same else None

    def measures(self, decoded: Iterable[Decoded]) -> dict[str, float]:
        """P@L with its interval, by range and at L/2 and L/5, compared with rivals that need no model."""
        by_figure: dict[str, list[float]] = {}
        for protein in decoded:
            if protein.truth is None:
                continue
            for name, value in self._figures(protein, protein.truth).items():
                by_figure.setdefault(name, []).append(value)
        figures: dict[str, float] = {}
        for name, values in by_figure.items():
            interval = ratio(values)
            figures[name] = interval.value
            if name.startswith("p_at_l") and name.count("_") == 2:
                figures |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        return figures

    def _figures(self, decoded: Decoded, truth: Truth) -> dict[str, float]:
        """The figures of one sequence, by name; empty if no pair in the truth is a contact."""
        first, second = np.triu_indices(len(decoded.units), 1)
        is_known, labels = truth.labels(first, second)
        length = len(np.union1d(first[is_known], second[is_known]))  # residues with a place
        far = is_known & (second - first >= self.separation)
        first, second, labels = first[far], second[far], labels[far]
        if not labels.any():
            return {}
        values, distance = decoded.dependence.values[first, second], (second - first).astype(np.float64)
        scores = {"": values, "_of_distance": -distance}
        counts = {part: max(1, length // share) for part, share in PARTS.items()}
        figures = {f"p_at_l{name}": precision(labels, ranking, length) for name, ranking in scores.items()}
        figures["density"] = float(labels.mean())
        for part in list(PARTS)[1:]:
            figures |= {
                f"{part}{name}": precision(labels, ranking, counts[part]) for name, ranking in scores.items()
            }
        for kind, (low, high) in RANGES.items():
            inside = (distance >= low) & (distance < high)
            if not inside.any() or low < self.separation:
                continue
            for part, count in counts.items():
                figures[f"{part}_{kind}"] = precision(labels[inside], values[inside], count)
            figures[f"density_{kind}"] = float(labels[inside].mean())
        pairs = zip(first.tolist(), second.tolist(), strict=True)
        is_indirect = np.array([truth.kinds.get(pair) == "indirect" for pair in pairs])
        if is_indirect.any():
            figures["indirect_at_l"] = float(is_indirect[strongest(values)[:length]].mean())
        curve = Detection(labels, np.nan_to_num(values, nan=-np.inf)).curve()
        return figures | {"auprc": curve.average_precision, "auroc": curve.auroc}


def strongest(values: Doubles) -> NDArray[np.int64]:
    """(P',) indices of the pairs that have a value, strongest first; ties keep their order."""
    valued = np.flatnonzero(~np.isnan(values))
    order: NDArray[np.int64] = valued[np.argsort(-values[valued], kind="stable")]
    return order


def precision(labels: Bools, values: Doubles, count: int) -> float:
    """Share of true pairs among the `count` strongest, or among all if there are fewer; NaN without pairs."""
    top = strongest(values)[:count]
    return float(labels[top].mean()) if len(top) else float("nan")


def _ranges(contacts: Iterable[Pair]) -> dict[Pair, str]:
    """The range ("local" to "long") of each contact between residues at least 3 apart."""
    return {(i, j): kind for i, j in contacts for kind, (low, high) in RANGES.items() if low <= j - i < high}


def connected_pairs(contacts: Iterable[Pair]) -> set[Pair]:
    """All pairs that are connected by a path of contacts."""
    from networkx import Graph, connected_components

    return {
        pair
        for component in connected_components(Graph(contacts))
        for pair in combinations(sorted(component), 2)
    }


# Structures


def _chains(path: Path, problems: Problems) -> list[Record]:
    """The protein chains of a PDB or mmCIF file; none for a file of another kind."""
    reader = _STRUCTURES.get(stem_suffix(path))
    return [] if reader is None else list(reader(path, problems))


def _chain_truth(chains: Sequence[Record], sequence: str, problems: Problems) -> Truth | None:
    """The contacts of the chain most similar to a sequence, in its positions; None if none is similar."""
    best, share, chain = None, 0.0, chains[0]
    for candidate in chains:
        residue_pairs, identity = _align_chain(candidate.raw, sequence)
        if identity > share:
            best, share, chain = residue_pairs, identity, candidate
    if best is None or share < IDENTITY:
        problems.note("a sequence that matches no chain of the structures, left out of the figures")
        return None
    if (begin := min(best.values()) - min(best)) or share < 1:
        problems.note(
            f"a chain ({chain.id}) that matches {share:.0%} of the residues of a sequence: residue 1 of the "
            f"chain is residue {begin + 1} of the sequence"
        )
    contacts = frozenset((best[i], best[j]) for i, j in chain.meta["contacts"] if i in best and j in best)
    located = frozenset(place for residue, place in best.items() if residue not in chain.meta["unplaced"])
    return Truth(edges=contacts, kinds=_ranges(contacts), covers=located.issuperset)


def _align_chain(chain: str, sequence: str) -> tuple[dict[int, int], float]:
    """Position in a chain -> aligned position in a sequence, and the share of equal residues, 0 to 1.

    The alignment is global, and gaps at its ends have no cost.
    """
    if (begin := sequence.find(chain)) >= 0:
        return {residue: begin + residue for residue in range(len(chain))}, 1.0
    scores = {"match_score": 2.0, "mismatch_score": -1.0, "open_gap_score": -3.0, "extend_gap_score": -0.5}
    pairs = aligned_places(chain, sequence, {"mode": "global", **scores, "end_gap_score": 0.0})
    same = sum(chain[a] == sequence[b] for a, b in pairs.items())
    return pairs, same / max(min(len(chain), len(sequence)), 1)


# Files of contacts


def _distance_truth(pairs: Mapping[Pair, float | None], place: Mapping[int, int]) -> Truth | None:
    """The contacts among pairs of residues or columns, in positions of a sequence; None if it has no pair.

    If the file also has distances above the limit for contacts, only its own pairs are evaluated. Otherwise
    all pairs are evaluated.
    """
    distances = {
        (min(place[i], place[j]), max(place[i], place[j])): distance
        for (i, j), distance in pairs.items()
        if i in place and j in place
    }
    if not distances:
        return None
    edges = frozenset(pair for pair, distance in distances.items() if distance is None or distance < CONTACT)
    partly = any(distance is not None and distance >= CONTACT for distance in distances.values())
    return Truth(edges=edges, kinds=_ranges(edges), covers=distances.__contains__ if partly else None)


def _table(path: Path, problems: Problems) -> dict[str, dict[Pair, float | None]]:
    """Distance in angstrom (None: not given) of each pair in a file of contacts, by family ("" for none)."""
    source, header = source_of(path), dict[str, int]()
    pairs: dict[str, dict[Pair, float | None]] = {}
    for number, text in lines(source, problems, max_bytes=MAX_BYTES):
        cells = text.replace(",", " ").split()
        if not cells or cells[0].startswith("#"):
            continue
        if not pairs and not header and not cells[0].isdecimal():
            header = {name: place for place, name in enumerate(cells)}
            continue
        try:
            family, pair, far = _row(cells, header)
        except (ValueError, KeyError, IndexError):
            remedy = "write two residues per line, numbered from 1, and optionally their distance"
            problems.bad(DataError("no pair of residues", source=source, line=number, remedy=remedy), text)
            continue
        pairs.setdefault(family, {})[pair] = far
    if not pairs:
        remedy = "give truth.json, a structure, or a file with two residues per line"
        raise DataError("there are no contacts in this file", source=source, remedy=remedy)
    return pairs


def _row(cells: Sequence[str], header: Mapping[str, int]) -> tuple[str, Pair, float | None]:
    """Family, pair and distance in one line of a file of contacts."""
    if "pfam" in header:
        pair = int(cells[header["col_i"]]), int(cells[header["col_j"]])
        return cells[header["pfam"]], pair, float(cells[header["cb_dist"]])
    return "", (int(cells[0]), int(cells[1])), float(cells[2]) if len(cells) > 2 else None


def _is_family(record: Record, family: str) -> bool:
    """Whether a record's alignment, or its file, has the name of a family."""
    return record.document == family or Path(record.source).name.split(".")[0] == family


def _alignments(domain: Field, source: str) -> dict[str, dict[str, str]]:
    """Alignment name -> record id -> row, for each alignment in a file whose rows have equal length."""
    rows: dict[str, dict[str, str]] = {}
    try:
        for record in islice(domain.read([source], Problems("skip"), gaps="keep"), MOST_ROWS):
            rows.setdefault(record.document or "", {})[record.id] = str(record.raw).upper()
    except SeqmlmError:  # a format without gaps is not an alignment
        return {}
    return {
        name: aligned for name, aligned in rows.items() if len({len(row) for row in aligned.values()}) == 1
    }
