"""Variants: every convention is what its formula says, computed naively, and in transformers itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checkpoints import checkpoint, log_probs
from dnabert import KmerTokenizer
from tiny_models import random_model

from seqmlm.domains.protein.tokenizer import STANDARD, TOKENS, ResidueTokenizer
from seqmlm.domains.variants import Edit, Variant
from seqmlm.engine.query import Query
from seqmlm.errors import UsageError
from seqmlm.inference.session import Session
from seqmlm.inference.variants import BITS, CONVENTIONS, MASKED, VariantScorer

WILDTYPE = "MKTAYIAKQRQISFVKSHFSRQ"
MASK, ID = TOKENS.index("<mask>"), {token: number for number, token in enumerate(TOKENS)}


def variant(*edits: tuple[int, str], wildtype: str = WILDTYPE) -> Variant:
    made = tuple(Edit(place, place + 1, new) for place, new in edits)
    return Variant(name="v", wildtype=wildtype, edits=made, source="", line=1)


SINGLES = [variant((0, "A")), variant((4, "W")), variant((21, "C"))]
DOUBLES = [variant((3, "W"), (4, "C")), variant((0, "L"), (9, "D"), (21, "E")), variant()]
INDELS = [
    Variant(name="del", wildtype=WILDTYPE, edits=(Edit(3, 5, ""),), source="", line=1),
    Variant(name="ins", wildtype=WILDTYPE, edits=(Edit(6, 6, "GG"),), source="", line=1),
]


@pytest.fixture(scope="module")
def esm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Any]:
    """A random ESM checkpoint as transformers saves it, opened by us and by transformers."""
    folder = tmp_path_factory.mktemp("esm")
    model, _ = checkpoint("esm", folder)
    return Session.open(str(folder), domain="protein", expert="none"), model


def direct(model: Any, text: str, place: int, masked: set[int]) -> np.ndarray[Any, Any]:
    """Log-probabilities at a place of a sequence, by one forward pass of transformers."""
    ids = [ID["<cls>"], *(MASK if at in masked else ID[one] for at, one in enumerate(text)), ID["<eos>"]]
    return np.asarray(log_probs(model, ids)[place + 1])


def naive(model: Any, one: Variant) -> dict[str, float]:
    """The conventions by their formulas, a pass for every term."""
    x, y, places = one.wildtype, one.mutant, {edit.start for edit in one.edits}
    found = dict.fromkeys(MASKED, 0.0)
    for i in places:
        new, old = ID[y[i]], ID[x[i]]
        for name, text, masked in (
            ("wt", x, set()),
            ("masked", x, {i}),
            ("mask_fill", x, places),
            ("mutant", y, {i}),
        ):
            row = direct(model, text, i, masked)
            found[name] += row[new] - row[old]
        found["match_fill"] += direct(model, y, i, {i})[new] - direct(model, x, i, {i})[old]

    return {
        **found,
        "pll_delta": pll(model, y) - pll(model, x),
        "pll_excess": excess(model, y) - excess(model, x),
    }


def pll(model: Any, text: str) -> float:
    return sum(direct(model, text, i, {i})[ID[one]] for i, one in enumerate(text))


def excess(model: Any, text: str) -> float:
    """The pseudo-log-likelihood above its expectation, place by place."""
    rows = [direct(model, text, i, {i}) for i in range(len(text))]
    expected = [float((np.exp(row) * row).sum()) for row in rows]
    return sum(row[ID[one]] - mean for row, one, mean in zip(rows, text, expected, strict=True))


def test_conventions_are_those_of_transformers(esm: tuple[Session, Any]):
    session, model = esm
    variants = [*SINGLES, *DOUBLES]
    for one, found in zip(
        variants, VariantScorer(session, STANDARD, pll=True).effects(variants), strict=True
    ):
        expected = naive(model, one)
        assert {name: found[name] for name in CONVENTIONS} == pytest.approx(expected, abs=1e-5)
        assert len(one.edits) < 2 or len({round(found[name], 3) for name in MASKED}) == len(MASKED)


def test_deletions_and_insertions_have_what_is_of_whole_sequences_alone(esm: tuple[Session, Any]):
    session, model = esm
    for one, found in zip(INDELS, VariantScorer(session, STANDARD).effects(INDELS), strict=True):
        plls, above = ([of(model, text) for text in (one.wildtype, one.mutant)] for of in (pll, excess))
        assert found == {
            "pll_delta": pytest.approx(plls[1] - plls[0], abs=1e-4),
            "pll_excess": pytest.approx(above[1] - above[0], abs=1e-4),
            "pll_delta_per_unit": pytest.approx(plls[1] / len(one.mutant) - plls[0] / 22, abs=1e-5),
        }


def test_bits_of_the_wild_type_are_those_of_the_places_asked(esm: tuple[Session, Any]):
    session, model = esm
    changed, same = VariantScorer(session, STANDARD).effects([variant((3, "W"), (4, "C")), variant()])
    assert BITS not in same
    rows = [direct(model, WILDTYPE, place, {place})[ID[WILDTYPE[place]]] for place in (3, 4)]
    assert changed[BITS] == pytest.approx(-np.mean(rows) / np.log(2), abs=1e-5)


def test_no_pass_is_repeated(esm: tuple[Session, Any]):
    """All 418 single substitutions take a pass a place and one unmasked; a second scoring takes none."""
    scorer = VariantScorer(esm[0], STANDARD)
    every = [variant((i, new)) for i in range(22) for new in STANDARD if new != WILDTYPE[i]]
    before = esm[0].conditionals().statistics.unique
    scorer.expect(every)
    scorer.effects(every[:200])
    scorer.effects(every[200:])
    grid = scorer.map(WILDTYPE)
    assert esm[0].conditionals().statistics.unique == before + 22 + 1
    for one, found in zip(every, scorer.effects(every), strict=True):
        edit = one.edits[0]
        assert grid[edit.start, STANDARD.index(edit.text)] == pytest.approx(found["masked"], abs=1e-6)
    assert esm[0].conditionals().statistics.unique == before + 22 + 1


def test_answers_do_not_depend_on_what_is_in_a_batch(esm: tuple[Session, Any]):
    """To the last bit: whoever goes on with a run that was stopped has other variants in his first batch."""
    asked = [*SINGLES, *DOUBLES, *INDELS]
    whole, rest = VariantScorer(esm[0], STANDARD, pll=True), VariantScorer(esm[0], STANDARD, pll=True)
    for one in (whole, rest):
        one.expect(asked)
    found = whole.effects(asked[:2]) + whole.effects(asked[2:])
    assert rest.effects(asked[2:]) == found[2:]


def test_a_long_protein_is_asked_in_the_window_of_proteingym():
    """start = clamp(i - w // 2, 0, L - w), w residues: of a model of 64 tokens 62."""
    session = Session(random_model("protein", ResidueTokenizer()))
    text, scorer = (WILDTYPE * 10)[:200], VariantScorer(session, STANDARD)
    for place in (0, 30, 31, 100, 170, 199):
        [found] = scorer.effects([variant((place, "W"), wildtype=text)])
        start = min(max(place - 62 // 2, 0), 200 - 62)
        window = session.tokenizer.encode(text[start : start + 62])
        at = np.array([place - start + 1], dtype=np.int32)
        total = 0.0
        for letter, sign in (("W", 1), (text[place], -1)):
            query = Query(
                encoding=window, masked=at, asked=at, targets=np.array([ID[letter]], dtype=np.int32)
            )
            [answer] = session.conditionals().ask([query])
            total += sign * float(answer.values["log_prob"][0])
        assert found["masked"] == pytest.approx(total, abs=1e-5)


def test_places_outside_a_window_do_not_count():
    session = Session(random_model("protein", ResidueTokenizer()))
    text, scorer = (WILDTYPE * 10)[:200], VariantScorer(session, STANDARD)
    far = variant((5, "W"), (190, "W"), wildtype=text)
    both, *each = scorer.effects([far, variant((5, "W"), wildtype=text), variant((190, "W"), wildtype=text)])
    for name in MASKED:
        assert both[name] == pytest.approx(each[0][name] + each[1][name], abs=1e-5)


def test_a_model_whose_letters_are_others_is_refused():
    with pytest.raises(UsageError, match="single letters"):
        VariantScorer(Session(random_model("dna", KmerTokenizer(k=3))), STANDARD)


@pytest.mark.parametrize("pll", [False, True])
@pytest.mark.parametrize("kind", ["single", "double", "deletion", "segment"])
def test_what_variants_take_is_estimated_before_they_are_asked(kind: str, pll: bool) -> None:
    wildtype = WILDTYPE * 2
    edits: dict[str, Any] = {
        "single": lambda at: (Edit(at, at + 1, "W"),),
        "double": lambda at: (Edit(at, at + 1, "W"), Edit(at + 3, at + 4, "W")),
    }
    cut = edits.get(kind, lambda at: (Edit(at, at + 2, ""),))
    flank = 3 if kind == "segment" else None
    variants = [
        Variant(name=f"{at}", wildtype=wildtype, edits=cut(at), source="", line=at, flank=flank)
        for at in range(5, 35)
    ]
    session = Session(random_model("protein", ResidueTokenizer(), max_length=100))
    scorer = VariantScorer(session, STANDARD, pll=pll)
    scorer.expect(variants)
    estimate = sum(map(scorer.cost, variants))
    scorer.effects(variants)
    assert 0.8 < estimate / session.forward_tokens < 3


def test_what_variants_share_is_asked_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variant costs what was not asked for others before it, in about two seconds of work at a time."""
    monkeypatch.setattr("seqmlm.inference.record_batches.tokens_per_second", lambda model: 100.0)
    monkeypatch.setattr("seqmlm.inference.record_batches._LEAST", {False: 1, True: 1})
    variants = [variant((place, "W" if place != 12 else "C")) for place in range(len(WILDTYPE))]
    found, batches = [], [variants[:1], variants[1:9], variants[9:]]
    session = Session(random_model("protein", ResidueTokenizer(), max_length=100))
    scorer = VariantScorer(session, STANDARD)
    scorer.expect(variants)
    for batch in batches:
        before = session.forward_tokens
        found += scorer.effects(batch)
        assert session.forward_tokens - before == pytest.approx(sum(map(scorer.cost, batch)), rel=0.6)
    later = VariantScorer(Session(session.model), STANDARD)
    later.expect(variants)
    assert later.effects(variants[9:]) == found[9:]  # to the last bit, as a resumed run needs
