"""Windows: long sequences are split at unit boundaries, short ones of a document joined; no token is lost.

A `max_length` that leaves no room besides the start and end token, or what else every window repeats, is a
UsageError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.types import SPECIAL_GROUP, Encoding, Ids, Longs, TokenSpace, columnwise
from seqmlm.errors import UsageError

_UNLIKE = "sequences that share a window must carry the same per-token columns; encode them alike"


def windows(encoding: Encoding, space: TokenSpace, max_length: int) -> list[Encoding]:
    """Split a sequence of more than `max_length` tokens into windows of similar length.

    A window ends where the unit changes; only a unit longer than a whole window is split inside. Each window
    has the start and end token that the sequence has. Groups and spans stay those of the sequence, explicit
    positions are shifted to begin as the sequence's do.
    """
    if len(encoding) <= max_length:
        return [encoding]
    first, stop = _inner(encoding, space)
    room = _room(encoding, first, stop, max_length)
    parts = _parts(_cuts(encoding, first, stop), room, room)
    return [_window(encoding, first, stop, start, end) for start, end in parts]


class Moving(NamedTuple):
    """Windows of a long sequence, and the other places at which it may be cut.

    windows: W of them, as `windows` gives them, cut at other places.
    head, tail: tokens at the front and at the end that every window repeats.
    moves: (W, K) how many tokens later (or, negative, earlier) a window begins in each of K ways to cut.
    """

    windows: list[Encoding]
    head: int
    tail: int
    moves: Longs


def moving_windows(
    encoding: Encoding, space: TokenSpace, max_length: int, shares: NDArray[np.float64]
) -> Moving | None:
    """Split a long sequence so that it may be cut elsewhere in each epoch, in as many windows each time.

    What stands beside a cut misses one of its neighbours; where cuts move, not always the same one. All
    windows but the first and the last are as long as possible; how long these two are moves all cuts
    together, by a quarter of a window or more where units are short. Some sequences get a window more for it.

    Args:
        shares: (K,) where in its range the end of the first window lies, each in [0, 1].

    Returns:
        None where it fits a window, and where cuts cannot be moved: with explicit positions, or a unit longer
        than a fifth of a window.
    """
    if len(encoding) <= max_length or encoding.positions is not None:
        return None
    first, stop = _inner(encoding, space)
    cuts = _cuts(encoding, first, stop)
    longest = int(np.diff(cuts).max())
    room = _room(encoding, first, stop, max_length) - (longest - 1)  # cuts are moved back to a change of unit
    if 4 * longest > room:
        return None
    count = -(-(2 * (stop - first) + room) // (2 * room))
    ends = stop - first - (count - 2) * room  # tokens of the first and the last window
    least = max(longest, room // 8)
    low, high = max(least, ends - room), min(room, ends - least)
    inside = room * np.arange(count - 1)[:, None]

    def begins(share: NDArray[np.float64]) -> Longs:
        """(W - 1, K) where windows but the first begin."""
        wanted = first + low + np.rint(share * (high - low)).astype(np.int64) + inside
        return cuts[np.searchsorted(cuts, wanted, side="right") - 1].astype(np.int64)

    base, moved = begins(np.array([0.5])), begins(shares)
    bounds = [first, *base[:, 0].tolist(), stop]
    return Moving(
        windows=[_window(encoding, first, stop, start, end) for start, end in pairwise(bounds)],
        head=first,
        tail=len(encoding) - stop,
        moves=np.concatenate([np.zeros((1, len(shares)), dtype=np.int64), moved - base]),
    )


def moved_window(pieces: Sequence[Encoding], head: int, tail: int, start: int, end: int) -> Encoding:
    """A window of tokens start..end-1 of some neighbouring `Moving.windows`, laid end to end.

    Args:
        pieces: the windows.
        head, tail: tokens that each of them repeats, which do not count.
    """
    inside = [len(piece) - head - tail for piece in pieces]
    before = [0, *accumulate(inside)]
    parts = [
        slice(head + max(start - skipped, 0), head + max(min(end - skipped, length), 0))
        for skipped, length in zip(before, inside, strict=False)
    ]

    def column(values: list[Any]) -> Any:
        if values[0] is None or values[-1] is None:
            return None
        kept = [value[part] for value, part in zip(values, parts, strict=True)]
        return np.concatenate([values[0][:head], *kept, values[-1][len(values[-1]) - tail :]])

    return columnwise(pieces, column)


def windows_at(
    encoding: Encoding, space: TokenSpace, max_length: int, starts: NDArray[np.intp]
) -> list[Encoding]:
    """Split a long sequence where parts of it begin (visits of a patient).

    What precedes the first start (a patient's background) is repeated at the start of every window. The last
    window is as full as its parts allow; a part longer than a window is divided where the unit changes.

    Args:
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
    encoding: Encoding, space: TokenSpace, max_length: int, wanted: NDArray[np.bool_] | None = None
) -> list[tuple[Encoding, NDArray[np.bool_]]]:
    """Overlapping windows that give every token a context of about `max_length` tokens, for scoring.

    The sequence is divided into parts of about half a window, each in the centre of a window of its own (at
    the ends of the sequence, as central as possible). Units are treated as by `windows`.

    Args:
        wanted: (L,) True at the tokens to score; None for all.

    Returns:
        Windows, each with (its length,) True at the tokens it scores: every wanted token of the sequence
        except its start and end belongs to exactly one window, the same one whatever else is wanted. Windows
        without any are omitted if `wanted` is given.
    """
    first, stop = _inner(encoding, space)
    if len(encoding) <= max_length:
        owned = np.zeros(len(encoding), dtype=np.bool_)
        owned[first:stop] = True if wanted is None else wanted[first:stop]
        return [(encoding, owned)] if wanted is None or owned.any() else []
    room = _room(encoding, first, stop, max_length)
    cuts = _cuts(encoding, first, stop)
    found = []
    for start, end in _parts(cuts, max(room // 2, 1), room):
        if wanted is not None and not wanted[start:end].any():
            continue
        left, right = _around(start, end, cuts, room)
        window = _window(encoding, first, stop, left, right)
        owned = np.zeros(len(window), dtype=np.bool_)
        inside = slice(first + start - left, first + end - left)
        owned[inside] = True if wanted is None else wanted[start:end]
        found.append((window, owned))
    return found


def window_around(encoding: Encoding, space: TokenSpace, max_length: int, start: int, end: int) -> Encoding:
    """The window of a sequence in whose middle tokens start..end-1 stand, or that begins with them.

    Units are treated as by `windows`.
    """
    if len(encoding) <= max_length:
        return encoding
    first, stop = _inner(encoding, space)
    room = _room(encoding, first, stop, max_length)
    cuts = _cuts(encoding, first, stop)
    return _window(encoding, first, stop, *_around(start, end, cuts, room))


def join(encodings: Sequence[Encoding], space: TokenSpace, max_length: int) -> list[Encoding]:
    """Join consecutive sequences of one document in windows of up to `max_length` tokens.

    A window has one start token at its front and the end token of each sequence after it (RoBERTa's
    DOC-SENTENCES, Liu et al. 2019). Longer sequences are split first. Groups are renumbered so that units of
    different sequences stay distinct, explicit positions continue; spans still refer to each sequence's own
    raw text.

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
    """Where the sequence begins and ends without its start and end token."""
    starts = space.start is not None and len(encoding) > 0 and encoding.ids[0] == space.start
    ends = space.end is not None and len(encoding) > int(starts) and encoding.ids[-1] == space.end
    return int(starts), len(encoding) - int(ends)


def _room(encoding: Encoding, first: int, stop: int, max_length: int) -> int:
    """Tokens of the sequence itself that a window holds."""
    fixed = first + len(encoding) - stop
    if max_length <= fixed:
        raise UsageError(f"max_length = {max_length} has no room besides start and end token; raise it")
    return max_length - fixed


def _cuts(encoding: Encoding, first: int, stop: int) -> NDArray[np.intp]:
    """Where a window may begin or end: `first`, every change of unit, `stop`."""
    groups = encoding.groups[first:stop]
    changes = (groups[1:] != groups[:-1]) | (groups[1:] == SPECIAL_GROUP)
    return np.concatenate([[first], changes.nonzero()[0] + first + 1, [stop]])


def _parts(cuts: NDArray[np.intp], target: int, room: int) -> list[tuple[int, int]]:
    """Divide at `cuts` into parts of about `target` tokens and never more than `room`."""
    parts: list[tuple[int, int]] = []
    start, stop = int(cuts[0]), int(cuts[-1])
    while start < stop:
        left = stop - start
        even = start + -(-left // -(-left // target))  # equal shares of the fewest possible parts
        after, last = np.searchsorted(cuts, even), np.searchsorted(cuts, start + room, side="right") - 1
        end = int(cuts[min(after, last)])
        parts.append((start, end if end > start else even))  # a unit longer than a window
        start = parts[-1][1]
    return parts


def _around(start: int, end: int, cuts: NDArray[np.intp], room: int) -> tuple[int, int]:
    """Where a window of `room` tokens begins and ends in whose middle tokens start..end-1 stand."""
    first, stop = int(cuts[0]), int(cuts[-1])
    left = max(first, min(start - max(0, room - (end - start)) // 2, stop - room))
    right = min(left + room, stop)
    inside = int(cuts[np.searchsorted(cuts, right, side="right") - 1])
    return min(start, int(cuts[np.searchsorted(cuts, left)])), max(min(end, right), inside)


def _window(encoding: Encoding, first: int, stop: int, start: int, end: int) -> Encoding:
    """Tokens start..end-1 between what stands before `first` and from `stop` on."""
    made = encoding.taken(np.r_[:first, start:end, stop : len(encoding)])
    positions = encoding.positions
    if positions is None:
        return made
    before, after = positions[:first], positions[stop:] - positions[stop - 1] + positions[end - 1]
    moved = np.concatenate([positions[start:end], after]) - positions[start] + positions[first]
    return replace(made, positions=np.concatenate([before, moved]))


def _merge(pieces: Sequence[Encoding], space: TokenSpace) -> Encoding:
    """One window of several sequences, the start token of the first only."""
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
    return columnwise(
        pieces,
        column,
        groups=column(_renumbered(piece.groups for piece in pieces)),
        positions=column(_continued(pieces, skip)),
        # A symbol belongs to its sequence: the same number in another one is another symbol.
        symbols=column(_renumbered(piece.symbols for piece in pieces)),
    )


def _renumbered(numbers: Iterable[Ids | None]) -> Iterator[Ids | None]:
    """The units (or symbols) of each piece, numbered after those of the previous one; -1 is kept."""
    free = 0
    for own in numbers:
        if own is None or not (inside := own >= 0).any():
            yield own
            continue
        low, high = int(own[inside].min()), int(own.max())
        yield np.where(inside, own + (free - low), SPECIAL_GROUP).astype(own.dtype)
        free += high - low + 1


def _continued(pieces: Sequence[Encoding], skip: Sequence[int]) -> Iterator[Ids | None]:
    """The explicit positions of each piece, continuing where the previous one ended."""
    free = 0
    for piece, begin in zip(pieces, skip, strict=True):
        if piece.positions is None or len(piece) == begin:
            yield piece.positions
            continue
        moved = piece.positions - piece.positions[begin] + free
        free = int(moved[-1]) + 1
        yield moved
