"""Records to encodings, batch by batch; what a tokenizer cannot spell goes where bad records go."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain
from seqmlm.engine.types import Encoding
from seqmlm.errors import DataError, SeqmlmError, StateError
from seqmlm.streams.cursor import Position
from seqmlm.streams.sources import LiveInput, ReadAhead
from seqmlm.tokenizers.base import Tokenizer, UnknownUnit

BATCH_RECORDS = 256
BATCH_CHARACTERS = 1 << 18

_UNFAMILIAR = "a record most of which the model's vocabulary does not know: is it data of another kind?"


class Encoded(NamedTuple):
    """A record and what the model sees of it."""

    record: Record
    encoding: Encoding


@dataclass(frozen=True, kw_only=True)
class Size:
    """When a batch is full: at the first record with which it reaches one of these.

    Args:
        work: forward tokens that its records may take together.
        of: forward tokens that a record of so many tokens takes.
    """

    work: float = float("inf")
    of: Callable[[int], float] = float


class Filling:
    """Measures a batch while it is filled; which records it gets depends on them alone."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self.empty()

    def empty(self) -> None:
        """A new batch begins."""
        self.records = self._characters = 0
        self._work = 0.0

    def add(self, record: Record, tokens: int = 0) -> bool:
        """Count a record; whether the batch is full with it."""
        self.records += 1
        self._characters += len(record.raw) if isinstance(record.raw, str) else 1024
        self._work += self._size.of(tokens)
        return (
            self.records >= BATCH_RECORDS
            or self._characters >= BATCH_CHARACTERS
            or self._work >= self._size.work
        )


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records that are scored together: up to `BATCH_RECORDS` of them or `BATCH_CHARACTERS`, one at least."""
    batch: list[Record] = []
    filling = Filling(Size())
    for record in records:
        batch.append(record)
        if filling.add(record):
            yield batch
            batch = []
            filling.empty()
    if batch:
        yield batch


def encoded(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> list[Encoded]:
    """Tokenize a batch; records that the tokenizer cannot spell go to `problems`.

    Raises:
        DataError: a record that cannot be spelled, where `problems` raises.
    """
    found = [one for one in tokenized(domain, tokenizer, records, problems) if one is not None]
    note_unfamiliar(found, tokenizer, problems)
    return found


def note_unfamiliar(batch: Sequence[Encoded], tokenizer: Tokenizer, problems: Problems) -> None:
    """Count the records that the vocabulary does not know."""
    problems.note(_UNFAMILIAR, _unfamiliar(batch, tokenizer))


def tokenized(
    domain: Domain, tokenizer: Tokenizer, records: Sequence[Record], problems: Problems
) -> Iterator[Encoded | None]:
    """Tokenize records one after another; None for one that cannot be spelled, which goes to `problems`.

    Raises:
        DataError: a record that cannot be spelled, where `problems` raises, after those before it.
    """
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
    inside = np.concatenate([one.encoding.groups for one in batch]) >= 0
    strange = inside & unknown[np.concatenate([one.encoding.ids for one in batch])]
    most = 2 * np.bincount(record[strange], minlength=len(batch)) > np.bincount(
        record[inside], minlength=len(batch)
    )
    return int(np.count_nonzero(most))


class InMemory:
    """Encodings in memory, as `Sequences`."""

    def __init__(self, encodings: list[Encoding]) -> None:
        self._encodings = encodings
        self.lengths = np.array([len(one) for one in encodings], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._encodings)

    def __getitem__(self, index: int) -> Encoding:
        return self._encodings[index]


# Reading and tokenizing in a second process, a few batches ahead of the model; the same results in order.
#
# The reader is a fork: it shares the tokenizer, and touches neither torch nor a device. A pipe joins the two,
# so that it is never more than a batch ahead of what the pipe holds.

Read = Callable[[Problems], Iterable[Record]]

_Event = tuple[str, tuple[Any, ...], dict[str, Any]]


def can_read_ahead() -> bool:
    """Whether there is a second core, and a fork is safe: on Linux, in a process with one Python thread."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


class Batch(list[Encoded]):
    """Records that are scored together.

    Args:
        records: those that could be tokenized.
        read: records of the input it stands for, bad ones included.
        whole: False where an error ended the input before the batch was full: without that error it would
            hold more.
    """

    def __init__(self, records: Iterable[Encoded] = (), *, read: int = 0, whole: bool = True) -> None:
        super().__init__(records)
        self.read, self.whole = read, whole


def encoded_batches(
    read: Read,
    domain: Domain,
    tokenizer: Tokenizer,
    problems: Problems,
    *,
    ahead: bool,
    size: Size | None = None,
) -> Iterator[Batch]:
    """Records in batches, tokenized; those before a bad record come before its error is raised.

    A batch depends on the records in it alone: read from the end of any batch on, the input gives the same
    further ones.

    Args:
        read: gives the records, handing what cannot be read to the `Problems` it is called with.
        domain, tokenizer: theirs.
        problems: of this process; told everything in the order of the input.
        ahead: read in a second process. Results, notes and errors are the same.
        size: of a batch.

    Raises:
        DataError: a bad record, where `problems` raises.
        StateError: the second process died.
    """
    reading = _Reading(read, domain, tokenizer, _Told(problems), size or Size())
    for message in _ahead(reading) if ahead else reading.batches():
        yield from _heard(message, problems)


class _Message(NamedTuple):
    """A batch, what was told while it was read, and the error that ended the input."""

    batch: Batch
    events: list[_Event]
    error: SeqmlmError | None


class _Reading:
    """Reads and tokenizes; knows of each record what was told on the way to it."""

    def __init__(self, read: Read, domain: Domain, tokenizer: Tokenizer, told: _Told, size: Size) -> None:
        self._read, self._domain, self._tokenizer, self._told = read, domain, tokenizer, told
        self._size = size
        self._before: deque[list[_Event]] = deque()  # what was told before each record that is read ahead
        self._ended: SeqmlmError | None = None

    def batches(self) -> Iterator[_Message]:
        """The batches; the last one has the error that ended the input, if one did."""
        filling, found, events = Filling(self._size), list[Encoded](), list[_Event]()
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
        note_unfamiliar(found, self._tokenizer, self._told)
        batch = Batch(found, read=read, whole=error is None)
        return _Message(batch, [*events, *self._told.taken()], error)

    def _spelled(self) -> Iterator[tuple[Record, Encoded | None, list[_Event]]]:
        """Every record, tokenized, with what was told of it and on the way to it."""
        for some in batches(self._records()):
            spelled = iter(tokenized(self._domain, self._tokenizer, some, self._told))
            for record in some:
                before = self._before.popleft()
                one = next(spelled)
                yield record, one, [*before, *self._told.taken()]

    def _records(self) -> Iterator[Record]:
        """The records up to the error that ends them."""
        try:
            for record in self._read(self._told):
                self._before.append(self._told.taken())
                yield record
        except SeqmlmError as error:
            self._ended = error


def _heard(message: _Message, problems: Problems) -> Iterator[Batch]:
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


# Records in batches that are scored together: the same ones whenever a file is read, or as they come.

_AHEAD = 1024  # records of a live input that wait at most
_TICK_SHARE = 0.4  # of the latency that lines may wait to become records; the rest is for scoring


def from_files(
    read: Read,
    domain: Domain,
    tokenizer: Tokenizer,
    problems: Problems,
    position: Position,
    *,
    size: Size,
    ahead: bool,
) -> Generator[Batch]:
    """The batches of the input behind a position.

    A batch depends on the records in it alone, so those behind a position at which a batch ended are the
    same whether reading began there or not.

    Args:
        read: begins to read the input.
        position: where to go on; what the input had before is not told again.
        size: of a batch.
        ahead: read in a second process.

    Raises:
        DataError: a bad record, where `problems` raises, after the batch before it.
        StateError: the input has fewer records than were done before.
    """

    def behind(told: Problems) -> Iterator[Record]:
        records = iter(read(told))
        if position.records:
            with told.replaying(position.problems):
                passed = sum(1 for _ in islice(records, position.records))
            if passed < position.records:
                raise StateError(
                    f"cannot go on: {position.records:,} records were scored, but the input now has "
                    f"{passed:,}; score again without --resume"
                )
        yield from records

    if position.records:
        with problems.replaying(position.problems):
            pass  # counting goes on from what was met then
    yield from encoded_batches(behind, domain, tokenizer, problems, ahead=ahead, size=size)


def _these(records: list[Record], told: Problems) -> list[Record]:
    """Records that were read already."""
    return records


@contextmanager
def from_live(
    read: Read,
    domain: Domain,
    tokenizer: Tokenizer,
    problems: Problems,
    live: LiveInput,
    stopping: Callable[[], bool],
    *,
    size: Size,
) -> Iterator[Iterator[Batch]]:
    """Batches of what has come; an error of the input is raised after the batch before it.

    Args:
        read: begins to read standard input.
        live: standard input.
        stopping: asked again and again; once it is true nothing more is read, and what was is handed on.
        size: of a batch.
    """
    ahead = ReadAhead(iter(read(problems)), capacity=_AHEAD)
    stopped = False

    def look() -> None:
        nonlocal stopped
        if not stopped and stopping():
            stopped = True
            live.stop()

    def come() -> Iterator[Batch]:
        for some in ahead.batches(BATCH_RECORDS, meanwhile=look):
            given = partial(_these, some)
            yield from encoded_batches(given, domain, tokenizer, problems, ahead=False, size=size)

    try:
        yield come()
    finally:
        live.stop()
        ahead.close()


def live_input(latency: float | None) -> AbstractContextManager[LiveInput | Any]:
    """Standard input as it comes, where a latency is asked for."""
    return nullcontext() if latency is None else closing(LiveInput(_TICK_SHARE * latency))
