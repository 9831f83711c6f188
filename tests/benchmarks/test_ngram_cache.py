"""The cache against its formula, written out once more for one unit at a time."""

from __future__ import annotations

import math

import ngram_cache
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ngram_cache import cached_bits

UNITS = [(5,), (6,), (7,), (5, 6), (6, 6)]
sequences = st.lists(st.lists(st.sampled_from(UNITS), min_size=1, max_size=12), min_size=1, max_size=6)


@given(sequences, st.data())
def test_as_the_formula_says(units, data):
    chosen = [sorted(data.draw(st.sets(st.integers(0, len(own) - 1)))) for own in units]
    files = [data.draw(st.sampled_from("ab")) for _ in units]
    total = sum(map(len, chosen))
    base = np.array([data.draw(st.floats(0.1, 9)) for _ in range(total)])
    strengths = [0.5, 2.0, 4.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram_cache, "_tuned", lambda *_: strengths)
        found = cached_bits(base, units, chosen, files)
    number = 0
    for own, wanted, file in zip(units, chosen, files, strict=True):
        for place in wanted:
            p = 2.0 ** -base[number]
            for length, strength in enumerate(strengths):
                before = own[max(0, place - length) : place]
                after = [
                    other[at]
                    for other, hidden, where in zip(units, chosen, files, strict=True)
                    if where == file
                    for at in range(len(other))
                    if at not in hidden
                    and len(other[at]) == len(own[place])
                    and other[max(0, at - length) : at] == before
                ]
                p = (after.count(own[place]) + strength * p) / (len(after) + strength)
            assert found[number] == pytest.approx(-math.log2(p), abs=1e-9)
            number += 1
    assert number == len(found)


def test_nothing_chosen():
    assert cached_bits(np.zeros(0), [[(5,)]], [[]], ["f"]).shape == (0,)
