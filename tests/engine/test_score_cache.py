"""Windows that come again: scored once, wherever they stand, within a bound of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from seqmlm.engine.backbones import ModelConfig, build
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.correction import Correction
from seqmlm.engine.mode import Mode
from seqmlm.engine.model import MaskedRows
from seqmlm.engine.score_cache import ScoreCache, key_of
from seqmlm.engine.scoring import Scorer, SequenceScore
from seqmlm.engine.types import Encoding, TokenSpace

SPACE = TokenSpace(size=20, pad=0, mask=1, unk=2, start=3, end=4, special=(0, 1, 2, 3, 4))
MODES = ["exact", "partition:3", "one-pass"]


@pytest.fixture(scope="module")
def rows() -> MaskedRows:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    overrides = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return MaskedRows(build(ModelConfig(overrides={**overrides, "initializer_range": 0.5}), SPACE), SPACE)


def window(seed: int, first: int = 0, length: int = 12) -> Encoding:
    inner = np.random.default_rng(seed).integers(5, 20, length)
    groups = np.concatenate([[-1], first + np.arange(length) // 2, [-1]]).astype(np.int32)
    return Encoding(ids=np.array([3, *inner, 4], dtype=np.int32), groups=groups)


def stream(n: int, distinct: int) -> Iterator[tuple[Encoding, None]]:
    for number in range(n):
        yield window((number * number) % distinct, first=10 * number), None


def scorer(rows: MaskedRows, text: str, remember: int = 1 << 20, lookahead: int = 40) -> Scorer:
    ask = Conditionals(rows, lookahead=lookahead)
    return Scorer(ask, mode=Mode.parse(text), correction=Correction(), entropy=True, remember=remember)


@pytest.mark.parametrize("text", MODES)
def test_a_window_is_asked_once_and_its_score_is_the_same(rows: MaskedRows, text: str) -> None:
    fresh, keeping = scorer(rows, text, remember=0), scorer(rows, text)
    # Numbers of the second half: the scorer remembers from call to call.
    found = [*keeping.windows(stream(300, 11)), *keeping.windows(stream(300, 11))]
    expected = [score for one in stream(300, 11) for score in fresh.windows([one])] * 2
    assert len(found) == 600
    for a, b in zip(found, expected, strict=True):
        assert a.positions.tolist() == b.positions.tolist()
        assert a.groups.tolist() == b.groups.tolist()
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-5)
        assert a.entropy is not None
        assert b.entropy is not None
        np.testing.assert_allclose(a.entropy, b.entropy, atol=1e-5)
    distinct = len({(number * number) % 11 for number in range(11)})
    [once] = scorer(rows, text).rule.questions(window(0), None, Mode.parse(text))
    assert keeping.conditionals.statistics.variants == distinct * once.variants


def test_known_windows_do_not_pile_up(rows: MaskedRows) -> None:
    read = []

    def source() -> Iterator[tuple[Encoding, None]]:
        for number, one in enumerate(stream(3000, 3)):
            read.append(number)
            yield one

    ahead = max(len(read) - number for number, _ in enumerate(scorer(rows, "exact").windows(source())))
    assert len(read) == 3000
    assert ahead < 600


def test_windows_without_units_keep_their_place(rows: MaskedRows) -> None:
    empty = Encoding(ids=np.array([3, 4], dtype=np.int32), groups=np.array([-1, -1], dtype=np.int32))
    asked = [(one, None) for one in (empty, window(0), empty, window(0), empty, window(1), window(0), empty)]
    lengths = [len(score.positions) for score in scorer(rows, "exact").windows(asked)]
    assert lengths == [0, 12, 0, 12, 0, 12, 12, 0]


def test_what_a_score_depends_on_is_in_the_key() -> None:
    base = window(0)
    owned = np.ones(len(base), dtype=np.bool_)
    assert key_of(base, owned) == key_of(base, None) == key_of(window(0, first=50), None)
    part = owned.copy()
    part[3] = False
    others = [
        key_of(base, part),
        key_of(window(1), None),
        key_of(replace(base, groups=np.where(base.groups >= 0, np.arange(len(base)), -1)), None),
        key_of(replace(base, positions=np.arange(len(base), dtype=np.int32) // 2), None),
        key_of(replace(base, channels={"age": np.ones(len(base), dtype=np.float32)}), None),
        key_of(replace(base, channels={"time": np.ones(len(base), dtype=np.float32)}), None),
    ]
    assert len({key_of(base, None), *others}) == 7


def test_the_least_recently_asked_make_room() -> None:
    def score(n: int) -> SequenceScore:
        places = np.arange(n, dtype=np.int32)
        return SequenceScore(places, np.zeros(n, dtype=np.float32), places)

    cache = ScoreCache(5000)
    for name in "abc":
        cache.put(name, score(40))
    assert cache.get("a") is not None
    cache.put("d", score(40))  # 4 x (480 + 1024 + 1) bytes are too many
    assert [cache.get(name) is not None for name in "abcd"] == [True, False, True, True]
    cache.put("huge", score(1000))
    assert cache.get("huge") is None
    assert len(cache) == 3
    nothing = ScoreCache(0)
    nothing.put("a", score(1))
    assert nothing.get("a") is None
