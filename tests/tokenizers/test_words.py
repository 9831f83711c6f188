"""Counting words and sizing a vocabulary."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from seqmlm.tokenizers import subword


@given(counts=st.dictionaries(st.text("abé", min_size=1, max_size=5), st.integers(1, 40), max_size=10))
def test_repeated_lines_hold_every_word_as_often_as_counted(counts):
    assert Counter(word for line in subword.repeated(counts) for word in line.split(" ")) == counts


def test_a_word_more_frequent_than_a_line_is_long_is_not_cut_short():
    lines = list(subword.repeated({"abc": 50_000}))
    assert len(lines) > 2
    assert max(map(len, lines)) < 2 << 16
    assert sum(line.count("abc") for line in lines) == 50_000


def test_words_are_counted_after_normalizing_and_come_sorted():
    counts = subword.count_words(
        iter(["The dog, the cat", "THE " + "x" * 101]),
        normalizers.Lowercase(),
        pre_tokenizers.BertPreTokenizer(),
    )
    assert list(counts.items()) == [(",", 1), ("cat", 1), ("dog", 1), ("the", 3)]


def test_memory_is_bounded_by_forgetting_words_seen_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subword, "_DISTINCT_WORDS", 10)
    texts = ["common common"] + [f"rare{i}" for i in range(25)]
    counts = subword.count_words(texts, None, pre_tokenizers.WhitespaceSplit())
    assert counts["common"] == 2
    assert len(counts) <= 10


@pytest.mark.parametrize(
    ("characters", "size"), [(10, 1024), (1_000_000, 2000), (25_000_000, 10_000), (10**10, 32768)]
)
def test_size_grows_with_the_root_of_the_text(characters, size):
    assert subword.fitted_size({"ab": characters // 2}) == size
    assert subword.fitted_size({"ab": characters // 2}) % 8 == 0


def test_letters_are_those_seen_most_with_ties_by_code_point():
    counts = {"aab": 2, "cd": 2, "e": 9}
    assert subword.frequent_letters(counts, limit=3) == ["a", "b", "e"]
    assert subword.spelled_with(counts, "abe") == {"aab": 2, "e": 9}


def test_words_of_few_texts_are_left_out():
    texts = ["secret secret secret common", *["common words"] * 9, "words"]
    counts = subword.count_words(texts, None, pre_tokenizers.WhitespaceSplit(), min_records=10)
    assert counts == {"common": 10, "words": 10}
