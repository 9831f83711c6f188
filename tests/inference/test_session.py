"""Opening a model: by any reference, checked once; what a session makes, keeps and forgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import protein_model, residues, saved

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.errors import StateError, UsageError
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session


def folder(path: Path, **card: Any) -> str:
    return str(saved(protein_model(), path, **card))


def test_a_folder_in_the_current_one_is_found_whatever_its_name(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(workspace / "my model (2)")
    monkeypatch.chdir(workspace)
    assert Session.open("my model (2)").card.unit == "residue"


def test_a_folder_is_opened_and_refused_for_what_it_is_not(workspace: Path) -> None:
    name = folder(workspace / "mine")
    session = Session.open(name, domain="protein", precision="auto")
    assert (session.domain.name, session.card.unit, session.precision) == ("protein", "residue", "fp32")
    assert session.entry is None
    with pytest.raises(UsageError, match="is a protein model"):
        Session.open(name, domain="text")
    with pytest.raises(StateError, match="no model 'other'"):
        Session.open("other")
    with pytest.raises(StateError, match="download it to a folder"):
        Session.open("hf:someone/something", folder=True)


def test_scores_of_sensitive_data_are_not_shown(workspace: Path) -> None:
    name = folder(workspace / "secret", sensitive=True)
    assert Session.open(name).card.sensitive
    with pytest.raises(UsageError, match=r"not shown on the console: name a file with --out"):
        Session.open(name, shows_records=True)
    with pytest.raises(UsageError, match=r"console: name a file$"):
        Session.open(name, shows_records=True, remedy="name a file")


def test_a_session_that_forgot_is_as_new() -> None:
    session = Session(protein_model(), tokens_per_batch=64)
    scorer = RecordScorer(session)
    batch = scorer.encoded([Record(id="r", raw=residues(12), source="x", line=1)], Problems())
    scorer.unit_scores(batch)
    tokens = session.forward_tokens
    assert tokens == 12 * 14
    scorer.unit_scores(batch)
    assert session.forward_tokens == tokens, "it is remembered"
    session.conditionals().tokens_per_batch //= 2
    session.forget()
    assert session.forward_tokens == 0
    assert session.conditionals().tokens_per_batch == 64
    scorer.unit_scores(batch)
    assert session.forward_tokens == tokens
