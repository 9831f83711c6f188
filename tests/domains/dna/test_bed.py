"""BED windows on an indexed genome: strand, ends, names of contigs, and what is not BED."""

from __future__ import annotations

from pathlib import Path

import pytest
from Bio import bgzf
from written import refused, written

from seqmlm.data.problems import Problems
from seqmlm.domains.dna import bed
from seqmlm.domains.dna.bed import read_bed
from seqmlm.errors import DataError, UsageError

CHR1, MITO = "ACGTTGCAAC" * 7 + "NNacgtr", "GGGGCCCATT"


def genome(folder: Path, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wrapped = "".join(CHR1[i : i + 30] + "\n" for i in range(0, len(CHR1), 30))
    text = f">chr1 one\n{wrapped}>MT\n{MITO}\n"
    path = folder / ("g.fa.gz" if packed else "g.fa")
    if packed:
        with bgzf.open(str(path), "wb") as out:
            out.write(text.encode())
    else:
        path.write_text(text)
    return path


def windows(folder: Path, text: str) -> Path:
    return written(folder / "w.bed", text)


@pytest.mark.parametrize("packed", [False, True])
def test_windows(tmp_path: Path, packed: bool) -> None:
    fasta = genome(tmp_path, packed)
    text = "track name=x\n# a remark\n1\t3\t9\nchr1\t0\t4\tpeak\t0\t-\n\nchrM\t5\t99\nchr1\t70\t77\n"
    problems = Problems()
    found = list(read_bed(windows(tmp_path, text), problems, genome=str(fasta)))
    assert [(r.id, r.raw, r.line) for r in found] == [
        ("chr1:3-9(+)", CHR1[3:9], 3),
        ("peak", "ACGT", 4),
        ("MT:5-10(+)", MITO[5:], 6),
        ("chr1:70-77(+):2-6", "acgt", 7),
    ]
    assert found[1].meta == {"contig": "chr1", "start": 0, "strand": "-"}
    assert found[0].document == "chr1"
    assert found[3].meta["start"] == 72
    assert problems.counts["a window clipped at the end of its contig"] == 1
    assert problems.bad_count == 0
    assert packed or (tmp_path / "g.fa.fai").exists()


def test_the_other_strand_of_a_window_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = windows(tmp_path, "chr1\t2\t12\tw\t0\t-\n")
    monkeypatch.setattr(bed, "_STRETCH", 3)
    found = list(read_bed(path, Problems(), genome=str(genome(tmp_path)), block=4))
    turned = "".join({"A": "T", "C": "G", "G": "C", "T": "A"}[b] for b in reversed(CHR1[2:12]))
    assert [r.raw for r in found] == [turned[:4], turned[4:8], turned[8:]]
    assert [r.meta["start"] for r in found] == [8, 4, 2]


@pytest.mark.parametrize("head", ["##fileformat=VCFv4.2\n", "#CHROM\tPOS\tID\tREF\tALT\n"])
def test_a_vcf_is_refused_with_its_line(tmp_path: Path, head: str) -> None:
    path = windows(tmp_path, head + "chr1\t5\trs1\tA\tG\n")
    said, fasta = "a VCF file where BED windows were expected", str(genome(tmp_path))
    assert refused(read_bed, path, said, [], line=1, genome=fasta).bad_count == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("chr1\t5\trs1\tA\tG", "not a BED window"),
        ("chr1\t5", "not a BED window"),
        pytest.param("chr1\t5\t" + "9" * 5000, "not a BED window", id="a number of 5000 digits"),
        ("chr9\t5\t9", "a contig that the genome does not have"),
        ("chr1\t9\t9", "an empty window"),
        ("chr1\t500\t600", "an empty window"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, said: str) -> None:
    path = windows(tmp_path, f"chr1\t0\t4\n{line}\nchr1\t4\t8\n")
    refused(read_bed, path, said, [CHR1[:4], CHR1[4:8]], line=2, genome=str(genome(tmp_path)))


def test_the_genome_must_be_named_and_readable(tmp_path: Path) -> None:
    path = windows(tmp_path, "chr1\t0\t4\n")
    with pytest.raises(UsageError, match="--option genome="):
        list(read_bed(path, Problems()))
    with pytest.raises(DataError, match="no such genome file"):
        list(read_bed(path, Problems(), genome=str(tmp_path / "none.fa")))
    (tmp_path / "bad.fa").write_text(">a\nACGT\nAC\nACGTACGT\n")
    with pytest.raises(DataError, match="cannot be indexed"):
        list(read_bed(path, Problems(), genome=str(tmp_path / "bad.fa")))


@pytest.mark.parametrize("packed", [False, True])
def test_the_index_goes_elsewhere_where_the_folder_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setattr(bed.os, "access", lambda *_: False)
    monkeypatch.setattr(bed.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    fasta = genome(tmp_path / "data", packed)
    path = windows(tmp_path, "chr1\t0\t4\n")
    assert [r.raw for r in read_bed(path, Problems(), genome=str(fasta))] == ["ACGT"]
    assert [r.raw for r in read_bed(path, Problems(), genome=str(fasta))] == ["ACGT"]
    assert [p.name for p in (tmp_path / "data").iterdir()] == [fasta.name]
    assert len(list((tmp_path / "tmp").rglob("*.fai"))) == 1
