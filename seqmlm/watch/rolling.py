"""A calibration that moves on with a stream: its newest rows take the place of the rows it was made with.

The model's own calibration judges until the stream has as many rows. Then, every so many rows, the ranks are
made anew of the newest ones; which statistics judge, and how they are fused, stays as it was chosen. A row
counts after one more such step, so that somebody can say meanwhile that it is a real incident: rows of
incidents that a person acknowledged are left out, and only those. Leaving out all alarms would be wrong. At a
rate a they are the share a of the normal rows, the most unusual ones; of the others the next window alarms at
the share a of what is left, so that after k windows 1 - (1 - a)^(k + 1) of normal rows alarm: .01 becomes
.02, .03, .04 and so on, without an end.

The trade-off: what nobody acknowledged is normal after a while. b rows of an incident in a window of n make
the calibration blind to what is less unusual than they are as soon as b / n exceeds the rate.

Of a stream whose calibration is fixed the same rows are kept, for a new calibration that somebody asks for
(`watch.calibration`); they move nothing. Moves depend on the number of a row in its stream, and on nothing
that is not in the database; so how rows were batched, and where a scorer was killed, changes no p-value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from seqmlm.anomaly.values import Doubles, Longs, Row
from seqmlm.config import to_dict
from seqmlm.errors import StateError
from seqmlm.inference.batches import Encoded
from seqmlm.inference.calibrations import CALIBRATION
from seqmlm.inference.detector import Detector, JudgedRow, table
from seqmlm.inference.model_folder import CARD
from seqmlm.inference.session import Session
from seqmlm.rows.judge import Judgement, Normal, Statistics
from seqmlm.streams.cursor import file_facts
from seqmlm.watch.store import Figures, RollingState

_STEPS = 4  # moves while a window of rows passes: each takes up to a second where statistics are many
_HELD = 2  # windows of rows that are held: some may turn out to be of a real incident
FEWEST = 200
"""Rows that a calibration of a stream rests on, at least."""

_ENOUGH = 1000  # rows that a window has at least where nothing moves, for a calibration of rates of .002


def size_of(own: Normal, rate: float | None) -> int:
    """Rows that a rolling calibration has: as many as the model's own, and as many as the rate needs."""
    needed = 0 if rate is None or rate < own.smallest_rate else own.rows_for(rate)
    return max(own.rows, needed, FEWEST)


def refitted(own: Normal, table: Doubles, *, seed: int) -> Normal:
    """A calibration of other rows, whose statistics judge as they do in the `own` one: of a table (N, 1 + S)
    with a row's length and its statistics, as `Rolling` keeps them, divided into folds by the `seed`."""
    return own.refitted(dict(zip(own.statistics, table.T[1:], strict=True)), table[:, 0], seed=seed)


def judged_by(session: Session, fitted: Normal, level: str, mode: str) -> dict[str, Any]:
    """What statistics of rows are of, and which calibration judged (`judge`): only of those where all the
    rest is the same a calibration can be made."""
    files = {Path(path).name: digest for path, digest in file_facts(session.model.files).items()}
    others = {name: digest for name, digest in files.items() if name not in (CALIBRATION, CARD)}
    card = json.dumps(to_dict(replace(session.card, files={})), sort_keys=True, default=str)
    return {
        "files": {**others, CARD: sha256(card.encode()).hexdigest()},
        "level": level,
        "mode": mode,
        "precision": session.precision,
        "counts": session.counts,
        "statistics": list(fitted.statistics),
        "judge": [files.get(CALIBRATION), files.get(CARD)],
    }


class Rolling:
    """The calibration of a stream.

    Args:
        own: the model's calibration.
        judged_by: names the model, level, mode and calibration; rows of another one are not taken over.
        rate: share of normal rows that may raise an alarm; None where none is asked.
        fixed: the model's own calibration judges for good; rows are kept all the same.

    Attributes:
        fitted: judges rows now.
        size, step, moves: rows it rests on once it moves, and between two moves; how many moves there were.
    """

    def __init__(
        self, own: Normal, judged_by: Mapping[str, Any], *, rate: float | None = None, fixed: bool = False
    ) -> None:
        self.own, self._rate, self.fixed, self._judged_by = own, rate, fixed, dict(judged_by)
        self._real: Callable[[], Collection[int]] = frozenset
        self.fitted = own
        self.size = size_of(own, rate)
        self.step = -(-self.size // _STEPS)
        self._guarantees = rate is not None and rate >= own.smallest_rate
        self.moves = self._number = self._moved = self._committed = 0
        self._held: dict[int, Doubles] = {}  # by number, in order
        self._window: list[int] = []
        self._rows: dict[int, int] = {}  # alarms that were not committed to their rows of results
        self._dropped: list[int] = []
        self._anew = True

    @property
    def rows(self) -> int:
        """Rows of the stream that the calibration rests on now; 0 while it is the model's own."""
        return 0 if self.fitted is self.own else len(self._window)

    def parts(self, scored: Sequence[Sequence[bool]]) -> Iterator[slice]:
        """Slices of some records, each to be judged and taken, by the calibration as it is then, in turn.

        Args:
            scored: of each record, which of its rows have a score.
        """
        begin = ahead = 0
        if self.fixed:
            self._forget(self._number)
        for place, own in enumerate(scored):
            if not self.fixed and self._number + ahead >= self._moved + self.step:  # records stay whole
                if place > begin:
                    yield slice(begin, place)
                self._move()
                begin, ahead = place, 0
            ahead += sum(own)
        if len(scored) > begin:
            yield slice(begin, len(scored))

    def take(self, statistics: Statistics, lengths: Longs, scored: Sequence[bool]) -> None:
        """Take the (M,) statistics of the rows that were just judged, of those that have a score."""
        columns = [lengths, *(statistics[name] for name in self.own.statistics)]
        figures = np.stack(columns, axis=1).astype("<f8")[np.array(scored, dtype=np.bool_)]
        self._held |= enumerate(figures, self._number + 1)
        self._number += len(figures)

    def tie(self, judged: Iterable[tuple[bool, bool]], rows: Iterable[int]) -> None:
        """Say which rows of results, by number and in order, the alarms of the batch have that was just
        judged: of each of its rows whether it has a score, and whether it is an alarm."""
        given, numbers = list(judged), iter(rows)
        number = self._number - sum(scored for scored, _ in given)
        for scored, alarm in given:
            number += scored
            row = next(numbers) if alarm else None
            if scored and row is not None:
                self._rows[number] = row

    def _move(self) -> None:
        """Rest on the newest rows, as they are at the last multiple of the step."""
        self._moved = self._number // self.step * self.step
        last, left_out, before = self._moved - self.step, self._real(), self.fitted
        usual = [number for number in self._held if number <= last and number not in left_out]
        self._window = usual[-self.size :] if len(usual) >= self.size else []
        self._forget(last)
        self._fit()
        self.moves += before is not self.fitted

    def _forget(self, last: int) -> None:
        """Hold no more than is needed once rows up to a number count."""
        oldest = last - _HELD * (max(self.size, _ENOUGH) if self.fixed else self.size)
        old = self._held.keys() - set(self._window) - set(range(oldest + 1, self._number + 1))
        self._dropped += sorted(old)
        self._held = {number: one for number, one in self._held.items() if number not in old}

    def _fit(self) -> None:
        """Make the calibration of the window; that is the model's own where rows are too few."""
        self.fitted = self.own
        if self._window:
            rows = np.stack([self._held[number] for number in self._window])
            made = refitted(self.own, rows, seed=self._moved)  # another half is ranked each time
            if not self._guarantees or (self._rate or 0) >= made.smallest_rate:
                self.fitted = made

    def change(self) -> RollingState:
        """What is to be kept with the next commit; `committed` says that it was."""
        fresh = [(n, one) for n, one in self._held.items() if n > self._committed]
        given = [Figures(number=n, row=self._rows.get(n), figures=one.tobytes()) for n, one in fresh]
        runs = np.split(self._window, np.flatnonzero(np.diff(self._window) > 1) + 1)
        state = {
            "number": self._number,
            "moved": self._moved,
            "moves": self.moves,
            "window": [[int(run[0]), int(run[-1])] for run in runs if len(run)],
            "judged_by": self._judged_by,
        }
        return RollingState(state=state, rows=given, dropped=tuple(self._dropped), anew=self._anew)

    def committed(self) -> None:
        """What `change` gave is kept."""
        self._committed, self._rows, self._dropped, self._anew = self._number, {}, [], False

    def begin(self, entry: RollingState | None, real: Callable[[], Collection[int]]) -> None:
        """Go on as it was at the last commit; begin anew where that was of another calibration; StateError:
        what was kept makes no sense.

        Args:
            entry: what was kept; None for nothing.
            real: asked at each move: numbers, among the rows of the stream that have a score, of those of
                incidents that somebody acknowledged.
        """
        self._real = real
        if entry is None or entry.state.get("judged_by") != self._judged_by:
            return
        try:
            held = {one.number: np.frombuffer(one.figures, dtype="<f8") for one in entry.rows}
            window = [n for first, last in entry.state["window"] for n in range(first, last + 1)]
            width = 1 + len(self.own.statistics)
            if not held.keys() >= set(window) or any(len(one) != width for one in held.values()):
                raise ValueError("rows are missing")
            number, self._moved, self.moves = (int(entry.state[one]) for one in ("number", "moved", "moves"))
        except (LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"the rolling calibration in the database cannot be used ({error}); name another --out, or "
                "leave --calibration out"
            ) from None
        self._number = self._committed = number
        self._held, self._window, self._anew = held, window, False
        self._fit()


class RollingDetector(Detector):
    """Judges by the calibration of a stream, which is given the statistics of all rows."""

    def __init__(self, rolling: Rolling, *given: Any, **rest: Any) -> None:
        super().__init__(*given, **rest)
        self._rolling = rolling

    def encoded(self, encoded: Sequence[Encoded]) -> list[JudgedRow]:
        found = self.scored(encoded)
        rows, judged = self.rows(found), list[JudgedRow]()
        for part in self._rolling.parts([[row.score is not None for row in own] for own in rows]):
            judged += self.judge(found[part], rows[part])
        return judged

    def judgement(self, rows: Sequence[Row]) -> Judgement:
        statistics, lengths = table(rows, self.level.judges)
        found = self._rolling.fitted.judge(statistics, lengths)
        self._rolling.take(statistics, lengths, [row.score is not None for row in rows])
        return found
