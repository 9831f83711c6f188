"""Plain text by lines and by paragraphs."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written import refused, written

from seqmlm.data.problems import Problems
from seqmlm.data.readers.text import read_txt
from seqmlm.domains.text import TEXT
from seqmlm.errors import DataError


def test_a_record_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "one\n \n\n  two \nthree")
    found = list(read_txt(path, Problems()))
    assert [(r.id, r.raw, r.line, r.source) for r in found] == [
        ("a.txt:1", "one", 1, str(path)),
        ("a.txt:4", "  two ", 4, str(path)),
        ("a.txt:5", "three", 5, str(path)),
    ]


def test_a_record_a_paragraph(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "\none\n two\n\t\n\nthree\nfour")
    found = [(r.raw, r.line) for r in read_txt(path, Problems(), paragraphs=True)]
    assert found == [("one\n two", 2), ("three\nfour", 6)]


@given(st.lists(st.lists(st.text("ab ", min_size=1).filter(str.strip), min_size=1), min_size=1))
def test_paragraphs_come_back_as_they_were(parts: list[list[str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "p.txt", "\n\n".join("\n".join(part) for part in parts))
        assert [r.raw for r in read_txt(path, Problems(), paragraphs=True)] == ["\n".join(p) for p in parts]


@pytest.mark.parametrize("end", ["", "\n\nlast"])
def test_a_paragraph_too_long_is_named(end: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", "first\n\n" + "twenty characters...\n" * 10 + end)
    kept, options = ["first", "last"] if end else ["first"], {"paragraphs": True, "max_bytes": 100}
    assert refused(read_txt, path, "a paragraph longer than", kept, line=3, **options).bad_count == 1


def test_a_refused_line_takes_its_paragraph(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"one\ntwo\n\nbad\n\xff\nworse\n\nthree\n\n\0\nfour\n\nfive\n")
    problems = Problems("skip")
    found = [(r.line, r.raw) for r in read_txt(path, problems, paragraphs=True)]
    assert found == [(1, "one\ntwo"), (8, "three"), (13, "five")]
    assert problems.bad_count == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "fünf Äpfel\n"),
        ("a.jsonl", '{"text": "fünf Äpfel"}\n'),
        ("a.csv", "text\nfünf Äpfel\n"),
        ("a.tsv", "text\tn\nfünf Äpfel\t5\n"),
    ],
)
def test_texts_and_tables_in_another_encoding(name: str, content: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, content.encode("latin-1"))
    [record] = TEXT.read([path], Problems(), encoding="latin-1")
    assert record.raw == "fünf Äpfel"
    with pytest.raises(DataError, match="bytes that are not UTF-8") as caught:
        list(TEXT.read([path], Problems()))
    assert "--option encoding=latin-1" in (caught.value.remedy or "")
    path.write_bytes(content.encode("cp437"))
    [record] = TEXT.read([path], Problems(), encoding=437)  # as --option reads a number
    assert record.raw == "fünf Äpfel"


@pytest.mark.parametrize("options", [{}, {"paragraphs": True}])
def test_fasta_is_no_text(options: dict[str, Any], tmp_path: Path) -> None:
    fasta = written(tmp_path / "p.fasta", ">sp|P1|A of a cell\nMKTAYIAKQR\nQISFVK*\n\n>sp|P2\nacgt-acgt\n")
    assert refused(read_txt, fasta, "FASTA where text was expected", [], line=1, **options).bad_count == 1
    for text in (">> no, he said\nAnd left\n", ">quoted\n> words\n", "A\n>b\n"):
        found = list(read_txt(written(tmp_path / "t.txt", text), Problems()))
        assert [one.raw for one in found] == text.split("\n")[:-1]


@pytest.mark.parametrize(
    "name", ["protein/deeploc/deeploc_our_val_set.fasta.gz", "dna/genomes/lambda_phage.fa.gz"]
)
def test_real_fasta_is_no_text(name: str, real_data: Path) -> None:
    with pytest.raises(DataError, match="FASTA where text was expected"):
        next(read_txt(real_data / name, Problems()))


@pytest.mark.parametrize("wrapped", [True, False])
def test_wrapped_paragraphs_are_said(wrapped: bool, tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    words = ["a", "word", "of", "sentences", "that", "another", "wrapped"]
    texts = [" ".join(chance.choice(words, size=chance.integers(5, 40))) for _ in range(300)]
    laid = "\n\n".join(fill("\n".join(texts[n : n + 10]), 70) for n in range(0, 300, 10))
    path = tmp_path / "t.txt"
    path.write_text(laid if wrapped else "\n".join([text[:110] for text in texts] * 2))
    problems = Problems()
    assert list(read_txt(path, problems))
    assert any("paragraphs=true" in reason for reason in problems.counts) == wrapped
    assert list(read_txt(path, whole := Problems(), paragraphs=True))
    assert not whole.counts
