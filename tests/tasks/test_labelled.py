"""Labelled records as a fine-tuning reads them: columns, files, kinds of labels, and what is held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from text_models import text_model

from seqmlm.data.examples import Example
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.inference.session import Session
from seqmlm.tasks.cases import cases
from seqmlm.tasks.labelled import Labelling, card_of, divided, read_examples, why_untested


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return Session.open(str(text_model(tmp_path_factory.mktemp("text"))), labels="any")


@pytest.mark.parametrize(("n", "why"), [(39, "fewer than 40 examples"), (40, "of one document")])
def test_it_is_said_why_nothing_is_held_out(n: int, why: str, session: Session) -> None:
    records = [Record(id=str(k), raw=f"cat {k}", source="a", line=k, document="d") for k in range(n)]
    parts = divided({"train": [Example(record=one, label="x") for one in records]}, session, 0)
    assert not parts["test"]
    assert why in why_untested(parts)


def jsonl(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("column", ["entities", "spans"])
@pytest.mark.parametrize("span", [[4, 7, "ANIMAL"], {"start": 4, "end": 7, "label": "ANIMAL"}])
def test_what_is_between_spans_is_outside_in_every_column(
    column: str, span: Any, session: Session, tmp_path: Path
) -> None:
    rows = [{"text": "a dog barks", column: []}, {"text": "the cat sees", column: [span]}]
    asked = Labelling(labels=(column,))
    found = list(read_examples(session, asked, [jsonl(tmp_path / "t.jsonl", *rows)], Problems()))
    card = card_of(found, found, asked, pool="start", crf=False, length=32)
    assert (card.kind, card.names) == ("entities", ("O", "B-ANIMAL", "I-ANIMAL"))
    tags = [one.targets[:, 0].tolist() for one in cases(session, card, found, Problems())]
    assert tags == [[0, 0, 0], [0, 1, 0]]
