"""Windows neither lose nor double a token and keep units whole where that is possible."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmlm.engine.types import Encoding, TokenSpace
from seqmlm.engine.windows import central_windows, join, moved_window, moving_windows, windows, windows_at
from seqmlm.errors import UsageError

SPACE = TokenSpace(size=1000, pad=0, mask=4, unk=1, start=2, end=3, special=(0, 1, 2, 3, 4))
START, END = 2, 3


def encode(units: list[int], *, start: bool = True, end: bool = True, first_id: int = 5) -> Encoding:
    """A sequence of units of the given sizes; ids count up, so that each token can be told."""
    groups = np.repeat(np.arange(len(units)), units)
    ids = first_id + np.arange(len(groups))
    before, after = [START] * start, [END] * end
    spans = np.stack([np.arange(len(groups)), np.arange(len(groups)) + 1], axis=1)
    spans = np.pad(spans, ((int(start), int(end)), (0, 0))).astype(np.int32)
    ids = np.concatenate([before, ids, after]).astype(np.int32)
    return Encoding(
        ids=ids,
        groups=np.concatenate([[-1] * start, groups, [-1] * end]).astype(np.int32),
        spans=spans,
        classes=(ids % 7).astype(np.int16),
        weights=(ids / 8).astype(np.float32),
        symbols=np.where((ids > 4) & (ids % 3 == 0), ids % 5, -1).astype(np.int32),
        positions=np.arange(len(ids), dtype=np.int32),
        channels={"age": (ids / 4).astype(np.float32)},
    )


encodings = st.builds(
    encode, st.lists(st.integers(1, 6), min_size=1, max_size=25), start=st.booleans(), end=st.booleans()
)
limits = st.integers(3, 20)


def inner(*encodings: Encoding) -> list[int]:
    return [token for encoding in encodings for token in encoding.ids.tolist() if token > 4]


def assert_columns_follow(window: Encoding, whole: Encoding) -> None:
    """Every token brings along what it had."""
    place = {token: position for position, token in enumerate(whole.ids.tolist())}
    at = [place[token] for token in window.ids.tolist()]
    for name in ("groups", "spans", "classes", "weights", "symbols"):
        np.testing.assert_array_equal(getattr(window, name), getattr(whole, name)[at])
    np.testing.assert_array_equal(window.channels["age"], whole.channels["age"][at])
    np.testing.assert_array_equal(window.positions, np.arange(len(window)))


@given(encoding=encodings, max_length=limits)
def test_windows_hold_each_token_once_in_order(encoding, max_length):
    parts = windows(encoding, SPACE, max_length)
    assert inner(*parts) == inner(encoding)
    for part in parts:
        assert len(part) <= max_length
        assert (part.ids[0] == START, part.ids[-1] == END) == (
            encoding.ids[0] == START,
            encoding.ids[-1] == END,
        )
        assert_columns_follow(part, encoding)


long_sequences = st.builds(
    encode, st.lists(st.integers(1, 3), min_size=20, max_size=120), start=st.booleans(), end=st.booleans()
)
SHARES = np.array([0.0, 0.31, 0.5, 0.77, 1.0])


@given(encoding=long_sequences, max_length=st.integers(18, 60))
def test_windows_cut_elsewhere_hold_each_token_once_in_order(encoding, max_length):
    encoding = replace(encoding, positions=None)
    moving = moving_windows(encoding, SPACE, max_length, SHARES)
    if len(encoding) <= max_length:
        assert moving is None
        return
    if moving is None:
        assert int(np.bincount(encoding.groups[encoding.groups >= 0]).max()) * 5 > max_length - 5
        return
    head, tail = int(encoding.ids[0] == START), int(encoding.ids[-1] == END)
    assert (moving.head, moving.tail) == (head, tail)
    assert moving.moves.shape == (len(moving.windows), len(SHARES))
    longest = int(np.bincount(encoding.groups[encoding.groups >= 0]).max())
    fewest = -(-(len(encoding) - head - tail) // (max_length - head - tail - longest + 1))
    assert len(moving.windows) - fewest in (0, 1)
    assert not moving.moves[:, 2].any()  # the windows themselves are cut in the middle of the range
    sizes = [len(window) - head - tail for window in moving.windows]
    begins = np.cumsum([0, *sizes])
    for way in moving.moves.T:
        bounds = begins + np.append(way, 0)
        cut = [
            moved_window(moving.windows, head, tail, begin, end) for begin, end in pairwise(bounds.tolist())
        ]
        assert inner(*cut) == inner(encoding)
        units = [set(window.groups[window.groups >= 0].tolist()) for window in cut]
        assert sum(map(len, units)) == len(set.union(*units)), "a unit was divided"
        for window in cut:
            assert head + tail < len(window) <= max_length
            assert (window.ids[0] == START, window.ids[-1] == END) == (head, tail)
            assert_columns_follow(replace(window, positions=np.arange(len(window))), encoding)


def test_cuts_move_by_a_quarter_of_a_window_at_least():
    for length in range(101, 700):
        moving = moving_windows(
            replace(encode([1] * length), positions=None), SPACE, 102, np.array([0.0, 1.0])
        )
        moved = moving.moves[1:, 1] - moving.moves[1:, 0]
        assert moved.min() == moved.max() >= 25  # all of a sequence by as much


def test_what_cannot_be_cut_elsewhere_is_left_as_it_is():
    shares = np.array([0.2])
    assert moving_windows(encode([1] * 50), SPACE, 20, shares) is None  # explicit positions
    assert moving_windows(replace(encode([1] * 9), positions=None), SPACE, 20, shares) is None
    assert moving_windows(replace(encode([1] * 40 + [12]), positions=None), SPACE, 20, shares) is None


@given(encoding=encodings, max_length=st.integers(8, 20))
def test_units_that_fit_are_never_split(encoding, max_length):
    owners: dict[int, int] = {}
    for number, part in enumerate(windows(encoding, SPACE, max_length)):
        for group in set(part.groups[part.groups >= 0].tolist()):
            assert owners.setdefault(group, number) == number


def test_a_unit_longer_than_a_window_is_split_inside():
    parts = windows(encode([2, 9, 2]), SPACE, 7)
    assert [part.groups[1:-1].tolist() for part in parts] == [[0, 0], [1] * 4, [1] * 5, [2, 2]]


def test_windows_have_similar_lengths():
    sizes = [len(inner(part)) for part in windows(encode([1] * 101), SPACE, 52)]
    assert sizes == [34, 34, 33]


def test_special_tokens_inside_are_no_unit_to_keep_whole():
    encoding = Encoding(
        ids=np.array([7, 8, 0, 0, 0, 0, 9, 10], np.int32),
        groups=np.array([0, 0, -1, -1, -1, -1, 1, 1], np.int32),
    )
    assert [len(part) for part in windows(encoding, SPACE, 4)] == [4, 4]


def test_positions_that_do_not_count_tokens_keep_their_steps():
    encoding = Encoding(
        ids=np.array([START, 5, 6, 7, 8, 9, END], np.int32),
        groups=np.array([-1, 0, 0, 1, 1, 2, -1], np.int32),
        positions=np.array([0, 1, 1, 2, 2, 3, 4], np.int32),
    )
    parts = windows(encoding, SPACE, 5)
    assert [part.positions.tolist() for part in parts] == [[0, 1, 1, 2], [0, 1, 1, 2, 3]]


@given(encoding=encodings, max_length=limits)
def test_central_windows_own_each_token_once(encoding, max_length):
    parts = central_windows(encoding, SPACE, max_length)
    owned = [token for window, own in parts for token in window.ids[own].tolist()]
    assert owned == inner(encoding)
    for window, own in parts:
        assert len(window) <= max_length
        assert len(own) == len(window)
        assert_columns_follow(window, encoding)
        ids = inner(window)
        assert ids == list(range(ids[0], ids[-1] + 1))


def test_central_windows_give_context_on_both_sides():
    parts = central_windows(encode([1] * 100), SPACE, 42)  # room for 40 tokens, parts of 20
    contexts = [(int(own.argmax()) - 1, int(own[::-1].argmax()) - 1) for _, own in parts]
    assert contexts == [(0, 20), (10, 10), (10, 10), (10, 10), (20, 0)]


@given(
    sizes=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=8),
    max_length=limits,
)
def test_joined_sequences_hold_each_token_once(sizes, max_length):
    sequences = [encode(units, first_id=5 + 100 * number) for number, units in enumerate(sizes)]
    unit_of = {
        token: 100 * number + group
        for number, own in enumerate(sequences)
        for token, group in zip(own.ids.tolist(), own.groups.tolist(), strict=True)
    }
    parts = join(sequences, SPACE, max_length)
    assert inner(*parts) == inner(*sequences)
    for part in parts:
        assert len(part) <= max_length
        assert part.ids.tolist().count(START) == 1
        assert (part.ids[0], part.ids[-1]) == (START, END)
        np.testing.assert_array_equal(part.positions, np.arange(len(part)))
        np.testing.assert_array_equal(part.groups < 0, part.ids < 5)
        np.testing.assert_array_equal(part.weights, (part.ids / 8).astype(np.float32))
        units = set(
            zip(np.array([unit_of[token] for token in inner(part)]), part.groups[part.ids > 4], strict=True)
        )
        assert len(units) == len({unit for unit, _ in units}) == len({group for _, group in units})
        names = {
            ((token - 5) // 100, token % 5): symbol
            for token, symbol in zip(part.ids.tolist(), part.symbols.tolist(), strict=True)
            if symbol >= 0
        }
        assert len(set(names.values())) == len(names)
    for one, other in pairwise(parts):
        first_sequence = other.ids.tolist().index(END)  # without the start token it would drop
        assert len(one) + first_sequence > max_length


def test_join_refuses_sequences_of_different_make():
    bare = Encoding(ids=np.array([START, 7, END], np.int32), groups=np.array([-1, 0, -1], np.int32))
    with pytest.raises(UsageError, match="same per-token columns"):
        join([encode([1]), bare], SPACE, 20)
    with pytest.raises(UsageError, match="same per-token columns"):
        join([bare, replace(bare, channels={"age": np.ones(3, np.float32)})], SPACE, 20)
    assert join([], SPACE, 20) == []


def test_a_window_without_room_is_refused():
    for cut in (windows, central_windows):
        with pytest.raises(UsageError, match="max_length = 2 leaves no room"):
            cut(encode([1, 1, 1]), SPACE, 2)


@given(
    units=st.lists(st.integers(1, 6), min_size=2, max_size=25),
    head=st.integers(0, 3),
    places=st.sets(st.integers(0, 60), max_size=8),
    max_length=st.integers(8, 30),
)
def test_windows_at_given_places(units: list[int], head: int, places: set[int], max_length: int) -> None:
    encoding = encode(units)
    first, stop = 1 + min(head, len(encoding) - 3), len(encoding) - 1
    starts = np.array(sorted({first} | {own for own in places if first < own < stop}))
    found = windows_at(encoding, SPACE, max_length, starts)
    room = max_length - first - 1
    assert [token for window in found for token in window.ids[first:-1].tolist()] == encoding.ids[
        first:stop
    ].tolist()
    begins = []
    for window in found:
        assert len(window) <= max_length
        assert window.ids[:first].tolist() == encoding.ids[:first].tolist()
        assert window.ids[-1] == END
        assert_columns_follow(window, encoding)
        begins.append(int((encoding.ids == window.ids[first]).argmax()))
    edges = [*starts.tolist(), stop]
    for begin, end in pairwise([*begins, stop]):
        # Only a part that is longer than a window begins elsewhere; no window could take one more part.
        own = max(edge for edge in edges if edge <= begin)
        assert begin == own or min(edge for edge in edges if edge > own) - own > room
        before = [edge for edge in edges if edge < begin]
        assert not before or begin != own or end - before[-1] > room
