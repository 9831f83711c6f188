"""GenBank against Biopython; entries without a sequence or an end are named and take no other with them."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pytest
from Bio import SeqIO
from Bio.Seq import Seq
from Bio.SeqFeature import FeatureLocation, SeqFeature
from Bio.SeqRecord import SeqRecord
from written import refused, written

from seqmlm.data.problems import Problems
from seqmlm.domains.dna.genbank import read_embl, read_genbank, read_rna_families
from seqmlm.domains.dna.nucleotides import read_genome, read_rows
from seqmlm.errors import DataError


def entries(*sequences: str) -> str:
    out = io.StringIO()
    made = [
        SeqRecord(
            Seq(letters),
            id=f"X{i}.1",
            name=f"X{i}",
            description="a phage with a name that is long enough to need more than one line of the file",
            annotations={"molecule_type": "DNA", "comment": "ORIGIN\nVERSION of a comment"},
            features=[SeqFeature(FeatureLocation(0, 2), type="gene", qualifiers={"note": ["// x"]})],
        )
        for i, letters in enumerate(sequences)
    ]
    SeqIO.write(made, out, "genbank")
    return out.getvalue()


def test_as_biopython_reads_it(tmp_path: Path) -> None:
    source = random.Random(0)
    text = entries("A", *("".join(source.choices("ACGTN", k=k)) for k in (60, 61, 700, 130_000)))
    path = written(tmp_path / "x.gbk.gz", gzip.compress(text.encode()))
    wanted = list(SeqIO.parse(io.StringIO(text), "genbank"))
    found = list(read_genbank(path, Problems(), block=200_000))
    assert [(r.document, r.meta["description"]) for r in found] == [(w.id, w.description) for w in wanted]
    for record, entry in zip(found, wanted, strict=True):
        start = record.meta.get("start", 0)
        assert str(entry.seq).upper().strip("N") == record.raw.upper()
        assert str(entry.seq)[start : start + len(record.raw)].upper() == record.raw.upper()
        assert text.splitlines()[record.line - 1].startswith("LOCUS")
    parts = [r for r in read_genbank(path, Problems(), block=500) if r.document == "X4.1"]
    assert [r.meta["start"] // 500 for r in parts] == list(range(260))


def test_bad_entries_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gb"
    first, second, third = entries("ACGT", "GGCC", "TTTT").split("//\nLOCUS")
    path.write_text(f"{first[: first.rindex('ORIGIN')]}CONTIG      join(Y:1..4)\n//\nLOCUS{second}//\n")
    refused(read_genbank, path, "an entry without a sequence", ["GGCC"], line=1)
    path.write_text(f"{first}LOCUS{second}//\nLOCUS{third}".removesuffix("//\n"))
    problems = refused(read_genbank, path, "an entry without an end", ["GGCC"], line=1)
    assert problems.counts == {"an entry without an end": 2}
    path.write_text(">a\nACGT\nACGT\n" + entries("ACGT"))
    problems = Problems("skip")
    assert [r.id for r in read_genbank(path, problems)] == ["X0.1"]
    assert problems.counts == {"text outside of GenBank entries": 1}
    path.write_text(entries("MKVLE"))
    with pytest.raises(DataError, match=r"x.gb:1: a letter that is not a nucleotide code"):
        list(read_genbank(path, Problems()))


def test_embl_gives_what_genbank_gives(tmp_path: Path) -> None:
    source = random.Random(1)
    letters = ["".join(source.choices("ACGTN", k=k)) for k in (60, 700, 40_000)]
    genbank, embl = tmp_path / "x.gb", tmp_path / "x.embl.gz"
    genbank.write_text(entries(*letters))
    found = io.StringIO()
    SeqIO.write(list(SeqIO.parse(io.StringIO(genbank.read_text()), "genbank")), found, "embl")
    embl.write_bytes(gzip.compress(found.getvalue().encode()))
    wanted = [(r.id, r.raw.upper(), r.meta) for r in read_genbank(genbank, Problems(), block=500)]
    records = list(read_embl(embl, Problems(), block=500))
    assert [(r.id, r.raw.upper(), r.meta) for r in records] == wanted
    assert all(found.getvalue().splitlines()[r.line - 1].startswith("ID ") for r in records)


def test_bad_embl_entries_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.embl"
    good = (
        "ID   X{}; SV 1; linear; genomic DNA; STD; PRO; 4 BP.\nXX\nSQ   Sequence 4 BP;\n     acgt    4\n//\n"
    )
    empty = "ID   Y; SV 1; linear; genomic DNA; STD; PRO; 4 BP.\nXX\nCO   join(X1.1:1..4)\n//\n"
    path.write_text(
        "nothing\n//\n" + good.format(1) + empty + good.format(2).replace("acgt", "aqgt") + "ID   Z\n"
    )
    problems = Problems("skip")
    assert [(r.id, r.raw, r.line) for r in read_embl(path, problems)] == [("X1.1", "ACGT", 3)]
    assert problems.places == {
        "an EMBL entry that cannot be read": f"{path}:1",
        "an EMBL entry without a sequence": f"{path}:8",
        "a letter that is not a nucleotide code": f"{path}:12",
        "an entry without an end": f"{path}:17",
    }


def test_rna_families_are_spelled_as_dna(real_data: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "x.sto", "# STOCKHOLM 1.0\na GG-ug.\nb MKVLWE\n//\n")
    problems = Problems("skip")
    assert [(r.id, r.raw) for r in read_rna_families(path, problems)] == [("a", "GGTG")]
    assert problems.counts == {"a letter that is not a nucleotide code": 1}
    assert [one.raw for one in read_rna_families(path, problems, gaps="keep")] == ["GG-TG-"]
    rows = written(tmp_path / "x.a3m", ">q\nGG-UR\n>b\nG.acG-TA\n")
    assert [one.raw for one in read_rows(rows, problems, gaps="keep")] == ["GG-TN", "GG-TA"]
    assert [one.raw for one in read_rows(rows, problems)] == ["GGT", "GACGTA"]  # no N at the end of a contig
    assert [one.raw for one in read_genome(rows, problems, gaps="keep")] == ["GG-TN", "G-ACG-TA"]
    folder = real_data / "dna/rna_structure"
    assert sum(1 for _ in read_rna_families(folder / "tRNA1415G.sto.gz", Problems())) == 1415
    assert sum(1 for _ in read_rna_families(folder / "5S_rRNA.sto.gz", Problems())) == 712
