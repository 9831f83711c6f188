"""What log vocabularies are learnt from: each line once, however windows slide; and event ids, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from seqmlm.tokenizers.drain import Tally, commonest

_KEYS_FOLLOWED = 1 << 20
_LINES_FOLLOWED = 100_000


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
    """Each window or session with those of its lines that were in none before.

    Windows slide, and a line may belong to several sessions: counted in each, one secret line would look
    common. A line is known by its text and time; where there are no times, a window is without what the one
    before it ends with. Event ids are all taken. Other lines that happen to be equal are passed over as well,
    which only makes counts smaller.
    """
    seen, before = _Seen(), None
    for raw in raws:
        lines, times = lines_of(raw), getattr(raw, "times", None)
        if getattr(raw, "keys", False):
            yield raw, lines
        elif times is not None:
            yield raw, [line for line, time in zip(lines, times, strict=True) if seen.add((time, line))]
        else:
            yield raw, lines[0 if before is None else _overlap(before, lines) :]
            before = lines


class _Seen:
    """The last 100,000 to 200,000 lines, by hash."""

    def __init__(self) -> None:
        self._now: set[int] = set()
        self._then: set[int] = set()

    def add(self, line: tuple[float, str]) -> bool:
        """Whether the line is new."""
        key = hash(line)
        if key in self._now or key in self._then:
            return False
        if len(self._now) >= _LINES_FOLLOWED:
            self._now, self._then = set(), self._now
        self._now.add(key)
        return True


def _overlap(before: Sequence[Any], after: Sequence[Any]) -> int:
    """Length of the longest end of `before` that `after` begins with."""
    if not after:
        return 0
    for start in range(max(len(before) - len(after), 0), len(before)):
        if before[start] == after[0] and before[start:] == after[: len(before) - start]:
            return len(before) - start
    return 0


def lines_of(raw: Any) -> Sequence[str]:
    """The lines of a window, a session or a text."""
    lines: Sequence[str] = raw.split("\n") if isinstance(raw, str) else raw.lines
    return lines


def are_lines(raw: Any) -> bool:
    """Whether `lines_of` can read it."""
    return isinstance(raw, str) or hasattr(raw, "lines")
