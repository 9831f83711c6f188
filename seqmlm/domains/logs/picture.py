"""Show logs as numbered lines with time and origin; long records show only the lines around unusual ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import accumulate
from linecache import checkcache, getline
from pathlib import Path

import numpy as np

from seqmlm.anomaly.values import ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.logs.readers.headers import HEADERS
from seqmlm.reports.pictures import Line, NumberedLines, PicturedRecord

ODD = 3
"""Number of least expected lines in a whole record that are marked."""

MOST_BYTES = 64 << 20
"""Size of the largest file that is read again to find the clients of its lines."""


class LogRecord(NumberedLines):
    """Show a session or window: line number, message, and time, host and service if the lines have them."""

    def lines(self, shown: PicturedRecord) -> Sequence[Line]:
        scored, raw = shown.scored, shown.scored.record.raw
        begins = [0, *accumulate(len(text) + 1 for text in raw.lines)]
        heads = _line_heads(scored)
        width = max(map(len, heads))
        odd: dict[int, bool] = {}
        for drawn_row in shown.rows:
            units = drawn_row.row.units
            units = units[np.argsort(-scored.surprisal[units], kind="stable")[:ODD]]
            for start in scored.spans[units, 0].tolist():
                line = int(np.searchsorted(begins, start, side="right")) - 1
                odd[line] = odd.get(line, False) or bool(drawn_row.alarm)
        return [
            Line(begins[at], begins[at] + len(text), heads[at].ljust(width), odd.get(at, False), at in odd)
            for at, text in enumerate(raw.lines)
        ]


def _line_heads(scored: ScoredRecord) -> list[str]:
    """A head for each line: its number, its time, and its origin."""
    record, size = scored.record, len(scored.record.raw.lines)
    numbers, origins = record.meta.get("lines") or range(1, size + 1), record.meta.get("origins")
    heads = [f"{number:>6}" for number in numbers]
    if record.raw.times is not None:
        heads = [f"{head} {_clock_time(time)}" for head, time in zip(heads, record.raw.times, strict=True)]
    if origins is not None:
        heads = [
            " ".join([head, *filter(None, origin[1:])]) for head, origin in zip(heads, origins, strict=True)
        ]
    elif "origins" in record.meta:
        heads = [" ".join([head, who]) for head, who in zip(heads, _clients(record, numbers), strict=True)]
    return heads


def _clients(record: Record, numbers: Iterable[int]) -> list[str]:
    """The client of each request in an access log, read from the file because records do not contain it."""
    file, header = Path(record.source), HEADERS["access"].head_pattern
    lines = [""] * len(record.raw.lines)
    with suppress(OSError):  # not a valid file name
        if file.is_file() and file.stat().st_size <= MOST_BYTES:
            checkcache(str(file))
            lines = [getline(str(file), number) for number in numbers]
    pairs = zip(record.raw.lines, lines, strict=True)
    # Before the time, a line has the client and two names. In some logs, the requested host comes first.
    return [
        line.partition(" [")[0].split()[-3:][0] if header.match(line) and message in line else ""
        for message, line in pairs
    ]


def _clock_time(seconds: float) -> str:
    """Month, day and time of day in UTC; "" for times beyond all calendars."""
    with suppress(ValueError, OverflowError, OSError):  # a year beyond all calendars
        return datetime.fromtimestamp(seconds, UTC).strftime("%m-%d %H:%M:%S")
    return ""
