"""Exact pseudo-log-likelihoods equal a naive loop through plain transformers, one masked sequence a time."""

from __future__ import annotations

from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from likelihood import pseudo_log_likelihood
from tiny_models import random_model
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    EsmConfig,
    ModernBertConfig,
    PreTrainedModel,
    RobertaConfig,
)

from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.inference import model_folder
from seqmlm.inference.scorer import RecordScorer
from seqmlm.inference.session import Session
from seqmlm.management.models import export_model
from seqmlm.plugins import tokenizer_class

SPACE = TokenSpace(size=37, pad=1, mask=36, unk=3, start=0, end=2, special=(0, 1, 2, 3, 36))
SHAPE: dict[str, Any] = {
    "vocab_size": SPACE.size,
    "pad_token_id": SPACE.pad,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    # Large, so that wrong answers are far from right ones.
    "initializer_range": 0.4,
}
ESM = {"mask_token_id": SPACE.mask, "token_dropout": True, "max_position_embeddings": 64}
CONFIGS = {
    "bert": lambda: BertConfig(**SHAPE),
    "roberta": lambda: RobertaConfig(**SHAPE),
    "esm2": lambda: EsmConfig(**SHAPE, **ESM, position_embedding_type="rotary"),
    "esm1b": lambda: EsmConfig(**SHAPE, **ESM, position_embedding_type="absolute"),
    "modernbert": lambda: ModernBertConfig(
        **SHAPE, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2, local_attention=8
    ),
}


def make(name: str) -> PreTrainedModel:
    """A random model, and with the same seed the same one again."""
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(CONFIGS[name]())
    with torch.no_grad():
        for parameter in model.parameters():  # biases too, which start at 0
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model.eval()


def sequences(words: bool) -> list[Encoding]:
    """Lengths 3 to 40; units of one token, or words of one to four."""
    rng = np.random.default_rng(5)
    made = []
    for length in (3, 40, 17, 17, 5, 29, 4):
        ids = np.concatenate([[SPACE.start], rng.choice(SPACE.ordinary, length - 2), [SPACE.end]])
        steps = rng.random(length - 2) < 0.4 if words else np.ones(length - 2)
        groups = np.concatenate([[-1], np.cumsum(steps), [-1]])
        made.append(Encoding(ids=ids.astype(np.int32), groups=groups.astype(np.int32)))
    return made


def naive(model: PreTrainedModel, encoding: Encoding, space: TokenSpace, ordinary: bool) -> list[float]:
    """ln p of each token with itself and the later tokens of its word masked, by full softmax in float64."""
    scores = []
    for position in range(1, len(encoding) - 1):
        ids = torch.tensor(encoding.ids[None].astype(np.int64))
        for later in range(position, len(encoding) - 1):
            if encoding.groups[later] == encoding.groups[position]:
                ids[0, later] = space.mask
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, position].double()
        if ordinary:
            logits[list(space.special)] = -torch.inf
        scores.append(float(torch.log_softmax(logits, 0)[encoding.ids[position]]))
    return scores


@pytest.mark.parametrize("words", [False, True], ids=["residues", "words"])
@pytest.mark.parametrize("probability", ["full", "ordinary"])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_scores_equal_the_naive_loop(name: str, probability: Any, words: bool) -> None:
    plain, asked = make(name), sequences(words)
    ask = Conditionals(MaskedRows(make(name), SPACE, probability=probability), tokens_per_batch=200)
    spread = []
    for encoding, score in zip(asked, pseudo_log_likelihood(ask, asked), strict=True):
        expected = naive(plain, encoding, SPACE, probability == "ordinary")
        np.testing.assert_allclose(score.log_probs, expected, atol=1e-4)
        assert score.positions.tolist() == list(range(1, len(encoding) - 1))
        assert score.pll == pytest.approx(sum(expected), abs=1e-3)
        spread += expected
    assert np.std(spread) > 0.5
    assert ask.statistics.forwards > 5


@pytest.mark.parametrize("name", CONFIGS)
def test_scores_do_not_depend_on_what_is_asked_together(name: str) -> None:
    rows, asked = MaskedRows(make(name), SPACE), sequences(words=True)[2:]
    whole = list(pseudo_log_likelihood(Conditionals(rows), asked))
    for budget, lookahead in ((1, 1), (50, 3), (333, 1000)):
        ask = Conditionals(rows, tokens_per_batch=budget, lookahead=lookahead)
        for a, b in zip(pseudo_log_likelihood(ask, asked[::-1]), whole[::-1], strict=True):
            np.testing.assert_allclose(a.log_probs, b.log_probs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_stays_near(name: str) -> None:
    rows, asked = MaskedRows(make(name), SPACE), sequences(words=False)[2:]
    exact = pseudo_log_likelihood(Conditionals(rows), asked)
    near = pseudo_log_likelihood(Conditionals(rows, precision="bf16"), asked)
    differences = np.concatenate([b.log_probs - a.log_probs for a, b in zip(exact, near, strict=True)])
    assert 0 < np.abs(differences).mean() < 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CONFIGS)
def test_the_gpu_agrees_with_the_naive_loop(name: str) -> None:
    plain, asked = make(name), sequences(words=True)
    rows = MaskedRows(make(name), SPACE)
    for precision, tolerance in (("fp32", 1e-3), ("bf16", 0.5)):
        ask = Conditionals(rows, device="cuda", precision=precision, tokens_per_batch=200)
        for encoding, score in zip(asked, pseudo_log_likelihood(ask, asked), strict=True):
            np.testing.assert_allclose(score.log_probs, naive(plain, encoding, SPACE, True), atol=tolerance)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_can_be_trained_after_it_was_asked(name: str) -> None:
    """Tensors cached in evaluation must not be tensors that training cannot use."""
    rows = MaskedRows(make(name), SPACE).train()
    (score,) = pseudo_log_likelihood(Conditionals(rows), sequences(words=False)[1:2])
    assert rows.model.training
    ids = torch.from_numpy(sequences(words=False)[1].ids[None].astype(np.int64))
    rows.model.set_attn_implementation("sdpa")
    rows.model(input_ids=ids).logits.sum().backward()
    assert score.pll < 0


# What `minicons` (0.3.39) computes with `within_word_l2r`: the whole softmax; every token but the start and
# the end, with the later tokens of its word, which are those that the tokenizer gives the same number.


def minicons(folder: Path, text: str) -> tuple[float, int]:
    """The sum of log-probabilities in nats, and the tokens."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    encoded = tokenizer(text, return_tensors="pt")
    ids, words = encoded["input_ids"], encoded.word_ids()
    total = 0.0
    for place in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        later = range(place, ids.shape[1] - 1)
        masked[0, [one for one in later if words[one] == words[place]]] = tokenizer.mask_token_id
        with torch.inference_mode():
            logits = model(masked, attention_mask=torch.ones_like(masked)).logits[0, place].double()
        total += float(logits.log_softmax(-1)[ids[0, place]])
    return total, ids.shape[1] - 2


TEXTS = [
    "the old cabinet is in the house",
    "an unopened quixotic cabinet",  # words that the vocabulary cuts, each after a lone space
    "zzz qqq",
    "the key  is old",
    "key",
]


@pytest.mark.parametrize("name", ["bpe.v1", "unigram.v1"])
def test_the_numbers_of_minicons(tmp_path: Path, name: str) -> None:
    kind = tokenizer_class(name)
    letters = " ".join("abcdefghijklmnopqrstuvwxyz")
    lines = ["the old cabinet is in the house", "the key is old", "a key in the cabinet", letters] * 5
    model = random_model("text", kind.train(lines, vocabulary_size=310 if name == "bpe.v1" else 60))
    model_folder.write(tmp_path / "own", model.rows, model.tokenizer, model.card)
    plain = tmp_path / "plain"
    export_model(str(tmp_path / "own"), plain)
    scorer = RecordScorer(Session(model_folder.load(plain)))
    encodings = [model.tokenizer.encode(text) for text in TEXTS]
    # [UNK] is scored there and not here.
    known = [model.tokenizer.space.unk not in one.ids for one in encodings]
    texts, encodings = list(compress(TEXTS, known)), list(compress(encodings, known))
    assert len(texts) >= 3
    found = scorer.sequences(encodings)
    expected = [minicons(plain, text) for text in texts]
    assert [len(one.positions) for one in found] == [tokens for _, tokens in expected]
    assert max(tokens for _, tokens in expected) > 8
    assert [one.pll for one in found] == pytest.approx([pll for pll, _ in expected], abs=2e-3, rel=1e-5)
