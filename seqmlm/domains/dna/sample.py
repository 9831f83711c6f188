"""Generate the DNA sample: contigs with motifs, stems, soft-masked repeats and foreign inserts.

The position of each planted element is known, and an element can be on either strand. The dependences are
exact. Given the position of a motif, its columns are independent of each other. The two bases of a pair in a
stem determine each other. A base of a repeat is the base of its consensus, except for independent mutations.

The sample also has genes of RNA families (`seqmlm.domains.dna.rna`), which are planted for maps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from seqmlm.domains.dna import rna
from seqmlm.domains.dna.tokenizer import BASES, reverse_complement
from seqmlm.domains.samples import Sample, checked_count, heading, write_sample

DEFAULT_COUNT = 1500

BACKGROUND = (0.3, 0.2, 0.2, 0.3)
FOREIGN = (0.1, 0.4, 0.4, 0.1)
LOOP = "GTTCAA"
STEM_PAIRS = 9
REPEAT = "GGCTGGGCATGGTAGCTCACGCCTATAATCCCAGCACTTTGGGAGGCTGAGGCAGACGAA"
MUTATION = 0.1

_LENGTHS = (120, 240)
_INSERT_LENGTHS = (40, 60)
_REPEAT_SHARE, _FOREIGN_SHARE = 0.25, 0.06
_SURE = 0.91  # probability of the favourite base of a motif's column; each other base has 0.03
_EITHER = {"R": "AG", "Y": "CT", "W": "AT", "S": "CG"}
_MOTIFS = {"tata": "TATAWAAGR", "box": "GCCRCCATGG", "site": "CACGTGYTWAAC"}

Column = tuple[float, ...]


def motif_matrix(name: str) -> list[Column]:
    """(width, 4) the probabilities of A C G T in each column of a motif."""
    return [_column(_EITHER.get(letter, letter)) for letter in _MOTIFS[name]]


def entropy(shares: Sequence[float]) -> float:
    """The entropy in bits of probabilities that sum to 1."""
    return -sum(p * math.log2(p) for p in shares if p > 0)


@dataclass
class Planted:
    """A contig and its planted elements. Positions are 0-based, and intervals are half open."""

    id: str
    sequence: str = ""
    motifs: list[list[Any]] = field(default_factory=list)
    pairs: list[list[int]] = field(default_factory=list)
    repeats: list[list[Any]] = field(default_factory=list)
    inserts: list[list[int]] = field(default_factory=list)

    def truth(self) -> dict[str, Any]:
        """The contig in the form of `truth.json`."""
        planted = {name: getattr(self, name) for name in ("motifs", "pairs", "repeats", "inserts")}
        return {"id": self.id, "length": len(self.sequence), **planted}


def _contig(random: Random, number: int) -> Planted:
    """Generate a contig: background bases with elements in random order and at random distances."""
    planted = Planted(f"contig-{number}")
    kinds = [*random.choices(list(_MOTIFS), k=random.randint(3, 6)), *["stem"] * random.randint(1, 2)]
    kinds += ["repeat"] if random.random() < _REPEAT_SHARE else []
    kinds += ["insert"] if random.random() < _FOREIGN_SHARE else []
    random.shuffle(kinds)
    elements = [(kind, *_element(random, kind)) for kind in kinds]
    room = max(0, random.randint(*_LENGTHS) - sum(len(element) for _, element, _ in elements))
    cuts = sorted(random.randint(0, room) for _ in elements)
    for (kind, element, strand), previous, cut in zip(elements, [0, *cuts], cuts, strict=False):
        planted.sequence += _bases(random, BACKGROUND, cut - previous)
        _note(planted, kind, len(planted.sequence), element, strand)
        planted.sequence += element
    planted.sequence += _bases(random, BACKGROUND, room - cuts[-1])
    return planted


def _element(random: Random, kind: str) -> tuple[str, str]:
    """Generate the letters of an element and its strand."""
    if kind == "insert":
        return _bases(random, FOREIGN, random.randint(*_INSERT_LENGTHS)), "+"
    if kind == "stem":
        arm = "".join(random.choices(BASES, k=STEM_PAIRS))
        letters = arm + LOOP + reverse_complement(arm)
    elif kind == "repeat":
        copy = (random.choice(BASES.replace(x, "")) if random.random() < MUTATION else x for x in REPEAT)
        letters = "".join(copy).lower()
    else:
        letters = "".join(_bases(random, column, 1) for column in motif_matrix(kind))
    strand = random.choice("+-")
    return (letters if strand == "+" else reverse_complement(letters)), strand


def _bases(random: Random, shares: Sequence[float], count: int) -> str:
    """Draw `count` bases with the given probabilities of A C G T."""
    return "".join(random.choices(BASES, shares, k=count))


def _note(planted: Planted, kind: str, start: int, element: str, strand: str) -> None:
    """Record the position of an element in its contig."""
    end = start + len(element)
    if kind == "insert":
        planted.inserts.append([start, end])
    elif kind == "repeat":
        planted.repeats.append([start, end, strand])
    elif kind == "stem":
        planted.pairs += [[start + i, end - 1 - i] for i in range(STEM_PAIRS)]
    else:
        planted.motifs.append([kind, start, strand])


def draw(n: int, seed: int) -> list[Planted]:
    """Generate `n` contigs."""
    random = Random(seed)
    return [_contig(random, number) for number in range(n)]


def write(out: Path, n: int | None, seed: int) -> Sample:
    """Write `dna.fasta`, `rna.genes` and `truth.json` into `out`."""
    count = checked_count(n, DEFAULT_COUNT)
    contigs, genes = draw(count, seed), list(rna.draw(count, seed))
    mutated = [1 - MUTATION] + [MUTATION / 3] * 3
    positions = "0-based bases of a contig; intervals are half open; strand - is the reverse complement"
    truth: dict[str, Any] = {
        **heading("dna", count, seed, "dna.fasta", positions),
        "background": list(BACKGROUND),
        "background_entropy_bits": round(entropy(BACKGROUND), 6),
        "motifs": [_describe(name) for name in _MOTIFS],
        "loop": LOOP,
        "repeat": REPEAT,
        "repeat_entropy_bits": round(entropy(mutated), 6),
        "foreign": list(FOREIGN),
        "contigs": [contig.truth() for contig in contigs],
        "anomalies": [
            {"id": contig.id, "start": a, "end": b} for contig in contigs for a, b in contig.inserts
        ],
    }
    lines = [line for contig in contigs for line in (f">{contig.id}", contig.sequence)]
    other_files = {
        rna.FILE: [line for gene in genes for line in (f">{gene.id} family={gene.family}", gene.sequence)]
    }
    return write_sample(out, "dna.fasta", lines, truth | rna.genes_truth(genes), other_files)


def _describe(name: str) -> dict[str, Any]:
    """A motif in the form of `truth.json`: its name, matrix and entropy in bits."""
    matrix = motif_matrix(name)
    return {
        "name": name,
        "matrix": [list(column) for column in matrix],
        "entropy_bits": round(sum(entropy(column) for column in matrix), 6),
    }


def _column(favourites: str) -> Column:
    """The probabilities of A C G T in a column with one or two favourite bases."""
    other_share = (1 - _SURE) / 3
    share = _SURE if len(favourites) == 1 else (1 - 2 * other_share) / 2
    return tuple(round(share if base in favourites else other_share, 6) for base in BASES)
