"""Which correction a model has: derived, stored, or none; and its head."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import protein_model, residues

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.engine.mode import ONE_PASS_HEAD
from seqmlm.engine.one_pass_head import HeadConfig
from seqmlm.engine.types import Encoding
from seqmlm.errors import StateError, UsageError
from seqmlm.tasks.bundle import LoadedModel
from seqmlm.tasks.one_pass import (
    bias_for,
    correction_for,
    fit_and_store,
    head_for,
    train_and_store_head,
)
from seqmlm.tasks.scoring import RecordScorer
from seqmlm.tokenizers.kmer import KmerTokenizer


def model_with(folder: Path, sensitive: bool = False, **masking: Any) -> LoadedModel:
    model = protein_model()
    return replace(model, path=str(folder), card=replace(model.card, masking=masking, sensitive=sensitive))


def normal(model: LoadedModel) -> list[Encoding]:
    return model.tokenizer.encode_batch([residues(n) for n in (18, 9, 20, 14, 5)])


@pytest.mark.parametrize("masker", ["uniform.v1", "whole_unit.v1", "span.v1"])
def test_one_token_units_give_a_derived_correction(tmp_path: Path, masker: str) -> None:
    model = model_with(tmp_path, masker=masker)
    correction = correction_for(model)
    assert correction.kind == "derived"
    assert correction.seen is not None
    ordinary = model.tokenizer.space.ordinary
    np.testing.assert_allclose(correction.seen[ordinary], np.log1p(len(ordinary)), rtol=1e-6)
    assert fit_and_store(model, normal(model)) is None
    assert not list(tmp_path.iterdir())
    assert bias_for(model) is None


BROKEN = [
    {"masker": "uniform.v1", "replacement": "unigram"},
    {"masker": "visit.v1"},
    {"masker": "uniform.v1", "mask": 1.0, "random": 0.0, "keep": 0.0},
    {},
]


@pytest.mark.parametrize("masking", BROKEN)
def test_others_need_a_fit_which_is_kept(tmp_path: Path, masking: dict[str, Any]) -> None:
    model = model_with(tmp_path, sensitive=bool(masking), **masking)
    with pytest.raises(UsageError, match=r"seqmlm calibrate MODEL NORMAL.*--mode exact"):
        correction_for(model)
    found = fit_and_store(model, normal(model), n=30)
    assert found is not None
    assert found.correction.seen is not None
    kept = correction_for(model)
    assert kept.kind == "fitted"
    np.testing.assert_allclose(kept.seen, found.correction.seen, rtol=1e-6)
    mode = stat.S_IMODE((tmp_path / "one_pass.json").stat().st_mode)
    assert mode == (0o600 if masking else 0o644)
    assert json.loads((tmp_path / "one_pass.json").read_text())["positions"] == found.positions > 20


@pytest.mark.parametrize("content", ["", "[]", '{"seen": [1, 2]}', '{"seen": "x"}', '{"seen": NaN}'])
def test_a_broken_fit_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "one_pass.json").write_text(content)
    with pytest.raises(StateError, match=r"one_pass\.json is not a fitted correction"):
        correction_for(model_with(tmp_path))


def test_units_in_several_tokens_are_refused(tmp_path: Path) -> None:
    model = replace(model_with(tmp_path, masker="uniform.v1"), tokenizer=KmerTokenizer(k=3))
    for ask in (correction_for, head_for):
        with pytest.raises(UsageError, match=r"each base in 3 tokens.*--mode exact"):
            ask(model)
    assert fit_and_store(model, []) is None


def test_a_head_is_trained_kept_and_asked(tmp_path: Path) -> None:
    model = model_with(tmp_path, masker="uniform.v1")
    with pytest.raises(UsageError, match="has no one-pass head"):
        head_for(model)
    trained = train_and_store_head(model, normal(model), HeadConfig(positions=60, epochs=3))
    scorer = RecordScorer(model)
    record = Record(id="r", raw=residues(40), source="x", line=1)
    [scored] = scorer.scored(scorer.encoded([record], Problems()), ONE_PASS_HEAD)
    assert len(scored) == 40
    weights = head_for(model).change.state_dict()
    assert all(value.equal(weights[name]) for name, value in trained.change.state_dict().items())
    assert json.loads((tmp_path / "one_pass_head.json").read_text())["positions"] == 50
    (tmp_path / "one_pass_head.safetensors").write_bytes(b"nothing")
    with pytest.raises(StateError, match="not a one-pass head"):
        head_for(model)
