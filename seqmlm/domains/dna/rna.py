"""RNA genes of the DNA sample: three families, each with its own stems, and loops that pair across them.

A map of dependence should show them: the two bases of a pair determine each other, and no other two bases of
a gene tell anything about each other, given its family and where it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from seqmlm.domains.dna.structure import parse_brackets
from seqmlm.domains.dna.tokenizer import BASES, reverse_complement

FILE = "rna.genes"

PREFERRED_PAIR, PREFERRED = 0.5, 0.9
"""Share of the genes in which a pair, or a base that pairs with none, is that of the family for certain; in
the others it is any of the four, all alike."""
MOST_BESIDE = 3
"""Bases before a gene, and after it, at most: a place in a sequence is not a place in the family."""


class Fold(NamedTuple):
    """A family.

    structure: brackets are stems; `A` and `a` are bases of two motifs, in two loops, that pair.
    consensus: the preferred base of each column, N for none. Of a pair, that of its first base counts.
    """

    structure: str
    consensus: str


FOLDS = {
    "clover": Fold(
        "(((((((..((((...A..)))).(((((.......))))).....(((((..a....)))))))))))).....",
        "GCTAAAGCTTACAANCATCNNNNCGTCAGCCACTNTNNNNNCNCGGTGAATGTNANGGNNNNNNNNNNNNTANAG",
    ),
    "fork": Fold(
        "((((((..(((((....))))).((((..A...)))).((((....))))..a.))))))",
        "TGTGATACGCCTTNCGNNNNNNNGTGTNCCCCANNNNGGCATNNNNNNNNTTNANNNNNN",
    ),
    "twin": Fold(
        "..(((((((....)))))))....((((((.A..))))))...a..", "CAGAAACAGANCGNNNNNNNTTNTGACAGGCAGANNNNNNNAGNCC"
    ),
}


class Gene(NamedTuple):
    """One drawn gene; pairs are 0-based places of its sequence."""

    id: str
    family: str
    sequence: str
    pairs: list[list[int]]
    motif_pairs: list[list[int]]

    def truth(self) -> dict[str, Any]:
        """The gene as `truth.json` holds it."""
        facts = self._asdict()
        del facts["sequence"]
        return facts | {"length": len(self.sequence)}


def draw(n: int, seed: int) -> Iterator[Gene]:
    """`n` genes, of a family each at random."""
    random = Random(f"rna {seed}")
    for number in range(n):
        family = random.choice(list(FOLDS))
        structure, consensus = FOLDS[family]
        pairs = sorted(parse_brackets(structure))
        stems, motifs = ([(i, j) for i, j in pairs if structure[i] == mark] for mark in "(A")
        first = {i for i, _ in pairs}
        shares = [PREFERRED_PAIR if place in first else PREFERRED for place in range(len(consensus))]
        letters = [
            base if base in BASES and random.random() < share else random.choice(BASES)
            for base, share in zip(consensus, shares, strict=True)
        ]
        for i, j in pairs:
            letters[j] = reverse_complement(letters[i])
        prefix, suffix = ("".join(random.choices(BASES, k=random.randint(0, MOST_BESIDE))) for _ in range(2))
        shifted_pairs = (
            [[i + len(prefix), j + len(prefix)] for i, j in kind_pairs] for kind_pairs in (stems, motifs)
        )
        yield Gene(f"gene-{number}", family, prefix + "".join(letters) + suffix, *shifted_pairs)


def genes_truth(genes: list[Gene]) -> dict[str, Any]:
    """The families and genes, as `truth.json` holds them."""
    return {
        "families": [{"name": name, **fold._asdict()} for name, fold in FOLDS.items()],
        "genes": [gene.truth() for gene in genes],
    }
