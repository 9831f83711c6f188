"""FASTQ: qualities filter and trim, unequal lengths are named, broken reads do not take others with them."""

from __future__ import annotations

import gzip
from pathlib import Path

from written import refused, rows, written

from seqmlm.data.problems import Problems
from seqmlm.domains.dna.fastq import read_fastq

GOOD = "@r1 lane 1\nACGTN\n+\nIIIII\n@r2\nacgu\n+r2\n!!5I\n"


def test_reads(tmp_path: Path) -> None:
    one, two = read_fastq(written(tmp_path / "reads.fastq", GOOD), Problems())
    assert (one.id, one.raw, one.line, one.meta) == ("r1", "ACGTN", 1, {"quality": 40.0})
    assert (two.id, two.raw, two.line, two.meta) == ("r2", "acgt", 5, {"quality": 15.0})
    packed = written(tmp_path / "reads.fq.gz", gzip.compress(GOOD.replace("\n", "\r\n").encode()))
    assert [r.raw for r in read_fastq(packed, Problems())] == ["ACGTN", "acgt"]


def test_quality(tmp_path: Path) -> None:
    path, problems = written(tmp_path / "reads.fastq", GOOD), Problems()
    assert [r.id for r in read_fastq(path, problems, min_quality=20)] == ["r1"]
    assert problems.counts == {"a read of low quality, left out": 1}
    problems = Problems()
    assert [r.raw for r in read_fastq(path, problems, trim=10)] == ["ACGTN", "gt"]
    assert [r.raw for r in read_fastq(path, problems, trim=10, min_length=3)] == ["ACGTN"]
    assert problems.counts == {"a read trimmed at its ends": 2, "a read that is too short, left out": 1}
    assert [
        r.raw for r in read_fastq(written(tmp_path / "reads.fastq", "@a\nACG\n+\n!!!\n"), Problems(), trim=1)
    ] == []


def test_what_is_not_a_read_is_named_once_and_passed_over(tmp_path: Path) -> None:
    text = "@a\nACGT\n+\nIIII\nACGT\nACGT\nIII\n@b\nGGCC\n+\n@@@@\n@c\nAC\n"
    path = written(tmp_path / "reads.fastq", text)
    problems = refused(read_fastq, path, "not a read of four lines", ["ACGT", "GGCC"], line=5)
    assert problems.counts == {
        "not a read of four lines (@name, sequence, +, quality)": 1,
        "the file ends within a read": 1,
    }


def test_refused_reads_are_put_aside_whole(tmp_path: Path) -> None:
    bad = ["@a x\nACGT\n+\nIII", "AC\nGT\nII\nII", "@b\nACEF\n+\nIIII"]
    path = written(tmp_path / "reads.fastq", "\n".join([bad[0], bad[1], "@g\nAC\n+\nII", bad[2], "@t\nAC"]))
    aside = tmp_path / "aside.jsonl"
    with Problems("quarantine", aside) as problems:
        assert [r.id for r in read_fastq(path, problems)] == ["g"]
    assert [(one["line"], one["raw"]) for one in rows(aside)] == [
        (1, bad[0]),
        (5, bad[1]),
        (13, bad[2]),
        (17, "@t\nAC"),
    ]


def test_a_dot_is_a_base_that_was_not_called(tmp_path: Path) -> None:
    [read] = read_fastq(written(tmp_path / "reads.fastq", "@a\nAC.T\n+\nIIII\n"), Problems())
    assert read.raw == "ACNT"
