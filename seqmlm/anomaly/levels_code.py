"""Levels of source code: line, token, function, by surprisal against what is usual for a token's class.

A line is the mean of its three most unusual tokens, a function the 90th percentile of its own (an inner
function's tokens are that one's alone): most of code is punctuation that tells nothing. Beside it, of
both, stands the largest: a single wrong token moves no percentile. All of them grow with the number of
tokens; what is unusual for its length, calibration says.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from seqmlm.anomaly.background import Background
from seqmlm.anomaly.code_norms import ClassNorms
from seqmlm.anomaly.code_scopes import Scope, innermost, scopes
from seqmlm.anomaly.fingerprints import Fingerprints
from seqmlm.anomaly.levels import Level, RecordLevel, part_row
from seqmlm.anomaly.values import Doubles, Longs, Row, Scored
from seqmlm.errors import StateError
from seqmlm.tokenizers.lexers.classes import CLASSES

TOP_TOKENS = 3
PERCENTILE = 90.0


class SourceUnits:
    """The units of a scored file, and where in it they stand.

    Args:
        scored: the file; a `SourceText` knows its language.
    """

    def __init__(self, scored: Scored) -> None:
        self.scored = scored
        self.text = str(scored.record.raw)
        self._starts = [0]
        for line in self.text.split("\n")[:-1]:  # what git, SARIF and editors count
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.fingerprints = Fingerprints(scored.record.id)

    @cached_property
    def lines(self) -> Longs:
        """(U,) 1-based line in which each unit begins: a line break belongs to the line it ends."""
        return np.searchsorted(self._starts, self.scored.spans[:, 0], side="right").astype(np.int64)

    @cached_property
    def scopes(self) -> list[Scope]:
        """See `seqmlm.anomaly.code_scopes.scopes`."""
        return scopes(self.scored.record.raw)

    @cached_property
    def owners(self) -> Longs:
        """(U,) index of the innermost scope of each unit."""
        return innermost(self.scopes, self.scored.spans[:, 0])

    def line(self, number: int) -> str:
        """The text of a line (1-based), without its end."""
        return self.text[self.begin(number) : self.end(number)].removesuffix("\r")

    def begin(self, number: int) -> int:
        """Character offset of a line's (1-based) first character."""
        return self._starts[number - 1]

    def end(self, number: int) -> int:
        """Character offset behind a line (1-based), without its end."""
        return self._starts[number] - 1 if number < len(self._starts) else len(self.text)

    def row(self, units: Longs, name: str, statistics: dict[str, float], peak: int, scope: Scope) -> Row:
        """A row that says where in the file it is.

        Args:
            units: its units.
            name: of the part, after "#".
            statistics: its score first.
            peak: the unit that its line and column name.
            scope: around it.
        """
        made = part_row(self.scored, units, name, statistics)
        number = int(self.lines[peak])
        extra = {"column": int(self.scored.spans[peak, 0]) - self._starts[number - 1] + 1} | (
            {} if scope.kind == "module" else {"function": scope.name}
        )
        return replace(made, line=self.scored.record.line - 1 + number, extra=extra)

    def line_of(self, offset: int) -> int:
        """1-based line of a character offset."""
        return bisect_right(self._starts, offset)


class CodeLevel(Level):
    """What the levels of code share: the norms of classes, and how a place in a file is named."""

    background: ClassVar[type[Background] | None] = ClassNorms
    pictures = ("source",)

    def rows(self, scored: Scored, background: Background | None) -> Sequence[Row]:
        if not isinstance(background, ClassNorms):
            raise StateError(
                f"level {self.name!r} compares code with normal code, which this model knows nothing of: run "
                "seqmlm calibrate on it, or ask for the level 'file'"
            )
        if not len(scored):
            return []
        return self.of(SourceUnits(scored), background.z(scored))

    @abstractmethod
    def of(self, source: SourceUnits, z: Doubles) -> list[Row]:
        """The rows of a file whose units are by z standard deviations (U,) more surprising than usual."""


class LineLevel(CodeLevel):
    """Lines: the mean of a line's three largest z; a line break belongs to the line it ends."""

    name = "line"
    channels = ("line", "peak")

    def of(self, source: SourceUnits, z: Doubles) -> list[Row]:
        rows = []
        bounds = np.flatnonzero(np.diff(source.lines, prepend=0, append=0))
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            units = np.arange(first, last)
            order = np.argsort(-z[units], kind="stable")[:TOP_TOKENS]
            number, peak = int(source.lines[first]), first + int(order[0])
            scope = source.scopes[int(source.owners[first])]
            statistics = {"line": float(z[units][order].mean()), "peak": float(z[peak])}
            made = source.row(units, f"L{number}", statistics, peak, scope)
            marks = source.fingerprints.of(self.name, scope.name, source.line(number))
            rows.append(_marked(replace(made, end=min(made.end, source.end(number))), marks))
        return rows


class TokenLevel(CodeLevel):
    """Lexer tokens (words, in strings and comments): the z of each."""

    name = "token"
    channels = ("token",)

    def of(self, source: SourceUnits, z: Doubles) -> list[Row]:
        rows = []
        kinds = source.scored.classes
        for unit, value in enumerate(z.tolist()):
            scope = source.scopes[int(source.owners[unit])]
            name = str(int(source.scored.number[unit]))
            made = source.row(np.array([unit]), name, {"token": value}, unit, scope)
            text = f"{source.line(int(source.lines[unit]))}\0{source.scored.text(unit)}"
            kind = -1 if kinds is None else int(kinds[unit])
            more: dict[str, Any] = {"class": CLASSES[kind]} if kind >= 0 else {}
            rows.append(_marked(made, source.fingerprints.of(self.name, scope.name, text), **more))
        return [replace(row, length=1) for row in rows]


class FunctionLevel(CodeLevel):
    """Functions, classes and what stands outside of them: the 90th percentile of their own tokens' z."""

    name = "function"
    channels = ("function", "peak")

    def of(self, source: SourceUnits, z: Doubles) -> list[Row]:
        rows = []
        for index, scope in enumerate(source.scopes):
            units = np.flatnonzero(source.owners == index)
            if not len(units):
                continue
            peak = int(units[np.argmax(z[units])])
            statistics = {"function": float(np.percentile(z[units], PERCENTILE)), "peak": float(z[peak])}
            made = source.row(units, scope.name, statistics, peak, scope)
            marks = source.fingerprints.of(self.name, scope.name, "")
            first = source.scored.record.line - 1
            more = {
                "function": scope.name,
                "kind": scope.kind,
                "last_line": first + source.line_of(max(scope.end - 1, 0)),
                "peak_line": made.line,
            }
            placed = replace(made, line=first + source.line_of(scope.start))
            rows.append(_marked(placed, marks, **more))
        return rows


def _marked(row: Row, fingerprints: dict[str, str], **more: Any) -> Row:
    return replace(row, extra={**row.extra, **more, "fingerprints": fingerprints})


LEVELS: tuple[Level, ...] = (LineLevel(), TokenLevel(), FunctionLevel(), RecordLevel("file"))
