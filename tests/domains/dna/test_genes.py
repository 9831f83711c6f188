"""Genes of GenBank, EMBL and GFF3: against Biopython, at their places, named in rows, reports and tracks."""

from __future__ import annotations

import gzip
import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqFeature import AfterPosition, BeforePosition, CompoundLocation, SeqFeature, SimpleLocation
from Bio.SeqRecord import SeqRecord
from hypothesis import given
from hypothesis import strategies as st
from written import written

from seqmlm.data.problems import Problems
from seqmlm.domains.dna import DNA, genes
from seqmlm.domains.dna.genbank import read_embl, read_genbank
from seqmlm.domains.dna.genes import Gene, Genes, overlapping_names
from seqmlm.domains.dna.nucleotides import read_genome
from seqmlm.errors import DataError

HEAD = "##gff-version 3\n"


def gff(*rows: str) -> str:
    """Lines of GFF3 from "kind start end attributes" of the contig c."""
    parts = [row.split(maxsplit=3) for row in rows]
    return HEAD + "".join(f"c\tx\t{k}\t{s}\t{e}\t.\t+\t.\t{a}\n" for k, s, e, a in parts)


def feature(kind: str, location: Any, **qualifiers: str) -> SeqFeature:
    return SeqFeature(location, type=kind, qualifiers={key: [value] for key, value in qualifiers.items()})


def annotated(source: random.Random, bases: int) -> SeqRecord:
    """An entry with genes on both strands, over its origin, cut short at its ends, and long qualifiers."""
    features = [
        feature("source", SimpleLocation(0, bases), organism="x"),
        feature("gene", SimpleLocation(BeforePosition(0), 9, 1), gene="cutA"),
        feature("gene", SimpleLocation(bases - 30, bases) + SimpleLocation(0, 20), gene="o"),
        feature("gene", SimpleLocation(bases - 8, AfterPosition(bases), -1), locus_tag="b_last"),
        feature("gene", SimpleLocation(40, 60), note="without a name"),
        feature("misc_feature", SimpleLocation(0, 60), gene="notone"),
    ]
    for number in range(60):
        start = source.randrange(bases - 300)
        parts = [SimpleLocation(start + 90 * n, start + 90 * n + source.randint(1, 80), -1) for n in range(3)]
        place = CompoundLocation(parts) if number % 2 else parts[0]
        words = " ".join(source.choices(("gene=", "/gene=x", "a word", "protein"), k=40))
        features.append(feature("CDS", place, locus_tag=f"t{number}", note=words, translation="MKVL" * 60))
    return SeqRecord(
        Seq("".join(source.choices("ACGT", k=bases))),
        id="X.1",
        name="X",
        description="y",
        annotations={"molecule_type": "DNA"},
        features=features,
    )


def of_biopython(entry: SeqRecord) -> set[Gene]:
    found = set()
    for one in entry.features:
        name = one.qualifiers.get("gene", one.qualifiers.get("locus_tag", [None]))[0]
        if one.type in ("gene", "CDS") and name is not None:
            found |= {Gene(int(part.start), int(part.end), name) for part in one.location.parts}
    return found


@pytest.mark.parametrize("form", ["genbank", "embl"])
def test_genes_of_entries_are_those_that_biopython_reads(form: str, tmp_path: Path) -> None:
    source = random.Random(3)
    text = io.StringIO()
    SeqIO.write([annotated(source, 5000), annotated(source, 700)], text, form)
    path = written(tmp_path / f"x.{form}", text.getvalue())
    read = read_genbank if form == "genbank" else read_embl
    wanted = [of_biopython(one) for one in SeqIO.parse(io.StringIO(text.getvalue()), form)]
    assert [set(one.meta["genes"]) for one in read(path, Problems())] == wanted
    assert {"cutA", "o", "b_last"} <= {gene.name for gene in wanted[0]} >= {f"t{n}" for n in range(60)}
    for one in read(path, Problems(), block=100):  # each has those over it, at their place in the contig
        start = one.meta["start"]
        genes = wanted[int(len(wanted) > 1 and one.line > 1)]
        over = {gene for gene in genes if gene.start < start + len(one.raw) and gene.end > start}
        assert set(one.meta["genes"]) == over


def test_a_gene_without_a_place_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.gb"
    table = "     gene            order(J1.2:5..9)\n                     /gene=a\n     gene            3\n"
    table += '                     /gene="b"\n     gene            J1.2:5..9\n'
    table += '                     /note="/gene=c"\n'
    path.write_text(
        f"LOCUS       X\nFEATURES             Location/Qualifiers\n{table}ORIGIN\n        1 acgtacgt\n//\n"
    )
    problems = Problems()
    [record] = read_genbank(path, problems)
    assert record.meta["genes"] == (Gene(2, 3, "b"),)
    assert problems.places == {"a gene without a position, left out": f"{path}:3"}


@given(
    found=st.lists(
        st.builds(lambda s, n, k: Gene(s, s + n, k), st.integers(0, 60), st.integers(1, 40), st.text())
    ),
    start=st.integers(0, 99),
    size=st.integers(1, 30),
)
def test_the_genes_over_a_place_are_found(found: list[Gene], start: int, size: int) -> None:
    over = {one for one in found if set(range(one.start, one.end)) & set(range(start, start + size))}
    asked = Genes(found).overlapping(start, start + size)
    assert set(asked) == over
    assert list(asked) == sorted(asked)
    assert set(overlapping_names(found, start, start + size)) == {one.name for one in over}


def test_a_table_of_genes_beside_a_genome(tmp_path: Path) -> None:
    table = tmp_path / "g.gff3.gz"
    rows = gff(
        "region 1 500 ID=c;gene=all",
        "gene 11 20 ID=gene-b1;Name=thrL;gene=thrL",
        "gene 31 40 ID=gene-b2;Name=b2",
        "gene 41 50 ID=gene:b3",
        "CDS 31 40 ID=cds-1;Parent=gene-b2;Name=NP_1",
        "CDS 51 60 ID=cds-2;locus_tag=b%3B4",
        "pseudogene 61 70 ID=p;Name=odd",
        "exon 71 80 ID=e;gene=exonic",
        "region 0 500 no=place",  # of a line that is no gene nothing is read
    )
    table.write_bytes(gzip.compress((rows + "# end\n\n##FASTA\n>c\nACGT\n").encode()))
    genome = written(tmp_path / "g.fa", f">chrc words\n{'ACGT' * 25}\n>other\nACGT\n")
    problems = Problems()
    whole, other = read_genome(genome, problems, genes=str(table))
    wanted = [(10, 20, "thrL"), (30, 40, "b2"), (40, 50, "b3"), (50, 60, "b;4"), (60, 70, "odd")]
    assert list(whole.meta["genes"]) == wanted
    assert "genes" not in other.meta
    assert problems.counts == {"a contig without genes in the gene file: its rows have no gene names": 1}
    blocks = list(read_genome(genome, Problems(), genes=str(table), block=36))
    names = [[one[2] for one in block.meta.get("genes", ())] for block in blocks]
    assert names == [["thrL", "b2"], ["b2", "b3", "b;4", "odd"], [], []]


def test_a_table_of_genes_is_read_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, genome = tmp_path / "g.gff", tmp_path / "g.fa"
    table.write_text(gff("gene 1 2 ID=a"))
    genome.write_text("".join(f">c{n}\nACGT\n" for n in range(5)) + ">c\nACGT\n")
    read: list[str] = []
    features = genes.gff_features
    monkeypatch.setattr(genes, "gff_features", lambda path, *more: read.append(path) or features(path, *more))

    def names() -> list[str]:
        return [one.name for one in list(read_genome(genome, Problems(), genes=str(table)))[-1].meta["genes"]]

    assert names() == names() == ["a"]
    assert len(read) == 1
    table.write_text(gff("gene 1 3 ID=bb"))
    os.utime(table, ns=(1, 1))
    assert names() == ["bb"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "c\tx\tgene\t1\t5\n", "g.gff:2: not a line of nine columns"),
        (gff("gene 0 5 ID=a"), "g.gff:2: a start and an end that are not places"),
        (gff("gene 7 5 ID=a"), "g.gff:2: a start and an end that are not places"),
        (gff("gene 1 5 ID=a", f"gene 1 {'9' * 5000} ID=b"), "g.gff:3: a start and an end"),
        (gff('gene 1 5 gene_id "a"; x "y"'), "g.gff:2: attributes that are not NAME=VALUE"),
        (HEAD + "a\0b\n", "g.gff:2: binary data"),
        (None, "no such gene file"),
    ],
)
def test_a_bad_table_of_genes_is_named_with_its_line(text: str | None, said: str, tmp_path: Path) -> None:
    table, genome = tmp_path / "g.gff", tmp_path / "g.fa"
    if text is not None:
        table.write_text(text)
    genome.write_text(">c\nACGT\n")
    with pytest.raises(DataError, match=said):
        list(read_genome(genome, Problems("skip"), genes=str(table)))


def test_more_genes_than_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genes, "MOST_GENES", 2)
    table, genome = tmp_path / "g.gff", tmp_path / "g.fa"
    genome.write_text(">c\nACGT\n")
    table.write_text(gff("gene 1 5 ID=a", "gene 2 5 ID=b"))
    assert len(list(read_genome(genome, Problems(), genes=str(table)))) == 1
    table.write_text(gff("gene 1 5 ID=a", "gene 2 5 ID=b", "gene 3 5 ID=c"))
    with pytest.raises(DataError, match=r"g.gff:4: more than 2 genes"):
        list(read_genome(genome, Problems(), genes=str(table)))


def test_windows_of_a_bed_file_have_genes_on_either_strand(tmp_path: Path) -> None:
    genome, table, windows = tmp_path / "g.fa", tmp_path / "g.gff", tmp_path / "w.bed"
    genome.write_text(f">chr1\n{'ACGT' * 50}\n")
    table.write_text(gff("gene 11 20 Name=a", "gene 101 110 Name=b").replace("c\tx", "1\tx"))
    windows.write_text("1\t0\t100\tx\t0\t+\n1\t15\t105\ty\t0\t-\n")
    given = {"genome": str(genome), "genes": str(table)}
    found = list(DNA.read([windows], Problems(), **given))
    assert [[gene.name for gene in one.meta["genes"]] for one in found] == [["a"], ["a", "b"]]
    assert str(table) in DNA.files.inputs([windows], options=given), "a resumed scoring is held to it"
