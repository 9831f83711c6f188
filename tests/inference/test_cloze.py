"""Gaps and candidates: what the engine answers is what transformers answers, for any tokenizer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from tiny_fields import random_model
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    EsmConfig,
    EsmForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from seqmlm.domains.holes import Prompt
from seqmlm.errors import UsageError
from seqmlm.inference.cloze import Cloze
from seqmlm.inference.session import Session
from seqmlm.tokenizers.fast import fast_residue_tokenizer
from seqmlm.tokenizers.kmer import KmerTokenizer
from seqmlm.tokenizers.nucleotide import BASES
from seqmlm.tokenizers.residue import STANDARD, TOKENS

TEXTS = (
    "the cat sees the dog .",
    "a dog barks loudly !",
    "it was great , it was terrible ;",
    "unable cats",
) * 9
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def wordpiece() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def byte_level(mask: str, special: list[str]) -> PreTrainedTokenizerFast:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_special_tokens([tokenizers.AddedToken(mask, lstrip=True, special=True)])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A {special[2]}", special_tokens=[(special[0], 0), (special[2], 2)]
    )
    roles = {"bos_token": special[0], "pad_token": special[1], "eos_token": special[2]}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **roles, unk_token=special[3], mask_token=mask, cls_token=special[0],
        sep_token=special[2],
    )  # fmt: skip


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]


def checkpoint(kind: str, folder: Path) -> tuple[Any, Any]:
    """A random model of an architecture, saved as transformers saves it; the model and its tokenizer."""
    torch.manual_seed(7)
    if kind == "esm":
        fast = fast_residue_tokenizer(TOKENS)
    elif kind in ("roberta", "modernbert"):
        fast = byte_level("<mask>" if kind == "roberta" else "[MASK]", ROBERTA)
    else:
        fast = wordpiece()
    size = {"vocab_size": len(fast), "pad_token_id": fast.pad_token_id}
    if kind == "bert":
        model = BertForMaskedLM(BertConfig(**SHAPE, **size, max_position_embeddings=64))
    elif kind == "roberta":
        model = RobertaForMaskedLM(RobertaConfig(**SHAPE, **size, max_position_embeddings=66))
    elif kind == "distilbert":
        model = DistilBertForMaskedLM(
            DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=24, **size, max_position_embeddings=64)
        )
    elif kind == "esm":
        config = EsmConfig(
            **SHAPE, **size, position_embedding_type="rotary", mask_token_id=fast.mask_token_id
        )
        model = EsmForMaskedLM(config)
    else:
        ids = {"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
        model = ModernBertForMaskedLM(ModernBertConfig(**SHAPE, **size, **ids))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(8)
    model.eval()
    model.save_pretrained(folder)
    fast.save_pretrained(str(folder))
    return model, fast


def written(kind: str) -> list[str]:
    if kind == "esm":
        return ["MK<mask>LV", "<mask>AC<mask>W", "MKTA_"]
    mask = "<mask>" if kind == "roberta" else "[MASK]"
    return [f"the cat {mask} the dog.", f"{mask} barks", f"it was {mask}!", f"un{mask} a {mask} {mask}"]


Saved = tuple[str, Cloze, Any, Any]

KINDS = ("bert", "roberta", "distilbert", "esm", "modernbert")


@pytest.fixture(scope="module", params=KINDS)
def saved(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Cloze, Any, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    model, fast = checkpoint(request.param, folder)
    domain = "protein" if request.param == "esm" else "text"
    return request.param, Cloze(Session.open(str(folder), domain=domain)), model, fast


def direct(model: Any, ids: list[int]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1).numpy()


def test_guesses_are_those_of_transformers(saved: Saved):
    kind, cloze, model, fast = saved
    texts = written(kind)
    gapped = cloze.opened(cloze.prompts(texts))
    for text, guesses in zip(texts, cloze.guesses(gapped, 5), strict=True):
        ids = fast(text.replace("_", "<mask>"))["input_ids"]
        places = [place for place, token in enumerate(ids) if token == fast.mask_token_id]
        assert len(places) == len(guesses)
        for place, own in zip(places, guesses, strict=True):
            truth = direct(model, ids)[place]
            if kind == "esm":
                order = sorted((TOKENS.index(letter) for letter in STANDARD), key=lambda i: -truth[i])
            else:
                order = list(np.argsort(-truth))
            assert [one.symbol for one in own] == order[:5]
            assert np.allclose([one.log_prob for one in own], truth[order[:5]], atol=1e-5)


def test_candidates_are_the_chain_rule_in_transformers(saved: Saved):
    kind, cloze, model, fast = saved
    text = written(kind)[0]
    candidates = ["A", "W", "KL"] if kind == "esm" else ["sees", "barks", "terribly", "unable"]
    [prompt] = cloze.prompts([text])
    gapped = cloze.put([prompt] * len(candidates), [[one] for one in candidates])
    mask = "<mask>" if kind in ("esm", "roberta") else "[MASK]"
    before, after = text.split(mask)
    found = cloze.fits(gapped)
    for one, fit in zip(candidates, found, strict=True):
        ids, first = fast(before + one + after)["input_ids"], len(fast(before.rstrip())["input_ids"]) - 1
        last = first + len(ids) - len(fast(text)["input_ids"]) + 1
        total = 0.0
        for place in range(first, last):
            hidden = [fast.mask_token_id if place <= at < last else token for at, token in enumerate(ids)]
            total += direct(model, hidden)[place, ids[place]]
        assert fit.units == last - first
        assert fit.log_prob == pytest.approx(total, abs=1e-5)
    assert max(fit.units for fit in found) > 1


def test_candidates_of_one_token_take_one_pass(saved: Saved):
    kind, cloze, _, _ = saved
    prompt = cloze.prompts([written(kind)[0]])[0]
    candidates = list(STANDARD) if kind == "esm" else ["cat", "dog", "a", "the", "it"]
    put = cloze.put([prompt] * len(candidates), [[one] for one in candidates])
    gapped = [one for one in put if len(one.gaps[0]) == 1]
    assert len(gapped) > 1
    before = cloze.session.conditionals().statistics.unique
    cloze.fits(gapped)
    assert cloze.session.conditionals().statistics.unique == before + 1


def test_what_a_person_writes_as_text_is_no_gap(saved: Saved):
    _, cloze, _, _ = saved
    form = cloze.forms[0]
    with pytest.raises(UsageError, match="has no gap"):
        cloze.prompts([f"a \\{form} b"])


def test_a_gap_of_several_tokens(saved: Saved):
    kind, cloze, model, fast = saved
    if kind != "bert":
        pytest.skip("one kind says it all")
    [gapped] = cloze.opened(cloze.prompts(["the [MASK:3] dog"]))
    ids = fast("the [MASK][MASK][MASK] dog")["input_ids"]
    [guesses] = cloze.guesses([gapped], 1)
    truth = direct(model, ids)
    assert [own[0].symbol for own in guesses] == truth[2:5].argmax(-1).tolist()


def test_overlapping_kmers_leak_nothing_into_a_gap():
    """Whatever stands in for a gap, the answer is the same, and it is that of a naive enumeration."""
    cloze = Cloze(Session(random_model("dna", KmerTokenizer(k=3))))
    text = "ACGTTG_ACGGA"
    [gapped] = cloze.opened(cloze.prompts([text]))
    [[guesses]] = cloze.guesses([gapped], 4)
    assert sorted(one.text for one in guesses) == sorted(BASES)
    assert sum(np.exp(one.log_prob) for one in guesses) == pytest.approx(1)
    for base in BASES:
        other = cloze.tokenizer.encode(text.replace("_", base))
        [[again]] = cloze.guesses([cloze.rule.open(other, [(6, 7)])], 4)
        assert {one.text: round(one.log_prob, 5) for one in again} == {
            one.text: round(one.log_prob, 5) for one in guesses
        }


def test_a_long_sequence_is_asked_in_a_window_around_its_gap():
    cloze = Cloze(
        Session(
            random_model(
                "protein", __import__("seqmlm.tokenizers.residue", fromlist=["x"]).ResidueTokenizer()
            )
        )
    )
    letters = "".join(itertools.islice(itertools.cycle("MKTAYIAKQRQISFVKSHFSRQ"), 300))
    for place in (0, 150, 299):
        text = letters[:place] + "_" + letters[place + 1 :]
        [gapped] = cloze.opened(cloze.prompts([text]))
        [[guesses]] = cloze.guesses([gapped], 20)
        start = min(max(place - 30, 0), 300 - 62)
        near = Prompt(raw=text[start : start + 62], holes=())
        [window] = cloze.opened(cloze.prompts([near.raw]))
        [[expected]] = cloze.guesses([window], 20)
        assert [one.text for one in guesses] == [one.text for one in expected]
