"""Reading and tokenizing in a second process, a few batches ahead of the model; the same results in order.

The reader is a fork: it shares the tokenizer, and touches neither torch nor a device. A pipe joins the two,
so that it is never more than a batch ahead of what the pipe holds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from seqmlm.data.problems import Problems
from seqmlm.data.record import Record
from seqmlm.domains.base import Domain
from seqmlm.errors import DataError, SeqmlmError, StateError
from seqmlm.tasks.encoding import Encoded, Filling, Size, batches, note_unfamiliar, tokenized
from seqmlm.tokenizers.base import Tokenizer

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
