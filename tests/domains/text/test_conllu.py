"""CoNLL-U sentences with their syntax."""

from __future__ import annotations

from pathlib import Path

import pytest
from written import refused, written

from seqmlm.data.problems import Problems
from seqmlm.domains.text.conllu import read_conllu


def row(number: str, form: str, head: str = "0", misc: str = "_") -> str:
    return "\t".join([number, form, "_", "NOUN", "NN", "_", head, "dep", "_", misc])


SAMPLE = "\n".join(
    [
        "# newdoc id = book",
        "# sent_id = s1",
        "# text = Don't go.",
        row("1-2", "Don't"),
        row("1", "Do", "3"),
        row("2", "n't", "3"),
        row("3", "go", "0", "SpaceAfter=No"),
        row("3.1", "gone", "_"),
        row("4", ".", "3"),
        "",
        "# no text here",
        row("1", "I", "2"),
        row("2", "am", "0", "X=y|SpaceAfter=No"),
        row("3", "!", "2"),
        "",
        "# newdoc",
        row("1", "End"),
    ]
)


def test_sentences_documents_and_syntax(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conllu", SAMPLE)
    first, second, third = read_conllu(path, Problems())
    assert (first.id, first.raw, first.line, first.document) == ("s1", "Don't go.", 1, "book")
    assert first.meta["words"] == ["Do", "n't", "go", "."]
    assert first.meta["heads"] == [3, 3, 0, 3]
    assert first.meta["spans"] == [(0, 5), (0, 5), (6, 8), (8, 9)]
    assert first.meta["upos"] == ["NOUN"] * 4
    assert (second.id, second.raw, second.line, second.document) == ("a.conllu:11", "I am!", 11, "book")
    assert (third.raw, third.document) == ("End", "a.conllu:16")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\tword", "2 columns where CoNLL-U has 10"),
        (row("one", "word"), "the first column is not a word number"),
        (row("1", "word", "up"), "HEAD is not a word number"),
    ],
)
def test_a_bad_line_costs_its_sentence(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("\n".join([row("1", "Fine"), "", "# text = bad", line, "", row("1", "Good"), ""]))
    assert refused(read_conllu, path, message, ["Fine", "Good"], line=4).counts == {message: 1}


def test_comments_alone_are_noted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conllu", "# global.columns = ID FORM\n\n" + row("1", "Good") + "\n")
    problems = Problems()
    assert len(list(read_conllu(path, problems))) == 1
    assert problems.counts == {"comments without a sentence": 1}


def test_a_refused_line_takes_its_sentence(tmp_path: Path) -> None:
    word = b"\t%b\t_\tX\t_\t_\t0\troot\t_\t_\n"
    path = tmp_path / "a.conllu"
    path.write_bytes(b"1" + word % b"one" + b"2" + word % b"t\xffo" + b"\n1" + word % b"fine" + b"\n")
    problems = Problems("skip")
    assert [record.raw for record in read_conllu(path, problems)] == ["fine"]
    assert problems.bad_count == 1


@pytest.mark.parametrize("place", ["1-999999999", "9" * 5000, "\u00b2", "1-" + "9" * 5000])
def test_an_absurd_word_number_is_one_bad_sentence(place: str, tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    word = "\tx\t_\tX\t_\t_\t0\troot\t_\t_\n"
    path.write_text(f"{place}{word}\n1{word}\n")
    problems = Problems("skip")
    assert [record.raw for record in read_conllu(path, problems)] == ["x"]
    assert problems.bad_count == 1
