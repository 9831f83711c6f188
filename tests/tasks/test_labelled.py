"""Labelled records as a fine-tuning reads them: columns, files, kinds of labels, and what is held out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from text_models import text_model
from tiny_models import random_model, saved
from written import jsonl

from seqmlm.data.examples import Example
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.protein.tokenizer import ResidueTokenizer
from seqmlm.errors import DataError
from seqmlm.finetuning.cases import spelled_cases
from seqmlm.finetuning.labelled import (
    Lesson,
    as_values,
    card_of,
    divide_examples,
    is_numeric,
    read_examples,
    reading_note,
    why_untested,
)
from seqmlm.inference.session import Session
from seqmlm.tasks.columns import Labelling


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return Session.open(str(text_model(tmp_path_factory.mktemp("text"))), labels="any")


@pytest.mark.parametrize(("n", "why"), [(39, "fewer than 40 examples"), (40, "of one document")])
def test_it_is_said_why_nothing_is_held_out(n: int, why: str, session: Session) -> None:
    records = [Record(id=str(k), raw=f"cat {k}", source="a", line=k, document="d") for k in range(n)]
    parts = divide_examples({"train": [Example(record=one, label="x") for one in records]}, session, 0)
    assert not parts["test"]
    assert why in why_untested(parts)


@pytest.mark.parametrize(("n", "validated"), [(199, 0), (200, 16), (300, 24)])
def test_of_200_examples_a_tenth_of_those_not_tested_is_held_out(
    n: int, validated: int, session: Session
) -> None:
    records = [Record(id=str(k), raw=f"cat {k}", source="a", line=k) for k in range(n)]
    parts = divide_examples({"train": [Example(record=one, label="x") for one in records]}, session, 0)
    assert len(parts["validation"]) == validated


@pytest.mark.parametrize(("sizes", "tested"), [([1] * 300, 60), ([75, *[1] * 225], 60), ([150, 150], 150)])
def test_a_fifth_of_the_examples_is_tested_whatever_the_groups(
    sizes: list[int], tested: int, session: Session
) -> None:
    owners = [group for group, size in enumerate(sizes) for _ in range(size)]
    records = [
        Record(id=str(n), raw=f"cat {n}", source="a", line=n, document=f"d{group}")
        for n, group in enumerate(owners)
    ]
    parts = divide_examples({"train": [Example(record=one, label="x") for one in records]}, session, 0)
    assert len(parts["test"]) == tested
    documents = {part: {one.record.document for one in own} for part, own in parts.items()}
    assert not documents["test"] & documents["train"]


@pytest.mark.parametrize("column", ["entities", "spans"])
@pytest.mark.parametrize("span", [[4, 7, "ANIMAL"], {"start": 4, "end": 7, "label": "ANIMAL"}])
def test_what_is_between_spans_is_outside_in_every_column(
    column: str, span: Any, session: Session, tmp_path: Path
) -> None:
    rows = [{"text": "a dog barks", column: []}, {"text": "the cat sees", column: [span]}]
    asked = Lesson(labels=(column,))
    found = list(read_examples(session, asked, [str(jsonl(tmp_path / "t.jsonl", rows))], Problems()))
    card = card_of(found, found, asked, Problems())
    assert (card.kind, card.names) == ("entities", ("O", "B-ANIMAL", "I-ANIMAL"))
    tags = [one.targets[:, 0].tolist() for one in spelled_cases(session, card, found, Problems())]
    assert tags == [[0, 0, 0], [0, 1, 0]]
    beside = [replace(one, record=replace(one.record, meta={"own": (2, 6)})) for one in found]
    tags = [one.targets[:, 0].tolist() for one in spelled_cases(session, card, beside, Problems())]
    assert tags == [[0], [1]], "words beside them are other records' own"


HEADED = "review;sentiment;Split\nle caf\u00e9 dort;oui;test\nle chat dort;non;train\n"
LINES = '{"review": "a dog", "sentiment": "yes"}\n{"review": "a cat", "sentiment": "no", "split": "test"}\n'


@pytest.mark.parametrize(
    ("name", "text", "format", "options", "parts"),
    [
        ("t.csv", HEADED, None, {"delimiter": ";"}, ["test", "train"]),
        ("t.csv", HEADED, None, {"delimiter": ";", "encoding": "latin-1"}, ["test", "train"]),
        ("t.data", HEADED, "csv", {"delimiter": ";", "keep": "Split"}, ["test", "train"]),
        ("t.csv", HEADED.replace(";", ","), None, {}, ["test", "train"]),
        ("t.csv", "Nr,Text,sentiment\nn1,a dog,yes\nn2,a cat,no\n", None, {}, [None, None]),
        ("t.tsv", HEADED.replace(";", "\t"), None, {}, ["test", "train"]),
        ("folder/t.jsonl", LINES, None, {}, [None, "test"]),
        ("t.jsonl", LINES, None, {}, [None, "test"]),
    ],
)
def test_labels_stand_in_columns_of_every_table(
    name: str,
    text: str,
    format: str | None,
    options: dict[str, Any],
    parts: list[Any],
    session: Session,
    tmp_path: Path,
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding=options.get("encoding", "utf-8"))
    asked = Labelling(labels=("sentiment",), format=format, options=options)
    given = path.parent if "/" in name else path
    found = list(read_examples(session, asked, [str(given)], Problems()))
    assert [one.part for one in found] == parts
    assert len({one.label for one in found}) == 2
    assert all(str(one.record.raw) in text for one in found)


def test_a_header_without_the_label_is_shown_unless_it_may_be_data(
    session: Session, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("text,y\na dog,yes\n")
    asked = Labelling(labels=("z",))
    with pytest.raises(DataError, match=r"no column 'z'.*there are: text, y"):
        list(read_examples(session, asked, [str(tmp_path / "t.csv")], Problems()))
    for apart in ";\t|":
        (tmp_path / "u.csv").write_text(f"text{apart}z\na dog, a cat{apart}yes\n")
        (one,) = read_examples(session, asked, [str(tmp_path / "u.csv")], Problems())
        assert (one.record.raw, one.label) == ("a dog, a cat", "yes")
    model = text_model(tmp_path_factory.mktemp("people"), sensitive=True)
    with pytest.raises(DataError, match=r"no column 'z' \(correct the name\)"):
        list(read_examples(Session.open(str(model)), asked, [str(tmp_path / "t.csv")], Problems()))


def test_a_file_of_labels_is_about_all_files(session: Session, tmp_path: Path) -> None:
    files = [str(jsonl(tmp_path / f"{n}.jsonl", [{"text": f"a dog {n}", "id": f"r{n}"}])) for n in range(2)]
    labels = str(jsonl(tmp_path / "l.jsonl", [{"id": "r0", "y": "p"}, {"id": "r1", "y": "q"}]))
    problems = Problems()
    asked = Labelling(label_file=labels, labels=("y",))
    assert [one.label for one in read_examples(session, asked, files, problems)] == ["p", "q"]
    assert not problems.counts
    pairs = str(jsonl(tmp_path / "pairs.jsonl", [{"id": "r0", "other": "r1", "y": "p"}]))
    (one,) = read_examples(session, Labelling(label_file=pairs, labels=("y",), pair="other"), files, problems)
    assert one.second is not None
    assert (one.record.id, one.second.id) == ("r0", "r1")


@pytest.mark.parametrize(
    ("asked", "label"),
    [
        (Lesson(label_file="of/ehr_lab.csv.gz"), "ehr_lab"),
        (Lesson(label_file="ehr_lab.csv", labels=("p", "q")), "p,q"),
        (Lesson(classes=("a=b.txt",)), "label"),
    ],
)
def test_what_is_predicted_is_called_by_its_column_or_its_file(asked: Lesson, label: str) -> None:
    found = classes("a", "b", "a", "b")
    assert card_of(found, found, asked, Problems()).label == label


def test_a_model_finds_its_text_where_training_did(tmp_path: Path, seqmlm: Any) -> None:
    rows = "".join(f"{'good dog' if n % 2 else 'bad cat'} {n};{'yes' if n % 2 else 'no'}\n" for n in range(8))
    path = tmp_path / "reviews.csv"
    path.write_text(f"review;sentiment\n{rows}")
    model = text_model(tmp_path / "model")
    asked = ("finetune", model, "--train", path, "--label", "sentiment", "--name", "rev", "--tune", "none")
    seqmlm(*asked).ok()
    seqmlm("predict", "rev", path, "--out", tmp_path / "p.jsonl").ok()
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 8
    lines = str(jsonl(tmp_path / "new.jsonl", [{"review": "good dog"}, {"review": "bad cat"}]))
    seqmlm("predict", "rev", lines).ok()
    path.write_text("body,x\na dog,1\n")
    seqmlm("predict", "rev", path, "--option", "column=body", "--option", "delimiter=,").ok()


def test_pairs_are_spelled_as_their_field_is_and_predicted_by_columns_and_ids(
    tmp_path: Path, seqmlm: Any
) -> None:
    model = saved(random_model("protein", ResidueTokenizer(), spread=4), tmp_path / "model")
    path, fasta, table = (tmp_path / name for name in ("t.csv", "s.fasta", "p.csv"))
    rows = "".join(f"mkv{'a' * n},mlr{'v' * n},{'yn'[n % 2]}\n" for n in range(1, 9))
    path.write_text(f"sequence,other,y\n{rows}")
    asked = ("finetune", model, "--pair", "other", "--label", "y", "--tune", "none")
    seqmlm(*asked, "--train", path, "--name", "columns").ok()
    fasta.write_text("".join(f">r{n}\nMKV{'A' * n}\n>s{n}\nMLR{'V' * n}\n" for n in range(1, 9)))
    table.write_text("one,other,y\n" + "".join(f"r{n},s{n},{'yn'[n % 2]}\n" for n in range(1, 9)))
    seqmlm(*asked, "--train", fasta, "--label-file", table, "--name", "ids").ok()
    found = []
    for name, *more in (("columns", path), ("ids", path), ("ids", fasta, "--set", f"labels={table}")):
        seqmlm("predict", name, *more, "--out", tmp_path / "out.jsonl").ok()
        found.append([json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()])
        (tmp_path / "out.jsonl").unlink()
    assert [(row["id"], row["second"]) for row in found[2]] == [(f"r{n}", f"s{n}") for n in range(1, 9)]
    for one, *others in zip(*found, strict=True):
        assert all(other["p"] == pytest.approx(one["p"], abs=1e-5) for other in others)
    seqmlm("predict", "ids", fasta).refused(3, "for pairs of ids, give a table: --set labels=FILE")


def classes(*labels: str) -> list[Example]:
    return [
        Example(record=Record(id=str(n), raw=f"cat {n}", source="a", line=n), label=label)
        for n, label in enumerate(labels)
    ]


@pytest.mark.parametrize(
    ("labels", "numeric"),
    [
        ([f"{n}.5" for n in range(60)], True),
        ([*(f"{n}.5" for n in range(60)), "NA"], True),
        ([*(f"{n}.5" for n in range(60)), "NA", "low"], False),
        ([str(n) for n in range(60)], True),
        ([str(n) for n in range(30) for _ in range(10)], False),
        ([str(n) for n in range(20)], False),
        (["0.0", "1.0", "nan"], False),
        (["a", "b"], False),
        ([], False),
    ],
)
def test_numbers_are_values_unless_they_are_codes(labels: list[str], numeric: bool) -> None:
    assert is_numeric(classes(*labels)) is numeric


@pytest.mark.parametrize(
    ("values", "task", "said"),
    [
        ([1.5, 2.5], None, "read as values: --task class for classes"),
        ([1.5, 2.5], "value", ""),
        (["1", "2", "3"] * 2, None, "read as classes: --task value for values"),
        (["1", "2", "3"] * 2, "class", ""),
        (["0", "1"] * 2, None, ""),
        (["1", "2", "x"] * 2, None, ""),
    ],
)
def test_it_is_said_how_numbers_were_read(values: list[Any], task: Any, said: str) -> None:
    found = [
        replace(one, label=(one.label,) if isinstance(one.label, float) else one.label)
        for one in classes(*values)
    ]
    card = card_of(found, found, Lesson(labels=("y",), task=task), Problems())
    assert reading_note(card, task) == said


@pytest.mark.parametrize("labels", [["HIV"] * 3, ["HIV", "a", "a"]])
def test_no_label_is_named_where_data_are_sensitive(labels: list[str]) -> None:
    found, asked = classes(*labels), Lesson(labels=("y",))
    for sensitive in (False, True):
        with pytest.raises(DataError, match="class") as told:
            card_of(found, found, asked, Problems(sensitive=sensitive))
        assert ("HIV" in str(told.value)) is not sensitive


def test_no_unknown_label_is_named_where_data_are_sensitive(session: Session) -> None:
    found = classes("a", "b", "a", "b")
    card = card_of(found, found, Lesson(labels=("y",)), Problems())
    for sensitive in (False, True):
        with pytest.raises(DataError, match="in no training example") as told:
            spelled_cases(session, card, classes("HIV"), Problems(sensitive=sensitive))
        assert ("HIV" in str(told.value)) is not sensitive


def test_a_label_that_is_no_number_is_one_bad_record() -> None:
    problems = Problems("skip")
    assert [one.label for one in as_values(classes("1.5", "NA", "2"), problems)] == [(1.5,), (2.0,)]
    assert problems.bad_count == 1
    with pytest.raises(DataError, match="a:1: a label that is not a number"):
        as_values(classes("1.5", "NA"), Problems())
