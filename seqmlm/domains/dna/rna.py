"""RNA genes of the DNA sample: three families, each with its own stems and two loops that pair.

A map should show these pairs. The two bases of a pair determine each other. Given the family of a gene and
the start of the gene, no other two bases depend on each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from seqmlm.domains.dna.structure import parse_brackets
from seqmlm.domains.dna.tokenizer import BASES, reverse_complement

FILE = "rna.genes"

PREFERRED_PAIR, PREFERRED = 0.5, 0.9
"""Share of the genes with the family's base at a position: in a pair, and outside of pairs. In the other
genes, each of the four bases has the same probability."""
MOST_BESIDE = 3
"""Maximum extra bases before and after a gene. Because of them, a position in the sequence is not a position
in the family."""


class Fold(NamedTuple):
    """A family of RNA genes.

    structure: dot-bracket notation. Brackets are stems. `A` and `a` are paired bases of two motifs in two
    loops.
    consensus: the preferred base of each column, or N for no preference. For a pair, the preference of the
    first base is used.
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
    """A generated gene. Pairs are 0-based positions in its sequence."""

    id: str
    family: str
    sequence: str
    pairs: list[list[int]]
    motif_pairs: list[list[int]]

    def truth(self) -> dict[str, Any]:
        """The gene in the form of `truth.json`."""
        facts = self._asdict()
        del facts["sequence"]
        return facts | {"length": len(self.sequence)}


def draw(n: int, seed: int) -> Iterator[Gene]:
    """Generate `n` genes, each of a random family."""
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
    """The families and genes in the form of `truth.json`."""
    return {
        "families": [{"name": name, **fold._asdict()} for name, fold in FOLDS.items()],
        "genes": [gene.truth() for gene in genes],
    }
