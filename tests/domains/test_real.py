"""The domains on real files: every protein spelled, every sentence with its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from dnabert import KmerTokenizer
from written import written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_fasta
from seqmlm.domains.dna import DNA
from seqmlm.domains.dna.bases import BaseTokenizer
from seqmlm.domains.dna.kmer_block import KmerBlockTokenizer
from seqmlm.domains.dna.tokenizer import reverse_complement
from seqmlm.domains.protein import PROTEIN
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.domains.text import TEXT
from seqmlm.engine.units import unit_symbols
from seqmlm.inference.record_batches import check


def test_the_proteome_of_e_coli(real_data: Path):
    path = real_data / "protein" / "pretrain" / "ecoli_k12_proteome.faa.gz"
    records = list(PROTEIN.read([path], Problems()))
    tokenizer = ResidueTokenizer()
    encodings = tokenizer.encode_batch([record.raw for record in records])
    assert len(records) == 4298
    assert all(check(PROTEIN, record, tokenizer, Problems()) for record in records)
    assert [len(encoding) for encoding in encodings] == [len(record.raw) + 2 for record in records]
    letters = np.concatenate([encoding.ids[1:-1] for encoding in encodings])
    assert "".join(tokenizer.tokens[i] for i in letters[:2000]) == "".join(r.raw for r in records)[:2000]
    with gzip.open(path, "rt") as handle:
        lines = handle.read().splitlines()
    assert all(lines[record.line - 1].startswith(">" + record.id) for record in records)


def test_an_alignment_and_a_folder_of_treebanks(real_data: Path):
    [alignment] = sorted((real_data / "protein" / "contacts_extra").rglob("1a3a*.a3m*"))[:1]
    rows = list(PROTEIN.read([alignment], Problems()))
    assert rows[0].meta["query"] is True
    assert all(check(PROTEIN, row, ResidueTokenizer(), Problems()) for row in rows)
    sentences = list(TEXT.read([real_data / "text" / "ud_pud_parallel"], Problems()))
    assert len(sentences) == 3000
    with gzip.open(sentences[0].source, "rt", encoding="utf-8") as handle:
        lines = handle.read().splitlines()
    assert all("# text = " + s.raw in lines[s.line - 1 : s.line + 5] for s in sentences[:1000])


GENOMES = [("genomes/ecoli_k12_GCF_000005845.2.fna.gz", 4_641_652), ("genomes/lambda_phage.fa.gz", 48_502)]


@pytest.mark.parametrize(("name", "bases"), GENOMES, ids=["ecoli", "lambda"])
def test_genomes_in_blocks_are_the_genomes(name: str, bases: int, real_data: Path):
    records = list(DNA.read([real_data / "dna" / name], Problems()))
    assert "".join(r.raw for r in records) == "".join(
        r.raw for r in read_fasta(real_data / "dna" / name, Problems())
    )
    assert sum(len(r.raw) for r in records) == bases
    for tokenizer in (BaseTokenizer(), KmerTokenizer(), KmerBlockTokenizer()):
        encodings = tokenizer.encode_batch([r.raw for r in records])
        assert sum(len(tokenizer.units.numbers(e)) for e in encodings) == bases
    letters = [code for (code,) in unit_symbols(tokenizer.units, encodings[-1])]
    assert "".join("ACGT"[code] for code in letters) == records[-1].raw


def test_contigs_of_a_worm_keep_their_places(real_data: Path):
    path = real_data / "dna" / "genomes_1pct" / "C.elegans.fa.gz"
    problems = Problems()
    whole = {r.id: r.raw for r in read_fasta(path, Problems())}
    for record in DNA.read([path], problems):
        start = record.meta.get("start", 0)
        assert whole[record.document][start : start + len(record.raw)] == record.raw
    assert problems.counts == {}
    assert len({DNA.keys.split(r) for r in DNA.read([path], Problems())}) > 20


def test_introns_of_yeast_begin_and_end_as_introns_do(real_data: Path):
    folder = real_data / "dna" / "yeast_introns"
    [genes] = folder.glob("*genes_with_introns.fsa.gz")
    raws = {r.id: r.raw for r in DNA.read([genes], Problems())}
    with gzip.open(next(folder.glob("*introns.txt.gz")), "rt") as handle:
        introns = [line.split() for line in handle if line.strip()]
    spelled = [raws[gene][int(a) - 1 : int(b)] for _, gene, a, b in introns if gene in raws]
    assert len(spelled) > 250
    assert np.mean([i.startswith("GT") and i.endswith("AG") for i in spelled]) > 0.9


def test_windows_of_a_real_genome_are_those_of_its_sequence(real_data: Path, tmp_path: Path):
    source = real_data / "dna" / "genomes" / "lambda_phage.fa.gz"
    [raw] = [r.raw for r in read_fasta(source, Problems())]
    [name] = {r.document for r in DNA.read([source], Problems())}
    unpacked = written(tmp_path / "lambda.fa", gzip.decompress(source.read_bytes()))
    (tmp_path / "w.bed").write_text(f"{name}\t100\t400\n{name}\t100\t400\tx\t0\t-\n{name}\t48500\t48600\n")
    problems = Problems()
    one, two, three = DNA.read([tmp_path / "w.bed"], problems, genome=str(unpacked))
    assert (one.raw, two.raw, three.raw) == (raw[100:400], reverse_complement(raw[100:400]), raw[48500:])
    assert problems.counts == {"a window clipped at the end of its contig": 1}
