"""What a training says of the scores that its model will give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from seqmlm import plugins
from seqmlm.anomaly.levels import WHOLE
from seqmlm.reports.verdict import training_sentences
from seqmlm.training import finalize

FACTS = {
    "mixture_bits": 1.0,
    "counts_bits": 1.5,
    "model_bits": 2.0,
    "frequencies_bits": 3.0,
    "better": True,
    "gains": {"mixture": {"model": {"value": 1.0, "low": 0.5, "high": 1.5}}},
}


@pytest.mark.parametrize("name", plugins.names("domains"))
def test_the_headline_is_of_what_scores_of_the_default_level_use(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Levels that show the model a part of each record never mix counts in."""
    field: Any = plugins.domain(name)
    monkeypatch.setattr(finalize, "fit_expert", lambda *made, **options: SimpleNamespace(facts=FACTS))
    model: Any = SimpleNamespace(domain=field, card=SimpleNamespace(seed=0))
    corpus: Any = SimpleNamespace(train=None, validation=None, unigram=None)
    after: Any = SimpleNamespace(outcome=SimpleNamespace(tokens=1))
    told = list[str]()
    _, held_out = finalize._fit_counts(model, corpus, after, told.append)
    assert held_out is not None
    lead, *warnings = training_sentences(held_out, 1)
    bits, used = ("1.000", "model + counts")
    alone = field.level(None).view != WHOLE
    if alone:
        bits, used = ("2.000", "the model")
    assert lead.startswith(
        f"1 step: {bits} bits per {field.unit} on held-out records with {used} (used for scores);"
    )
    assert alone is (field.level(None).name in told[0])
    assert bool(warnings) is alone, "counts are better than the model alone"
