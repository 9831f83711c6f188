"""CoNLL-U sentences with their syntax, and sentences with a tag a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from written import refused, written

from seqmlm.data.examples import LabelSource, Spans, examples
from seqmlm.data.problems import Problems
from seqmlm.data.tags import entities, scheme_of
from seqmlm.domains.text import TEXT
from seqmlm.domains.text.conllu import read_conll, read_conllu
from seqmlm.errors import UsageError


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
        ("1\tword", "2 columns, but CoNLL-U has 10"),
        (row("one", "word"), "the first column is not a word number"),
        (row("1", "word", "up"), "HEAD is not a word number"),
        ("1\tt\udcffo\t_", "bytes that are not UTF-8"),
        (row("\u00b2", "word"), "the first column is not a word number"),
        *(
            (row(n, "word"), "a word number that is too large")
            for n in ("1-999999999", "9" * 5000, "1-" + "9" * 5000)
        ),
    ],
)
def test_a_bad_line_costs_its_sentence(line: str, message: str, tmp_path: Path) -> None:
    text = "\n".join([row("1", "Fine"), "", "# text = bad", row("1", "bad"), line, "", row("1", "Good"), ""])
    path = written(tmp_path / "a.conllu", text.encode(errors="surrogateescape"))
    assert refused(read_conllu, path, message, ["Fine", "Good"], line=5).counts == {message: 1}


def test_comments_alone_are_noted(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conllu", "# global.columns = ID FORM\n\n" + row("1", "Good") + "\n")
    problems = Problems()
    assert len(list(read_conllu(path, problems))) == 1
    assert problems.counts == {"comments without a sentence": 1}


# Columns

TWO = "# about nothing\nEU B-ORG\nrejects O\n\n-DOCSTART- O\n\n# O\n#tag O\nBrexit  B-MISC\n"


def test_words_and_tags(tmp_path: Path) -> None:
    path = written(tmp_path / "a.bio", TWO)
    first, second = TEXT.read([path], Problems())
    assert (first.id, first.raw, first.line, first.document) == ("a.bio:1", "EU rejects", 1, None)
    assert first.meta == {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"], "spans": [(0, 2), (3, 10)]}
    assert (second.raw, second.line, second.document) == ("# #tag Brexit", 7, "a.bio:5")
    assert second.meta["tags"] == ["O", "O", "B-MISC"]
    (example,) = examples([first], Problems(), LabelSource())
    assert isinstance(example.label, Spans)
    assert (example.label.bounds.tolist(), example.label.labels) == ([[0, 2], [3, 10]], ("B-ORG", "O"))


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("U.N. NNP I-NP I-ORG\nand CC O O\n", {}, [("U.N.", "I-ORG"), ("and", "O")]),
        ("U.N. NNP I-NP I-ORG\n", {"tag": 2}, [("U.N.", "NNP")]),
        ("1\tRome\tB-LOC\t-\t-\n2\tis\tO\t-\t-\n", {}, [("Rome", "B-LOC"), ("is", "O")]),
        ("1\tRome\tB-LOC\tO\n", {"tag": 4}, [("Rome", "O")]),
        ("O\tRome\nB-X\tis\n", {"word": 2, "tag": 1}, [("Rome", "O"), ("is", "B-X")]),
        ("#Rome\tO\n \t\n", {}, [("#Rome", "O")]),
        ("New York\tB-LOC\n", {}, [("New York", "B-LOC")]),
        ("".join(f"{row(str(n), 'w')}\n" for n in (1, 2)), {"word": 2, "tag": 4}, [("w", "NOUN")] * 2),
    ],
)
def test_which_columns(
    text: str, options: dict[str, int], words: list[tuple[str, str]], tmp_path: Path
) -> None:
    (one,) = read_conll(written(tmp_path / "a.conll", text), Problems(), **options)
    assert list(zip(one.meta["words"], one.meta["tags"], strict=True)) == words
    assert [one.raw[start:end] for start, end in one.meta["spans"]] == [word for word, _ in words]


def test_ten_columns_are_conllu(tmp_path: Path) -> None:
    paths = [written(tmp_path / name, SAMPLE) for name in ("a.conll", "b.conllu")]
    one, other = (
        [(r.raw, r.document and r.document[-2:], r.meta) for r in TEXT.read([p], Problems())] for p in paths
    )
    assert one == other
    assert one[0][2]["heads"] == [3, 3, 0, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("word", "a line without a tag"),
        ("word\t", "a line without a tag"),
        ("\tO", "a line without a word"),
        ("New\tYork\tO", "3 columns, but the first lines have 2"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_line_without_a_tag_costs_its_sentence(line: str, message: str, place: int, tmp_path: Path) -> None:
    sentences = ["Good\tO\nday\tO\n", "Fine\tO\n"]
    sentences.insert(place, f"a\tO\n{line}\n")
    path = written(tmp_path / "a.conll", "\n".join(sentences))
    problems = refused(read_conll, path, message, ["Good day", "Fine"], line=2 if place == 0 else 5)
    assert problems.counts == {message: 1}


def test_options_of_columns_and_limits(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "a\tO\n" * 50 + "\nb\tO\n")
    for tag, message in ((0, "counted from 1"), ("ner", "a whole number")):
        with pytest.raises(UsageError, match=message):
            list(TEXT.read([path], Problems(), tag=tag))
    refused(read_conll, path, "sentence longer than", ["b"], line=1, max_bytes=100)


REAL = [
    ("wnut17/train.conll.gz", 3394, 62_730, "B-corporation"),
    ("wnut17/test.conll.gz", 1287, 23_394, "B-person"),
    ("uner_ewt/en_ewt-ud-dev.iob2.gz", 2001, 25_149, "B-LOC"),
]


@pytest.mark.parametrize(("name", "sentences", "words", "tag"), REAL, ids=[one[0] for one in REAL])
def test_real_tags(name: str, sentences: int, words: int, tag: str, real_data: Path) -> None:
    problems = Problems()
    records = list(TEXT.read([real_data / "text" / name], problems))
    tags = [one for record in records for one in record.meta["tags"]]
    assert (len(records), len(tags), problems.counts) == (sentences, words, {})
    assert tag in tags
    assert scheme_of(tags) == "bio"
    assert sum(entities(record.meta["tags"])[1] for record in records) == 0
