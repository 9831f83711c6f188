"""Pseudo-log-likelihood: every unit is scored once, in one of the modes of `seqmlm.engine.units`."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seqmlm.engine.query import Query
from seqmlm.engine.reductions import Reduction, union
from seqmlm.engine.types import Bools, Encoding, Floats, Ids
from seqmlm.engine.units import EXACT, Mode, UnitLogProbs, Units

if TYPE_CHECKING:
    from seqmlm.engine.conditionals import Conditionals


@dataclass(frozen=True, eq=False)
class SequenceScore:
    """The pseudo-log-likelihood of one sequence, token by token and unit by unit.

    Args:
        positions: (A,) scored positions, ascending: all except special tokens (an unknown token is special).
            If a token shows several units, or overlapping tokens show the same unit, each unit has one
            entry, at one of its tokens.
        log_probs: (A,) natural log-probability of the observed token or unit.
        groups: (A,) unit number of each scored position.
        values: the other requested values, (A, ...) over symbols, by the name of their reduction.
    """

    positions: Ids
    log_probs: Floats
    groups: Ids
    values: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def pll(self) -> float:
        """Sum of the log-probabilities, in nats; 0 for a sequence without scored tokens."""
        return float(self.log_probs.sum(dtype=np.float64))

    @cached_property
    def units(self) -> tuple[Ids, NDArray[np.float64]]:
        """(U,) ascending unit numbers, and (U,) the sum of the log-probabilities of each unit in nats."""
        numbers, place = np.unique(self.groups, return_inverse=True)
        sums = np.bincount(place, weights=self.log_probs, minlength=len(numbers))
        return numbers, sums.astype(np.float64)


class Scorer:
    """Scores sequences with one model in one mode.

    Args:
        conditionals: answers the queries.
        units: rule for hiding units and reading them back; None for groups of tokens.
        mode: how many units are hidden at a time.
        want: the values that a `SequenceScore` has besides log-probabilities (`seqmlm.engine.reductions`).
    """

    def __init__(
        self,
        conditionals: Conditionals,
        units: Units | None = None,
        *,
        mode: Mode = EXACT,
        want: Collection[Reduction] = (),
    ) -> None:
        self.conditionals = conditionals
        self.rule = Units(conditionals.space) if units is None else units
        self.mode = mode
        self._want = union(want)

    def windows(self, windows: Iterable[tuple[Encoding, Bools | None]]) -> Iterator[SequenceScore]:
        """Score windows lazily and in order.

        Args:
            windows: (window, True at the positions to score, or None for all).
                `seqmlm.engine.windows.central_windows` decides which window scores which position.

        Raises:
            UsageError: a window is longer than the model allows.
        """
        rule = self.rule
        waiting: deque[tuple[Encoding, list[Query]]] = deque()

        def questions() -> Iterator[Query]:
            for encoding, owned in windows:
                queries = list(rule.questions(encoding, owned, self.mode))
                waiting.append((encoding, queries))
                yield from queries

        parts: list[UnitLogProbs] = []
        needed = rule.needs(self._want)
        for answer in self.conditionals.ask(questions(), needed):
            while not waiting[0][1]:
                yield _score(waiting.popleft()[0], [], rule)
            parts.append(rule.unit_log_probs(waiting[0][1][len(parts)], answer, self._want))
            if len(parts) == len(waiting[0][1]):
                yield _score(waiting.popleft()[0], parts, rule)
                parts = []
        while waiting:
            yield _score(waiting.popleft()[0], [], rule)


def _score(encoding: Encoding, parts: list[UnitLogProbs], rule: Units) -> SequenceScore:
    if not parts:
        empty = np.zeros(0, dtype=np.int32)
        return SequenceScore(empty, np.zeros(0, dtype=np.float32), empty)
    positions = np.concatenate([part.position for part in parts])
    unit = np.concatenate([part.unit for part in parts])
    # Passes that hide several units return them pass by pass. In most modes they are already in order.
    order: Any = slice(None)
    if (np.diff(positions) < 0).any():
        order = np.lexsort((unit, positions))

    def join_parts(values: list[NDArray[Any]]) -> NDArray[Any]:
        joined: NDArray[Any] = np.concatenate(values)[order]
        return joined.astype(np.float32) if joined.dtype == np.float64 else joined

    return SequenceScore(
        positions[order],
        join_parts([part.log_probs for part in parts]),
        rule.numbers(encoding)[unit[order]].astype(np.int32),
        {name: join_parts([part.values[name] for part in parts]) for name in parts[0].values},
    )
