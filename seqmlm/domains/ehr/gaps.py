"""Histories as text, with gaps, and as they were known at a time."""

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
    """Events of a subject."""

    empty = History(subject="", birth=None, events=())
    endings = (".csv",)

    def file_text(self, sequences: Iterable[tuple[str, Any]]) -> Iterator[str]:
        """A table of events as the format `events` reads it."""
        yield "subject_id,time,code\n"
        for name, raw in sequences:
            for event in raw.events:
                cells = (name, "" if event.time is None else iso(event.time), event.code)
                yield ",".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"

    def show(self, tokenizer: Tokenizer, raw: Any, encoding: Encoding, asked: Ids, predicted: Ids) -> str:
        """Three lines of tokens in order, since a history's own lines would be pages; see `Text.show`.

        It is for those who may see the records. Callers show it only where a user asks for it.
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
        """The words, with texts at these places."""
        changed = list(words)
        for place, text in zip(places.tolist(), texts, strict=True):
            changed[place] = text
        return changed


class HistoryGaps(Gaps):
    """Events whose code is not known."""

    def blank(self, units: int) -> Any:
        """None: events have times.

        Raises:
            UsageError: always.
        """
        raise UsageError("a history begins with a patient: give a file of histories with gaps, not a length")

    def framed(self, raw: Any, template: str, fields: Mapping[str, Any], forms: Sequence[str]) -> Any:
        """Events behind the history, a visit a line: `+30d [MASK]` is one of an unknown code 30 days later.

        Without a time a visit is a day later than what is before it. `{text}` stands for the history.

        Raises:
            UsageError: a time that is none, or lines before the history.
        """
        events, last = list(raw.events), [event.time for event in raw.events if event.time is not None]
        now = last[-1] if last else 0.0
        lines = [line.split() for line in template.splitlines() if line.strip()]
        for number, (first, *trailing) in enumerate(lines):
            if first == "{text}" and not trailing:
                if number:
                    raise UsageError("a template of patient histories begins with the line {text}")
                continue
            later = duration(first[1:]) if first.startswith("+") else 86_400.0
            if not later:
                raise UsageError(f"{first!r} is no time from one visit to the next: write +30d or +6h")
            now += later
            codes = trailing if first.startswith("+") else [first, *trailing]
            events += [Event(time=now, code=code) for code in codes]
        return replace(raw, events=tuple(events))

    def prompt(self, raw: Any, forms: Sequence[str]) -> Prompt:
        """The history with its gaps: events whose code, in any vocabulary, is one of `forms`."""
        codes = [event.code.rpartition("//")[2] for event in raw.events]
        gaps = [place for place, code in enumerate(codes) if code in forms]
        return _with_gaps(raw, gaps)

    def filled(self, prompt: Prompt, texts: Sequence[str]) -> Prompt:
        """A code, without value, in place of each gap."""
        starts = [start for start, _ in prompt.raw.code_spans()]
        events, gaps = list(prompt.raw.events), [starts.index(hole.start) for hole in prompt.holes]
        for place, code in zip(gaps, texts, strict=True):
            gap_event = events[place]
            events[place] = Event(time=gap_event.time, code=code, visit=gap_event.visit, kind=gap_event.kind)
        return _with_gaps(replace(prompt.raw, events=tuple(events)), gaps)

    def candidates(self, tokenizer: Tokenizer) -> Sequence[str]:
        """Clinical events: no interval, and nothing of the frame of visits."""
        texts = (tokenizer.spelling.unit_text(token) for token in range(tokenizer.space.size))
        return [text for text in texts if text is not None]


class HistoryTimes:
    """Histories until a time; see `seqmlm.domains.field.Times`."""

    def prompt_after(self, raw: Any, time: float, gap: float, *, past: bool = True) -> Prompt:
        """The history until a time, and a visit later of which nothing is known."""
        events_before = _events_until(raw, time if past else -math.inf)
        events = (*events_before, Event(time=time + gap, code=MASK))
        return HistoryGaps().prompt(replace(raw, events=events), (MASK,))

    def history_at(self, raw: Any, time: float) -> Any | None:
        """Background, birth, and the events until a time."""
        events = _events_until(raw, time)
        dated = any(event.time is not None and not is_birth(event.code) for event in events)
        return replace(raw, events=events) if dated else None

    def last_time(self, raw: Any) -> float | None:
        """The last event with a time."""
        return max((event.time for event in raw.events if event.time is not None), default=None)

    def state_at(self, raw: Any, time: float) -> tuple[Sequence[str], Mapping[str, str]]:
        """Codes until a time; sex where it is known, and age in bands."""
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
    """Background, birth, and the events until a time."""
    return tuple(
        event for event in raw.events if event.time is None or is_birth(event.code) or event.time <= time
    )


def _with_gaps(raw: History, gaps: Sequence[int]) -> Prompt:
    """A prompt of a history, some of whose events are gaps."""
    spans = raw.code_spans()
    return Prompt(raw=raw, holes=tuple(Hole(*spans[place]) for place in gaps))
