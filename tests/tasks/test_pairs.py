"""Scores of strings are those of the sequences they spell, whatever stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from likelihood import pseudo_log_likelihood
from text_models import text_model
from tiny_domain_models import patients_model
from tiny_models import protein_model

from seqmlm.data.pairs import Pair
from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.scoring import SequenceScore
from seqmlm.engine.units import EXACT, ONE_PASS, Mode
from seqmlm.errors import DataError, NotFiniteError, UsageError
from seqmlm.inference import model_folder
from seqmlm.inference.pairs import PairScorer, common_tokens
from seqmlm.inference.record_batches import encoded_texts
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session

LONG = " ".join(["the cat sees a dog"] * 20)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> model_folder.LoadedModel:
    return model_folder.load(text_model(tmp_path_factory.mktemp("texts")))


def scores(session: Session, texts: Sequence[str], mode: Mode = EXACT) -> list[SequenceScore]:
    return RecordScorer(session).sequences(encoded_texts(session.tokenizer, texts), mode)


def test_scores_are_pseudo_log_likelihoods_in_order(model: model_folder.LoadedModel) -> None:
    texts = ["the cat barks", "a dog", LONG, "the cat barks"]
    session = Session(model)
    found = scores(session, texts)
    short = model.tokenizer.encode_batch([texts[0], texts[1]])
    naive = [one.pll for one in pseudo_log_likelihood(Conditionals(model.rows), short)]
    assert [found[0].pll, found[1].pll] == pytest.approx(naive, abs=1e-4)
    assert found[3].pll == found[0].pll
    assert len(found[2].units[0]) == 100
    statistics = session.conditionals().statistics
    assert statistics.unique < statistics.variants


def test_one_pass_is_one_query_without_a_mask(model: model_folder.LoadedModel) -> None:
    session = Session(model)
    [found] = scores(session, ["the cat sees the dog"], ONE_PASS)
    assert session.conditionals().statistics.unique == 1
    encoding = model.tokenizer.encode("the cat sees the dog")
    places = np.flatnonzero(encoding.groups >= 0).astype(np.int32)
    query = Query(encoding=encoding, masked=places[:0], asked=places)
    [answer] = Conditionals(model.rows).ask([query])
    assert found.pll == pytest.approx(float(answer.values["log_prob"].sum()), abs=1e-3)


def test_the_shared_metric_is_a_loop_over_common_tokens(model: model_folder.LoadedModel) -> None:
    pair = ("the cat sees the dog", "the dogs sees the dog loudly")
    first, second = (model.tokenizer.encode(text) for text in pair)
    kept = common_tokens(first, second)
    assert [first.ids[k] for k in np.flatnonzero(kept[0])] == [second.ids[k] for k in np.flatnonzero(kept[1])]
    assert 0 < kept[0].sum() < len(first)
    ask = Conditionals(model.rows)
    [found] = PairScorer(Session(model), metric="shared").pair_rows([_pair(*pair)])
    for encoding, common, pll in zip(
        (first, second), kept, (found["pll_good"], found["pll_bad"]), strict=True
    ):
        total = 0.0
        for place in np.flatnonzero(common & (encoding.groups >= 0)).astype(np.int32):
            at = np.array([place])
            [answer] = ask.ask([Query(encoding=encoding, masked=at, asked=at)])
            total += float(answer.values["log_prob"][0])
        assert pll == pytest.approx(total, abs=1e-4)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ehr domain is not plain text"):
        PairScorer(Session(patients_model()))
    model = model_folder.load(text_model(tmp_path / "t"))
    with pytest.raises(UsageError, match="more than the model"):
        list(PairScorer(Session(model), metric="shared").pair_rows([_pair(LONG, LONG)]))


def test_a_text_that_cannot_be_spelled_is_shown(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'LAG4'.*not in the alphabet"):
        scores(Session(protein_model()), ["LAG", "LAG4"])
    scorer = PairScorer(Session(model_folder.load(text_model(tmp_path, wordpiece=True))))
    [found] = scorer.pair_rows([_pair("the cat", "the 猫")])
    assert [found["unknown"], found["units_good"], found["units_bad"]] == [1, 2, 1]


def test_answers_that_are_no_numbers_name_the_pair(tmp_path: Path) -> None:
    folder = text_model(tmp_path / "m")
    model = model_folder.load(folder)
    embedding = deepcopy(model.rows.model.get_input_embeddings())
    embedding.weight.data[int(model.tokenizer.encode("barks").ids[1])] = 3e38
    model.rows.model.set_input_embeddings(embedding)
    pairs = [_pair("the cat", "a dog"), replace(_pair("the cat", "the dog barks"), line=2)]
    with pytest.raises(NotFiniteError, match=r"the bad sequence of the pair .*:2 \("):
        list(PairScorer(Session(model)).pair_rows(pairs))


def _pair(good: str, bad: str) -> Pair:
    return Pair(id="p", good=good, bad=bad, group="", source="x", line=1)
