"""Scoring: the exact pseudo-log-likelihood of every record, in input order and in bounded memory."""

from __future__ import annotations

import json
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from seqmlm.data.files import expand
from seqmlm.data.problems import OnError, Problems
from seqmlm.data.record import Record
from seqmlm.engine.conditionals import Conditionals
from seqmlm.engine.scoring import SequenceScore, window_scores
from seqmlm.engine.types import Bools, Encoding
from seqmlm.engine.units import Units
from seqmlm.engine.windows import central_windows
from seqmlm.errors import DataError, StateError, UsageError
from seqmlm.registry import Registry, resolve
from seqmlm.tasks import bundle
from seqmlm.tasks.corpus import split_source
from seqmlm.tasks.privacy import tellable
from seqmlm.tokenizers.base import UnknownUnit
from seqmlm.workspace import Workspace

MODES = ("exact",)
_RECORDS_TOKENIZED_TOGETHER = 64
_UNFAMILIAR = "a record most of which the model's vocabulary does not know: is it data of another kind?"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """What `seqmlm score` can be told."""

    model: str
    paths: tuple[str, ...] = ()
    mode: str = "exact"
    per_unit: bool = False
    out: Path | None = None
    domain: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = "raise"
    tokens_per_batch: int = 16384


@dataclass(frozen=True, kw_only=True)
class UnitScore:
    """One unit of a record: its place in the raw sequence and its surprisal, -log2 p, in bits."""

    unit: str
    start: int
    end: int
    surprisal: float


@dataclass(frozen=True, kw_only=True)
class RecordScore:
    """One record's score.

    Args:
        id, source, line: where the record is.
        units: number of scored units.
        pll: pseudo-log-likelihood, the sum of log p(unit | rest), in nats.
        bits_per_unit: -pll / ln 2 / units; None where nothing could be scored.
        score: higher is more unusual; the bits per unit.
        per_unit: every scored unit, where asked for.
    """

    id: str
    source: str
    line: int
    units: int
    pll: float
    bits_per_unit: float | None
    score: float | None
    per_unit: tuple[UnitScore, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON line."""
        line = {key: getattr(self, key) for key in ("id", "source", "line", "units", "pll")}
        line |= {"bits_per_unit": self.bits_per_unit, "score": self.score}
        if self.per_unit is not None:
            line["per_unit"] = [
                {"unit": u.unit, "start": u.start, "end": u.end, "surprisal": u.surprisal}
                for u in self.per_unit
            ]
        return line


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """What a scoring did, for the person at the terminal.

    Args:
        records, units: scored.
        bad: records left out.
        problems: bad records and oddities, by reason.
        seconds: of all of it.
        unit: what the model's domain counts.
    """

    records: int
    units: int
    bad: int
    problems: Mapping[str, Any]
    seconds: float
    unit: str

    def sentence(self) -> str:
        """For stderr: a line for each reason, and one for the whole."""
        rate = self.units / self.seconds if self.seconds else 0.0
        bad = f", {self.bad} bad records left out" if self.bad else ""
        reasons = "".join(f"{count} x {reason}\n" for reason, count in self.problems.items())
        return (
            f"{reasons}scored {self.records:,} records, {self.units:,} {self.unit}s in {self.seconds:.1f} s"
            f" ({rate:,.0f} {self.unit}s/s){bad}"
        )


def score_files(config: ScoreConfig, stdout: TextIO) -> ScoreSummary:
    """Score files and write JSON lines, each as soon as it is known.

    Args:
        config: what to score, and how.
        stdout: where lines go when `config.out` is None.

    Raises:
        UsageError: an unknown mode, no input, a model of another domain, or no `out` for sensitive data.
        DataError: a bad record, under `on_error` "raise"; lines before it are written.
        StateError: no such model, or the disk is full.
    """
    if config.mode not in MODES:
        raise UsageError(f"unknown mode {config.mode!r}; known: {', '.join(MODES)}")
    if not config.paths:
        raise UsageError("nothing to score: name files, folders, or - for standard input")
    sources = [split_source(path)[1] for path in config.paths]
    inputs = {Path(path).resolve() for path in expand(sources)}
    if config.out is not None and config.out.resolve() in inputs:
        raise UsageError(f"--out {config.out} is one of the inputs; choose another file")
    workspace = Workspace.locate()
    where = resolve(config.model, lambda: Registry(workspace)).location
    model = bundle.load(where, domain=config.domain)
    began, records, units = time.monotonic(), 0, 0
    aside = Path(f"{config.out or 'score'}.quarantine.jsonl")
    sensitive = model.card.sensitive
    if sensitive and config.out is None:
        raise UsageError(
            "scores of sensitive data are not shown on the console: name a file with --out, which only you "
            "can read"
        )
    with Problems(config.on_error, quarantine=aside, sensitive=sensitive) as problems:
        found = model.domain.read(sources, problems, format=config.format, **config.options)
        with closing(_Output(config.out, stdout, private=sensitive)) as output:
            for scored in score_records(
                model, found, problems, per_unit=config.per_unit, tokens_per_batch=config.tokens_per_batch
            ):
                output.write(json.dumps(scored.to_dict()) + "\n")
                records += 1
                units += scored.units
            output.write("")  # no record, no line, but a file
        bad, told = problems.bad_count, tellable(problems.counts, sensitive)
    seconds = time.monotonic() - began
    return ScoreSummary(
        records=records, units=units, bad=bad, problems=told, seconds=seconds, unit=model.card.unit
    )


def score_records(
    model: bundle.LoadedModel,
    records: Iterable[Record],
    problems: Problems,
    *,
    per_unit: bool = False,
    tokens_per_batch: int = 16384,
) -> Iterator[RecordScore]:
    """Score records lazily, in order; a record longer than the model's window is scored window by window.

    Each unit of a long record is scored in the window where it is most central.

    Args:
        model: asked.
        records: read lazily.
        problems: receives records the tokenizer cannot spell.
        per_unit: keep every unit's surprisal.
        tokens_per_batch: budget of a forward pass.
    """
    waiting: deque[_Pending] = deque()
    unfamiliar = np.array(model.tokenizer.unfamiliar, dtype=np.int32)

    def windows() -> Iterator[tuple[Encoding, Bools]]:
        for record, encoding in _encoded(model, records, problems):
            ordinary = encoding.ids[encoding.groups >= 0]
            if len(ordinary) and len(unfamiliar) and np.isin(ordinary, unfamiliar).mean() > 0.5:
                problems.note(_UNFAMILIAR)
            parts = central_windows(encoding, model.tokenizer.space, model.card.max_length)
            waiting.append(_Pending(record, encoding, len(parts), []))
            yield from parts

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    ask = Conditionals(model.rows, tokens_per_batch=tokens_per_batch, device=device)
    for scored in window_scores(ask, windows(), model.tokenizer.units):
        first = waiting[0]
        first.scores.append(scored)
        if len(first.scores) == first.windows:
            yield _record_score(waiting.popleft(), model.tokenizer.units if per_unit else None)


@dataclass(frozen=True, eq=False)
class _Pending:
    """A record whose windows are being scored."""

    record: Record
    encoding: Encoding
    windows: int
    scores: list[SequenceScore]


def _encoded(
    model: bundle.LoadedModel, records: Iterable[Record], problems: Problems
) -> Iterator[tuple[Record, Encoding]]:
    stream = iter(records)
    while batch := list(islice(stream, _RECORDS_TOKENIZED_TOGETHER)):
        try:
            yield from zip(batch, model.tokenizer.encode_batch([record.raw for record in batch]), strict=True)
        except DataError:
            yield from _encoded_singly(model, batch, problems)


def _encoded_singly(
    model: bundle.LoadedModel, batch: Sequence[Record], problems: Problems
) -> Iterator[tuple[Record, Encoding]]:
    for record in batch:
        try:
            yield record, model.tokenizer.encode(record.raw)
        except UnknownUnit as error:
            shown = model.domain.unknown_error(record, [error.found], sensitive=problems.sensitive)
            problems.bad(shown, str(record.raw))
        except DataError as error:
            placed = DataError(error.reason, source=record.source, line=record.line, remedy=error.remedy)
            problems.bad(placed, str(record.raw))


def _record_score(pending: _Pending, rule: Units | None) -> RecordScore:
    """The score, with that of each unit where `rule` says where units stand."""
    groups = np.concatenate([scored.groups for scored in pending.scores])
    log_probs = np.concatenate([scored.log_probs for scored in pending.scores])
    whole = SequenceScore(np.arange(len(groups), dtype=np.int32), log_probs, groups)
    units = len(whole.units[0])
    bits = whole.bits_per_unit if units else None
    return RecordScore(
        id=pending.record.id,
        source=pending.record.source,
        line=pending.record.line,
        units=units,
        pll=whole.pll,
        bits_per_unit=bits,
        score=bits,
        per_unit=None if rule is None else _unit_scores(pending, whole, rule),
    )


def _unit_scores(pending: _Pending, whole: SequenceScore, rule: Units) -> tuple[UnitScore, ...]:
    encoding, raw = pending.encoding, str(pending.record.raw)
    place = dict(zip(rule.numbers(encoding).tolist(), rule.spans(encoding).tolist(), strict=True))
    numbers, sums = whole.units
    scores = []
    for number, log_prob in zip(numbers.tolist(), sums.tolist(), strict=True):
        start, end = place[number]
        scores.append(UnitScore(unit=raw[start:end], start=start, end=end, surprisal=-log_prob / math.log(2)))
    return tuple(scores)


class _Output:
    """Writes lines where they belong, each at once; only the first replaces a file that was there."""

    def __init__(self, path: Path | None, stdout: TextIO, *, private: bool = False) -> None:
        self._path, self._file, self._private = path, stdout, private
        self._opened = path is None

    def write(self, line: str) -> None:
        """Write one line and make sure that it is there.

        Raises:
            StateError: it cannot be written.
        """
        if self._path is None:
            self._file.write(line)
            self._file.flush()
            return
        try:
            self.open()
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            raise StateError(
                f"cannot write {self._path}: {error.strerror}; the lines before this one are kept"
            ) from None

    def open(self) -> None:
        """Open the file, if that has not been done."""
        if not self._opened and self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if self._private else 0o666
            )
            if self._private:
                os.fchmod(handle, 0o600)  # also when the file was there before
            self._file = os.fdopen(handle, "w", encoding="utf-8")
            self._opened = True

    def close(self) -> None:
        """Close the file."""
        if self._path is not None and self._opened:
            with suppress(OSError):  # every line was flushed
                self._file.close()
