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

from seqmlm.data.problems import Problems
from seqmlm.domains.dna.genbank import read_genbank
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
    path = tmp_path / "x.gbk.gz"
    path.write_bytes(gzip.compress(text.encode()))
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
    path.write_text(
        f"{first.split('ORIGIN  ')[0].split('ORIGIN')[0]}CONTIG      join(Y:1..4)\n//\nLOCUS{second}//\n"
    )
    with pytest.raises(DataError, match=r"x.gb:1: an entry without a sequence"):
        list(read_genbank(path, Problems()))
    problems = Problems("skip")
    assert [r.id for r in read_genbank(path, problems)] == ["X1.1"]
    path.write_text(f"{first}LOCUS{second}//\nLOCUS{third}".removesuffix("//\n"))
    with pytest.raises(DataError, match=r"x.gb:1: an entry without an end"):
        list(read_genbank(path, Problems()))
    problems = Problems("skip")
    assert [r.id for r in read_genbank(path, problems)] == ["X1.1"]
    assert problems.counts == {"an entry without an end": 2}
    path.write_text(">a\nACGT\nACGT\n" + entries("ACGT"))
    problems = Problems("skip")
    assert [r.id for r in read_genbank(path, problems)] == ["X0.1"]
    assert problems.counts == {"text outside of GenBank entries": 1}
    path.write_text(entries("MKVLE"))
    with pytest.raises(DataError, match=r"x.gb:1: a letter that stands for no nucleotide"):
        list(read_genbank(path, Problems()))
