"""FASTA and A3M against Biopython's reader, wherever blocks end."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from Bio import SeqIO
from hypothesis import given
from hypothesis import strategies as st
from written import in_blocks, written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.fasta import read_a3m, read_fasta
from seqmlm.data.record import Record
from seqmlm.errors import DataError

LETTERS = "ACDEFGHIKLMNPQRSTVWYXBUZOacd"
headers = st.text("abc12|_. >;", max_size=12).map(lambda h: h.lstrip(" >"))
sequences = st.text(LETTERS, min_size=1, max_size=60)


def read_blocks(data: bytes, size: int, reader: object = read_fasta, **options: object) -> list[Record]:
    """Read from memory, in blocks of a given size."""
    with in_blocks(data, size):
        return list(reader("x.fasta", Problems(), **options))  # type: ignore[operator]


@given(st.lists(st.tuples(headers, sequences), min_size=1, max_size=8), st.data())
def test_as_biopython_reads_it(entries: list[tuple[str, str]], data: st.DataObject) -> None:
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    text, wanted_lines, line = "", [], 1
    for header, sequence in entries:
        width = data.draw(st.integers(1, 20))
        wrapped = [sequence[i : i + width] for i in range(0, len(sequence), width)]
        blank = data.draw(st.integers(0, 2))
        text += f">{header}{end}" + "".join(part + end for part in wrapped) + end * blank
        wanted_lines.append(line)
        line += 1 + len(wrapped) + blank
    text = text if data.draw(st.booleans()) else text.rstrip("\r\n")
    found = read_blocks(text.encode(), data.draw(st.integers(1, 50)))
    wanted = list(SeqIO.parse(io.StringIO(text, newline=None), "fasta"))
    assert [r.raw for r in found] == [str(w.seq).upper() for w in wanted]
    assert [r.line for r in found] == wanted_lines
    ids = [header.split(" ")[0] if header.strip() else "" for header, _ in entries]
    assert [r.id for r in found] == [i or f"x.fasta:{n}" for i, n in zip(ids, wanted_lines, strict=True)]


def test_what_is_kept_and_what_goes() -> None:
    data = b">sp|P1|A  some protein \nMKV-lx.\nAA**\n>b\nMUZOB*\n"
    found = read_blocks(data, 1000)
    assert found[0] == Record(
        id="sp|P1|A",
        raw="MKVLXAA*",  # one stop goes; a second is not the end of a protein
        source="x.fasta",
        line=1,
        meta={"description": " some protein"},
    )
    assert found[1].raw == "MUZOB"
    assert read_blocks(data, 1000, gaps="keep")[0].raw == "MKV-LX.AA*"
    assert read_blocks(data, 1000, keep_case=True)[0].raw == "MKVlxAA*"


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("id,sequence\na,MKV\nb,MKL\n", True),
        ("\nid\tsequence\n\na\tMKV, of a cow\n", True),
        ("id,sequence\n" + "a,MKV\n" * 999, True),
        ("id,sequence\n", False),
        ("Produced by Ann, Bob, and Carl\n\nThe first chapter\nIt rained, and so on\n", False),
        ("one\ntwo\n", False),
        ("id,sequence\na,MKV\n>b\nMK\n", True),
    ],
)
def test_a_table_is_told_from_prose(tmp_path: Path, text: str, table: bool) -> None:
    path = tmp_path / "x.fasta"
    path.write_text(text)
    with pytest.raises(DataError, match=r"text before the first '>'") as told:
        list(read_fasta(path, Problems()))
    assert ("looks like a table" in str(told.value)) == table


def test_bad_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.fasta"
    path.write_bytes(b"\n\nstray\n>a\nMK\n>empty\n\n>c\nM\xc3\xa9K\n>d\nMV\n>a\nMK\n>gaps\n--\n")
    with pytest.raises(DataError, match=r"bad.fasta:3: text before the first '>'"):
        list(read_fasta(path, Problems()))
    problems = Problems("skip")
    found = [(r.id, r.raw, r.line) for r in read_fasta(path, problems)]
    assert found == [("a", "MK", 4), ("d", "MV", 10), ("a", "MK", 12)]
    assert problems.counts == {
        "a FASTA record without a sequence": 1,
        "a row of gaps only, left out": 1,
        "a sequence with bytes that are not ASCII": 1,
        "an id that occurred earlier in the file: both records are kept and share it": 1,
        "text before the first '>'": 1,
    }
    path.write_bytes(b">a\nMK\n>empty\n>c\nMV\n")
    with pytest.raises(DataError, match=r"bad.fasta:3: a FASTA record without a sequence"):
        list(read_fasta(path, Problems()))


@given(st.integers(1, 60), st.integers(10, 40))
def test_a_record_too_long_is_named_and_lines_still_count(size: int, limit: int) -> None:
    data = b">a\nMKV\n>long one\n" + b"MKVLA\n" * 20 + b">c\nMV\n"
    problems = Problems("skip")
    with in_blocks(data, size):
        found = [(r.id, r.line) for r in read_fasta("x", problems, max_bytes=limit)]
    assert found == [("a", 1), ("c", 24)]
    assert problems.bad_count == 1


def test_a_broken_gzip_gives_no_torso(tmp_path: Path) -> None:
    text = "".join(f">p{i}\n{'MKVLAAGICW' * 30}\n" for i in range(2000)).encode()
    packed = gzip.compress(text, mtime=0)
    path = written(tmp_path / "cut.fasta.gz", packed[: len(packed) * 2 // 3])
    problems = Problems("skip")
    found = list(read_fasta(path, problems))
    assert 100 < len(found) < 2000
    assert {r.raw for r in found} == {"MKVLAAGICW" * 30}
    assert problems.bad_count == 1
    with pytest.raises(DataError, match="truncated") as caught:
        list(read_fasta(path, Problems()))
    assert caught.value.line >= found[-1].line


def test_a3m(tmp_path: Path) -> None:
    path = tmp_path / "a.a3m"
    path.write_text("#A3M#\n>ss_pred\nHHHH\n>query\nMK-V\nL\n>hit x\nM-aa.kVVLg\n>none\n---.--\n")
    problems = Problems("skip")
    found = list(read_a3m(path, problems))
    assert [(r.id, r.raw, dict(r.meta)) for r in found] == [
        ("query", "MKVL", {"query": True}),
        ("hit", "MAAKVVLG", {"description": "x"}),
    ]
    assert problems.bad_count == 0
    aligned = [r.raw for r in read_a3m(path, Problems("skip"), gaps="keep")]
    assert aligned == ["MK-VL", "M-VVL", "-----"]
    assert problems.counts["structure row of an alignment left out"] == 1
    assert problems.counts["a comment before the first '>'"] == 1


def test_a_dot_is_not_left_out_without_a_word(tmp_path: Path) -> None:
    path = written(tmp_path / "a.fa", ">stop a.b\nMK.VL\n>row\nMK.-VL\n>insert\nMK.vl\n>plain v1.2\nMKVL\n")
    problems = Problems()
    assert [record.raw for record in read_fasta(path, problems)] == ["MKVL"] * 4
    assert [(reason[:22], n) for reason, n in problems.counts.items()] == [("a sequence with '.' an", 1)]
    assert [*problems.places.values()] == [f"{path}:1"]
    path.write_text(">query\nMK.VL\n>hit\nMKaVL\n")  # of A2M, whose dots are of insertions
    for gaps in ("drop", "keep"):
        assert list(read_a3m(path, problems := Problems(), gaps=gaps))
        assert not problems.counts
