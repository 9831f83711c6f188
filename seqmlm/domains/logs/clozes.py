"""Gaps in sessions and windows: which line is missing, which comes next, how bad is it, and whose?

A line is asked about as a whole: its kind (template), or the severity or service that such lines have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from seqmlm.data.record import Record
from seqmlm.domains.holes import MASK, Hole, Prompt, Question
from seqmlm.domains.logs.readers.events import LogLines
from seqmlm.domains.logs.readers.origins import origins_of

PROPERTIES = ("severity", "service")
KINDS = ("event", "next", *PROPERTIES)

LATER = 16
"""Unknown lines behind a next one: without any, it would be the last one, of which models know much."""


def questions(record: Record, kinds: Collection[str]) -> Iterator[Question]:
    """The gaps of a session or window, line by line; of severity and service where lines say them."""
    raw = record.raw
    if not isinstance(raw, LogLines):
        return
    numbers = record.meta.get("lines") or [record.line] * len(raw.lines)
    origins = origins_of(raw.lines, record.meta.get("origins"))
    for place, ((severity, _, service), number) in enumerate(zip(origins, numbers, strict=True)):
        asked = {"event": "", "next": "", "severity": severity, "service": service}
        for kind, answer in asked.items():
            if kind not in kinds or (kind in PROPERTIES and not answer):
                continue
            prompt = _next(raw, place) if kind == "next" else with_lines(raw, raw.lines, [place])
            yield Question(kind=kind, prompt=prompt, line=number, answer=answer, stands=place)


def _next(raw: LogLines, place: int) -> Prompt:
    """The lines before one, and unknown ones from there on, which follow at once."""
    lines = (*raw.lines[:place], *[MASK] * (1 + LATER))
    times = raw.times and (*raw.times[:place], *[raw.times[max(0, place - 1)]] * (1 + LATER))
    return with_lines(replace(raw, times=times), lines, range(place, len(lines)))


def starts_of(lines: Sequence[str]) -> list[int]:
    """Where each line begins in the text of all."""
    return [0, *accumulate(len(line) + 1 for line in lines)][:-1]


def with_lines(raw: LogLines, lines: Sequence[str], gaps: Sequence[int]) -> Prompt:
    """Lines of which some are gaps."""
    starts = starts_of(lines)
    holes = tuple(Hole(starts[place], starts[place] + len(lines[place])) for place in gaps)
    return Prompt(raw=replace(raw, lines=tuple(lines)), holes=holes)
