"""Levels of logs: the session or window as a whole, by many channels; and the line alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.levels import Level, part_row, record_row
from seqmlm.anomaly.logs_background import Counted, LogBackground
from seqmlm.anomaly.logs_channels import ASKED, COUNTED, MISSES, asked, floored, misses
from seqmlm.anomaly.logs_lines import Doubles, line_at
from seqmlm.anomaly.values import Bools, Row, Scored
from seqmlm.engine.reductions import Rank
from seqmlm.engine.units import Mode
from seqmlm.errors import StateError

PARTITION = Mode("partition", 2)
"""Passes of LogBERT's rule: half of the lines hidden, as LogBERT hides them, and then the others."""

ODD = 5
"""Lines that a row names."""


class SessionLevel(Level):
    """The record, session or window, by surprisals, by LogBERT's rule, and by what counting says.

    A session may come in several records (`max_session`, `session_gap`, rotated files): they have one id, and
    each is judged alone, so events that are in another of them are missing here.

    Its channels say much the same, and a fault moves few of them: they are fused by the harmonic mean. All
    lengths are compared with each other (rows have length 1): length is a channel of its own, and bins leave
    too few of like length to tell how rare a value is. Both were chosen on planted faults.

    JSON fields of its rows beside the usual ones, each where there is something to say:
        odd_lines: lines of the file that surprise most, the most surprising first.
        unseen_lines: lines of the file that no training record had, or that fit no template.
        missing: [{unit, share}] what nearly all training records have and this one lacks.
        unlike: [{unit, more}] what it has more of (negative: fewer) than the most similar training record.

    Args:
        name: what `--level` takes.
    """

    channels = (*ASKED, MISSES, *COUNTED)
    fusion = "harmonic"
    also, also_want = (PARTITION,), (Rank(),)
    background = LogBackground
    pictures = ("coloured", "timeline")

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def screen(self) -> tuple[str, ...]:
        return (*ASKED, *COUNTED)

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        known = _known(background, self.name)
        counted = known.counted(scored.encoding)
        count = len(counted.events)
        bits = _line_bits(scored, counted, known)
        ends = np.array([0, count])
        statistics = {
            name: float(value[0]) for name, value in asked(bits, ends, np.array([len(scored)])).items()
        }
        again = scored.also.get(str(PARTITION))
        if again is not None and Rank.name in again.values:
            whole = np.array([0, len(again)])
            statistics[MISSES] = float(misses(again.values[Rank.name], whole, known.counts.candidates)[0])
        row = record_row(scored, {**statistics, **counted.statistics})
        extra = _told(scored, counted, known, bits)
        return [replace(row, length=1, time=_time(scored, 0), extra=extra)]


class LineLevel(Level):
    """Each line alone: by its surprisal, by what stands beside it, and by whether it was ever seen.

    Args:
        name: what `--level` takes.
    """

    channels = ("surprisal", "unseen", "bigram")
    background = LogBackground
    pictures = ("coloured", "timeline")

    def __init__(self, name: str) -> None:
        self.name = name

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        known = _known(background, self.name)
        counted = known.counted(scored.encoding)
        line = line_at(scored.encoding, scored.position, known.tokenizer)
        bits = _line_bits(scored, counted, known)
        size = np.bincount(line, minlength=len(bits))
        new = _new(counted, known)
        numbers = scored.record.meta.get("lines")
        rows = []
        for at in np.unique(line).tolist():
            units = np.flatnonzero(line == at)
            statistics = {
                "surprisal": float(bits[at] / size[at]),
                "unseen": float(np.inf if counted.events[at] == known.counts.size else new[at]),
                "bigram": float(max(counted.follows[at], counted.follows[at + 1])),
            }
            row = part_row(scored, units, str(at), statistics)
            place = row.line if numbers is None else numbers[at]
            rows.append(replace(row, line=place, time=_time(scored, at)))
        return rows


def _known(background: Background | None, level: str) -> LogBackground:
    if not isinstance(background, LogBackground):
        raise StateError(
            f"level {level} compares with counts of normal logs, and this model has none; "
            "'seqmlm calibrate' makes them"
        )
    return background


def _line_bits(scored: Scored, counted: Counted, known: LogBackground) -> Doubles:
    """(n,) surprisal of each line: of all its units, and no less than a line never seen deserves."""
    line = line_at(scored.encoding, scored.position, known.tokenizer)
    bits: Doubles = np.bincount(line, weights=scored.surprisal, minlength=len(counted.events)).astype(
        np.float64
    )
    return floored(bits, counted.events, known.counts)


def _new(counted: Counted, known: LogBackground) -> Bools:
    """(n,) True at lines never seen and at those that fit no template."""
    counts = known.counts
    keys = np.append(counts.keys, -1)[counted.events]
    new: Bools = (counted.events == counts.size) | ((keys == counts.new) & (counts.new >= 0))
    return new


def _told(scored: Scored, counted: Counted, known: LogBackground, bits: Doubles) -> dict[str, Any]:
    """What the row's JSON line says beside its scores."""
    numbers = scored.record.meta.get("lines") or range(len(bits))
    odd = np.argsort(-bits, kind="stable")[:ODD].tolist()
    told: dict[str, Any] = {"odd_lines": [numbers[at] for at in odd]}
    if counted.statistics["unseen"]:
        new = np.flatnonzero(_new(counted, known))[:ODD].tolist()
        told["unseen_lines"] = [numbers[at] for at in new]
    if counted.missing:
        told["missing"] = [{"unit": unit, "share": share} for unit, share in counted.missing]
    if counted.unlike:
        told["unlike"] = [{"unit": unit, "more": more} for unit, more in counted.unlike]
    return told


def _time(scored: Scored, line: int) -> float | None:
    times = getattr(scored.record.raw, "times", None)
    return float(times[line]) if times else None
