"""How unusual lines, tokens and functions of source code are: norms by token class, scopes, and the rows.

Rare names are always surprising, so a token is compared with its like:

    z = (s - mean of its class) / (standard deviation of its class)

A class is the lexer's
(operator, call, string ...) and how many sub-words the unit takes.
The norms are learnt from scored normal files without labels, so these levels need a calibration; the level
`file` does not.

A line is scored by the mean of its three most unusual tokens, a function by the 90th percentile of its own:
most of code is punctuation that tells nothing. The score has s by the model alone; what judges has counts of
training and of the file mixed in, which finds more of the faults that were planted in whole files
(`benchmarks/studies/level_statistics.py`), and fewer of the bugs of short programs (QuixBugs), where nothing
repeats.
Both grow with the number of tokens; what is unusual for a length, calibration says.
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
"""Sub-words of a unit that are told apart: 1, 2, 3, and more."""

# What is little known leans on what is better known: a class on all tokens, a cell on its class, as if the
# latter had been seen this many times.
_PRIOR = 20.0
_LEAST_SPREAD = 0.1  # bits


class ClassNorms(Background):
    """Mean and standard deviation of surprisals by lexer class and number of sub-words.

    Args:
        moments: (C + 1, S, 3) count, sum and sum of squares of surprisals in bits; the last class is that of
            units of none.
        model_moments: the same of surprisals by the model alone, where counts are mixed in; None for the
            same ones.
    """

    needs_scores: ClassVar[bool] = True
    learns_units: ClassVar[bool] = True

    def __init__(self, moments: Doubles, model_moments: Doubles | None = None) -> None:
        self._moments, self._model_moments = moments, moments if model_moments is None else model_moments
        self._learnt = bool(moments[..., 0].sum())
        self._norms, self._model_norms = _class_norms(moments), _class_norms(self._model_moments)

    @classmethod
    def fit(cls, train: Sequences, tokenizer: Tokenizer, *, seed: int) -> Self:
        """Empty norms: they are learnt from scores alone, see `learn`."""
        return cls(np.zeros((len(CLASSES) + 1, SUBWORDS, 3)))

    def learn(self, normal: Iterable[ScoredRecord]) -> Self:
        totals = np.zeros((2, *self._moments.shape))
        for scored in normal:
            cell = cells(scored)
            for sums, bits in zip(totals, (scored.surprisal, _model_surprisal(scored)), strict=True):
                np.add.at(sums, cell, np.stack([np.ones_like(bits), bits, bits**2], axis=1))
        return type(self)(*totals)

    def z(self, scored: ScoredRecord) -> tuple[Doubles, Doubles]:
        """(U,) by how many standard deviations each unit is more surprising than its class; and the same by
        the model alone.

        Raises:
            StateError: nothing was learnt yet.
        """
        if not self._learnt:
            raise StateError(
                "this model does not know how surprising normal code is: run seqmlm calibrate on it, or ask "
                "for the level 'file'"
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
    """(U,) surprisal of each unit in bits by the model alone, without counts."""
    return np.asarray(scored.values.get(ALONE, scored.surprisal))


def cells(scored: ScoredRecord) -> tuple[Longs, Longs]:
    """(U,) class of each unit, C for none; (U,) its number of sub-words less one, at most `SUBWORDS` - 1."""
    groups = scored.encoding.groups
    counts = np.bincount(groups[groups >= 0], minlength=1)
    subwords = np.minimum(counts[scored.number], SUBWORDS) - 1
    none = len(CLASSES)
    if scored.classes is None:
        return np.full(len(scored), none, dtype=np.int64), subwords
    kind = scored.classes.astype(np.int64)
    return np.where((kind >= 0) & (kind < none), kind, none), subwords


def _class_norms(moments: Doubles) -> tuple[Doubles, Doubles]:
    """(C + 1, S) means and standard deviations; cells lean on their class, classes on all."""
    total = moments.sum(axis=(0, 1))
    prior = total / max(total[0], 1.0)
    classes = moments.sum(axis=1) + _PRIOR * prior
    classes /= np.maximum(classes[:, :1], 1.0)
    sums = moments + _PRIOR * classes[:, None, :]
    sums /= np.maximum(sums[..., :1], 1.0)
    spread = np.sqrt(np.maximum(sums[..., 2] - sums[..., 1] ** 2, 0.0))
    return sums[..., 1], np.maximum(spread, _LEAST_SPREAD)


# Scopes

# Python has a syntax tree. In other languages braces are read, and what stands in front of them: that takes
# no parser and is right where code is laid out as usual. Languages without braces, and Python that does not
# parse, have one scope: the module.

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
    """A stretch of a source text.

    name: its full name, outer scopes in front ("Stack.push"); "<module>" for all of the text.
    kind: what it is.
    start, end: half-open character offsets, decorators included.
    """

    name: str
    kind: Kind
    start: int
    end: int


def scopes(text: str) -> list[Scope]:
    """The module, then all classes and functions in it in the order they begin; an inner one after its outer.

    Args:
        text: the source; a `SourceText` knows its language, any other text is Python if it parses as that.
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
    """(N,) index of the innermost scope around each character offset.

    Args:
        scope_list: as `scopes` returns them.
        offsets: (N,) places in the text.
    """
    owner = np.zeros(len(offsets), dtype=np.int64)
    for index, scope in enumerate(scope_list):  # inner ones come later and replace their outer ones
        owner[(offsets >= scope.start) & (offsets < scope.end)] = index
    return owner


def _tree_scopes(tree: ast.AST, positions: Positions, outer: str) -> Iterator[Scope]:
    """Functions and classes of a Python syntax tree; `outer` is the full name of the scope around it."""
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
    """Scopes of a language with braces; an unclosed one ends with the text."""
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
    """First token, full name, kind and offset of the scope that a brace opens; None for a plain block."""
    words = [text[tokens.starts[i] : tokens.ends[i]] for i in header]
    introduced = _name_and_kind(words, [int(tokens.classes[i]) for i in header])
    if introduced is None:
        return None
    name, kind = introduced
    full = f"{outer[-1]}.{name}" if outer else name
    return header[0], full, kind, int(tokens.starts[header[0]])


def _name_and_kind(words: list[str], classes: list[int]) -> tuple[str, Kind] | None:
    """Name and kind of what a header introduces: `class X`, `f(...)`, `x = (...) =>`."""
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
COUNT_STATISTIC = {"counted": "the score with counts of training and of this file mixed in"}


def line_starts(text: str) -> list[int]:
    """Character offset at which each line begins, as git, SARIF and editors count lines."""
    starts = [0]
    # A file without any LF has the line ends of old Macs.
    for line in text.split("\n" if "\n" in text else "\r")[:-1]:
        starts.append(starts[-1] + len(line) + 1)
    return starts


class SourceUnits:
    """The units of a scored file, and where in it they stand.

    Args:
        scored: the file; a `SourceText` knows its language.
    """

    def __init__(self, scored: ScoredRecord) -> None:
        self.scored = scored
        self.text = str(scored.record.raw)
        self._starts = line_starts(self.text)
        self.fingerprints = Fingerprints(scored.record.id)

    @cached_property
    def lines(self) -> Longs:
        """(U,) 1-based line in which each unit begins: a line break belongs to the line it ends."""
        return np.searchsorted(self._starts, self.scored.spans[:, 0], side="right").astype(np.int64)

    @cached_property
    def scopes(self) -> list[Scope]:
        """See `seqmlm.domains.code.levels.scopes`."""
        return scopes(self.scored.record.raw)

    @cached_property
    def owners(self) -> Longs:
        """(U,) index of the innermost scope of each unit."""
        return innermost_scopes(self.scopes, self.scored.spans[:, 0])

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
        row = part_row(self.scored, units, name, statistics)
        number = int(self.lines[peak])
        extra = {"column": int(self.scored.spans[peak, 0]) - self._starts[number - 1] + 1} | (
            {} if scope.kind == "module" else {"function": scope.name}
        )
        return replace(row, line=self.scored.record.line - 1 + number, peak=peak, extra=extra)

    def least_expected(self, units: Longs) -> int:
        """The unit with most bits among those that judge a row: by z alone it is often a line break."""
        return int(units[np.argmax(self.scored.surprisal[units])])

    def line_of(self, offset: int) -> int:
        """1-based line of a character offset."""
        return bisect_right(self._starts, offset)


class CodeLevel(Level):
    """Base of the levels of code: compares units with the norms of their class and places rows in files."""

    background: ClassVar[type[Background] | None] = ClassNorms
    unknown_is_evidence: ClassVar[bool] = True

    def rows(self, scored: ScoredRecord, background: Background | None) -> Sequence[Row]:
        if not isinstance(background, ClassNorms):
            raise StateError(
                f"level {self.name!r} compares code with normal code, which this model knows nothing of: run "
                "seqmlm calibrate on it, or ask for the level 'file'"
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
            model_z: (U,) by how many standard deviations its units surprise the model more than usual.
            mixed_z: (U,) the same with counts mixed in, where the model has some.
        """


class LineSampling(Sampling):
    """Calibration draws some lines of each file."""

    def row_numbers(self, record: Record, spans: Longs) -> Longs | None:
        return np.searchsorted(line_starts(str(record.raw)), spans[:, 0], side="right").astype(np.int64)


class LineLevel(CodeLevel):
    """Lines: the mean of a line's three largest z; a line break belongs to the line it ends."""

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
    """Lexer tokens (words, in strings and comments): the z of each, and its bits: a wrong name is a name."""

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
    """Functions, classes and what stands outside of them: the 90th percentile of their own tokens' z."""

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
    """A row with fingerprints and other fields added to its `extra`."""
    return replace(row, extra={**row.extra, **fields, "fingerprints": fingerprints})


class FileLevel(RecordLevel):
    """A whole file as one row."""

    unknown_is_evidence: ClassVar[bool] = True


LEVELS: tuple[Level, ...] = (LineLevel(), TokenLevel(), FunctionLevel(), FileLevel("file"))
