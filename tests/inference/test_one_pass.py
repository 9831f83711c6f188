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
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.one_pass import Fit, HeadConfig
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT, ONE_PASS, ONE_PASS_HEAD
from seqmlm.errors import StateError, UsageError
from seqmlm.inference import one_pass
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.one_pass import (
    bias_for,
    correction_for,
    correction_in,
    fitted,
    head_for,
    keep,
    train_and_store_head,
)
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.tokenizers.kmer import KmerTokenizer


def model_with(folder: Path, sensitive: bool = False, **masking: Any) -> LoadedModel:
    model = protein_model()
    return replace(model, path=str(folder), card=replace(model.card, masking=masking, sensitive=sensitive))


def normal(model: LoadedModel) -> list[Encoding]:
    return model.tokenizer.encode_batch([residues(n) for n in (18, 9, 20, 14, 5)])


def fitted_and_kept(model: LoadedModel, *, n: int = 256) -> Fit:
    found = fitted(model, Conditionals(model.rows), normal(model), n=n)
    assert found is not None
    keep(model, found)
    return found


@pytest.mark.parametrize("masker", ["uniform.v1", "whole_unit.v1", "span.v1"])
def test_one_token_units_give_a_derived_correction(tmp_path: Path, masker: str) -> None:
    model = model_with(tmp_path, masker=masker)
    correction = correction_for(model)
    assert correction.kind == "derived"
    assert correction.seen is not None
    ordinary = model.tokenizer.space.ordinary
    np.testing.assert_allclose(correction.seen[ordinary], np.log1p(len(ordinary)), rtol=1e-6)
    assert bias_for(model) is None
    # A random model knows nothing of the tokens it sees: taking so much off is far from exact.
    found = fitted_and_kept(model)
    assert found.derived_rmse is not None
    assert found.rmse < found.derived_rmse
    assert correction_for(model).kind == "fitted"


def test_a_fit_no_better_than_what_is_derived_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_with(tmp_path, masker="uniform.v1")
    fitted_and_kept(model)
    assert (tmp_path / "one_pass.json").exists()
    found = one_pass.fit(Conditionals(model.rows), normal(model), derived=correction_for(model))
    monkeypatch.setattr(one_pass, "fit", lambda *_, **__: replace(found, derived_rmse=found.rmse))
    fitted_and_kept(model)
    assert not (tmp_path / "one_pass.json").exists()
    assert correction_for(model).kind == "derived"


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
    found = fitted_and_kept(model, n=30)
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


def test_a_mode_gets_what_it_needs(tmp_path: Path) -> None:
    model = model_with(tmp_path, masker="uniform.v1")
    derived = correction_in(model, ONE_PASS)
    assert derived is not None
    assert derived.kind == "derived"
    assert correction_in(model, EXACT) is correction_in(model, ONE_PASS_HEAD) is None
    words = [list(model.tokenizer.encode("LA").ids[1:-1].tolist()), [4, 5]]
    unequal = model_with(tmp_path, masker="lexicon.v1", options={"words": words, "mode": "nocloze"})
    assert correction_in(unequal, EXACT) is None  # equal wherever it is not 0
    with pytest.raises(UsageError, match="no one-pass correction"):
        correction_in(model_with(tmp_path, masker="visit.v1"), ONE_PASS)


def test_units_in_several_tokens_are_refused(tmp_path: Path) -> None:
    model = replace(model_with(tmp_path, masker="uniform.v1"), tokenizer=KmerTokenizer(k=3))
    for ask in (correction_for, head_for):
        with pytest.raises(UsageError, match=r"each base in 3 tokens.*--mode exact"):
            ask(model)
    assert fitted(model, Conditionals(model.rows), []) is None


def test_a_head_is_trained_kept_and_asked(tmp_path: Path) -> None:
    model = model_with(tmp_path, masker="uniform.v1")
    with pytest.raises(UsageError, match="has no one-pass head"):
        head_for(model)
    trained = train_and_store_head(model, normal(model), HeadConfig(positions=60, epochs=3))
    scorer = RecordScorer(Session(model))
    record = Record(id="r", raw=residues(40), source="x", line=1)
    [scored] = scorer.scored(scorer.encoded([record], Problems()), ONE_PASS_HEAD)
    assert len(scored) == 40
    weights = head_for(model).change.state_dict()
    assert all(value.equal(weights[name]) for name, value in trained.change.state_dict().items())
    assert json.loads((tmp_path / "one_pass_head.json").read_text())["positions"] == 50
    (tmp_path / "one_pass_head.safetensors").write_bytes(b"nothing")
    with pytest.raises(StateError, match="not a one-pass head"):
        head_for(model)
