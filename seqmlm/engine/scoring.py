"""Pseudo-log-likelihood: every unit priced once, in one of the modes of `seqmlm.engine.mode`."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.conditionals import Conditionals, Query
from seqmlm.engine.correction import Correction
from seqmlm.engine.mode import EXACT, ONE_PASS, Mode
from seqmlm.engine.score_cache import ScoreCache, first_unit, key_of, moved
from seqmlm.engine.types import Bools, Encoding, Floats, Ids
from seqmlm.engine.units import Longs, Prices, Units, pll_queries
from seqmlm.errors import UsageError

__all__ = [
    "EXACT",
    "ONE_PASS",
    "Mode",
    "Scorer",
    "SequenceScore",
    "pll_queries",
    "pseudo_log_likelihood",
    "window_scores",
]

# Bytes of scores a scorer remembers.
REMEMBER = 1 << 26
# Windows in a row that need no question before what is known is handed out.
_IDLE = 256


@dataclass(frozen=True, eq=False)
class SequenceScore:
    """The pseudo-log-likelihood of one sequence, token by token and unit by unit.

    Args:
        positions: (A,) scored positions, ascending: all but special tokens (an unknown token is special);
            where a token shows several units or a unit several tokens, a token of each unit.
        log_probs: (A,) natural log-probability of what was observed at each.
        groups: (A,) unit number of each scored position.
        entropy: (A,) nats; ranks: (A,) letters strictly more probable; top_ids, top_log_probs: (A, k) most
            probable letters, descending; each None where it was not asked for.
    """

    positions: Ids
    log_probs: Floats
    groups: Ids
    entropy: Floats | None = None
    ranks: Longs | None = None
    top_ids: Longs | None = None
    top_log_probs: Floats | None = None

    @property
    def pll(self) -> float:
        """Sum of the log-probabilities, in nats; 0 for a sequence without scored tokens."""
        return float(self.log_probs.sum(dtype=np.float64))

    @cached_property
    def units(self) -> tuple[Ids, NDArray[np.float64]]:
        """Unit numbers (U,) in ascending order, and the sum of each unit's log-probabilities (U,) in nats."""
        numbers, place = np.unique(self.groups, return_inverse=True)
        sums = np.bincount(place, weights=self.log_probs, minlength=len(numbers))
        return numbers, sums.astype(np.float64)

    @property
    def bits_per_unit(self) -> float:
        """-PLL in bits over the number of scored units; NaN for a sequence without any."""
        units = len(self.units[0])
        return -self.pll / np.log(2) / units if units else float("nan")


def pseudo_log_likelihood(
    conditionals: Conditionals, encodings: Iterable[Encoding], units: Units | None = None
) -> Iterator[SequenceScore]:
    """Score sequences exactly, lazily and in order; see `pll_queries`.

    Raises:
        UsageError: a sequence longer than the model: cut it into windows first.
    """
    return window_scores(conditionals, ((encoding, None) for encoding in encodings), units)


def window_scores(
    conditionals: Conditionals, windows: Iterable[tuple[Encoding, Bools | None]], units: Units | None = None
) -> Iterator[SequenceScore]:
    """Score windows, each at the positions it owns alone (see `seqmlm.engine.windows.central_windows`).

    Args:
        windows: encodings, each with (L,) True at the positions to score, or None for all.
        units: how units are hidden and read back; None for groups of tokens.

    Raises:
        UsageError: a window longer than the model.
    """
    yield from Scorer(conditionals, units).windows(windows)


class Scorer:
    """Prices sequences with one model in one mode.

    Args:
        conditionals: answers the questions.
        units: how units are hidden and read back; None for groups of tokens.
        mode: how many units are hidden at a time.
        correction: of the model's outputs; needed where nothing is hidden.
        entropy, ranks, top: what a `SequenceScore` holds beside log-probabilities.
        remember: bytes of scores that are kept for windows that come again; their arrays are shared.

    Raises:
        UsageError: a one-pass mode without a correction (give `Correction()` for raw outputs).
    """

    def __init__(
        self,
        conditionals: Conditionals,
        units: Units | None = None,
        *,
        mode: Mode = EXACT,
        correction: Correction | None = None,
        entropy: bool = False,
        ranks: bool = False,
        top: int = 0,
        remember: int = REMEMBER,
    ) -> None:
        if mode == ONE_PASS and correction is None:
            raise UsageError("one-pass scores need a correction of the outputs at tokens the model sees")
        self.conditionals = conditionals
        self.rule = Units(conditionals.space) if units is None else units
        self.mode = mode
        self._cache = ScoreCache(remember)
        self._wanted: dict[str, Any] = {
            "entropy": entropy,
            "ranks": ranks,
            "top": top,
            "full": self.rule.whole_rows or (self.rule.letter_rows and (entropy or ranks or top > 0)),
            "correction": correction,
        }

    def windows(self, windows: Iterable[tuple[Encoding, Bools | None]]) -> Iterator[SequenceScore]:
        """Score windows lazily and in order, each at the positions it owns (None: all).

        Raises:
            UsageError: a window longer than the model.
        """
        stream = iter(windows)
        while ahead := list(islice(stream, 1)):
            waiting: deque[tuple[Encoding, _Window]] = deque()
            asking: dict[Hashable, _Window] = {}
            questions = self._questions(chain(ahead, stream), waiting, asking)
            for answer in self.conditionals.ask(questions, **self._wanted):
                asked = self._next_asked(waiting)
                asked.parts.append(self.rule.read(asked.queries[len(asked.parts)], answer))
                yield from self._finished(waiting, asking)
            yield from self._finished(waiting, asking)

    def _questions(
        self,
        stream: Iterator[tuple[Encoding, Bools | None]],
        waiting: deque[tuple[Encoding, _Window]],
        asking: dict[Hashable, _Window],
    ) -> Iterator[Query]:
        """The questions of the next windows; ends early after many that need none, so that those can go."""
        idle = 0
        for encoding, owned in stream:
            key = key_of(encoding, owned)
            known = self._cache.get(key)
            window = asking.get(key)
            if known is not None:
                window = _Window(key, score=known)
            elif window is None:
                queries = list(self.rule.questions(encoding, owned, self.mode))
                window = _Window(key, queries=queries)
                if queries:
                    asking[key] = window
            else:
                window = _Window(key, first=window)
            waiting.append((encoding, window))
            idle = 0 if window.queries else idle + 1
            yield from window.queries
            if idle >= _IDLE:
                return

    @staticmethod
    def _next_asked(waiting: deque[tuple[Encoding, _Window]]) -> _Window:
        """The first window whose answers are not all there; those before it wait for nothing."""
        return next(window for _, window in waiting if len(window.parts) < len(window.queries))

    def _finished(
        self, waiting: deque[tuple[Encoding, _Window]], asking: dict[Hashable, _Window]
    ) -> Iterator[SequenceScore]:
        """Scores of the windows at the front that wait for no answer."""
        while waiting:
            encoding, window = waiting[0]
            if len(window.parts) < len(window.queries):
                return
            waiting.popleft()
            start = first_unit(encoding)
            if window.first is not None:
                window.score = window.first.score
            elif window.score is None:
                window.score = moved(_score(encoding, window.parts, self.rule), -start)
                window.queries, window.parts = [], []
                asking.pop(window.key, None)
                self._cache.put(window.key, window.score)
            assert window.score is not None
            yield moved(window.score, start)


@dataclass(slots=True, eq=False)
class _Window:
    """A window that is being scored.

    Args:
        key: what its score depends on.
        queries, parts: its questions and what their answers said so far.
        first: an equal window in front of it, whose score it takes.
        score: with unit numbers from 0 on, once it is known.
    """

    key: Hashable
    queries: list[Query] = field(default_factory=list)
    parts: list[Prices] = field(default_factory=list)
    first: _Window | None = None
    score: SequenceScore | None = None


def _score(encoding: Encoding, parts: list[Prices], rule: Units) -> SequenceScore:
    if not parts:
        empty = np.zeros(0, dtype=np.int32)
        return SequenceScore(empty, np.zeros(0, dtype=np.float32), empty)
    positions = np.concatenate([part.position for part in parts])
    unit = np.concatenate([part.unit for part in parts])
    # Passes that hide several units ask them pass by pass; most modes ask in order already.
    order: Any = slice(None)
    if (np.diff(positions) < 0).any():
        order = np.lexsort((unit, positions))

    def gathered(name: str, kind: Any) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if values[0] is None else np.concatenate(values)[order].astype(kind)

    return SequenceScore(
        positions[order],
        gathered("log_probs", np.float32),
        rule.numbers(encoding)[unit[order]].astype(np.int32),
        entropy=gathered("entropy", np.float32),
        ranks=gathered("ranks", np.int64),
        top_ids=gathered("top_ids", np.int64),
        top_log_probs=gathered("top_log_probs", np.float32),
    )
