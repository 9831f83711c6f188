"""Batches of columns: the answers of the command in any process, and None for what cannot be read."""

from __future__ import annotations

import pickle
from copy import copy
from pathlib import Path
from typing import Any

import datasets
import pytest
from tiny_models import random_model, residues, saved

import seqmlm
from seqmlm.domains.protein.tokenizer import ResidueTokenizer


@pytest.fixture
def model(workspace: Path) -> str:
    saved(random_model("protein", ResidueTokenizer()), workspace / "enzymes")
    return str(workspace / "enzymes")


@pytest.fixture
def sequences() -> list[str]:
    return [residues(20 + n) for n in range(7)]


@pytest.mark.parametrize("task", ["score", "embed"])
def test_answers_are_those_of_the_model(model: str, sequences: list[str], task: Any) -> None:
    asked = datasets.Dataset.from_dict({"text": sequences, "kept": [*range(7)]})
    scorer = seqmlm.Scorer(model, task)
    found = asked.map(scorer, batched=True, batch_size=3)
    expected = seqmlm.load(model).run(task, sequences)
    name = "score" if task == "score" else "vector"
    assert found["kept"][:] == [*range(7)]
    assert [pytest.approx(one, rel=1e-5, abs=1e-6) for one in expected[name]] == found[name][:]


def test_only_names_go_to_another_process(model: str, sequences: list[str]) -> None:
    scorer = seqmlm.Scorer(model, column="seq", mode="exact")
    first = scorer({"seq": sequences})
    sent = pickle.dumps(scorer)
    assert len(sent) < 500
    assert model.encode() in sent
    assert copy(scorer)({"seq": sequences}) == first  # by what is sent


def test_what_cannot_be_read_costs_its_row(model: str, sequences: list[str]) -> None:
    scorer = seqmlm.Scorer(model)
    found = scorer({"text": [sequences[0], "M1T", None, "", sequences[1]]})
    assert {len(one) for one in found.values()} == {5}
    assert [one is None for one in found["score"]] == [False, True, True, True, False]
    assert found["score"][4] == pytest.approx(scorer({"text": sequences[1:2]})["score"][0])


def test_what_makes_no_sense_is_refused(model: str, sequences: list[str]) -> None:
    with pytest.raises(seqmlm.UsageError, match="no column 'text'"):
        seqmlm.Scorer(model)({"seq": sequences})
    with pytest.raises(seqmlm.UsageError, match="several rows"):
        seqmlm.Scorer(model, level="residue")({"text": sequences})
    with pytest.raises(seqmlm.UsageError, match="score, predict, embed"):
        seqmlm.Scorer(model, "fill")
