"""Labelled records as a fine-tuning reads them: columns, files, kinds of labels, and what is held out."""

from __future__ import annotations

import pytest
from text_models import text_model

from seqmlm.data.examples import Example
from seqmlm.data.record import Record
from seqmlm.inference.session import Session
from seqmlm.tasks.labelled import divided, why_untested


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return Session.open(str(text_model(tmp_path_factory.mktemp("text"))), labels="any")


@pytest.mark.parametrize(("n", "why"), [(39, "fewer than 40 examples"), (40, "of one document")])
def test_it_is_said_why_nothing_is_held_out(n: int, why: str, session: Session) -> None:
    records = [Record(id=str(k), raw=f"cat {k}", source="a", line=k, document="d") for k in range(n)]
    parts = divided({"train": [Example(record=one, label="x") for one in records]}, session, 0)
    assert not parts["test"]
    assert why in why_untested(parts)
