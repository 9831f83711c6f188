"""Wrong codes planted in real patient histories: one code is replaced with a code the patient never had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seqmlm.domains.ehr.history import History, is_birth, is_death
from seqmlm.domains.ehr.vocabulary import vocabulary_of


@dataclass(frozen=True, kw_only=True)
class WrongCode:
    """A history with one wrong code.

    Args:
        history: the history with the wrong code.
        event: index of the wrong event.
        original: the original code.
    """

    history: History
    event: int
    original: str


class CodeFrequencies:
    """Codes of many histories by vocabulary, to draw wrong ones from.

    Args:
        histories: read once.
    """

    def __init__(self, histories: Iterable[History]) -> None:
        self._counts: dict[str, Counter[str]] = {}
        for history in histories:
            for event in history.events:
                if event.time is not None and not is_birth(event.code) and not is_death(event.code):
                    own = self._counts.setdefault(vocabulary_of(event.code), Counter())
                    own[event.code] += 1

    def draw(
        self, like: str, unwanted: Sequence[str], rng: np.random.Generator, *, matched: bool
    ) -> str | None:
        """Another code of the same vocabulary, or None if there is none.

        Args:
            like: the code to be replaced.
            unwanted: codes that are not wrong, because the patient has them.
            rng: random generator.
            matched: draw codes in proportion to their frequency, so that rarity does
            not reveal the wrong code; else uniformly.
        """
        counts = self._counts.get(vocabulary_of(like), Counter())
        codes = [code for code in sorted(counts) if code not in unwanted]
        if not codes:
            return None
        weights = np.array([counts[code] if matched else 1 for code in codes], dtype=np.float64)
        return codes[int(rng.choice(len(codes), p=weights / weights.sum()))]


def wrong_code(
    history: History, frequencies: CodeFrequencies, rng: np.random.Generator, *, matched: bool = True
) -> WrongCode | None:
    """The history with one code replaced with a wrong code; None if no code can be replaced.

    The first visit is not changed if there are others, because little is known about a patient there.
    """
    timed = [
        index
        for index, event in enumerate(history.events)
        if event.time is not None and not is_birth(event.code) and not is_death(event.code)
    ]
    later = [i for i in timed if history.events[i].time != history.events[timed[0]].time]
    chosen = later or timed
    own = [event.code for event in history.events]
    for index in rng.permutation(np.array(chosen, dtype=np.int64)).tolist():
        event = history.events[index]
        code = frequencies.draw(event.code, own, rng, matched=matched)
        if code is not None:
            events = list(history.events)
            events[index] = _swapped(event, code)
            return WrongCode(history=replace(history, events=tuple(events)), event=index, original=event.code)
    return None


def _swapped(event: Any, code: str) -> Any:
    return event._replace(code=code, value=None, text=None, unit=None)
