"""What goes wrong in sessions and windows of logs, planted in normal ones: by lines, and by their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from seqmlm.anomaly.faults import Fault, Given, Planted, Random
from seqmlm.anomaly.values import Doubles

Change = Callable[[list[str], Sequence[str], Random], list[int]]
"""Changes a list of lines in place, perhaps with lines of another record, and says which are wrong then."""


def _lines_changed(change: Change) -> Fault:
    """The fault of a record of lines that `change` makes; nothing where it says that nothing is wrong."""

    def fault(given: Given, other: Given, random: Random) -> Planted | None:
        raw = given.record.raw
        lines = list(raw.lines)
        wrong = change(lines, other.record.raw.lines, random)
        if not wrong or not lines:
            return None
        times = raw.times and (*raw.times, raw.times[-1])[: len(lines)]
        changed = replace(raw, lines=tuple(lines), times=times or None)
        ends = np.cumsum([len(line) + 1 for line in lines]) - 1
        spans = np.stack([ends - [len(line) for line in lines], ends], axis=1)
        meta = {name: value for name, value in given.record.meta.items() if name not in ("lines", "origins")}
        return Planted(replace(given.record, raw=changed, meta=meta), spans[wrong])

    return fault


def _swapped(lines: list[str], others: Sequence[str], random: Random) -> list[int]:
    apart = [at for at in range(len(lines) - 1) if lines[at] != lines[at + 1]]
    if not apart:
        return []
    at = int(random.choice(apart))
    lines[at : at + 2] = lines[at + 1], lines[at]
    return [at, at + 1]


def _substituted(lines: list[str], others: Sequence[str], random: Random) -> list[int]:
    at, new = int(random.integers(len(lines))), others[int(random.integers(len(others)))]
    found = [] if new == lines[at] else [at]
    lines[at] = new
    return found


def _deleted(lines: list[str], others: Sequence[str], random: Random) -> list[int]:
    at = int(random.integers(len(lines)))
    del lines[at]
    return [one for one in (at - 1, at) if 0 <= one < len(lines)]


def _doubled(lines: list[str], others: Sequence[str], random: Random) -> list[int]:
    at = int(random.integers(len(lines) + 1))
    lines.insert(at, lines[int(random.integers(len(lines)))])
    return [at]


def _repeated(lines: list[str], others: Sequence[str], random: Random) -> list[int]:
    new, number = others[int(random.integers(len(others)))], int(len(lines) * random.uniform(0.25, 0.5))
    drawn = sorted(random.choice(len(lines), number, replace=False).tolist())
    wrong = [at for at in drawn if lines[at] != new]
    for at in wrong:
        lines[at] = new
    return wrong


def _times_changed(change: Callable[[Doubles, Random], Doubles]) -> Fault:
    """The fault of a window whose lines come at other times: all of them are wrong."""

    def fault(given: Given, other: Given, random: Random) -> Planted | None:
        raw = given.record.raw
        if not raw.windowed or raw.times is None or len(raw.times) < 2 or raw.times[0] == raw.times[-1]:
            return None
        apart = change(np.maximum(np.diff(raw.times), 0.0), random)
        times = raw.times[0] + np.concatenate([[0.0], np.cumsum(apart)])
        record = replace(given.record, raw=replace(raw, times=tuple(times.tolist())))
        return Planted(record, np.array([[0, len(raw.text)]]))

    return fault


def _hurried(apart: Doubles, random: Random) -> Doubles:
    return apart / _TIMES


def _paused(apart: Doubles, random: Random) -> Doubles:
    longer = apart.copy()
    longer[random.integers(len(apart))] += (_TIMES - 1) * apart.sum()
    return longer


_TIMES = 8.0  # as fast, or as long

FAULTS: Mapping[str, Fault] = {
    "swapped": _lines_changed(_swapped),
    "substituted": _lines_changed(_substituted),
    "deleted": _lines_changed(_deleted),
    "doubled": _lines_changed(_doubled),
    "repeated": _lines_changed(_repeated),
    "hurried": _times_changed(_hurried),
    "paused": _times_changed(_paused),
}
