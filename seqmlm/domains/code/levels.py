"""The levels of source code: how unusual lines, tokens and functions are.

Rare names always have a high surprisal s. A token is therefore compared with tokens of the same class:

    z = (s - mean of its class) / (standard deviation of its class)

The class of a unit is its lexer class (operator, call, string ...) and its number of subwords. Means and
standard deviations come from scored normal files without labels, so these levels need a calibration. The
level `file` does not.

The value of a line is the mean z of its three most unusual tokens. The value of a function is the 90th
percentile of z. Most of code is punctuation, which would hide unusual tokens in a plain mean.

The score uses the surprisal of the model only. Alarms use the surprisal of the mixture with counts from the
training data and from the file. The mixture finds more planted faults in whole files
(`benchmarks/studies/level_statistics.py`), but fewer bugs in short programs (QuixBugs), in which nothing
repeats. Both values grow with the number of tokens, so calibration compares rows of similar length.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from seqmlm.anomaly.findings import Fingerprints
from seqmlm.anomaly.levels import SURPRISAL, Background, Level, RecordLevel, Sampling, part_row
from seqmlm.anomaly.statistic_names import Statistics
from seqmlm.anomaly.values import ALONE, Doubles, Longs, Row, ScoredRecord
from seqmlm.data.record import Record
from seqmlm.domains.code.lexers.classes import (
    CLASSES,
    COMMENT,
    DOCSTRING,
    IDENTIFIERS,
    KEYWORD,
    STRING,
    LexerTokens,
    Positions,
)
from seqmlm.domains.code.lexers.generic import lex_generic
from seqmlm.domains.code.lexers.python import parse
from seqmlm.engine.types import Sequences
from seqmlm.errors import StateError
from seqmlm.tokenizers.base import Tokenizer

SUBWORDS = 4
"""Number of groups by subwords per unit: 1, 2, 3, and more."""

# Rare cells are smoothed with the values of their class, and rare classes with the values of all tokens. This
# is the number of observations for which these values count.
_PRIOR = 20.0
_LEAST_SPREAD = 0.1  # bits


class ClassNorms(Background):
    """The mean and standard deviation of surprisals for each lexer class and number of subwords.

    Args:
        moments: (C + 1, S, 3) count, sum and sum of squares of surprisals in bits. The last class is for
            units without a class.
        model_moments: the same for surprisals of the model without counts. None means that they are equal.
    """

    needs_scores: ClassVar[bool] = True
    learns_units: ClassVar[bool] = True

    def __init__(self, moments: Doubles, model_moments: Doubles | None = None) -> None:
        self._moments, self._model_moments = moments, moments if model_moments is None else model_moments
        self._learnt = bool(moments[..., 0].sum())
        self._norms, self._model_norms = _class_norms(moments), _class_norms(self._model_moments)

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Norms without data. They come only from scores (see `learn`)."""
        return cls(np.zeros((len(CLASSES) + 1, SUBWORDS, 3)))

    def learn(self, normal: Iterable[ScoredRecord]) -> Self:
        totals = np.zeros((2, *self._moments.shape))
        for scored in normal:
            cell = cells(scored)
            for sums, bits in zip(totals, (scored.surprisal, _model_surprisal(scored)), strict=True):
                np.add.at(sums, cell, np.stack([np.ones_like(bits), bits, bits**2], axis=1))
        return type(self)(*totals)

    def z(self, scored: ScoredRecord) -> tuple[Doubles, Doubles]:
        """The z of each unit, its surprisal in standard deviations above the mean of its class.

        Returns:
            (U,) z from the mixture with counts; (U,) z from the model without counts.

        Raises:
            StateError: the norms have no data.
        """
        if not self._learnt:
            raise StateError(
                "this model has no statistics of normal code: run seqmlm calibrate on it, or use the level "
                "'file'"
            )
        cell = cells(scored)
        mixed_z, model_z = (
            (bits - means[cell]) / spreads[cell]
            for bits, (means, spreads) in (
                (scored.surprisal, self._norms),
                (_model_surprisal(scored), self._model_norms),
            )
        )
        return mixed_z, model_z

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"moments": self._moments, "alone": self._model_moments}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], tokenizer: Tokenizer) -> Self:
        stored = arrays.get("alone")
        model_moments = None if stored is None else np.asarray(stored, dtype=np.float64)
        return cls(np.asarray(arrays["moments"], dtype=np.float64), model_moments)


def _model_surprisal(scored: ScoredRecord) -> Doubles:
    """(U,) the surprisal of each unit in bits, from the model without counts."""
    return np.asarray(scored.values.get(ALONE, scored.surprisal))


def cells(scored: ScoredRecord) -> tuple[Longs, Longs]:
    """The cell of each unit in `ClassNorms`.

    Returns:
        (U,) the class of each unit, C for units without a class; (U,) its number of subwords minus one, at
        most `SUBWORDS` - 1.
    """
    groups = scored.encoding.groups
    counts = np.bincount(groups[groups >= 0], minlength=1)
    subwords = np.minimum(counts[scored.number], SUBWORDS) - 1
    none = len(CLASSES)
    if scored.classes is None:
        return np.full(len(scored), none, dtype=np.int64), subwords
    kind = scored.classes.astype(np.int64)
    return np.where((kind >= 0) & (kind < none), kind, none), subwords


def _class_norms(moments: Doubles) -> tuple[Doubles, Doubles]:
    """(C + 1, S) the means; (C + 1, S) the standard deviations.

    Cells are smoothed with their class, and classes with all tokens.
    """
    total = moments.sum(axis=(0, 1))
    prior = total / max(total[0], 1.0)
    classes = moments.sum(axis=1) + _PRIOR * prior
    classes /= np.maximum(classes[:, :1], 1.0)
    sums = moments + _PRIOR * classes[:, None, :]
    sums /= np.maximum(sums[..., :1], 1.0)
    spread = np.sqrt(np.maximum(sums[..., 2] - sums[..., 1] ** 2, 0.0))
    return sums[..., 1], np.maximum(spread, _LEAST_SPREAD)


# Scopes

# For Python, scopes come from the syntax tree. In other languages, they come from braces and the tokens
# before them. This needs no parser, and is correct for code in a common layout. Languages without braces, and
# Python that does not parse, have only one scope: the module.

Kind = Literal["module", "class", "function"]
MODULE = "<module>"

_BRACELESS = frozenset(("python", "ruby", "lua", "sql", "haskell", "julia"))
_CLASSES = frozenset(
    ("class", "interface", "struct", "enum", "trait", "impl", "object", "namespace", "union")
)
_CONTROL = frozenset(
    (
        *("if", "else", "elif", "for", "foreach", "while", "do", "switch", "match", "catch", "try", "loop"),
        *("select", "synchronized", "using", "lock", "with", "when", "case", "defer", "unless", "finally"),
    )
)
_USES = frozenset(("=", "new", "return", "=>"))
_OPENING, _CLOSING = "([", ")]"


class Scope(NamedTuple):
    """A module, class or function in a source text.

    Attributes:
        name: its full name, which begins with the outer scopes ("Stack.push"); "<module>" for the whole text.
        kind: "module", "class" or "function".
        start, end: its start and end (half open) in characters, including decorators.
    """

    name: str
    kind: Kind
    start: int
    end: int


def scopes(text: str) -> list[Scope]:
    """The scopes of a text: the module, then all classes and functions in the order of their starts.

    An inner scope comes after its outer scope.

    Args:
        text: the source. A `SourceText` has its language. Any other text is Python if it parses as Python.
    """
    language = getattr(text, "language", "")
    module = Scope(MODULE, "module", 0, len(text))
    tree = parse(str(text)) if language in ("", "python") else None
    if tree is not None:
        inner_scopes = list(_tree_scopes(tree, Positions(str(text)), ""))
    else:
        inner_scopes = (
            [] if language in _BRACELESS else _brace_scopes(str(text), lex_generic(str(text), language))
        )
    return [module, *sorted(inner_scopes, key=lambda scope: (scope.start, -scope.end))]


def innermost_scopes(scope_list: Sequence[Scope], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) the index of the innermost scope around each character offset.

    Args:
        scope_list: the result of `scopes`.
        offsets: (N,) character offsets in the text.
    """
    owner = np.zeros(len(offsets), dtype=np.int64)
    for index, scope in enumerate(scope_list):  # inner scopes come later, and replace their outer scopes
        owner[(offsets >= scope.start) & (offsets < scope.end)] = index
    return owner


def _tree_scopes(tree: ast.AST, positions: Positions, outer: str) -> Iterator[Scope]:
    """The functions and classes of a Python syntax tree. `outer` is the full name of the scope around it."""
    waiting = [(node, outer) for node in ast.iter_child_nodes(tree)]
    while waiting:
        node, name = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}" if name else node.name
            first = (min(part.lineno for part in (node, *node.decorator_list)), node.col_offset)
            kind: Kind = "class" if isinstance(node, ast.ClassDef) else "function"
            last = (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
            yield Scope(name, kind, positions.offset(first), positions.offset(last))
        waiting += [(child, name) for child in ast.iter_child_nodes(node)]


def _brace_scopes(text: str, tokens: LexerTokens) -> list[Scope]:
    """The scopes in a language with braces. A scope without a closing brace ends at the end of the text."""
    closed: list[Scope] = []
    opened: list[tuple[int, str, Kind, int] | None] = []
    header: list[int] = []  # tokens since the last brace or semicolon
    for index, (start, end, kind) in enumerate(
        zip(tokens.starts.tolist(), tokens.ends.tolist(), tokens.classes.tolist(), strict=True)
    ):
        value = text[start:end]
        if kind in (STRING, COMMENT, DOCSTRING):
            continue
        if value == "{":
            outer = [scope[1] for scope in opened if scope is not None]
            opened.append(_scope_start(text, tokens, header, outer))
            header = []
        elif value == "}":
            if opened and (scope := opened.pop()) is not None:
                closed.append(Scope(scope[1], scope[2], scope[3], end))
            header = []
        elif value == ";":
            header = []
        else:
            header.append(index)
    return closed + [Scope(scope[1], scope[2], scope[3], len(text)) for scope in opened if scope is not None]


def _scope_start(
    text: str, tokens: LexerTokens, header: list[int], outer: list[str]
) -> tuple[int, str, Kind, int] | None:
    """The first token, full name, kind and offset of the scope that a brace opens; None for a plain block."""
    words = [text[tokens.starts[i] : tokens.ends[i]] for i in header]
    introduced = _name_and_kind(words, [int(tokens.classes[i]) for i in header])
    if introduced is None:
        return None
    name, kind = introduced
    full = f"{outer[-1]}.{name}" if outer else name
    return header[0], full, kind, int(tokens.starts[header[0]])


def _name_and_kind(words: list[str], classes: list[int]) -> tuple[str, Kind] | None:
    """The name and kind of the scope with this header (`class X`, `f(...)`, `x = (...) =>`), or None."""
    for place, word in enumerate(words[:-1]):
        if word in _CLASSES and classes[place + 1] in IDENTIFIERS and "(" not in words[:place]:
            return words[place + 1], "class"
    if words[:1] == ["type"] and words[-1] in _CLASSES:  # Go's `type X struct`
        return words[1], "class"
    if words[-1:] == ["=>"] and "=" in words:
        place = words.index("=")
        return (words[place - 1], "function") if place and classes[place - 1] in IDENTIFIERS else None
    first = next((word for word, kind in zip(words, classes, strict=True) if kind == KEYWORD), "")
    unbalanced = sum((word in _OPENING) - (word in _CLOSING) for word in words)
    if first in _CONTROL or unbalanced:
        return None
    for place in range(1, len(words)):
        callee = words[place - 1]
        if words[place] == "(" and classes[place - 1] in IDENTIFIERS and callee not in _CONTROL:
            used = not _USES.isdisjoint(words[:place])  # `x = call() {`, `return new Call() {`
            return None if used else (callee, "function")
    return None


# Rows

TOP_TOKENS = 3
PERCENTILE = 90.0
COUNT_STATISTIC = {"counted": "the score from the mixture with counts of the training data and this file"}


def line_starts(text: str) -> list[int]:
    """The character offset of the start of each line. Lines are counted as in git, SARIF and editors."""
    starts = [0]
    # A file without LF has CR as line ends, as on old Macs.
    for line in text.split("\n" if "\n" in text else "\r")[:-1]:
        starts.append(starts[-1] + len(line) + 1)
    return starts


class SourceUnits:
    """The units of a scored file, with their lines and scopes.

    Args:
        scored: the file. If its text is a `SourceText`, this has the language.
    """

    def __init__(self, scored: ScoredRecord) -> None:
        self.scored = scored
        self.text = str(scored.record.raw)
        self._starts = line_starts(self.text)
        self.fingerprints = Fingerprints(scored.record.id)

    @cached_property
    def lines(self) -> Longs:
        """(U,) the 1-based line in which each unit begins. A line break is part of the line that it ends."""
        return np.searchsorted(self._starts, self.scored.spans[:, 0], side="right").astype(np.int64)

    @cached_property
    def scopes(self) -> list[Scope]:
        """The scopes of the file (see `seqmlm.domains.code.levels.scopes`)."""
        return scopes(self.scored.record.raw)

    @cached_property
    def owners(self) -> Longs:
        """(U,) the index of the innermost scope of each unit."""
        return innermost_scopes(self.scopes, self.scored.spans[:, 0])

    def line(self, number: int) -> str:
        """The text of a line (1-based) without its line end."""
        return self.text[self.begin(number) : self.end(number)].removesuffix("\r")

    def begin(self, number: int) -> int:
        """The character offset of the start of a line (1-based)."""
        return self._starts[number - 1]

    def end(self, number: int) -> int:
        """The character offset of the end of a line (1-based), before its line end."""
        return self._starts[number] - 1 if number < len(self._starts) else len(self.text)

    def row(self, units: Longs, name: str, statistics: dict[str, float], peak: int, scope: Scope) -> Row:
        """A row with its position in the file.

        Args:
            units: the units of the row.
            name: the name of the part, which follows "#" in the id.
            statistics: the statistics, the score first.
            peak: the unit whose line and column the row gets.
            scope: the scope of the row.
        """
        row = part_row(self.scored, units, name, statistics)
        number = int(self.lines[peak])
        extra = {"column": int(self.scored.spans[peak, 0]) - self._starts[number - 1] + 1} | (
            {} if scope.kind == "module" else {"function": scope.name}
        )
        return replace(row, line=self.scored.record.line - 1 + number, peak=peak, extra=extra)

    def least_expected(self, units: Longs) -> int:
        """The unit with the highest surprisal among the units that decide a row. The unit with the highest z
        is often a line break."""
        return int(units[np.argmax(self.scored.surprisal[units])])

    def line_of(self, offset: int) -> int:
        """The 1-based line of a character offset."""
        return bisect_right(self._starts, offset)


class CodeLevel(Level):
    """Base class of the levels of code. It compares units with the norms of their class, and gives rows their
    position in the file."""

    background: ClassVar[type[Background] | None] = ClassNorms
    unknown_is_evidence: ClassVar[bool] = True

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        if not isinstance(background, ClassNorms):
            raise StateError(
                f"level {self.name!r} needs statistics of normal code, which this model does not have: run "
                "seqmlm calibrate on it, or use the level 'file'"
            )
        if not len(scored):
            return []
        mixed_z, model_z = background.z(scored)
        return self.source_rows(SourceUnits(scored), model_z, mixed_z)

    @abstractmethod
    def source_rows(self, source: SourceUnits, model_z: Doubles, mixed_z: Doubles) -> list[Row]:
        """The rows of a file.

        Args:
            source: the file.
            model_z: (U,) z of its units from the model without counts (see `ClassNorms.z`).
            mixed_z: (U,) z from the mixture with counts, if the model has counts.
        """


class LineSampling(Sampling):
    """Calibrate on some random lines of each file."""

    def row_numbers(self, record: Record, spans: Longs) -> Longs | None:
        return np.searchsorted(line_starts(str(record.raw)), spans[:, 0], side="right").astype(np.int64)


class LineLevel(CodeLevel):
    """One row per line, with the mean of its three largest z. A line includes its line break."""

    name = "line"
    statistics: ClassVar[Statistics] = Statistics(
        {"line": "mean of the line's three largest z", **COUNT_STATISTIC}, descriptive=("line",)
    )
    sampling = LineSampling()

    def source_rows(self, source: SourceUnits, model_z: Doubles, mixed_z: Doubles) -> list[Row]:
        rows = []
        bounds = np.flatnonzero(np.diff(source.lines, prepend=0, append=0))
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            units = np.arange(first, last)
            number = int(source.lines[first])
            peak = source.least_expected(units[np.argsort(-mixed_z[units], kind="stable")[:TOP_TOKENS]])
            scope = source.scopes[int(source.owners[first])]
            statistics = {
                "line": float(np.sort(model_z[units])[-TOP_TOKENS:].mean()),
                "counted": float(np.sort(mixed_z[units])[-TOP_TOKENS:].mean()),
            }
            row = source.row(units, f"L{number}", statistics, peak, scope)
            marks = source.fingerprints.hashes(self.name, scope.name, source.line(number))
            rows.append(_with_fingerprints(replace(row, end=min(row.end, source.end(number))), marks))
        return rows


class TokenLevel(CodeLevel):
    """One row per lexer token, or per word in strings and comments.

    Its statistics are its z and its surprisal. The surprisal helps to find a wrong name, because z only
    compares the name with other names, and names often have a high surprisal.
    """

    name = "token"
    statistics: ClassVar[Statistics] = Statistics(
        {"token": "surprisal against tokens of the same class, as z", **COUNT_STATISTIC, **SURPRISAL},
        descriptive=("token",),
    )

    def source_rows(self, source: SourceUnits, model_z: Doubles, mixed_z: Doubles) -> list[Row]:
        rows = []
        kinds = source.scored.classes
        for unit, (value, counted) in enumerate(zip(model_z.tolist(), mixed_z.tolist(), strict=True)):
            scope = source.scopes[int(source.owners[unit])]
            name = str(int(source.scored.number[unit]))
            bits = float(source.scored.surprisal[unit])
            statistics = {"token": value, "counted": counted, "surprisal": bits}
            unit_row = source.row(np.array([unit]), name, statistics, unit, scope)
            line = source.line(int(source.lines[unit]))
            text = f"{line}\0{source.scored.text(unit)}"
            kind = -1 if kinds is None else int(kinds[unit])
            fields: dict[str, Any] = {"class": CLASSES[kind]} if kind >= 0 else {}
            rows.append(
                _with_fingerprints(
                    unit_row, source.fingerprints.hashes(self.name, scope.name, text), **fields
                )
            )
        return [replace(row, length=1) for row in rows]


class FunctionLevel(CodeLevel):
    """One row per function, class and module, with the 90th percentile of the z of its own tokens.

    Tokens of an inner function or class are not part of the outer row.
    """

    name = "function"
    statistics: ClassVar[Statistics] = Statistics(
        {"function": "90th percentile of its tokens' z", **COUNT_STATISTIC}, descriptive=("function",)
    )

    def source_rows(self, source: SourceUnits, model_z: Doubles, mixed_z: Doubles) -> list[Row]:
        rows = []
        for index, scope in enumerate(source.scopes):
            units = np.flatnonzero(source.owners == index)
            if not len(units):
                continue
            statistics = {
                "function": float(np.percentile(model_z[units], PERCENTILE)),
                "counted": float(np.percentile(mixed_z[units], PERCENTILE)),
            }
            peak = source.least_expected(units[mixed_z[units] >= statistics["counted"]])
            row = source.row(units, scope.name, statistics, peak, scope)
            marks = source.fingerprints.hashes(self.name, scope.name, "")
            first = source.scored.record.line - 1
            fields = {
                "function": scope.name,
                "kind": scope.kind,
                "last_line": first + source.line_of(max(scope.end - 1, 0)),
                "peak_line": row.line,
            }
            located = replace(row, line=first + source.line_of(scope.start))
            rows.append(_with_fingerprints(located, marks, **fields))
        return rows


def _with_fingerprints(row: Row, fingerprints: dict[str, str], **fields: Any) -> Row:
    """The row with fingerprints and other fields added to its `extra`."""
    return replace(row, extra={**row.extra, **fields, "fingerprints": fingerprints})


class FileLevel(RecordLevel):
    """One row per file."""

    unknown_is_evidence: ClassVar[bool] = True


LEVELS: tuple[Level, ...] = (LineLevel(), TokenLevel(), FunctionLevel(), FileLevel("file"))
