"""Windows: long sequences are split at unit boundaries, short ones of a document are joined.

No token is lost. All functions raise a UsageError if `max_length` leaves no room besides the tokens that
every window repeats, such as the start and end token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Ids, Longs, TokenSpace, join_columns
from seqmlm.errors import UsageError

_UNLIKE = "sequences in one window must have the same per-token columns; encode them in the same way"


def windows(encoding: Encoding, space: TokenSpace, max_length: int) -> list[Encoding]:
    """Split a sequence of more than `max_length` tokens into windows of similar length.

    A window ends at a change of unit. Only a unit longer than a whole window is split. Each window has the
    start and end token of the sequence, if it has them. Groups and spans still refer to the sequence.
    Explicit positions are shifted to begin like the positions of the sequence.
    """
    if len(encoding) <= max_length:
        return [encoding]
    first, stop = _inner(encoding, space)
    room = _room(encoding, first, stop, max_length)
    parts = _parts(_cuts(encoding, first, stop), room, room)
    return [_window(encoding, first, stop, start, end) for start, end in parts]


class Moving(NamedTuple):
    """Windows of a long sequence, and the other places at which it may be cut.

    Args:
        windows: W windows, like the result of `windows` but cut at other places.
        head, tail: number of tokens at the start and at the end that every window repeats.
        moves: (W, K) number of tokens by which each window starts later in each of K ways to cut; negative
            numbers mean earlier.
    """

    windows: list[Encoding]
    head: int
    tail: int
    moves: Longs


def moving_windows(
    encoding: Encoding, space: TokenSpace, max_length: int, shares: NDArray[np.float64]
) -> Moving | None:
    """Split a long sequence into windows that can be cut at other places in each epoch.

    The number of windows is the same each time. A token next to a cut lacks one of its neighbours. With
    moving cuts, it is not always the same token. All windows except the first and the last are as long as
    possible. The lengths of these two windows move all cuts together, by a quarter of a window or more if
    units are short. Some sequences need one more window for this.

    Args:
        encoding: the sequence.
        space: the vocabulary.
        max_length: largest number of tokens of a window.
        shares: (K,) for each way to cut, where the end of the first window lies in its range, from 0 to 1.

    Returns:
        None if the sequence fits into one window, or if cuts cannot be moved. They cannot be moved with
        explicit positions, or with a unit longer than a fifth of a window.
    """
    if len(encoding) <= max_length or encoding.positions is not None:
        return None
    first, stop = _inner(encoding, space)
    cuts = _cuts(encoding, first, stop)
    longest = int(np.diff(cuts).max())
    room = _room(encoding, first, stop, max_length) - (longest - 1)  # cuts move back to a change of unit
    if 4 * longest > room:
        return None
    count = -(-(2 * (stop - first) + room) // (2 * room))
    ends = stop - first - (count - 2) * room  # tokens of the first and the last window
    min_tokens = max(longest, room // 8)
    low, high = max(min_tokens, ends - room), min(room, ends - min_tokens)
    inside = room * np.arange(count - 1)[:, None]

    def begins(share: NDArray[np.float64]) -> Longs:
        """(W - 1, K) start of each window except the first."""
        targets = first + low + np.rint(share * (high - low)).astype(np.int64) + inside
        return cuts[np.searchsorted(cuts, targets, side="right") - 1].astype(np.int64)

    base, moved = begins(np.array([0.5])), begins(shares)
    bounds = [first, *base[:, 0].tolist(), stop]
    return Moving(
        windows=[_window(encoding, first, stop, start, end) for start, end in pairwise(bounds)],
        head=first,
        tail=len(encoding) - stop,
        moves=np.concatenate([np.zeros((1, len(shares)), dtype=np.int64), moved - base]),
    )


def moved_window(pieces: Sequence[Encoding], head: int, tail: int, start: int, end: int) -> Encoding:
    """A window of tokens start..end-1 from neighbouring `Moving.windows`, which are concatenated.

    Args:
        pieces: the windows.
        head, tail: number of tokens that each window repeats; they are not counted.
        start, end: first token, and the token after the last.
    """
    inside = [len(piece) - head - tail for piece in pieces]
    skipped_before = [0, *accumulate(inside)]
    parts = [
        slice(head + max(start - skipped, 0), head + max(min(end - skipped, length), 0))
        for skipped, length in zip(skipped_before, inside, strict=False)
    ]

    def column(values: list[Any]) -> Any:
        if values[0] is None or values[-1] is None:
            return None
        inner = [value[part] for value, part in zip(values, parts, strict=True)]
        return np.concatenate([values[0][:head], *inner, values[-1][len(values[-1]) - tail :]])

    return join_columns(pieces, column)


def windows_at(
    encoding: Encoding, space: TokenSpace, max_length: int, starts: NDArray[np.intp]
) -> list[Encoding]:
    """Split a long sequence at the starts of its parts, such as the visits of a patient.

    The tokens before the first start (the background of a patient) are repeated at the start of every
    window. The last window is as full as its parts allow. A part longer than a window is split at changes of
    unit.

    Args:
        encoding: the sequence.
        space: the vocabulary.
        max_length: largest number of tokens of a window.
        starts: ascending positions inside the sequence, at least one.
    """
    first, stop = int(starts[0]), _inner(encoding, space)[1]
    room = _room(encoding, first, stop, max_length)
    cuts = np.append(starts, stop)
    inner = _cuts(encoding, first, stop)
    parts: list[tuple[int, int]] = []
    end = stop
    while end > first:
        possible = cuts[(cuts >= end - room) & (cuts < end)]
        if not len(possible):
            possible = inner[(inner >= end - room) & (inner < end)]
        begin = int(possible[0]) if len(possible) else end - room
        parts.append((begin, end))
        end = begin
    return [_window(encoding, first, stop, start, end) for start, end in reversed(parts)]


def central_windows(
    encoding: Encoding, space: TokenSpace, max_length: int, selected: NDArray[np.bool_] | None = None
) -> list[tuple[Encoding, NDArray[np.bool_]]]:
    """Overlapping windows that give every token a context of about `max_length` tokens, for scoring.

    The sequence is divided into parts of about half a window. Each part is in the centre of its own window,
    or as central as possible at the ends of the sequence. Units are handled as in `windows`.

    Args:
        encoding: the sequence.
        space: the vocabulary.
        max_length: largest number of tokens of a window.
        selected: (L,) True at the tokens to score; None for all.

    Returns:
        Windows, each with (its length,) True at the tokens that it scores. Every selected token, except the
        start and end of the sequence, is scored by exactly one window. Which window does not depend on the
        other selected tokens. If `selected` is given, windows without a token to score are omitted.
    """
    first, stop = _inner(encoding, space)
    if len(encoding) <= max_length:
        owned = np.zeros(len(encoding), dtype=np.bool_)
        owned[first:stop] = True if selected is None else selected[first:stop]
        return [(encoding, owned)] if selected is None or owned.any() else []
    room = _room(encoding, first, stop, max_length)
    cuts = _cuts(encoding, first, stop)
    scored_windows = []
    for start, end in _parts(cuts, max(room // 2, 1), room):
        if selected is not None and not selected[start:end].any():
            continue
        window_start, window_end = _around(start, end, cuts, room)
        window = _window(encoding, first, stop, window_start, window_end)
        owned = np.zeros(len(window), dtype=np.bool_)
        inside = slice(first + start - window_start, first + end - window_start)
        owned[inside] = True if selected is None else selected[start:end]
        scored_windows.append((window, owned))
    return scored_windows


def window_around(encoding: Encoding, space: TokenSpace, max_length: int, start: int, end: int) -> Encoding:
    """The window of a sequence with tokens start..end-1 in its middle, or at its start if they are too long.

    Units are handled as in `windows`.
    """
    if len(encoding) <= max_length:
        return encoding
    first, stop = _inner(encoding, space)
    room = _room(encoding, first, stop, max_length)
    cuts = _cuts(encoding, first, stop)
    return _window(encoding, first, stop, *_around(start, end, cuts, room))


def join(encodings: Sequence[Encoding], space: TokenSpace, max_length: int) -> list[Encoding]:
    """Join consecutive sequences of one document into windows of up to `max_length` tokens.

    A window has one start token at its front, and the end token of each sequence after it (DOC-SENTENCES of
    RoBERTa, Liu et al. 2019). Longer sequences are split first. Groups are renumbered, so that units of
    different sequences stay distinct. Explicit positions continue. Spans still refer to the raw text of each
    sequence.

    Raises:
        UsageError: the sequences do not have the same per-token columns.
    """
    joined: list[Encoding] = []
    shared: list[Encoding] = []
    size = 0
    for piece in (window for encoding in encodings for window in windows(encoding, space, max_length)):
        added = len(piece) - _inner(piece, space)[0]
        if shared and size + added > max_length:
            joined.append(_merge(shared, space))
            shared = []
        size = size + added if shared else len(piece)
        shared.append(piece)
    return [*joined, _merge(shared, space)] if shared else joined


def _inner(encoding: Encoding, space: TokenSpace) -> tuple[int, int]:
    """Start and end of the sequence without its start and end token."""
    starts = space.start is not None and len(encoding) > 0 and encoding.ids[0] == space.start
    ends = space.end is not None and len(encoding) > int(starts) and encoding.ids[-1] == space.end
    return int(starts), len(encoding) - int(ends)


def _room(encoding: Encoding, first: int, stop: int, max_length: int) -> int:
    """Number of tokens of the sequence itself that fit into a window."""
    fixed = first + len(encoding) - stop
    if max_length <= fixed:
        raise UsageError(f"max_length = {max_length} leaves no room besides start and end token; raise it")
    return max_length - fixed


def _cuts(encoding: Encoding, first: int, stop: int) -> NDArray[np.intp]:
    """The positions at which a window may start or end: `first`, every change of unit, `stop`."""
    groups = encoding.groups[first:stop]
    changes = (groups[1:] != groups[:-1]) | (groups[1:] == SPECIAL_GROUP)
    return np.concatenate([[first], changes.nonzero()[0] + first + 1, [stop]])


def _parts(cuts: NDArray[np.intp], target: int, room: int) -> list[tuple[int, int]]:
    """Parts (start, end) between `cuts`, of about `target` tokens each and never more than `room`."""
    parts: list[tuple[int, int]] = []
    start, stop = int(cuts[0]), int(cuts[-1])
    while start < stop:
        remaining = stop - start
        even = start + -(-remaining // -(-remaining // target))  # equal sizes for the fewest possible parts
        even_cut = np.searchsorted(cuts, even)
        last_cut = np.searchsorted(cuts, start + room, side="right") - 1
        end = int(cuts[min(even_cut, last_cut)])
        parts.append((start, end if end > start else even))  # a unit longer than a window
        start = parts[-1][1]
    return parts


def _around(start: int, end: int, cuts: NDArray[np.intp], room: int) -> tuple[int, int]:
    """Start and end of a window of `room` tokens with tokens start..end-1 in its middle."""
    first, stop = int(cuts[0]), int(cuts[-1])
    window_start = max(first, min(start - max(0, room - (end - start)) // 2, stop - room))
    window_end = min(window_start + room, stop)
    inside = int(cuts[np.searchsorted(cuts, window_end, side="right") - 1])
    return min(start, int(cuts[np.searchsorted(cuts, window_start)])), max(min(end, window_end), inside)


def _window(encoding: Encoding, first: int, stop: int, start: int, end: int) -> Encoding:
    """Tokens start..end-1 between the tokens before `first` and the tokens from `stop` on."""
    window = encoding.take(np.r_[:first, start:end, stop : len(encoding)])
    positions = encoding.positions
    if positions is None:
        return window
    positions_before = positions[:first]
    positions_after = positions[stop:] - positions[stop - 1] + positions[end - 1]
    moved = np.concatenate([positions[start:end], positions_after]) - positions[start] + positions[first]
    return replace(window, positions=np.concatenate([positions_before, moved]))


def _merge(pieces: Sequence[Encoding], space: TokenSpace) -> Encoding:
    """One window with several sequences and only the start token of the first."""
    if len(pieces) == 1:
        return pieces[0]
    skip = [0] + [_inner(piece, space)[0] for piece in pieces[1:]]

    def column(values: Iterable[NDArray[Any] | None]) -> NDArray[Any] | None:
        present = [value for value in values if value is not None]
        if present and len(present) < len(pieces):
            raise UsageError(_UNLIKE)
        parts = [value[begin:] for value, begin in zip(present, skip, strict=False)]
        return np.concatenate(parts) if parts else None

    if any(piece.channels.keys() != pieces[0].channels.keys() for piece in pieces):
        raise UsageError(_UNLIKE)
    return join_columns(
        pieces,
        column,
        groups=column(_distinct_numbers(piece.groups for piece in pieces)),
        positions=column(_joint_positions(pieces, skip)),
        # A symbol belongs to its sequence: the same number in another sequence is another symbol.
        symbols=column(_distinct_numbers(piece.symbols for piece in pieces)),
    )


def _distinct_numbers(numbers: Iterable[Ids | None]) -> Iterator[Ids | None]:
    """The numbers of units (or symbols) of each piece, continued after the previous piece; -1 is kept."""
    free = 0
    for piece_numbers in numbers:
        if piece_numbers is None or not (inside := piece_numbers >= 0).any():
            yield piece_numbers
            continue
        low, high = int(piece_numbers[inside].min()), int(piece_numbers.max())
        yield np.where(inside, piece_numbers + (free - low), SPECIAL_GROUP).astype(piece_numbers.dtype)
        free += high - low + 1


def _joint_positions(pieces: Sequence[Encoding], skip: Sequence[int]) -> Iterator[Ids | None]:
    """The explicit positions of each piece, continued after the positions of the previous piece."""
    free = 0
    for piece, begin in zip(pieces, skip, strict=True):
        if piece.positions is None or len(piece) == begin:
            yield piece.positions
            continue
        moved = piece.positions - piece.positions[begin] + free
        free = int(moved[-1]) + 1
        yield moved
