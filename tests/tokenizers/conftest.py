"""A small text corpus, and one tokenizer of each kind trained on it."""

from __future__ import annotations

import random

import pytest

from seqmlm.tokenizers.subword import BpeTokenizer, SubwordTokenizer, UnigramTokenizer, WordPieceTokenizer

KINDS = (BpeTokenizer, WordPieceTokenizer, UnigramTokenizer)


def corpus(seed: int = 0) -> list[str]:
    """Sentences of made-up words, with punctuation, accents, capitals and another script."""
    source = random.Random(seed)
    syllables = [a + b for a in "bcdfglmnprst" for b in ("a", "e", "i", "o", "é", "ü", "an")]
    words = ["".join(source.choices(syllables, k=source.randint(1, 3))) for _ in range(400)]
    lines = ["Straße, señor (yes)! don't so, Ω мир. a-b 3.14 你好?"] * 20
    for _ in range(1500):
        drawn = [words[min(int(source.paretovariate(0.6)) - 1, len(words) - 1)] for _ in range(8)]
        lines.append(" ".join(drawn).capitalize() + source.choice([".", "!", ", so.", "?"]))
    return lines


@pytest.fixture(scope="session", params=KINDS, ids=lambda kind: kind.name)
def tokenizer(request: pytest.FixtureRequest) -> SubwordTokenizer:
    return request.param.train(corpus(), vocabulary_size=600)


@pytest.fixture(scope="session")
def bpe() -> BpeTokenizer:
    return BpeTokenizer.train(corpus(), vocabulary_size=600)
