"""Features of BED and GFF3 as labels of bases."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written import written

from seqmlm.data.examples import Example, LabelSource, Spans, examples
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna import DNA
from seqmlm.errors import DataError, UsageError

BED = "# made\ntrack name=x\nc\t2\t4\texon\t0\t+\nc\t6\t7\ttRNA\nd\t0\t9\texon\n"
GFF = "##gff-version 3\nc\tx\texon\t3\t4\t.\t+\t.\tID=a\nc\tx\ttRNA\t7\t7\t.\t+\t.\tID=b\n"


def record(raw: str = "ACGTACGTAC", **meta: Any) -> Record:
    document = "c" if meta else None
    return Record(id="c" if not meta else "c:1", raw=raw, source="g.fa", line=1, meta=meta, document=document)


def read(path: Path, *records: Record, problems: Problems | None = None, **options: Any) -> list[Example]:
    return list(examples(records, problems or Problems(), LabelSource(labels=str(path), **options)))


def plain(example: Example) -> list[tuple[int, int, str]]:
    assert isinstance(example.label, Spans)
    bounds = example.label.bounds.tolist()
    return [(*at, name) for at, name in zip(bounds, example.label.labels, strict=True)]


@pytest.mark.parametrize(("name", "text"), [("f.bed", BED), ("f.gff", GFF), ("f.gff3", f"{GFF}>c\n")])
def test_features_are_entities_of_their_part_of_a_sequence(name: str, text: str, tmp_path: Path) -> None:
    problems, path = Problems(), written(tmp_path / name, text)
    other = record("ACGT", start=3, strand="-")
    whole, part, back = read(path, record(), record("GTAC", start=3), other, problems=problems)
    assert plain(whole) == [(2, 4, "exon"), (6, 7, "tRNA")]
    assert plain(part) == [(0, 1, "exon"), (3, 4, "tRNA")]
    assert plain(back) == [(0, 1, "tRNA"), (3, 4, "exon")]
    assert all(one.label.entities_only for one in (whole, part, back))  # type: ignore[union-attr]
    assert problems.counts == ({"a label whose id matches no record, ignored": 1} if name == "f.bed" else {})
    (chosen,) = read(path, record(), columns=["tRNA"], dense=True)
    assert [label for *_, label in plain(chosen)] == ["none"] * 6 + ["tRNA"] + ["none"] * 3
    assert [at for at, *_ in plain(chosen)] == list(range(10))


@pytest.mark.parametrize("sensitive", [False, True])
def test_no_label_of_sensitive_data_is_named(sensitive: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "f.bed", "c\t0\t4\tHIV\nc\t3\t5\tHBV\n")
    for columns in ((), ("HCV",)):
        with pytest.raises(DataError) as told:
            read(path, record(), problems=Problems(sensitive=sensitive), columns=columns)
        assert any(name in str(told.value) for name in ("HIV", "HBV")) is not sensitive


def test_features_of_a_window_count_from_its_first_base(tmp_path: Path) -> None:
    (one,) = read(written(tmp_path / "f.bed", "c:1\t1\t3\ta\n"), record("GTAC", start=3, strand="-"))
    assert plain(one) == [(1, 3, "a")]
    with pytest.raises(DataError, match="a feature ends after the end of its sequence"):
        read(written(tmp_path / "f.bed", "c:1\t1\t5\ta\n"), record("GTAC", start=3))


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("f.bed", BED + "c\t3\t5\tgene\n", {}, "f.bed:6: .* overlaps a feature with another label"),
        ("f.bed", "c\t1\t2\n", {}, "f.bed:1: a feature without a label .*column 4"),
        ("f.bed", "c\t2\t2\ta\n", {}, "f.bed:1: an empty feature"),
        ("f.bed", "c\tone\t2\ta\n", {}, "f.bed:1: not a BED window"),
        ("f.gff", GFF + "c\tx\texon\t0\t4\t.\t+\t.\tID=a\n", {}, "f.gff:4: a start and an end that are no"),
        ("f.gff", GFF, {"columns": ["gene"]}, "no feature has the requested label 'gene' .*exon, tRNA"),
        ("f.gff", GFF, {"columns": ["exon", "trna"]}, "no feature has the requested label 'trna' .*: tRNA"),
        ("f.bed", "c\t2\t11\texon\n", {}, "g.fa:1: a feature ends after the end of its sequence"),
        ("f.bed", "chr1\t2\t4\texon\n", {}, "no id in this file .*: 'chr1' in this file, 'c' in the records"),
    ],
)  # fmt: skip
def test_features_that_cannot_label(
    name: str, text: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        read(written(tmp_path / name, text), record(), **options)
    with pytest.raises(UsageError, match="a mask needs labels in FASTA"):
        LabelSource(labels=name, mask="m.fasta")


def test_features_of_a_label_that_overlap_are_one(tmp_path: Path) -> None:
    text = "c\t0\t4\ta\nc\t2\t3\ta\nc\t3\t6\ta\nc\t6\t8\ta\n"
    (one,) = read(written(tmp_path / "f.bed", text), record())
    assert plain(one) == [(0, 6, "a"), (6, 8, "a")]


@pytest.mark.parametrize(("genome", "table"), [("chr1", "1"), ("1", "chr1"), ("chrM", "MT")])
def test_a_chromosome_has_the_features_of_its_other_name(genome: str, table: str, tmp_path: Path) -> None:
    path = written(tmp_path / "f.bed", f"{table}\t2\t5\ta\nchr2\t0\t1\tb\n")
    whole = replace(record(), id=genome)
    part = replace(record("GTAC", start=3), id="2", document=genome)  # a window's name is no chromosome
    assert [plain(one) for one in read(path, whole, part)] == [[(2, 5, "a")], [(0, 2, "a")]]


def test_coding_bases_of_arabidopsis_in_blocks(real_data: Path) -> None:
    genome, table = (real_data / f"dna/genomes_1pct/A.thaliana.{end}.gz" for end in ("fa", "gff"))
    blocks = list(DNA.read([genome], Problems()))
    coding = {one.document: np.zeros(400_000, bool) for one in blocks}
    for line in gzip.decompress(table.read_bytes()).decode().splitlines():
        name, _, kind, start, end, *_ = line.split("\t")
        if kind == "CDS":
            coding[name][int(start) - 1 : int(end)] = True
    source = LabelSource(labels=str(table), columns=["CDS"], dense=True)
    made = list(examples(DNA.read([genome], Problems(), scoring=True), Problems(), source))
    assert len(made) > 70
    for one in made:
        places = one.label.bounds[:, 0] + one.record.meta.get("start", 0)  # type: ignore[union-attr]
        true = coding[one.record.document][places]
        assert [label == "CDS" for *_, label in plain(one)] == true.tolist()
    bases = sum(len(one.raw) for one in blocks)
    assert sum(len(plain(one)) for one in made) == bases, "each base is labelled once"
