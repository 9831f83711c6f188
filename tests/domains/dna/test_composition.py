"""The composition of DNA: against a naive count, and the same for both strands."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from seqmlm.domains.dna.levels import Composition, base_codes
from seqmlm.domains.dna.tokenizer import reverse_complement


def text(seed: int, length: int) -> str:
    return "".join(np.random.default_rng(seed).choice(list("ACGTacN"), length))


def naive(train: list[str], sequence: str, order: int) -> list[float]:
    """By dictionaries, letter by letter."""
    counts: Counter[str] = Counter()
    for one in train:
        for strand in (one.upper(), reverse_complement(one.upper())):
            for end in range(1, len(strand) + 1):
                for k in range(order + 1):
                    word = strand[max(0, end - k - 1) : end]
                    if len(word) == k + 1 and "N" not in word:
                        counts[word] += 1

    def share(context: str, base: str) -> float:
        below = share(context[1:], base) if context else 0.25
        seen = sum(counts[context + letter] for letter in "ACGT")
        return (counts[context + base] + 4 * below) / (seen + 4)

    def one_way(strand: str) -> list[float]:
        found = []
        for place, base in enumerate(strand):
            context = strand[max(0, place - order) : place].rpartition("N")[2]
            found.append(math.nan if base == "N" else -math.log2(share(context, base)))
        return found

    forward, backward = one_way(sequence.upper()), one_way(reverse_complement(sequence.upper()))[::-1]
    return [(a + b) / 2 for a, b in zip(forward, backward, strict=True)]


@pytest.mark.parametrize("order", [0, 1, 3])
def test_bits_are_those_of_a_naive_count(order: int) -> None:
    train = [text(seed, 60) for seed in range(5)]
    chain = Composition.from_codes((base_codes(one) for one in train), order)
    for sequence in (text(9, 80), "A", "NN", "ANCGTNA"):
        np.testing.assert_allclose(chain.bits(sequence), naive(train, sequence, order), atol=1e-12)
