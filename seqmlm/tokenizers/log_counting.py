"""What log vocabularies are learnt from: each line once, however windows slide; and event ids, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from seqmlm.tokenizers.drain import Tally, commonest

_KEYS_FOLLOWED = 1 << 20


class Keys:
    """Event ids of session files, counted; bounded like templates.

    Args:
        most: the most that are kept; of more than a million (or twice as many) the rarest are forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tallies: dict[str, Tally] = {}

    def add(self, keys: Iterable[str], source: int) -> None:
        """Count the event ids of one session, given by its number."""
        for key in keys:
            tally = self._tallies.get(key)
            if tally is None:
                if len(self._tallies) >= max(2 * self._most, _KEYS_FOLLOWED):
                    self._tallies = {kept: self._tallies[kept] for kept in self.freeze()}
                tally = self._tallies[key] = Tally()
            tally.add(source)

    def freeze(self, *, min_lines: int = 1, min_sources: int = 1) -> list[str]:
        """The event ids kept, in the order of first appearance."""
        names = list(self._tallies)
        kept = commonest(list(self._tallies.values()), self._most, min_lines, min_sources)
        return [names[number] for number in kept]


def fresh_lines(raws: Iterable[Any]) -> Iterator[tuple[Any, Sequence[str]]]:
    """Each window with those of its lines that the window before it does not end with.

    Where windows slide, a line is in several of them; counted in each, one secret line would look common.
    Sessions of event ids do not slide. Lines without times that only happen to be equal are passed over too.
    """
    before: Any = None
    for raw in raws:
        lines = lines_of(raw)
        if getattr(raw, "keys", False):
            yield raw, lines
            continue
        shared = 0 if before is None else _overlap(_timed(before), _timed(raw))
        yield raw, lines[shared:]
        before = raw


def _overlap(before: Sequence[Any], after: Sequence[Any]) -> int:
    """Length of the longest end of `before` that `after` begins with."""
    if not after:
        return 0
    for start in range(max(len(before) - len(after), 0), len(before)):
        if before[start] == after[0] and before[start:] == after[: len(before) - start]:
            return len(before) - start
    return 0


def _timed(raw: Any) -> Sequence[Any]:
    lines, times = lines_of(raw), getattr(raw, "times", None)
    return lines if times is None else list(zip(lines, times, strict=True))


def lines_of(raw: Any) -> Sequence[str]:
    """The lines of a window, a session or a text."""
    lines: Sequence[str] = raw.split("\n") if isinstance(raw, str) else raw.lines
    return lines
