"""Records to batches of encodings: how much is done at a time, read ahead of the model, from files or live.

A batch depends on the records in it alone, never on a clock, so that a run that continues after a crash cuts
the input where an undisturbed one does. The trade-off is that the amount of work in a batch is an estimate:
forward tokens, by the mode and the length of the records.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from seqmlm.data.files import Source, expand, is_reference
from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain
from seqmlm.engine.cones import Layers
from seqmlm.engine.layout import exact_cost
from seqmlm.engine.linear import LinearRows
from seqmlm.engine.types import Encoding
from seqmlm.engine.units import EXACT, Doubles, Mode
from seqmlm.errors import DataError, SeqmlmError, StateError
from seqmlm.inference.model_folder import LoadedModel
from seqmlm.inference.session import Session
from seqmlm.streams.cursor import Position
from seqmlm.streams.sources import LiveInput, ReadAhead
from seqmlm.tokenizers.base import Tokenizer, UnknownUnit

BATCH_RECORDS = 256
BATCH_CHARACTERS = 1 << 18
BATCH_SECONDS, COMMIT_SECONDS = 2, 30

READ_AHEAD_BYTES = 4 << 20
"""Input from which a second process reads; starting one takes longer than reading less."""

# Multiplications and additions a second: of two cores, and of a GPU that a small model does not fill.
# One core of an AMD EPYC does 0.8 to 2 times as many in exact scores of sequences of 64 to 512 tokens, of
# copies computed as differences too (fp32, tiny and small, four patterns of layers, processor time).
_RATES = {False: 5e10, True: 1e13}
_LENGTHS = 64  # of sequences whose exact score's cost is computed; up to 8,192 tokens 15 % apart
_LEAST = {False: 4096, True: 1 << 17}  # forward tokens of a batch: less would leave forwards half empty

Item = TypeVar("Item")
Read = Callable[[Problems], Iterable[Record]]


# How much is done at a time


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How much is done at a time; the same for the same model, mode and kind of device.

    Args:
        batch: forward tokens of a batch, which is full with the first record that reaches this.
        commit_interval: forward tokens between two commits.
        cost: forward tokens that a record of so many tokens takes.
    """

    batch: float = float("inf")
    commit_interval: float = float("inf")
    cost: Callable[[int], float] = float

    @classmethod
    def of(cls, model: LoadedModel, mode: Mode = EXACT) -> Budget:
        """What `BATCH_SECONDS` and `COMMIT_SECONDS` are roughly spent on, in a mode."""
        each_second = tokens_per_second(model)
        batch = max(_LEAST[torch.accelerator.is_available()], int(BATCH_SECONDS * each_second))
        return cls(
            batch=batch,
            commit_interval=max(batch, int(COMMIT_SECONDS * each_second)),
            cost=forward_tokens(model, mode),
        )


def tokens_per_second(model: LoadedModel) -> float:
    """About how many forward tokens a model computes in a second: the same in every run on such a device."""
    if isinstance(model.rows, LinearRows):  # sums over columns for each state
        return _RATES[torch.accelerator.is_available()] / (2 * model.rows.model.fields.numel())
    inputs = int(model.rows.model.get_input_embeddings().weight.numel())
    weights = max(1, sum(one.numel() for one in model.rows.parameters()) - inputs)
    return _RATES[torch.accelerator.is_available()] / (2 * weights)


def forward_tokens(model: LoadedModel, mode: Mode = EXACT) -> Callable[[int], float]:
    """What it takes to score a record of so many tokens in a mode, its units being tokens.

    In tokens that the model computes in whole sequences (`engine.layout.exact_cost`).
    """
    longest = model.card.max_length
    copies = {"one-pass": 1, "partition": mode.parts}.get(mode.kind)
    if copies is not None:
        return lambda tokens: float(copies * (tokens if tokens <= longest else 2 * tokens))
    layers = model.rows.layers
    if layers is None:
        return lambda tokens: float(tokens * min(tokens, longest))
    lengths, costs = _exact_costs(layers, longest)

    def exact(tokens: int) -> float:
        if tokens <= longest:
            return float(np.interp(tokens, lengths, costs))
        # Each token is asked in one of two windows; both are computed unmasked.
        return float(costs[-1]) * tokens / longest + tokens

    return exact


@cache
def _exact_costs(layers: Layers, longest: int) -> tuple[Doubles, Doubles]:
    """Lengths from 0 to `longest`, ascending, and the cost of an exact score, nearly linear between them."""
    lengths = np.unique(np.geomspace(1, longest, _LENGTHS).round())
    costs = [exact_cost(int(length), layers) for length in lengths]
    return np.append(0.0, lengths), np.append(0.0, costs)


class _Filling:
    """Measures a batch while it is filled; which records it gets depends on them alone."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.empty()

    def empty(self) -> None:
        """A new batch begins."""
        self.records = self._characters = 0
        self._tokens = 0.0

    def add(self, record: Record, tokens: int = 0) -> bool:
        """Count a record; whether the batch is full with it."""
        self.records += 1
        self._characters += characters(record)
        self._tokens += self._budget.cost(tokens)
        return (
            self.records >= BATCH_RECORDS
            or self._characters >= BATCH_CHARACTERS
            or self._tokens >= self._budget.batch
        )


def characters(record: Record) -> int:
    """About how long a record is in its file; what is no text counts as a kilobyte."""
    return len(record.raw) if isinstance(record.raw, str) else 1024


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records that are scored together: up to `BATCH_RECORDS` of them or `BATCH_CHARACTERS`, one at least."""
    batch: list[Record] = []
    filling = _Filling(Budget())
    for record in records:
        batch.append(record)
        if filling.add(record):
            yield batch
            batch = []
            filling.empty()
    if batch:
        yield batch


# Records and strings to encodings

_UNFAMILIAR = "a record most of which the model's vocabulary does not know: is it data of another kind?"


class Encoded(NamedTuple):
    """A record and what the model sees of it."""

    record: Record
    encoding: Encoding


def encoded(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> list[Encoded]:
    """Tokenize a batch; records that the tokenizer cannot spell go to `problems`.

    Raises:
        DataError: a record that cannot be spelled, where `problems` raises.
    """
    found = [one for one in _tokenized(domain, tokenizer, records, problems) if one is not None]
    problems.note(_UNFAMILIAR, _unfamiliar(found, tokenizer))
    return found


def encoded_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Encoding]:
    """Tokenize strings that stand in no file of the domain.

    Raises:
        DataError: a text that the tokenizer cannot spell.
    """
    try:
        return tokenizer.encode_batch(texts)
    except UnknownUnit as error:
        where = f"text {texts[error.index][:40]!r}"
        raise DataError(f"{where}: {error.reason}", remedy=error.remedy) from None


def unknown_tokens(tokenizer: Tokenizer, encodings: Iterable[Encoding]) -> int:
    """Tokens that the vocabulary does not have, which no score can count."""
    unfamiliar = np.array(tokenizer.unfamiliar, dtype=np.int32)
    return sum(int(np.isin(one.ids, unfamiliar).sum()) for one in encodings) if len(unfamiliar) else 0


def _tokenized(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded | None]:
    """Tokenize records one after another; None for one that cannot be spelled, which goes to `problems`."""
    try:
        encodings = tokenizer.encode_batch([record.raw for record in records])
    except DataError:
        yield from _singly(domain, tokenizer, records, problems)
    else:
        yield from map(Encoded, records, encodings)


def _singly(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded | None]:
    for record in records:
        found = None
        try:
            found = Encoded(record, tokenizer.encode(record.raw))
        except UnknownUnit as error:
            shown = domain.unknown_error(record, [error.found], sensitive=problems.sensitive)
            problems.bad(shown, str(record.raw))
        except DataError as error:
            placed = DataError(error.reason, source=record.source, line=record.line, remedy=error.remedy)
            problems.bad(placed, str(record.raw))
        yield found


def _unfamiliar(batch: Sequence[Encoded], tokenizer: Tokenizer) -> int:
    """Records more than half of which is unknown."""
    if not batch or not len(tokenizer.unfamiliar):
        return 0
    unknown = np.zeros(max(tokenizer.space.size, max(tokenizer.unfamiliar) + 1), dtype=np.bool_)
    unknown[list(tokenizer.unfamiliar)] = True
    record = np.repeat(np.arange(len(batch)), [len(one.encoding) for one in batch])
    # What is not known may stand outside of all units.
    strange = unknown[np.concatenate([one.encoding.ids for one in batch])]
    inside = strange | (np.concatenate([one.encoding.groups for one in batch]) >= 0)
    most = 2 * np.bincount(record[strange], minlength=len(batch)) > np.bincount(
        record[inside], minlength=len(batch)
    )
    return int(np.count_nonzero(most))


# Reading and tokenizing in a second process, a few batches ahead of the model: the same results in order
#
# The reader is a fork: it shares the tokenizer, and touches neither torch nor a device. A pipe joins the two,
# so that it is never more than a batch ahead of what the pipe holds.

_Event = tuple[str, tuple[Any, ...], dict[str, Any]]


class Input(NamedTuple):
    """Records that are to be tokenized.

    Args:
        read: begins to read them, handing what cannot be read to the `Problems` it is called with.
        domain, tokenizer: theirs.
    """

    read: Read
    domain: Domain
    tokenizer: Tokenizer


class Batch(list[Item]):
    """What is worked on together.

    Args:
        items: those records that could be tokenized, or whatever else a task asks about.
        read: records of the input it stands for, bad ones included.
        whole: False where an error ended the input before the batch was full: without that error it would
            hold more.
    """

    def __init__(self, items: Iterable[Item] = (), *, read: int = 0, whole: bool = True) -> None:
        super().__init__(items)
        self.read, self.whole = read, whole


def encoded_batches(
    given: Input, problems: Problems, *, ahead: bool, budget: Budget | None = None
) -> Iterator[Batch[Encoded]]:
    """Records in batches, tokenized; those before a bad record come before its error is raised.

    A batch depends on the records in it alone: read from the end of any batch on, the input gives the same
    further ones.

    Args:
        given: the records.
        problems: of this process; told everything in the order of the input.
        ahead: read in a second process. Results, notes and errors are the same.
        budget: of a batch.

    Raises:
        DataError: a bad record, where `problems` raises.
        StateError: the second process died.
    """
    reading = _Reading(given, _Told(problems), budget or Budget())
    for message in _ahead(reading) if ahead else reading.batches():
        yield from _heard(message, problems)


def can_read_ahead() -> bool:
    """Whether there is a second core, and a fork is safe: on Linux, in a process with one Python thread."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


class _Message(NamedTuple):
    """A batch, what was told while it was read, and the error that ended the input."""

    batch: Batch[Encoded]
    events: list[_Event]
    error: SeqmlmError | None


class _Reading:
    """Reads and tokenizes; knows of each record what was told on the way to it."""

    def __init__(self, given: Input, told: _Told, budget: Budget) -> None:
        self._given, self._told, self._budget = given, told, budget
        self._before: deque[list[_Event]] = deque()  # what was told before each record that is read ahead
        self._ended: SeqmlmError | None = None

    def batches(self) -> Iterator[_Message]:
        """The batches; the last one has the error that ended the input, if one did."""
        filling, found, events = _Filling(self._budget), list[Encoded](), list[_Event]()
        try:
            for record, one, told in self._spelled():
                events += told
                if one is not None:
                    found.append(one)
                if filling.add(record, 0 if one is None else len(one.encoding)):
                    yield self._message(found, filling.records, events)
                    filling.empty()
                    found, events = [], []
        except SeqmlmError as error:
            self._ended = error
        events += self._told.taken()
        yield self._message(found, filling.records, events, self._ended)

    def _message(
        self, found: list[Encoded], read: int, events: list[_Event], error: SeqmlmError | None = None
    ) -> _Message:
        self._told.note(_UNFAMILIAR, _unfamiliar(found, self._given.tokenizer))
        batch = Batch(found, read=read, whole=error is None)
        return _Message(batch, [*events, *self._told.taken()], error)

    def _spelled(self) -> Iterator[tuple[Record, Encoded | None, list[_Event]]]:
        """Every record, tokenized, with what was told of it and on the way to it."""
        for some in batches(self._records()):
            spelled = iter(_tokenized(self._given.domain, self._given.tokenizer, some, self._told))
            for record in some:
                before = self._before.popleft()
                one = next(spelled)
                yield record, one, [*before, *self._told.taken()]

    def _records(self) -> Iterator[Record]:
        """The records up to the error that ends them."""
        try:
            for record in self._given.read(self._told):
                self._before.append(self._told.taken())
                yield record
        except SeqmlmError as error:
            self._ended = error


def _heard(message: _Message, problems: Problems) -> Iterator[Batch[Encoded]]:
    """Tell `problems` what was told elsewhere; hand on the batch; raise what ended the input."""
    for name, positional, named in message.events:
        getattr(problems, name)(*positional, **named)
    if message.batch.read:
        yield message.batch
    if message.error is not None:
        raise message.error


class _Told(Problems):
    """Notes down what it is told, for the `Problems` it stands for, and raises where that one would."""

    def __init__(self, problems: Problems) -> None:
        super().__init__("raise" if problems.on_error == "raise" else "skip", sensitive=problems.sensitive)
        self._events: list[_Event] = []

    def bad(self, error: DataError, raw: str | None = None) -> None:
        super().bad(error)
        if not self._replayed:
            self._events.append(("bad", (error, raw), {}))

    def note(self, reason: str, n: int = 1, *, source: str | None = None, line: int | None = None) -> None:
        if n and not self._replayed:
            self._events.append(("note", (reason, n), {"source": source, "line": line}))

    def taken(self) -> list[_Event]:
        """What was told since the last time."""
        events, self._events = self._events, []
        return events


def _ahead(reading: _Reading) -> Iterator[_Message]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    reader = context.Process(target=_reader, args=(theirs, ours, reading), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside native threads; the reader calls none of the libraries that
        # have any.
        warnings.simplefilter("ignore", DeprecationWarning)
        reader.start()
    theirs.close()
    try:
        while True:
            try:
                message = ours.recv()
            except EOFError:
                raise StateError(
                    "the process that reads the input died; is there enough memory? Try again with less "
                    "at a time"
                ) from None
            if message is None:
                return
            if isinstance(message, BaseException):
                raise message
            yield message
    finally:
        ours.close()
        reader.terminate()
        reader.join()


def _reader(out: Connection, other: Connection, reading: _Reading) -> None:
    """The second process: ends when everything is read, or when nobody listens any more."""
    other.close()  # else a parent that was killed would seem to listen
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads did not survive the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever listens decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        try:
            for message in reading.batches():
                out.send(message)
            out.send(None)
        except Exception as error:
            out.send(error)
    except BrokenPipeError:
        pass


# The input of a run: files from any position on, or standard input as it comes

_WAITING = 1024  # records of a live input that wait at most
_TICK_SHARE = 0.4  # of the latency that lines may wait to become records; the rest is for scoring


@contextmanager
def input_batches(
    session: Session,
    problems: Problems,
    position: Position,
    *,
    sources: Sequence[str],
    format: str | None,
    options: Mapping[str, Any],
    latency: float | None,
    budget: Budget,
    stopping: Callable[[], bool],
) -> Iterator[Iterator[Batch[Encoded]]]:
    """The batches of a run's input, until the context ends.

    Args:
        session: reads and tokenizes the records.
        problems: receives bad ones.
        position: where to continue in files.
        sources, format, options: as `Domain.read` takes them; large files are read ahead.
        latency: seconds within which results are wanted while standard input is still written, or None.
        budget: of a batch.
        stopping: asked again and again while input is awaited; once it is true nothing more is read, and what
            was read is handed on.
    """

    def given(named: Sequence[str]) -> Input:
        read = session.reader(named, format=format, options=options)
        return Input(read, session.domain, session.tokenizer)

    if latency is None:
        size = input_bytes(sources)
        ahead = size is not None and size >= READ_AHEAD_BYTES and can_read_ahead()
        with closing(from_files(given(sources), problems, position, budget=budget, ahead=ahead)) as found:
            yield found
        return
    with closing(LiveInput(_TICK_SHARE * latency)) as live:
        read = given([Source("-", live)])
        waiting = ReadAhead(iter(read.read(problems)), capacity=_WAITING)
        try:
            yield _come(read, problems, live, waiting, stopping, budget)
        finally:
            live.stop()
            waiting.close()


def from_files(
    given: Input, problems: Problems, position: Position, *, budget: Budget, ahead: bool
) -> Generator[Batch[Encoded]]:
    """The batches of the input behind a position, the same whether reading began there or not.

    Args:
        given, problems, ahead, budget: as of `encoded_batches`.
        position: where to continue; what the input had before is not told again.

    Raises:
        DataError: a bad record, where `problems` raises, after the batch before it.
        StateError: the input has fewer records than were done before.
    """

    def behind(told: Problems) -> Iterator[Record]:
        records = iter(given.read(told))
        if position.records:
            with told.replaying(position.problems):
                passed = sum(1 for _ in islice(records, position.records))
            if passed < position.records:
                raise StateError(
                    f"cannot continue: {position.records:,} records are done, but the input now has "
                    f"{passed:,}; run again without --resume"
                )
        yield from records

    if position.records:
        with problems.replaying(position.problems):
            pass  # counting continues from what was met then
    yield from encoded_batches(given._replace(read=behind), problems, ahead=ahead, budget=budget)


def _come(
    given: Input,
    problems: Problems,
    live: LiveInput,
    waiting: ReadAhead[Record],
    stopping: Callable[[], bool],
    budget: Budget,
) -> Iterator[Batch[Encoded]]:
    """Batches of what has come; an error of the input is raised after the batch before it."""
    stopped = False

    def look() -> None:
        nonlocal stopped
        if not stopped and stopping():
            stopped = True
            live.stop()

    for some in waiting.batches(BATCH_RECORDS, meanwhile=look):
        yield from encoded_batches(
            given._replace(read=partial(_these, some)), problems, ahead=False, budget=budget
        )


def _these(records: list[Record], told: Problems) -> list[Record]:
    return records


def input_bytes(paths: Sequence[str]) -> int | None:
    """Size of all input files together, as they lie on the disk; None where some is no file."""
    files = expand(paths)
    if any(is_reference(path) or is_pipe(path) for path in files):
        return None
    return sum(Path(path).stat().st_size for path in files)


def is_pipe(path: str) -> bool:
    """Whether a path can be read only once: "-" and what is no regular file."""
    return path == "-" or not (is_reference(path) or stat.S_ISREG(Path(path).stat().st_mode))
