"""Histories as text, histories with gaps to fill, and histories as they were known at a given time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seqmlm.domains.ehr.history import Event, History, is_birth, iso
from seqmlm.domains.field import Gaps, Text
from seqmlm.domains.holes import MASK, Hole, Prompt
from seqmlm.engine.types import Encoding, Ids
from seqmlm.errors import UsageError
from seqmlm.parsing import duration
from seqmlm.tokenizers.base import Tokenizer

_SEX, _AGES = ("SEX//", "GENDER//"), (18, 40, 65)


class Histories(Text):
    """The text form of histories: the events of a subject."""

    empty = History(subject="", birth=None, events=())
    endings = (".csv",)

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """The lines of a CSV table of events, which the format `events` can read."""
        yield "subject_id,time,code\n"
        for name, raw in sequences:
            for event in raw.events:
                cells = (name, "" if event.time is None else iso(event.time), event.code)
                yield ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, asked: Ids, predicted: Ids) -> str:
        """Three lines of tokens: masked, predicted and true (see `Text.show`).

        One line per event would fill pages. The text has data of a patient, so callers show it only to users
        who request it and are allowed to see the records.
        """
        true = [tokenizer.spelling.surface(int(token)) for token in encoding.ids]
        guessed = [tokenizer.spelling.surface(int(token)) for token in predicted]
        lines = [
            ("masked", self._replace_words(true, asked, [self.hidden] * len(asked))),
            ("predicted", self._replace_words(true, asked, guessed)),
            ("true", true),
        ]
        return "\n".join(f"{label:<10}{' '.join(words[1:-1])}" for label, words in lines)

    @staticmethod
    def _replace_words(words: Sequence[str], places: Ids, texts: Sequence[str]) -> list[str]:
        """A copy of the words in which `texts` replace the words at `places`."""
        changed = list(words)
        for place, text in zip(places.tolist(), texts, strict=True):
            changed[place] = text
        return changed


class HistoryGaps(Gaps):
    """Gaps in histories: events with an unknown code."""

    def blank(self, units: int) -> Any:
        """Refuse to make a history of only gaps, because events have times.

        Raises:
            UsageError: always.
        """
        raise UsageError("a history cannot be only gaps: give a file of histories with gaps, not a length")

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """The history with more visits after it, one per line of the template.

        The line `{text}` is the history. In other lines, `+30d [MASK]` is a visit with an unknown code, 30
        days after the previous visit. Without a time, a visit is one day after the previous visit.

        Raises:
            UsageError: a time cannot be read, or there are lines before `{text}`.
        """
        events, last = list(raw.events), [event.time for event in raw.events if event.time is not None]
        now = last[-1] if last else 0.0
        lines = [line.split() for line in template.splitlines() if line.strip()]
        for number, (first, *trailing) in enumerate(lines):
            if first == "{text}" and not trailing:
                if number:
                    raise UsageError("a template of patient histories must begin with the line {text}")
                continue
            later = duration(first[1:]) if first.startswith("+") else 86_400.0
            if not later:
                raise UsageError(f"{first!r} is not a time between two visits: write +30d or +6h")
            now += later
            codes = trailing if first.startswith("+") else [first, *trailing]
            events += [Event(time=now, code=code) for code in codes]
        return replace(raw, events=tuple(events))

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """The history with its gaps. An event is a gap if its code, without vocabulary, is one of `forms`."""
        codes = [event.code.rpartition("//")[2] for event in raw.events]
        gaps = [place for place, code in enumerate(codes) if code in forms]
        return _with_gaps(raw, gaps)

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """The prompt in which each gap has one of the codes `texts`, without a value."""
        starts = [start for start, _ in prompt.raw.code_spans()]
        events, gaps = list(prompt.raw.events), [starts.index(hole.start) for hole in prompt.holes]
        for place, code in zip(gaps, texts, strict=True):
            gap_event = events[place]
            events[place] = Event(time=gap_event.time, code=code, visit=gap_event.visit, kind=gap_event.kind)
        return _with_gaps(replace(prompt.raw, events=tuple(events)), gaps)

    def candidates(self, tokenizer: Tokenizer) -> Sequence[str]:
        """The texts of all clinical events in the vocabulary.

        Intervals, visit classes and other tokens that only structure a history are not included.
        """
        texts = (tokenizer.spelling.unit_text(token) for token in range(tokenizer.space.size))
        return [text for text in texts if text is not None]


class HistoryTimes:
    """Histories up to a given time (see `seqmlm.domains.field.Times`). Times are seconds since 1970."""

    def prompt_after(self, raw: Any, time: float, gap: float, *, past: bool = True) -> Prompt:
        """A prompt with the history up to `time`, and a visit with one unknown code `gap` seconds later.

        Without `past`, the history has only the background and birth.
        """
        events_before = _events_until(raw, time if past else -math.inf)
        events = (*events_before, Event(time=time + gap, code=MASK))
        return HistoryGaps().prompt(replace(raw, events=events), (MASK,))

    def history_at(self, raw: Any, time: float) -> Any | None:
        """The background, birth and events up to a time; None if there are no dated events except birth."""
        events = _events_until(raw, time)
        dated = any(event.time is not None and not is_birth(event.code) for event in events)
        return replace(raw, events=events) if dated else None

    def last_time(self, raw: Any) -> float | None:
        """The time of the last event, or None if no event has a time."""
        return max((event.time for event in raw.events if event.time is not None), default=None)

    def state_at(self, raw: Any, time: float) -> tuple[Sequence[str], Mapping[str, str]]:
        """The codes up to a time, and the groups of the patient: sex and age band, if they are known."""
        codes = [event.code for event in raw.events if event.time is not None and event.time <= time]
        groups = {}
        sex = next((e.code.partition("//")[2] for e in raw.events if e.code.startswith(_SEX)), None)
        if sex is not None:
            groups["sex"] = sex
        if raw.birth is not None:
            age = (time - raw.birth) / (365.25 * 86_400)
            groups["age"] = next(
                (f"below {limit}" for limit in _AGES if age < limit), f"{_AGES[-1]} and above"
            )
        return codes, groups


def _events_until(raw: History, time: float) -> tuple[Event, ...]:
    """The background, birth and events up to a time."""
    return tuple(
        event for event in raw.events if event.time is None or is_birth(event.code) or event.time <= time
    )


def _with_gaps(raw: History, gaps: Sequence[int]) -> Prompt:
    """The prompt of a history. `gaps` are the indexes of the events that are gaps."""
    spans = raw.code_spans()
    return Prompt(raw=raw, holes=tuple(Hole(*spans[place]) for place in gaps))
