"""Near duplicates: found by likeness, first one wins, the same every time, in bounded memory."""

from __future__ import annotations

import random

import numpy as np

from seqmlm.data.duplicates import NearDuplicates


def text(seed: int, words: int = 400) -> list[str]:
    source = random.Random(seed)
    return [f"w{source.randrange(500)}" for _ in range(words)]


def changed(words: list[str], places: int, seed: int = 0) -> list[str]:
    """The same with some words replaced, spread evenly."""
    made = list(words)
    for place in np.linspace(10, len(words) - 10, places).astype(int):
        made[place] = f"new{seed}{place}"
    return made


def likeness(one: list[str], two: list[str]) -> float:
    """Exact Jaccard likeness of the sets of runs of five."""
    a, b = ({tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (one, two))
    return len(a & b) / len(a | b)


def test_estimates_are_near_the_exact_likeness():
    seen = NearDuplicates()
    for places in (1, 3, 6, 12, 25, 60):
        one = text(places)
        two = changed(one, places)
        estimate = seen.signature(" ".join(one)).jaccard(seen.signature(" ".join(two)))
        assert abs(estimate - likeness(one, two)) < 4 * 0.5 / np.sqrt(128)


def test_copies_are_found_and_different_texts_are_not():
    seen = NearDuplicates(0.85)
    originals = [text(seed) for seed in range(300)]
    assert not any(seen.is_repeat(" ".join(words)) for words in originals)
    copies = [changed(words, 3) for words in originals]  # likeness about .93
    assert likeness(originals[0], copies[0]) > 0.9
    assert np.mean([seen.is_repeat(" ".join(words)) for words in copies]) > 0.97
    assert len(seen) <= 300 + 9
    others = [changed(words, 40) for words in originals]  # likeness about .33
    assert not any(seen.is_repeat(" ".join(words)) for words in others)


def test_white_space_does_not_count_and_the_first_one_wins():
    seen = NearDuplicates()
    assert not seen.is_repeat("def f(x):\n    return x + 1\n")
    assert seen.is_repeat("def f(x): return x+1")
    assert not seen.is_repeat("def f(x): return x+2")
    assert len(seen) == 2


def test_short_texts_are_never_alike():
    seen = NearDuplicates()
    assert [seen.is_repeat("a b c"), seen.is_repeat("a b c"), seen.is_repeat("")] == [False] * 3


def test_memory_is_bounded_and_the_oldest_are_forgotten():
    seen = NearDuplicates(capacity=64)
    texts = [" ".join(text(seed, 60)) for seed in range(400)]
    assert not any(map(seen.is_repeat, texts))
    assert len(seen._kept) == 64
    assert all(map(seen.is_repeat, texts[-50:]))
    assert not any(map(seen.is_repeat, texts[:50]))
