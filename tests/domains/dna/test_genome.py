"""Genomes in FASTA: blocks of long contigs, runs of N, soft masks, letters of proteins."""

from __future__ import annotations

import gzip
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import in_blocks, rows

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.dna import DNA, nucleotides
from seqmlm.domains.dna.nucleotides import own_range, read_genome
from seqmlm.errors import DataError, UsageError


def read(
    data: bytes, problems: Problems | None = None, *, size: int = 1 << 20, **options: int
) -> list[Record]:
    with in_blocks(data, size):
        return list(read_genome("g.fa", problems or Problems(), **options))


def test_letters() -> None:
    problems = Problems()
    [one, two] = read(b">a some contig\nACGTacgt\nNRyU\n>b\r\nuu--CC\r\nG.A\r\n", problems)
    assert one == Record(
        id="a", raw="ACGTacgtNNnT", source="g.fa", line=1, document="a", meta={"description": "some contig"}
    )
    assert (two.raw, two.line) == ("ttCCGA", 4)
    assert problems.counts == {"ambiguous bases (IUPAC codes), read as N": 2}


def test_blocks_have_bases() -> None:
    with pytest.raises(UsageError, match="block=0: a block must have at least one base"):
        read(b">a\nACGT\n", block=0)


contigs = st.lists(
    st.lists(st.sampled_from(["ACGT", "acg", "T", "N", "NNNN", "NNNNNNNN"]), min_size=1, max_size=25),
    min_size=1,
    max_size=4,
)


@given(contigs=contigs, data=st.data())
def test_blocks_hold_every_base_at_its_place(contigs, data):
    texts = ["".join(parts) for parts in contigs]
    block, gap = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 10))
    width = data.draw(st.integers(1, 20))
    raw = "".join(f">c{i} x\n" + re.sub(f"(.{{1,{width}}})", r"\1\n", text) for i, text in enumerate(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nucleotides, "_SPILL", data.draw(st.integers(1, 40)))
        problems = Problems()
        found = read(raw.encode(), problems, size=data.draw(st.integers(1, 50)), block=block, max_n=gap)
    left_out = 0
    for i, text in enumerate(texts):
        rest = list(text)
        for record in (r for r in found if r.document == f"c{i}"):
            assert raw.splitlines()[record.line - 1] == f">c{i} x"
            assert len(record.raw) <= block
            assert not re.search(f"N{{{gap + 1},}}|^N|N$", record.raw)
            start = record.meta.get("start", 0)
            assert text[start : start + len(record.raw)] == record.raw
            rest[start : start + len(record.raw)] = " " * len(record.raw)
            if "contig" in record.meta:
                assert record.id == f"c{i}:{start}-{start + len(record.raw)}"
            else:
                assert (record.id, record.raw) == (f"c{i}", text)
        assert not set(rest) - {" ", "N"}
        left_out += rest.count("N")
    counts = dict(problems.counts)
    assert counts.pop("a sequence of only N, left out", 0) == sum(set(text) == {"N"} for text in texts)
    assert sum(counts.values()) == left_out


@given(contigs=contigs, data=st.data())
def test_blocks_that_are_scored_come_with_their_neighbours(contigs, data):
    texts = ["".join(parts) for parts in contigs]
    block, max_n, context = (data.draw(st.integers(low, 12)) for low in (1, 0, 1))
    raw = "".join(f">c{i}\n{text}\n" for i, text in enumerate(texts)).encode()
    options = {"size": data.draw(st.integers(1, 50)), "block": block, "max_n": max_n}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nucleotides, "_SPILL", data.draw(st.integers(1, 40)))
        alone = read(raw, Problems("skip"), **options)
        beside = read(raw, Problems("skip"), **options, context=context)
    assert [one.id for one in beside] == [one.id for one in alone], "they are the same blocks"
    for one, other in zip(beside, alone, strict=True):
        first, stop = own_range(one)
        assert one.raw[first:stop] == other.raw
        assert DNA.keys.identity(one) == DNA.keys.identity(other)
        text = texts[int(one.document[1:])]
        start, from_start = one.meta.get("start", 0), other.meta.get("start", 0)
        assert start + first == from_start
        assert first <= context
        assert len(one.raw) - stop <= context
        if "contig" not in one.meta:
            assert one == other
            continue
        assert one.raw == text[start : start + len(one.raw)]
        assert not set(one.raw[:first] + one.raw[stop:]) & set("Nn")
        # Where it has less than it might, the contig ends there, N begin there, or bases are left out there.
        begins, ends = from_start, from_start + len(other.raw)
        if begins % block == 0 and first < context:
            assert start == 0 or text[start - 1] in "Nn"
        if ends % block == 0 and len(one.raw) - stop < context:
            end = start + len(one.raw)
            assert end == len(text) or text[end] in "Nn"


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_long_contig_takes_little_memory(end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "long.fa.gz"
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(b">chr1\n")
        for _ in range(300):
            out.write((b"ACGTTGCA" * 10 + end) * 1000)
    tracemalloc.start()
    bases = sum(len(record.raw) for record in read_genome(path, Problems()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bases == 300 * 1000 * 80
    assert peak < 12 << 20


def test_a_protein_is_refused_once_and_the_rest_is_read() -> None:
    data = b">p\nMKVLAAGIE\n" + b"QQQ\n" * 50 + b">empty\n>d\nACGT\n"
    with pytest.raises(DataError, match=r"g.fa:1: a letter that is not a nucleotide code.*--domain protein"):
        read(data)
    problems = Problems("skip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nucleotides, "_SPILL", 20)
        found = read(data, problems, size=16)
    assert [(r.id, r.line) for r in found] == [("d", 54)]
    assert problems.bad_count == 2
    assert problems.counts["a record without a sequence"] == 1


def test_a_refused_record_is_put_aside_whole(tmp_path: Path) -> None:
    with Problems("quarantine", tmp_path / "q.jsonl") as problems:
        read(b">p x\n" + b"MKVLAAGIE\n" * 200, problems)
    [refused] = rows(tmp_path / "q.jsonl")
    assert refused["raw"].split("\n") == [">p", *["MKVLAAGIE"] * 200]


def test_text_before_the_first_record() -> None:
    with pytest.raises(DataError, match=r"g.fa:1: text before the first '>'"):
        read(b"ACGT\n>a\nACGT\n")
