"""Genes along contigs: of the feature tables of GenBank and EMBL entries, and of GFF3 files beside a genome.

Only names and places are kept, of genes and of what is named after one (a coding sequence, a tRNA): a tenth
of a percent of the size of a genome.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import unquote

from seqmlm.data.problems import Problems
from seqmlm.data.readers.features import GFF_COLUMNS, Feature, gff_features, known_as
from seqmlm.errors import DataError

MOST_GENES = 1_000_000
"""Genes of a file that are kept; the largest annotations have a tenth of that."""

_PRODUCTS = ("CDS", "tRNA", "rRNA", "tmRNA", "ncRNA")
_PREFIXES = ("gene-", "gene:", "Gene:")


class Gene(NamedTuple):
    """A gene, or a part of one: bases start to end (0-based, half open) of its contig."""

    start: int
    end: int
    name: str


class Genes:
    """The genes of one contig.

    Args:
        found: in any order; equal ones count once.
    """

    def __init__(self, found: Iterable[Gene]) -> None:
        self._genes = sorted(set(found))
        self._starts = [one.start for one in self._genes]
        self._reached = list(accumulate((one.end for one in self._genes), max))

    def __len__(self) -> int:
        return len(self._genes)

    def over(self, start: int, end: int) -> tuple[Gene, ...]:
        """Those that share a base with the bases start to end (0-based, half open), by place."""
        first, last = bisect_right(self._reached, start), bisect_left(self._starts, end)
        return tuple(one for one in self._genes[first:last] if one.end > start)


def named_over(genes: Iterable[Gene], start: int, end: int) -> list[str]:
    """The names of the genes that share a base with the bases start to end, each once, by place.

    >>> named_over([Gene(0, 9, "a"), Gene(5, 8, "b"), Gene(5, 9, "a"), Gene(12, 20, "c")], 6, 12)
    ['a', 'b']
    """
    return list(dict.fromkeys(one.name for one in genes if one.start < end and one.end > start))


def is_gene(kind: str) -> bool:
    """Whether a feature of this kind is a gene, or is named after one.

    >>> [is_gene(kind) for kind in ("gene", "pseudogene", "tRNA", "exon")]
    [True, True, True, False]
    """
    return kind.endswith("gene") or kind in _PRODUCTS


def name_of(kind: str, qualifiers: Mapping[str, str]) -> str | None:
    """What a feature is called: its gene, else its locus; a gene of GFF3 also by its name or identifier."""
    keys = ("gene", "Name", "locus_tag", "ID") if kind.endswith("gene") else ("gene", "locus_tag")
    name = next((qualifiers[key] for key in keys if qualifiers.get(key)), None)
    if name is None:
        return None
    prefix = next((one for one in _PREFIXES if name.startswith(one)), "")
    return name.removeprefix(prefix) or None


def genes_of(path: str, contig: str, problems: Problems) -> Genes | None:
    """The genes of a contig in a GFF3 file, which is read once; None for a contig that it does not name.

    Args:
        path: the file (also .gz, .zst).
        contig: as the genome calls it; chr1 may be 1 there, chrM may be MT.
        problems: told of contigs without genes.

    Raises:
        DataError: a line that is not GFF3, or too many genes.
    """
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        raise DataError("no such file of genes", source=path, remedy="check --option genes=FILE") from None
    known = _read(path, facts.st_mtime_ns, facts.st_size, facts.st_ino)
    name = known_as(contig, known)
    if name is None:
        problems.note("a contig without any gene in the file of genes")
    return None if name is None else known[name]


@lru_cache(maxsize=1)  # a genome is read file by file, and its beginning to estimate what a scoring takes
def _read(path: str, *facts: int) -> Mapping[str, Genes]:
    """The genes of a GFF3 file by contig; equal facts are the same file."""
    found: dict[str, set[Gene]] = {}
    count = 0
    for number, one in gff_features(path, Problems("raise"), is_gene):
        gene = _gene(one, path, number)
        if gene is None:
            continue
        found.setdefault(one.name, set()).add(gene)
        count += 1
        if count > MOST_GENES:
            remedy = "keep the lines of genes alone, and of the contigs that are scored"
            raise DataError(f"more than {MOST_GENES:,} genes", source=path, line=number, remedy=remedy)
    return {contig: Genes(genes) for contig, genes in found.items()}


def _gene(one: Feature, path: str, number: int) -> Gene | None:
    """What a line says; None where it names no gene."""
    pairs = [part.partition("=") for part in one.columns[8].split(";") if part.strip()]
    if not all(equals for _, equals, _ in pairs):
        reason = "attributes that are not NAME=VALUE (is it GTF?)"
        raise DataError(reason, source=path, line=number, remedy=GFF_COLUMNS)
    name = name_of(one.columns[2], {key.strip(): unquote(value.strip()) for key, _, value in pairs})
    return None if name is None else Gene(one.start, one.end, name)
