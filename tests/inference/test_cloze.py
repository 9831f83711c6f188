"""Gaps and candidates: what the engine answers is what transformers answers, for any tokenizer."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from checkpoints import checkpoint, log_probs
from dnabert import KmerTokenizer
from tiny_models import random_model

from seqmlm.domains.dna.tokenizer import BASES
from seqmlm.domains.holes import Prompt
from seqmlm.domains.protein.tokenizer import STANDARD, TOKENS, ResidueTokenizer
from seqmlm.errors import UsageError
from seqmlm.inference.cloze import Cloze, most_probable
from seqmlm.inference.session import Session


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


def test_guesses_are_those_of_transformers(saved: Saved):
    kind, cloze, model, fast = saved
    texts = written(kind)
    gapped = cloze.opened(cloze.prompts(texts))
    for text, guesses in zip(texts, cloze.guesses(gapped, 5), strict=True):
        ids = fast(text.replace("_", "<mask>"))["input_ids"]
        places = [place for place, token in enumerate(ids) if token == fast.mask_token_id]
        assert len(places) == len(guesses)
        for place, own in zip(places, guesses, strict=True):
            truth = log_probs(model, ids)[place]
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
    gapped = cloze.encode_filled([prompt] * len(candidates), [[one] for one in candidates])
    mask = "<mask>" if kind in ("esm", "roberta") else "[MASK]"
    before, after = text.split(mask)
    found = cloze.fits(gapped)
    for one, fit in zip(candidates, found, strict=True):
        ids, first = fast(before + one + after)["input_ids"], len(fast(before.rstrip())["input_ids"]) - 1
        last = first + len(ids) - len(fast(text)["input_ids"]) + 1
        total = 0.0
        for place in range(first, last):
            hidden = [fast.mask_token_id if place <= at < last else token for at, token in enumerate(ids)]
            total += log_probs(model, hidden)[place, ids[place]]
        assert fit.units == last - first
        assert fit.log_prob == pytest.approx(total, abs=1e-5)
    assert max(fit.units for fit in found) > 1


def test_candidates_of_one_token_take_one_pass(saved: Saved):
    kind, cloze, _, _ = saved
    prompt = cloze.prompts([written(kind)[0]])[0]
    candidates = list(STANDARD) if kind == "esm" else ["cat", "dog", "a", "the", "it"]
    put = cloze.encode_filled([prompt] * len(candidates), [[one] for one in candidates])
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
    truth = log_probs(model, ids)
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
        [[again]] = cloze.guesses([cloze.rule.open_gaps(other, [(6, 7)])], 4)
        assert {one.text: round(one.log_prob, 5) for one in again} == {
            one.text: round(one.log_prob, 5) for one in guesses
        }


def test_a_long_sequence_is_asked_in_a_window_around_its_gap():
    cloze = Cloze(Session(random_model("protein", ResidueTokenizer())))
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


@pytest.mark.parametrize("rounds", [1, 2, 3, 7])
def test_all_gaps_are_filled_by_mask_predict(rounds: int):
    """The same as asking again and again about a string in which the least sure letters are gaps."""
    cloze = Cloze(Session(random_model("protein", ResidueTokenizer())))
    text = "MK__A_YIAKQ_Q___FVK"
    places = [place for place, letter in enumerate(text) if letter == "_"]
    letters, sure = list(text), {}
    for done in range(rounds):
        count = -(-len(places) * (rounds - done) // rounds)
        hidden = sorted(sorted(places, key=lambda place: sure.get(place, -np.inf))[:count])
        for place in hidden:
            letters[place] = "_"
        [guesses] = cloze.guesses(cloze.opened(cloze.prompts(["".join(letters)])), 20)
        for place, own in zip(hidden, guesses, strict=True):
            standard = np.logaddexp.reduce([one.log_prob for one in own])
            letters[place], sure[place] = own[0].text, own[0].log_prob - standard
    [texts] = cloze.refined(cloze.prompts([text]), rounds, most_probable)
    assert "".join(texts) == "".join(letters[place] for place in places)
